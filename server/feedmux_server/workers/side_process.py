"""A separate process for work that would block the event loop: it answers one request at a time.

The process starts with the first request. A process that dies, freezes or takes too long is killed and replaced, and
the request is sent once more. A process that waits for a CPU core is not frozen, so its limit counts CPU time.
`side_worker` is the half that runs in the process.
"""

import asyncio
import logging
import socket
import subprocess
import sys
import threading
import time
from asyncio import StreamReader, StreamWriter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from io import BytesIO
from typing import Any

from feedmux_server.workers.side_worker import LENGTH, Answer

log = logging.getLogger(__name__)

START_TIMEOUT_S = 30.0
"""The CPU time that Python may take to start and to run its imports."""
_ATTEMPTS = 2
_PERIODS_MAX = 20
"""The most periods, each as long as the time limit, for a process that uses only a little CPU time in each."""
_READ_AHEAD_BYTES = 1024 * 1024
"""What the event loop copies at once of an answer, which may have 80 MB."""


class SideProcessFailed(Exception):
    """There is no answer: the process died or froze twice while it handled the request, or it is closed."""


@dataclass(slots=True)
class _Running:
    """The process, and the socket that is its standard input and output."""

    process: "subprocess.Popen[bytes]"
    answers: StreamReader
    requests: StreamWriter
    answer_bytes: int = 0
    """Size of the last answer, as far as it began to arrive."""

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
            await running.within(START_TIMEOUT_S, running.answer())
        except BaseException:
            running.end()
            raise
        return running

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    async def ask(self, head: bytes, data: bytes) -> Answer:
        """Send a request, `head` and `data` as one, and return the answer. Raises OSError or IncompleteReadError when
        the process is gone.

        The process can take another request only after this one was answered.
        """
        self.answer_bytes = 0
        self.requests.write(LENGTH.pack(len(head) + len(data)) + head)
        self.requests.write(data)
        await self.requests.drain()
        return await self.answer()

    async def answer(self) -> Answer:
        return await self._receive(), await self._receive()

    async def _receive(self) -> bytes:
        """A part of an answer, which is neither joined nor copied as a whole: that would hold the event loop."""
        (size,) = LENGTH.unpack(await self.answers.readexactly(LENGTH.size))
        self.answer_bytes += size
        whole = BytesIO(bytes(size))  # not touched: the system makes each page when it is written
        while whole.tell() < size:
            piece = await self.answers.read(min(size - whole.tell(), _READ_AHEAD_BYTES))
            if not piece:
                raise asyncio.IncompleteReadError(b"", size)
            whole.write(piece)
        return whole.getvalue()

    async def within(self, timeout_s: float, exchange: Coroutine[Any, Any, Answer]) -> Answer:
        """The result of `answer` or `ask`, for which the process may use `timeout_s` seconds of CPU time.

        Raises TimeoutError when the process has used more, or has used none in `timeout_s` seconds, as a frozen process
        does.
        """
        task = asyncio.create_task(exchange, name="side-process-exchange")
        # After the caller was cancelled, nobody else retrieves a failure.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            used_s = _cpu_s(self.process)
            limit_s = used_s + timeout_s
            for _ in range(_PERIODS_MAX):
                await asyncio.wait([task], timeout=timeout_s)
                before_s, used_s = used_s, _cpu_s(self.process)
                if task.done() or not before_s < used_s < limit_s:
                    break
            if task.done():
                return await task
            raise TimeoutError
        finally:
            task.cancel()

    def end(self) -> None:
        """Kill the process without waiting for its end."""
        self.requests.transport.abort()
        _kill(self.process)


class SideProcess:
    """A process that runs `module`. End it with `close`."""

    def __init__(self, module: str, answer_timeout_s: Callable[[int], float] | float) -> None:
        """`answer_timeout_s`: the CPU time that an answer may take, or a function that gets it from the request's size.
        A process that uses no CPU time for that long is frozen."""
        self._module = module
        self._timeout_s = answer_timeout_s
        self._running: _Running | None = None
        self._asking: asyncio.Task[Answer | None] | None = None
        self._request_bytes = 0
        self._closed = False

    @property
    def pid(self) -> int | None:
        """The id of the process while it runs, else None."""
        return self._running.process.pid if self._running is not None else None

    @property
    def held_bytes(self) -> int:
        """The memory that the current request and its answer hold."""
        if self._asking is None or self._asking.done():
            return 0
        return self._request_bytes + (self._running.answer_bytes if self._running is not None else 0)

    async def ask(self, head: bytes, data: bytes = b"") -> Answer:
        """Return the process's answer to `head` and `data`, which are one request. The caller sends one at a time.
        Raises SideProcessFailed.

        The request of a cancelled caller is still answered: the answer is dropped, and the next request waits for it.
        So no caller gets the answer to another request, and a cancelled caller does not cost a process.
        """
        while self._asking is not None and not self._asking.done():
            await asyncio.wait([self._asking])
        if self._closed:
            raise SideProcessFailed(f"{self._module} is closed")
        self._request_bytes = size = len(head) + len(data)
        self._asking = task = asyncio.create_task(self._answer(head, data), name=f"side-process-{self._module}")
        # The task is not awaited itself: a cancelled caller must not cancel it, nor `close` cancel the caller.
        await asyncio.wait([task])
        answer = None if task.cancelled() else task.result()
        if answer is None:
            raise SideProcessFailed(f"{self._module} died or froze while it handled a request of {size} bytes")
        return answer

    async def close(self) -> None:
        """Kill the process. A waiting `ask` raises SideProcessFailed."""
        self._closed = True
        self._end_process()
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait([self._asking])

    async def _answer(self, head: bytes, data: bytes) -> Answer | None:
        for _ in range(_ATTEMPTS):
            try:
                return await self._attempt(head, data)
            except (OSError, asyncio.IncompleteReadError) as error:  # a TimeoutError is an OSError
                log.warning(
                    "a side process died or froze; a new one replaces it",
                    extra={"runs": self._module, "request_bytes": len(head) + len(data), "error": type(error).__name__},
                )
        return None

    async def _attempt(self, head: bytes, data: bytes) -> Answer:
        if self._running is not None and not self._running.alive:
            self._end_process()  # it died before this request, so its death does not count as an attempt
        try:
            if self._running is None:
                self._running = await _Running.start(self._module)
            timeout_s = self._timeout_s
            if callable(timeout_s):
                timeout_s = timeout_s(len(head) + len(data))
            return await self._running.within(timeout_s, self._running.ask(head, data))
        except BaseException:
            self._end_process()  # the process may still send an answer, or part of one
            raise

    def _end_process(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            running.end()


SideProcesses = Callable[[str, Callable[[int], float] | float], SideProcess]
"""Makes a side process, with the arguments of `SideProcess`."""


def _spawn(module: str, end: int) -> "subprocess.Popen[bytes]":
    # subprocess uses vfork: asyncio's fork would run gRPC's fork handlers in a process full of gRPC's threads.
    return subprocess.Popen((sys.executable, "-m", module), stdin=end, stdout=end, process_group=0)


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """Send SIGKILL, which ends a stopped process too. A daemon thread reaps the process, so neither the event loop nor
    a shutdown waits."""
    process.kill()
    threading.Thread(target=process.wait, name="side-process-reaper", daemon=True).start()


def _cpu_s(process: "subprocess.Popen[bytes]") -> float:
    """The CPU time that the process has used. 0 when the process is gone, or when the system does not report it."""
    try:
        # The clock that clock_getcpuclockid(3) gives on Linux.
        return time.clock_gettime(~process.pid << 3 | 2)
    except OSError:
        return 0.0
