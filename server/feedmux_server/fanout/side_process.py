"""A process of its own for work that would hold the event loop: it is asked, and answers, one request at a time.

The process starts with the first request. A process that dies, or that does not answer in time (it may be frozen), is
killed and replaced, and the request is asked once more. `side_worker` is the half that runs in the process.
"""

import asyncio
import logging
import socket
import subprocess
import sys
import threading
from asyncio import StreamReader, StreamWriter
from collections.abc import Callable
from dataclasses import dataclass

from feedmux_server.fanout.side_worker import LENGTH

log = logging.getLogger(__name__)

START_TIMEOUT_S = 30.0
"""Starting Python and its imports, on a machine with no time to spare."""
_ATTEMPTS = 2
_READ_AHEAD_BYTES = 1024 * 1024


class SideProcessFailed(Exception):
    """There is no answer: the process died or froze over the request, twice, or it is closed."""


@dataclass(slots=True)
class _Running:
    """The process, and the socket that is its standard input and output."""

    process: "subprocess.Popen[bytes]"
    answers: StreamReader
    requests: StreamWriter
    answer_bytes: int = 0
    """Of the last answer that was begun."""

    @classmethod
    async def start(cls, module: str) -> "_Running":
        """Raises OSError or IncompleteReadError when the process does not start."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                process = _spawn(module, theirs.fileno())
        except BaseException:
            ours.close()
            raise
        try:
            answers, requests = await asyncio.open_connection(sock=ours, limit=_READ_AHEAD_BYTES)
        except BaseException:
            ours.close()
            _kill(process)
            raise
        running = cls(process, answers, requests)
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                await running.answer()
        except BaseException:
            running.end()
            raise
        return running

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    async def ask(self, request: bytes) -> bytes:
        """Raises OSError or IncompleteReadError when the process is gone. Only an answer leaves it fit for another."""
        self.answer_bytes = 0
        self.requests.write(LENGTH.pack(len(request)))
        self.requests.write(request)
        await self.requests.drain()
        return await self.answer()

    async def answer(self) -> bytes:
        (self.answer_bytes,) = LENGTH.unpack(await self.answers.readexactly(LENGTH.size))
        return await self.answers.readexactly(self.answer_bytes)

    def end(self) -> None:
        """Kills the process; never waits."""
        self.requests.transport.abort()
        _kill(self.process)


class SideProcess:
    """A process that runs `module`. To be ended with `close`."""

    def __init__(self, module: str, answer_timeout_s: Callable[[int], float] | float) -> None:
        """`answer_timeout_s`: how long an answer may take, or the same by the request's size."""
        self._module = module
        self._timeout_s = answer_timeout_s
        self._running: _Running | None = None
        self._asking: asyncio.Task[bytes | None] | None = None
        self._request_bytes = 0
        self._closed = False

    @property
    def pid(self) -> int | None:
        """The process, while it runs."""
        return self._running.process.pid if self._running is not None else None

    @property
    def held_bytes(self) -> int:
        """What the request being asked and its answer hold."""
        if self._asking is None or self._asking.done():
            return 0
        return self._request_bytes + (self._running.answer_bytes if self._running is not None else 0)

    async def ask(self, request: bytes) -> bytes:
        """The process's answer. The caller asks one request at a time. Raises SideProcessFailed.

        The request of a cancelled caller is still answered: the answer is dropped, and the next request waits for it.
        So no caller gets the answer to another request, and cancelling costs no process.
        """
        while self._asking is not None and not self._asking.done():
            await asyncio.wait([self._asking])
        if self._closed:
            raise SideProcessFailed(f"{self._module} is closed")
        self._request_bytes = len(request)
        self._asking = task = asyncio.create_task(self._answer(request), name=f"side-process-{self._module}")
        # The task is not awaited itself: a cancelled caller must not cancel it, nor `close` cancel the caller.
        await asyncio.wait([task])
        answer = None if task.cancelled() else task.result()
        if answer is None:
            raise SideProcessFailed(f"{self._module} died or froze over a request of {len(request)} bytes")
        return answer

    async def close(self) -> None:
        """Kills the process. A waiting `ask` raises SideProcessFailed."""
        self._closed = True
        self._end_process()
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait([self._asking])

    async def _answer(self, request: bytes) -> bytes | None:
        for _ in range(_ATTEMPTS):
            try:
                return await self._attempt(request)
            except (OSError, asyncio.IncompleteReadError) as error:  # a TimeoutError is an OSError
                log.warning(
                    "a side process died or froze, and is replaced",
                    extra={"runs": self._module, "request_bytes": len(request), "cause": type(error).__name__},
                )
        return None

    async def _attempt(self, request: bytes) -> bytes:
        if self._running is not None and not self._running.alive:
            self._end_process()  # it died before this request, which is none of the request's attempts
        try:
            if self._running is None:
                self._running = await _Running.start(self._module)
            timeout_s = self._timeout_s(len(request)) if callable(self._timeout_s) else self._timeout_s
            async with asyncio.timeout(timeout_s):
                return await self._running.ask(request)
        except BaseException:
            self._end_process()  # it may still answer, or be in the midst of it
            raise

    def _end_process(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            running.end()


def _spawn(module: str, end: int) -> "subprocess.Popen[bytes]":
    # By subprocess, which uses vfork: asyncio's fork runs gRPC's fork handlers in a process full of its threads.
    return subprocess.Popen((sys.executable, "-m", module), stdin=end, stdout=end, process_group=0)


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """SIGKILL, which ends a stopped process too. A daemon thread reaps it, so neither the loop nor a shutdown waits."""
    process.kill()
    threading.Thread(target=process.wait, name="side-process-reaper", daemon=True).start()
