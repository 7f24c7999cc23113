"""Extended JSON: a chunk is rendered once per format, off the event loop, and shared by all who take it.

One chunk at a time, tenant by tenant: threads of Python render no faster together, and each takes time from the loop.
"""

import asyncio
from array import array
from collections.abc import Callable
from typing import NamedTuple

from feedmux_server.core.chunk import Chunk, View
from feedmux_server.core.extended_json import render_events
from feedmux_server.core.fair_queue import FairQueue
from feedmux_server.core.subscriber import NeedsRender

RELAXED = "extended_json_relaxed"
CANONICAL = "extended_json_canonical"

JSON_FIELD_TAG = b"\x82\x01"
"""Tag of `Batch.json` (field 16, length-delimited): a view's texts stand ready as that repeated field."""


class _Job(NamedTuple):
    bson: View
    canonical: bool
    view: "asyncio.Future[View]"


class Renderer:
    """Renders the chunks of a process."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, str], asyncio.Future[View]] = {}
        self._queue: FairQueue[_Job] = FairQueue()
        self._working = False

    async def render(self, wanted: NeedsRender, wire_format: str, tenant: str, filled: Callable[[int], None]) -> None:
        """Gives the chunk its view and tells `filled` its bytes. Concurrent sessions share the work."""
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
            self._work()
        view = await asyncio.shield(coming)
        _keep(chunk, wanted, wire_format, view, filled)

    def _work(self) -> None:
        if self._working or not self._queue:
            return
        self._working = True
        job = self._queue.get()
        loop = asyncio.get_running_loop()
        rendering = loop.run_in_executor(None, json_view, job.bson, job.canonical)
        rendering.add_done_callback(lambda done: self._done(job, done))

    def _done(self, job: _Job, rendering: "asyncio.Future[View]") -> None:
        self._working = False
        error = None if rendering.cancelled() else rendering.exception()
        if rendering.cancelled():
            job.view.cancel()
        elif error is not None:
            job.view.set_exception(error)
        else:
            job.view.set_result(rendering.result())
        self._work()

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


def json_view(bson: View, canonical: bool) -> View:
    """Each event as `tag, length, text`, so that any run of events is a run of bytes."""
    parts: list[bytes] = []
    offsets = array("L", (0,))
    at = 0
    for text in render_events(bson.data, bson.offsets, canonical):
        part = b"".join((JSON_FIELD_TAG, varint(len(text)), text))
        parts.append(part)
        at += len(part)
        offsets.append(at)
    return View(b"".join(parts), offsets)


def varint(value: int) -> bytes:
    """Protobuf's variable-length integer."""
    out = bytearray()
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
