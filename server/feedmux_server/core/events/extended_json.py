"""Events as MongoDB's Extended JSON, for clients that do not speak BSON.

The only module that decodes events, and only for clients that ask for JSON; its caller retains the texts of a chunk.
Canonical text parses back to the same document.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import bson
from bson import json_util
from bson.codec_options import CodecOptions, DatetimeConversion

from feedmux_server.core.errors import ErrorReason, FeedmuxError

# Dates stay milliseconds, since those beyond year 9999 have no datetime; UUIDs stay binaries with their
# subtype, which is lossless for the legacy ones too. Text that MongoDB took with broken UTF-8 must not end
# the feed.
_EVENT: Final = CodecOptions[dict[str, Any]](
    document_class=dict,
    datetime_conversion=DatetimeConversion.DATETIME_MS,
    unicode_decode_error_handler="replace",
)
_CANONICAL: Final = json_util.CANONICAL_JSON_OPTIONS
_RELAXED: Final = json_util.RELAXED_JSON_OPTIONS


def render_events(data: bytes, offsets: Sequence[int], canonical: bool) -> Iterator[bytes]:
    """The events that begin at `offsets` of `data`, one after the other, each as JSON text in UTF-8.

    An offset at the end of `data`, as some indexes close with, is no event.
    Raises FeedmuxError BSON_INVALID for an event that is not BSON.
    """
    options = _CANONICAL if canonical else _RELAXED
    view = memoryview(data)
    for start in offsets:
        if start == len(data):
            continue
        end = start + int.from_bytes(view[start : start + 4], "little")
        try:
            text = json_util.dumps(
                bson.decode(view[start:end], _EVENT),
                json_options=options,
                ensure_ascii=False,
                separators=(",", ":"),
            ).encode()
        except (bson.errors.BSONError, ValueError, RecursionError):
            raise FeedmuxError(
                ErrorReason.BSON_INVALID, "an event cannot be written as JSON; use format BSON to receive it"
            ) from None
        yield text


def stages_as_json(stages: Sequence[Any]) -> str:
    """A pipeline as relaxed extended JSON, for people."""
    return json_util.dumps(list(stages), json_options=_RELAXED)
