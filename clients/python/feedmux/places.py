"""Places in a feed: feedmux's position, MongoDB's resume token and the cluster time, as they travel together.

Everything here is a value. Tokens stay raw BSON until somebody looks, because most are never looked at.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import bson
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp

_ID_FIRST = b"\x03_id\x00"
_ID_FIRST_END = 4 + len(_ID_FIRST)
# Cluster time, token version, type "event", transaction index 0 (no transaction invalidates), fromInvalidate true.
_FROM_INVALIDATE = re.compile(rb"82[0-9A-F]{16}2B0[24]2C0100296F")
_DATA_AT = 4 + len(b"\x02_data\x00") + 4


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a feed: everything at or before it has been delivered.

    `position` is opaque; empty where only a resume token is known. `token` is MongoDB's resume token as BSON bytes;
    empty where there is none. `time` is the cluster time as (seconds, increment); (0, 0) where it is unknown.
    """

    position: bytes = b""
    token: bytes = b""
    time: tuple[int, int] = (0, 0)

    @property
    def resume_token(self) -> dict[str, Any] | None:
        """MongoDB's resume token as a document, or None."""
        return bson.decode(self.token) if self.token else None

    @property
    def cluster_time(self) -> Timestamp | None:
        """The cluster time, or None where it is unknown."""
        return Timestamp(*self.time) if self.time != (0, 0) else None


NOWHERE = Place()


def event_id(document: bytes) -> bytes:
    """The `_id` of an event as BSON bytes: its resume token. Empty where the event has no document as `_id`.

    `_id` need not be the first field: a pipeline with $replaceRoot moves it.
    """
    if document[4:_ID_FIRST_END] == _ID_FIRST:
        size = int.from_bytes(document[_ID_FIRST_END : _ID_FIRST_END + 4], "little")
        return document[_ID_FIRST_END : _ID_FIRST_END + size]
    found = RawBSONDocument(document).get("_id")
    return bytes(found.raw) if isinstance(found, RawBSONDocument) else b""


def token_time(token: Mapping[str, Any] | bytes) -> tuple[int, int] | None:
    """The cluster time inside a resume token, as (seconds, increment).

    None for a layout that is not MongoDB's hex key string beginning with a timestamp: such a token is not compared.
    """
    try:
        document = bson.decode(token) if isinstance(token, bytes) else token
        data = document.get("_data")
        if not isinstance(data, str) or not data.startswith("82"):
            return None
        return int(data[2:10], 16), int(data[10:18], 16)
    except (ValueError, bson.errors.BSONError):
        return None


def from_invalidate(token: bytes) -> bool:
    """Whether a resume token (BSON) is that of an invalidate, behind which a stream ends."""
    return _FROM_INVALIDATE.match(token, _DATA_AT) is not None
