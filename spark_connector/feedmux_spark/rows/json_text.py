"""Events as relaxed Extended JSON, one text for each: the texts that the server writes.

Produced here and not by the server, because workers do it in parallel. Only this module decodes events row by row:
`bson` and `orjson` do it in C and Rust, and only types and numbers that these write differently are handled in Python.
An event that decoding changes is written from its bytes instead (`json_bytes`), which takes longer; encoding the
decoded event again shows whether it did.
"""

import math
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any, Final

import bson
import orjson
from bson import json_util
from bson.code import Code
from bson.codec_options import CodecOptions, DatetimeConversion, TypeCodec, TypeRegistry
from bson.datetime_ms import DatetimeMS
from bson.decimal128 import Decimal128
from bson.objectid import ObjectId
from bson.timestamp import Timestamp
from orjson import Fragment

from feedmux_spark.rows import json_bytes
from feedmux_spark.rows.bson_walk import Ints
from feedmux_spark.rows.errors import InvalidEvents


class _Other:
    """A value that orjson would not write as Python does, which it therefore must not know."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


class _Script(_Other):
    """JavaScript, which is a `str`."""


class _Double(_Other):
    """A number with an exponent, NaN or an infinity."""


class _Scripts(TypeCodec):
    python_type = _Script
    bson_type = Code

    def transform_python(self, value: Any) -> Any:
        return value.value

    def transform_bson(self, value: Any) -> Any:
        return _Script(value)


class _Doubles(TypeCodec):
    python_type = _Double
    bson_type = float

    def transform_python(self, value: Any) -> Any:
        return value.value

    def transform_bson(self, value: Any) -> Any:
        # In this range Python writes no exponent; orjson omits its sign and its zeros.
        return value if 1e-4 <= abs(value) < 1e16 or value == 0 else _Double(value)


# Dates stay milliseconds, since those beyond year 9999 have no datetime; text with broken UTF-8 must not end the feed.
PLAIN: Final = CodecOptions[dict[str, Any]](
    datetime_conversion=DatetimeConversion.DATETIME_MS, unicode_decode_error_handler="replace"
)
_DECODED: Final = PLAIN.with_options(type_registry=TypeRegistry([_Scripts(), _Doubles()]))


def _default(value: Any) -> Any:
    return json_util.default(value, json_options=json_util.RELAXED_JSON_OPTIONS)


def _date(value: DatetimeMS) -> Fragment:
    ms = int(value)
    text = json_bytes.date(ms)
    return Fragment(f'{{"$date":"{text}"}}' if text else f'{{"$date":{{"$numberLong":"{ms}"}}}}')


def _double(value: _Double) -> Any:
    return Fragment(repr(value.value)) if math.isfinite(value.value) else _default(value.value)


_WRITTEN: Final[Mapping[type, Callable[[Any], Any]]] = {
    ObjectId: lambda value: Fragment(f'{{"$oid":"{value.binary.hex()}"}}'),
    DatetimeMS: _date,
    Decimal128: lambda value: Fragment(f'{{"$numberDecimal":"{value}"}}'),
    Timestamp: lambda value: Fragment(f'{{"$timestamp":{{"t":{value.time},"i":{value.inc}}}}}'),
    bytes: lambda value: Fragment(f'{{"$binary":{{"base64":"{b64encode(value).decode()}","subType":"00"}}}}'),
    _Double: _double,
    _Script: lambda value: _default(value.value),
}
"""The types that events often have: `json_util.default` asks for one type after the other."""


def _extended(value: Any) -> Any:
    return _WRITTEN.get(type(value), _default)(value)


def texts(raw: bytes, places: Ints) -> Iterator[bytes]:
    """Yields the events of `raw` in UTF-8; `places` has their start offsets and the end. Raises InvalidEvents."""
    offsets = places.tolist()
    for start, end in pairwise(offsets):
        event = raw[start:end]
        text = _decoded_text(event)
        if text is None:
            try:
                text = json_bytes.text_of(event).encode()
            except (ValueError, RecursionError):
                raise InvalidEvents(
                    "an event cannot be written as JSON; use schemaMode envelope, which delivers it as BSON"
                ) from None
        yield text


def _decoded_text(event: bytes) -> bytes | None:
    """The text of an event that decoding does not change; None for any other."""
    try:
        decoded = bson.decode(event, _DECODED)
        if bson.encode(decoded, codec_options=_DECODED) != event:
            return None
        return orjson.dumps(decoded, _extended)
    except (bson.errors.BSONError, ValueError, TypeError, OverflowError, RecursionError):
        return None
