"""Small measurements that several benchmarks need."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from pymongo import MongoClient

from feedmux_embedded import Process

MIB = 1024 * 1024


def documents_returned(client: MongoClient[dict[str, Any]]) -> int:
    """Return the number of documents that mongod has returned to all clients since its start."""
    return int(client.admin.command("serverStatus")["metrics"]["document"]["returned"])


def percentile(values: Sequence[float], percent: float) -> float:
    """Return a percentile by the nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


class Memory:
    """Resident memory of a process while it is watched."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.first_bytes = self.most_bytes = process.rss_bytes()

    @property
    def growth_bytes(self) -> int:
        return self.most_bytes - self.first_bytes

    def look(self) -> None:
        self.most_bytes = max(self.most_bytes, self._process.rss_bytes())


@asynccontextmanager
async def watched(process: Process, every_s: float = 0.25) -> AsyncIterator[Memory]:
    """Measure the memory of `process` repeatedly while the block runs."""
    memory = Memory(process)

    async def look() -> None:
        while True:
            await asyncio.sleep(every_s)
            memory.look()

    task = asyncio.create_task(look())
    try:
        yield memory
    finally:
        task.cancel()
        memory.look()
