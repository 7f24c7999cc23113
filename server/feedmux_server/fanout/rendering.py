"""Extended JSON: a chunk is rendered once per format, by a process of its own, and shared by all who take it.

One chunk at a time, tenant by tenant. The process starts with the first request for JSON and ends with the hub.
"""

import asyncio
import socket
import subprocess
import sys
from array import array
from asyncio import StreamReader, StreamWriter
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from feedmux_server.core.chunk import Chunk, View
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.fair_queue import FairQueue
from feedmux_server.core.subscriber import NeedsRender
from feedmux_server.fanout import render_worker
from feedmux_server.fanout.render_worker import ANSWER, REQUEST

RELAXED = "extended_json_relaxed"
CANONICAL = "extended_json_canonical"

_COMMAND = (sys.executable, "-m", render_worker.__name__)
_READ_AHEAD_BYTES = 1024 * 1024


class _Job(NamedTuple):
    bson: View
    canonical: bool
    view: "asyncio.Future[View]"


def _spawn(end: int) -> "subprocess.Popen[bytes]":
    # By subprocess, which uses vfork: asyncio's fork runs gRPC's fork handlers in a process full of its threads.
    return subprocess.Popen(_COMMAND, stdin=end, stdout=end, process_group=0)


@dataclass(frozen=True, slots=True)
class _Worker:
    """The process, and the socket that is its standard input and output."""

    process: "subprocess.Popen[bytes]"
    answers: StreamReader
    requests: StreamWriter

    @classmethod
    async def start(cls) -> "_Worker":
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                process = _spawn(theirs.fileno())
        except OSError:
            ours.close()
            raise
        answers, requests = await asyncio.open_connection(sock=ours, limit=_READ_AHEAD_BYTES)
        return cls(process, answers, requests)

    async def ask(self, data: bytes, canonical: bool) -> View:
        """Raises OSError or IncompleteReadError when the process is gone; FeedmuxError for what is not BSON."""
        self.requests.write(REQUEST.pack(len(data), canonical))
        self.requests.write(data)
        await self.requests.drain()
        size, count = ANSWER.unpack(await self.answers.readexactly(ANSWER.size))
        if size < 0:
            raise FeedmuxError(ErrorReason.BSON_INVALID, "an event cannot be written as JSON; format BSON delivers it")
        text = await self.answers.readexactly(size)
        return View(text, array("Q", await self.answers.readexactly(8 * count)))

    async def end(self) -> None:
        self.requests.close()
        self.process.kill()
        await asyncio.to_thread(self.process.wait)


class Renderer:
    """Renders the chunks of a process. To be ended with `close`."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, str], asyncio.Future[View]] = {}
        self._queue: FairQueue[_Job] = FairQueue()
        self._working: asyncio.Task[None] | None = None
        self._worker: _Worker | None = None

    async def render(self, wanted: NeedsRender, wire_format: str, tenant: str, filled: Callable[[int], None]) -> None:
        """Gives the chunk its view and tells `filled` its bytes. Concurrent sessions share the work.

        Raises FeedmuxError BSON_INVALID for an event that cannot be written as JSON.
        """
        chunk = wanted.chunk
        bson = chunk.bson
        if bson is None or wire_format in chunk.rendered:
            return
        name = (id(chunk), wire_format)
        coming = self._known.get(name)
        if coming is None:
            coming = self._known[name] = asyncio.get_running_loop().create_future()
            coming.add_done_callback(lambda done: self._forget(name, done))
            self._queue.put(tenant, _Job(bson, wire_format == CANONICAL, coming))
            if self._working is None:
                self._working = asyncio.create_task(self._work(), name="renderer")
        view = await asyncio.shield(coming)
        _keep(chunk, wanted, wire_format, view, filled)

    async def close(self) -> None:
        """Ends the process; what is being rendered is cancelled."""
        if self._working is not None:
            self._working.cancel()
            await asyncio.wait([self._working])
        while self._queue:
            self._queue.get().view.cancel()
        await self._end_worker()

    async def _work(self) -> None:
        try:
            while self._queue:
                job = self._queue.get()
                try:
                    job.view.set_result(await self._view(job))
                except Exception as error:  # noqa: BLE001 the session that waits for it says it
                    job.view.set_exception(error)
                finally:
                    job.view.cancel()  # unless it is done
        finally:
            self._working = None

    async def _view(self, job: _Job) -> View:
        """Once more with a new process if the first one dies over it."""
        for _ in range(2):
            try:
                if self._worker is None:
                    self._worker = await _Worker.start()
                return await self._worker.ask(job.bson.data, job.canonical)
            except (OSError, asyncio.IncompleteReadError):
                await self._end_worker()
        raise FeedmuxError(ErrorReason.INTERNAL, "the event cannot be rendered: the renderer's process dies over it")

    async def _end_worker(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            await worker.end()

    def _forget(self, name: tuple[int, str], coming: "asyncio.Future[View]") -> None:
        del self._known[name]
        if not coming.cancelled():
            coming.exception()  # those who waited may be gone


def _keep(chunk: Chunk, wanted: NeedsRender, wire_format: str, view: View, filled: Callable[[int], None]) -> None:
    if chunk.bson is None or wire_format in chunk.rendered:
        return
    chunk.rendered[wire_format] = view
    size = len(view.data) + 8 * len(view.offsets)
    wanted.ring.grew(size)
    filled(size)
