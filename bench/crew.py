"""Client processes that begin together: it spawns them, waits until they are ready, starts them and collects results.

A job is a module-level function of a `Gate` and its own argument. It does the preparation that must not be measured
(imports, connections), reports `ready`, waits for the start, works, and returns. On Linux `time.monotonic` is one clock
for all processes, so the times that jobs return can be compared. A worker whose parent has ended ends at once.
"""

import asyncio
import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Self

_READY_TIMEOUT_S = 120.0


class WorkerFailed(RuntimeError):
    """A client process failed; the message holds its traceback."""


class Gate:
    """A worker's view of the start and the end."""

    def __init__(self, pipe: "Connection[Any, Any]") -> None:
        self._pipe = pipe
        self._go = threading.Event()
        self.stopped = threading.Event()
        """Set when the parent wants an endless job to return."""

    def listen(self) -> None:
        """Listen to the parent, in a thread, for as long as the process runs."""
        try:
            while True:
                match self._pipe.recv():
                    case "go":
                        self._go.set()
                    case "stop":
                        self.stopped.set()
        except (EOFError, OSError):
            os._exit(1)

    def ready(self) -> None:
        self._pipe.send(("ready", None))

    def wait(self) -> float:
        """Report that everything is ready, wait for the start and return its time."""
        self.ready()
        self._go.wait()
        return time.monotonic()

    async def wait_async(self) -> float:
        """Do the same on an event loop."""
        return await asyncio.to_thread(self.wait)


Job = Callable[[Gate, Any], Any]


@dataclass(frozen=True, slots=True)
class _Member:
    process: BaseProcess
    pipe: "Connection[Any, Any]"


class Crew:
    """`async with Crew([(job, argument), …]) as crew: crew.go(); results = await crew.results()`."""

    def __init__(self, jobs: Sequence[tuple[Job, Any]], ready_timeout_s: float = _READY_TIMEOUT_S) -> None:
        self._jobs = jobs
        self._ready_timeout_s = ready_timeout_s
        self._members: list[_Member] = []

    async def __aenter__(self) -> Self:
        """Start the processes, and return when all are ready."""
        context = multiprocessing.get_context("spawn")
        for job, argument in self._jobs:
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, job, argument), daemon=True)
            process.start()
            theirs.close()
            self._members.append(_Member(process, ours))
        try:
            async with asyncio.timeout(self._ready_timeout_s):
                await self.ready()
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._end()

    async def ready(self) -> None:
        """Wait until every job has reported (again) that it is ready."""
        for member in self._members:
            await _answer(member, "ready")

    def go(self) -> None:
        """Start all jobs."""
        for member in self._members:
            member.pipe.send("go")

    def stop(self) -> None:
        """Ask the endless jobs to return."""
        for member in self._members:
            member.pipe.send("stop")

    def freeze(self, index: int) -> None:
        """Stop a worker with SIGSTOP. A frozen worker is killed at the end."""
        pid = self._members[index].process.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)

    async def results(self, indices: Sequence[int] | None = None) -> list[Any]:
        """Return the results of the jobs, in order. Raises WorkerFailed."""
        chosen = self._members if indices is None else [self._members[index] for index in indices]
        return [await _answer(member, "result") for member in chosen]

    async def _end(self) -> None:
        for member in self._members:
            member.pipe.close()
            member.process.kill()
        for member in self._members:
            await asyncio.to_thread(member.process.join)
        self._members.clear()


async def _answer(member: _Member, wanted: str) -> Any:
    while not member.pipe.poll():
        if not member.process.is_alive() and not member.pipe.poll():
            raise WorkerFailed(f"a client process ended with status {member.process.exitcode}")
        await asyncio.sleep(0.01)
    kind, value = member.pipe.recv()
    if kind != wanted:
        raise WorkerFailed(str(value))
    return value


def _work(pipe: "Connection[Any, Any]", job: Job, argument: Any) -> None:
    # Ctrl-C reaches the whole foreground group; the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A backlog written in seconds lets the oplog's forecast warn every session that its history is at risk.
    logging.getLogger("feedmux").setLevel(logging.ERROR)
    gate = Gate(pipe)
    threading.Thread(target=gate.listen, daemon=True).start()
    try:
        pipe.send(("result", job(gate, argument)))
    except BaseException:  # noqa: BLE001 the parent reports any error
        pipe.send(("failed", traceback.format_exc()))
        sys.exit(1)
    threading.Event().wait()  # until the parent has read the result and ends this process
