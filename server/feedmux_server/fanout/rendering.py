"""Extended JSON: a chunk is rendered once per format, by a process of its own, and shared by all who take it.

One chunk at a time, tenant by tenant. The process starts with the first request for JSON and ends with the hub.
"""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from feedmux_server.core.chunk import Chunk, View
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.fair_queue import FairQueue
from feedmux_server.core.subscriber import NeedsRender
from feedmux_server.fanout import render_worker
from feedmux_server.fanout.render_worker import request_of, view_of
from feedmux_server.fanout.side_process import SideProcess, SideProcessFailed

RELAXED = "extended_json_relaxed"
CANONICAL = "extended_json_canonical"


class _Job(NamedTuple):
    bson: View
    canonical: bool
    view: "asyncio.Future[View]"


def render_timeout_s(size: int) -> float:
    """How long the texts of a chunk may take. On a machine with time to spare a MiB takes half a second at most."""
    return 5.0 + 4.0 * size / 2**20


class Renderer:
    """Renders the chunks of a process. To be ended with `close`."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, str], asyncio.Future[View]] = {}
        self._queue: FairQueue[_Job] = FairQueue()
        self._working: asyncio.Task[None] | None = None
        self._process = SideProcess(render_worker.__name__, render_timeout_s)

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
        await self._process.close()

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
        try:
            answer = await self._process.ask(request_of(job.bson.data, job.canonical))
        except SideProcessFailed as error:
            raise FeedmuxError(ErrorReason.INTERNAL, "the event cannot be rendered") from error
        view = view_of(answer)
        if view is None:
            raise FeedmuxError(ErrorReason.BSON_INVALID, "an event cannot be written as JSON; format BSON delivers it")
        return view

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
