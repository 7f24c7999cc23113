"""Events as relaxed Extended JSON, one text for each: the texts that the server writes.

Produced here and not by the server, because workers do it in parallel. Only this module decodes events row by row:
`bson` and `json` do it in C, and only types that JSON lacks are handled in Python. An event that decoding changes is
written from its bytes instead (`json_bytes`), which takes longer; encoding the decoded event again shows whether it
did.
"""

import json
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any, Final

import bson
from bson import json_util
from bson.code import Code
from bson.codec_options import CodecOptions, DatetimeConversion, TypeCodec, TypeRegistry
from bson.datetime_ms import DatetimeMS
from bson.decimal128 import Decimal128
from bson.objectid import ObjectId
from bson.timestamp import Timestamp

from feedmux_spark.rows import json_bytes
from feedmux_spark.rows.bson_walk import Ints
from feedmux_spark.rows.errors import InvalidEvents

_RELAXED: Final = json_util.RELAXED_JSON_OPTIONS


class _Script:
    """JavaScript: a `str` that must not be written as one."""

    __slots__ = ("code",)

    def __init__(self, code: Code) -> None:
        self.code = code


class _Scripts(TypeCodec):
    python_type = _Script
    bson_type = Code

    def transform_python(self, value: Any) -> Any:
        return value.code

    def transform_bson(self, value: Any) -> Any:
        return _Script(value)


# Dates stay milliseconds, since those beyond year 9999 have no datetime; text with broken UTF-8 must not end the feed.
PLAIN: Final = CodecOptions[dict[str, Any]](
    datetime_conversion=DatetimeConversion.DATETIME_MS, unicode_decode_error_handler="replace"
)
_DECODED: Final = PLAIN.with_options(type_registry=TypeRegistry([_Scripts()]))


def _date(value: DatetimeMS) -> Any:
    ms = int(value)
    return {"$date": json_bytes.date(ms) or {"$numberLong": str(ms)}}


_WRITTEN: Final[Mapping[type, Callable[[Any], Any]]] = {
    ObjectId: lambda value: {"$oid": value.binary.hex()},
    DatetimeMS: _date,
    Decimal128: lambda value: {"$numberDecimal": str(value)},
    Timestamp: lambda value: {"$timestamp": {"t": value.time, "i": value.inc}},
    bytes: lambda value: {"$binary": {"base64": b64encode(value).decode(), "subType": "00"}},
    _Script: lambda value: json_util.default(value.code, json_options=_RELAXED),
}
"""The types that events often have: `json_util.default` asks for one type after the other."""


def _extended(value: Any) -> Any:
    write = _WRITTEN.get(type(value))
    return write(value) if write is not None else json_util.default(value, json_options=_RELAXED)


_encode: Final = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":"), default=_extended
).encode


def texts(raw: bytes, places: Ints) -> Iterator[str]:
    """Yields the events of `raw`; `places` has their start offsets and the end. Raises InvalidEvents."""
    offsets = places.tolist()
    for start, end in pairwise(offsets):
        event = raw[start:end]
        text = _decoded_text(event)
        if text is None:
            try:
                text = json_bytes.text_of(event)
            except (ValueError, RecursionError):
                raise InvalidEvents(
                    "an event cannot be written as JSON; use schemaMode envelope, which delivers it as BSON"
                ) from None
        yield text


def _decoded_text(event: bytes) -> str | None:
    """The text of an event that decoding does not change; None for any other."""
    try:
        decoded = bson.decode(event, _DECODED)
        # NaN and infinities are ValueErrors: the JSON encoder cannot write them.
        return _encode(decoded) if bson.encode(decoded, codec_options=_DECODED) == event else None
    except (bson.errors.BSONError, ValueError, TypeError, OverflowError, RecursionError):
        return None
