"""Positions in a feed: feedmux's position, MongoDB's resume token and the cluster time as one value, a `FeedPosition`.

Everything here is a value. Tokens stay raw BSON until they are read, because most are never read.
"""

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import bson
from bson.binary import Binary
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp

_ID_FIRST = b"\x03_id\x00"
_ID_FIRST_END = 4 + len(_ID_FIRST)
# Cluster time, token version, type "event", transaction index 0 (no transaction invalidates), fromInvalidate true.
_FROM_INVALIDATE = re.compile(rb"82[0-9A-F]{16}2B0[24]2C0100296F")
_DATA_AT = 4 + len(b"\x02_data\x00") + 4
_ID_FIRST_IN_JSON = re.compile(r'\s*\{\s*"_id"\s*:\s*')
_HEX = re.compile(r"[0-9A-Fa-f]+")
_SUBTYPE = re.compile(r"[0-9A-Fa-f]{1,2}")
_DECODER = json.JSONDecoder()
# An event's other fields may hold what Python has no type for, or text that is not UTF-8.
_ANY_FIELDS = CodecOptions(
    document_class=RawBSONDocument,
    datetime_conversion=DatetimeConversion.DATETIME_AUTO,
    unicode_decode_error_handler="replace",
)


@dataclass(frozen=True, slots=True)
class FeedPosition:
    """A position in a feed: all events at or before it have been delivered.

    `position` is opaque, and empty if only a resume token is known. `token` is MongoDB's resume token as BSON bytes, or
    empty if there is none. `time` is the cluster time as (seconds, increment), or (0, 0) if unknown.
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
        """The cluster time, or None if unknown."""
        return Timestamp(*self.time) if self.time != (0, 0) else None


NO_POSITION = FeedPosition()


def event_id(document: bytes) -> bytes:
    """Return the `_id` of an event, its resume token, as BSON bytes. Empty if the event's `_id` is not a document.

    `_id` need not be the first field: a pipeline with $replaceRoot moves it.
    """
    if document[4:_ID_FIRST_END] == _ID_FIRST:
        size = int.from_bytes(document[_ID_FIRST_END : _ID_FIRST_END + 4], "little")
        return document[_ID_FIRST_END : _ID_FIRST_END + size]
    found = RawBSONDocument(document, _ANY_FIELDS).get("_id")
    return bytes(found.raw) if isinstance(found, RawBSONDocument) else b""


def json_event_id(text: str) -> bytes:
    """Return the `_id` of an event in extended JSON as the BSON that MongoDB sent: its resume token, bit for bit.

    Empty if `_id` is not a resume token: no token is made up. Raises ValueError for invalid JSON.
    """
    begin = _ID_FIRST_IN_JSON.match(text)
    if begin is not None:
        found, _ = _DECODER.raw_decode(text, begin.end())
    else:
        event = json.loads(text)
        found = event.get("_id") if isinstance(event, dict) else None
    return _json_token(found)


def _json_token(found: Any) -> bytes:
    """Return a token `{_data: <hex>}` or `{_data: <hex>, _typeBits: {$binary: {base64, subType}}}`, in the text's
    order.

    MongoDB adds `_typeBits` if the hex alone does not show the type of a number: for int64, double and decimal `_id`s.
    """
    match found:
        case {"_data": str(data)} if _HEX.fullmatch(data) and found.keys() <= {"_data", "_typeBits"}:
            values = {key: data if key == "_data" else _json_binary(value) for key, value in found.items()}
            return b"" if None in values.values() else bson.encode(values)
    return b""


def _json_binary(value: Any) -> Binary | None:
    match value:
        case {"$binary": {"base64": str(text), "subType": str(subtype)} as binary} if (
            len(value) == 1 and len(binary) == 2 and _SUBTYPE.fullmatch(subtype)
        ):
            try:
                return Binary(base64.b64decode(text, validate=True), int(subtype, 16))
            except ValueError:
                return None
    return None


def token_time(token: Mapping[str, Any] | bytes) -> tuple[int, int] | None:
    """Return the cluster time inside a resume token, as (seconds, increment).

    None if the token is not MongoDB's hex key string beginning with a timestamp: such a token is not compared.
    """
    try:
        document = bson.decode(token) if isinstance(token, bytes) else token
        data = document.get("_data")
        if not isinstance(data, str) or not data.startswith("82"):
            return None
        return int(data[2:10], 16), int(data[10:18], 16)
    except (ValueError, bson.errors.BSONError):
        return None


def token_position(token: bytes) -> FeedPosition:
    """Return the position of an event of which only the resume token is known."""
    return FeedPosition(token=token, time=token_time(token) or (0, 0))


def from_invalidate(token: bytes) -> bool:
    """Return whether a resume token (BSON) is that of an invalidate, after which a stream ends."""
    return _FROM_INVALIDATE.match(token, _DATA_AT) is not None
