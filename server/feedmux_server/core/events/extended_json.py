"""Events as MongoDB's Extended JSON, for clients that do not speak BSON; pipelines, for people.

The caller retains the texts of a chunk.
"""

import struct
from collections.abc import Iterator, Sequence

from feedmux.json_writer import event_json, stages_json
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.events.bson_walk import length_at


def render_events(data: bytes, offsets: Sequence[int], canonical: bool) -> Iterator[bytes]:
    """The events that begin at `offsets` of `data`, one after the other, each as JSON text in UTF-8.

    An offset at the end of `data`, as some indexes close with, is no event.
    Raises FeedmuxError BSON_INVALID for an event that is not BSON.
    """
    for start in offsets:
        if start == len(data):
            continue
        try:
            text = event_json(data[start : start + length_at(data, start)[0]], canonical)
        except (ValueError, struct.error):
            raise FeedmuxError(
                ErrorReason.BSON_INVALID, "an event cannot be written as JSON; use format BSON to receive it"
            ) from None
        yield text


def pipeline_as_json(data: bytes) -> str:
    """The stages of a BSON document `{pipeline: [stages]}`, for people: `query_json` reads the same stages from the
    text, except from values of deprecated types. Raises ValueError and others for anything else."""
    return stages_json(data, 4 + len(b"\x04pipeline\0"))
