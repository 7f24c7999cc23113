"""The side process that renders Extended JSON: a request is a chunk, and its answer is the chunk's rendition.

This is a process and not a thread, because rendering holds Python's global lock all the time, and the event loop would
wait for the lock at every step (measured: half of the loop's turns took 2 ms instead of 0.2, one in ten 10 ms).

Request: canonical (1 byte), concatenated BSON documents.
Answer: the rendition's `offsets` and as many `event_bytes` (8 bytes each); its data. Both are empty if the request is
not BSON.
"""

import os
from array import array
from collections.abc import Callable

from feedmux_server.core.errors import FeedmuxError
from feedmux_server.core.events.batch_fields import json_field
from feedmux_server.core.events.chunk import Rendition, document_offsets
from feedmux_server.core.events.extended_json import render_events
from feedmux_server.workers.side_worker import Answer, serve_requests

_YIELD_EVERY = 16
"""Texts between two yields: about a third of a millisecond. Without a yield, Linux checks which other process wants the
core only at its ticks (4 ms), whatever the priorities, and a chunk has hundreds of texts. So deliveries, and MongoDB if
it runs on the same machine, wait less."""


def json_rendition(data: bytes, canonical: bool, give_way: Callable[[], None] = lambda: None) -> Rendition:
    """Each event as a field of `Batch`. Only the text counts as its size.

    Raises FeedmuxError BSON_INVALID.
    """
    parts: list[bytes] = []
    offsets, event_bytes = array("Q", (0,)), array("Q", (0,))
    at = texts = 0
    for number, text in enumerate(render_events(data, document_offsets(data), canonical)):
        if number % _YIELD_EVERY == 0:
            give_way()
        part = json_field(text)
        parts.append(part)
        at += len(part)
        texts += len(text)
        offsets.append(at)
        event_bytes.append(texts)
    return Rendition(b"".join(parts), offsets, event_bytes)


def request_head(canonical: bool) -> bytes:
    """What comes before the documents in a request."""
    return b"\x01" if canonical else b"\x00"


def rendition_of(answer: Answer) -> Rendition | None:
    """Decode an answer; None when the request was not BSON."""
    numbers, data = answer
    if not numbers:
        return None
    half = len(numbers) // 2
    return Rendition(data, array("Q", numbers[:half]), array("Q", numbers[half:]))


def answer(request: bytes, give_way: Callable[[], None] = lambda: None) -> Answer:
    try:
        rendition = json_rendition(request[1:], request[:1] == b"\x01", give_way)
    except (FeedmuxError, ValueError):
        return b"", b""
    numbers = array("Q", rendition.offsets) + array("Q", rendition.event_bytes)
    return numbers.tobytes(), rendition.data


def main() -> None:
    # Rendering is bulk work, and the event loop of the server beside this process makes all deliveries.
    os.nice(5)
    give_way: Callable[[], None] = getattr(os, "sched_yield", lambda: None)
    serve_requests(lambda request: answer(request, give_way))


if __name__ == "__main__":
    main()
