"""Programs in other languages that read what a benchmark measures.

A program connects, writes the line `ready`, waits for a line on standard input, reads, and writes one JSON object in a
line: `elapsed_s` from the start to the end, `cpu_s` used in between, `count`, and what else its benchmark checks. It
ends at once when standard input ends, because then the benchmark has ended.
"""

import asyncio
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_ROOT: Final = Path(__file__).parents[1]


class ReaderFailed(RuntimeError):
    """A program could not be built, or failed."""


@dataclass(frozen=True, slots=True)
class Program:
    """How to build and start a program from the repository's root, and the tools this needs on PATH."""

    build: Sequence[str]
    command: Sequence[str]
    tools: Sequence[str]
    ready_timeout_s: float = 60.0

    @property
    def missing(self) -> list[str]:
        return [tool for tool in self.tools if shutil.which(tool) is None]

    async def make(self) -> None:
        process = await asyncio.create_subprocess_exec(
            *self.build, cwd=_ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        said, _ = await process.communicate()
        if process.returncode:
            raise ReaderFailed(f"{' '.join(self.build)}:\n{said.decode()}")

    async def read(self, *arguments: str) -> dict[str, Any]:
        """Run it, and return what it has measured."""
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*self.command, *arguments, cwd=_ROOT, stdin=pipe, stdout=pipe)
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            async with asyncio.timeout(self.ready_timeout_s):
                ready = await process.stdout.readline()
            if ready.strip() != b"ready":
                raise ReaderFailed(f"{' '.join(self.command)} is not ready; its output above says why")
            process.stdin.write(b"go\n")
            said = await process.stdout.readline()
            process.stdin.close()
            if await process.wait() or not said:
                raise ReaderFailed(f"{' '.join(self.command)} exited with {process.returncode}")
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        measured: dict[str, Any] = json.loads(said)
        return measured
