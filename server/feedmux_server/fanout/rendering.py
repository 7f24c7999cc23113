"""Extended JSON: a chunk is rendered once per format, off the event loop, and shared by all who take it."""

import asyncio
from array import array
from typing import Protocol

from feedmux_server.core.chunk import Chunk, View
from feedmux_server.core.extended_json import render_events
from feedmux_server.core.subscriber import NeedsRender

RELAXED = "extended_json_relaxed"
CANONICAL = "extended_json_canonical"

JSON_FIELD_TAG = b"\x82\x01"
"""Tag of `Batch.json` (field 16, length-delimited): a view's texts stand ready as that repeated field."""


class RenderHost(Protocol):
    """Where renderings under way are known."""

    renderings: dict[tuple[int, str], "asyncio.Future[View]"]

    def filled(self, size: int) -> None: ...


class Rendering:
    """Renders chunks for one session."""

    def __init__(self, host: RenderHost) -> None:
        self._host = host

    async def render(self, wanted: NeedsRender, wire_format: str) -> None:
        """Gives the chunk its view. Concurrent sessions share the work."""
        chunk, known = wanted.chunk, self._host.renderings
        bson = chunk.bson
        if bson is None or wire_format in chunk.rendered:
            return
        name = (id(chunk), wire_format)
        running = known.get(name)
        if running is None:
            running = known[name] = asyncio.ensure_future(asyncio.to_thread(json_view, bson, wire_format == CANONICAL))
            running.add_done_callback(lambda _: known.pop(name))
        view = await asyncio.shield(running)
        self._keep(chunk, wanted, wire_format, view)

    def _keep(self, chunk: Chunk, wanted: NeedsRender, wire_format: str, view: View) -> None:
        if chunk.bson is None or wire_format in chunk.rendered:
            return
        chunk.rendered[wire_format] = view
        size = len(view.data) + 8 * len(view.offsets)
        wanted.ring.grew(size)
        self._host.filled(size)


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
