"""The process that renders Extended JSON: requests on standard input, views on standard output, one after the other.

A process and not a thread, because rendering holds Python's lock all the time, and the event loop would wait for it
at every step (measured: half of its turns took 2 ms instead of 0.2, one in ten 10 ms). It ends with its standard
input, and so with the server, however that ends.

Request: length of the data (8 bytes, little endian), canonical (1 byte), concatenated BSON documents.
Answer: length of the data and number of offsets (8 bytes each), data, offsets; a length of -1 for what is not BSON.
"""

import os
import sys
from array import array
from collections.abc import Callable
from struct import Struct

from feedmux_server.core.chunk import View, document_offsets
from feedmux_server.core.errors import FeedmuxError
from feedmux_server.core.extended_json import render_events

REQUEST = Struct("<Q?")
ANSWER = Struct("<qQ")
JSON_FIELD_TAG = b"\x82\x01"
"""Tag of `Batch.json` (field 16, length-delimited): a view's texts stand ready as that repeated field."""
_YIELD_EVERY = 16
"""Texts, about a third of a millisecond. Linux looks who else wants the core only at its ticks (4 ms), whatever the
priorities, and a chunk has hundreds; deliveries, and MongoDB where it is on the same machine, wait less so."""
_yield: Callable[[], None] = getattr(os, "sched_yield", lambda: None)


def json_view(data: bytes, canonical: bool) -> View:
    """Each event as `tag, length, text`, so that any run of events is a run of bytes.

    Raises FeedmuxError BSON_INVALID.
    """
    parts: list[bytes] = []
    offsets = array("Q", (0,))
    at = 0
    for number, text in enumerate(render_events(data, document_offsets(data), canonical)):
        if number % _YIELD_EVERY == 0:
            _yield()
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


def main() -> None:
    # Texts are made in bulk, and the event loop beside it has everybody's deliveries to make.
    os.nice(5)
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    while len(head := requests.read(REQUEST.size)) == REQUEST.size:
        size, canonical = REQUEST.unpack(head)
        data = requests.read(size)
        try:
            view = json_view(data, canonical)
        except (FeedmuxError, ValueError):
            answers.write(ANSWER.pack(-1, 0))
        else:
            answers.write(ANSWER.pack(len(view.data), len(view.offsets)))
            answers.write(view.data)
            answers.write(array("Q", view.offsets).tobytes())
        answers.flush()


if __name__ == "__main__":
    main()
