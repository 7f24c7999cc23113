"""One event as relaxed Extended JSON, written from its BSON, for events that decoding changes.

`json_text` is faster, but decodes: `bson` has no type for Symbol, Undefined and DBPointer, keeps the last of several
fields of one name, and takes every document with the name `$ref` for a DBRef. The texts are those that the server
writes in relaxed Extended JSON.
"""

import math
import struct
from base64 import b64encode
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import lru_cache
from json.encoder import encode_basestring as quoted
from types import MappingProxyType
from typing import Final

from bson.decimal128 import Decimal128

_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 written with a Z
_SECOND_MAX: Final = 253402300799
"""The last one of the year 9999. Dates after it, and before 1970, are numbers."""
_INT32: Final = struct.Struct("<i").unpack_from
_INT64: Final = struct.Struct("<q").unpack_from
_DOUBLE: Final = struct.Struct("<d").unpack_from
_TIMESTAMP: Final = struct.Struct("<II").unpack_from
_OLD_BINARY: Final = 2
_NAME_KEPT_MAX: Final = 100
"""The most bytes of a name that is kept for the next event: a document can have names of megabytes."""

_Value = tuple[str, int]
"""A value's text, and the offset of the byte after it."""


def text_of(event: bytes) -> str:
    """The text of a BSON document. Raises ValueError if the bytes are not one, RecursionError if it is too deep."""
    try:
        text, end = _document(event, 0)
    except (IndexError, KeyError, struct.error):
        raise ValueError from None
    if end != len(event):
        raise ValueError
    return text


@lru_cache(4096)
def second(seconds: int) -> str:
    """A second since 1970, without a time zone: most dates of a batch share theirs."""
    return (_EPOCH + timedelta(seconds=seconds)).isoformat()


def date(ms: int) -> str | None:
    """A date as relaxed Extended JSON writes it; None for one that it writes as a number."""
    seconds, rest = divmod(ms, 1000)
    if not 0 <= seconds <= _SECOND_MAX:
        return None
    return f"{second(seconds)}.{rest:03}Z" if rest else f"{second(seconds)}Z"


def _fields(data: bytes, at: int) -> tuple[list[tuple[bytes, str]], int]:
    """The names and texts of a document's fields, and the offset after it."""
    end = at + _INT32(data, at)[0] - 1
    if end < at + 4 or data[end]:
        raise ValueError
    found: list[tuple[bytes, str]] = []
    at += 4
    while at < end:
        name_end = data.index(0, at + 1, end)
        text, after = _VALUES[data[at]](data, name_end + 1)
        found.append((data[at + 1 : name_end], text))
        at = after
    if at != end:
        raise ValueError
    return found, end + 1


def _document(data: bytes, at: int) -> _Value:
    fields, after = _fields(data, at)
    return f"{{{','.join([f'{_name(name)}:{text}' for name, text in fields])}}}", after


def _array(data: bytes, at: int) -> _Value:
    fields, after = _fields(data, at)
    return f"[{','.join([text for _, text in fields])}]", after


def _name(name: bytes) -> str:
    return _usual_name(name) if len(name) <= _NAME_KEPT_MAX else quoted(name.decode(errors="replace"))


@lru_cache(4096)
def _usual_name(name: bytes) -> str:
    return quoted(name.decode(errors="replace"))


def _text(data: bytes, at: int) -> _Value:
    end = at + 4 + _INT32(data, at)[0]
    if end < at + 5 or data[end - 1]:
        raise ValueError
    return quoted(data[at + 4 : end - 1].decode(errors="replace")), end


def _c_text(data: bytes, at: int) -> _Value:
    end = data.index(0, at)
    return data[at:end].decode(errors="replace"), end + 1


def _double(data: bytes, at: int) -> _Value:
    (value,) = _DOUBLE(data, at)
    if math.isfinite(value):
        return repr(value), at + 8
    word = "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return f'{{"$numberDouble":"{word}"}}', at + 8


def _binary(data: bytes, at: int) -> _Value:
    start, subtype = at + 5, data[at + 4]
    end = start + _INT32(data, at)[0]
    if not start <= end <= len(data):
        raise ValueError
    if subtype == _OLD_BINARY:
        if _INT32(data, start)[0] != end - start - 4:
            raise ValueError
        start += 4
    text = b64encode(data[start:end]).decode()
    return f'{{"$binary":{{"base64":"{text}","subType":"{subtype:02x}"}}}}', end


def _object_id(data: bytes, at: int) -> _Value:
    return f'{{"$oid":"{data[at : at + 12].hex()}"}}', at + 12


def _date(data: bytes, at: int) -> _Value:
    (ms,) = _INT64(data, at)
    text = date(ms)
    return f'{{"$date":"{text}"}}' if text else f'{{"$date":{{"$numberLong":"{ms}"}}}}', at + 8


def _regex(data: bytes, at: int) -> _Value:
    pattern, at = _c_text(data, at)
    options, at = _c_text(data, at)
    text = f'{{"pattern":{quoted(pattern)},"options":{quoted("".join(sorted(options)))}}}'
    return f'{{"$regularExpression":{text}}}', at


def _db_pointer(data: bytes, at: int) -> _Value:
    namespace, at = _text(data, at)
    object_id, at = _object_id(data, at)
    return f'{{"$dbPointer":{{"$ref":{namespace},"$id":{object_id}}}}}', at


def _wrapped(name: str) -> Callable[[bytes, int], _Value]:
    def write(data: bytes, at: int) -> _Value:
        text, at = _text(data, at)
        return f'{{"{name}":{text}}}', at

    return write


def _code_with_scope(data: bytes, at: int) -> _Value:
    end = at + _INT32(data, at)[0]
    code, at = _text(data, at + 4)
    scope, at = _document(data, at)
    if at != end:
        raise ValueError
    return f'{{"$code":{code},"$scope":{scope}}}', at


def _timestamp(data: bytes, at: int) -> _Value:
    increment, seconds = _TIMESTAMP(data, at)
    return f'{{"$timestamp":{{"t":{seconds},"i":{increment}}}}}', at + 8


def _constant(text: str) -> Callable[[bytes, int], _Value]:
    return lambda _data, at: (text, at)


_VALUES: Final[Mapping[int, Callable[[bytes, int], _Value]]] = MappingProxyType({
    0x01: _double,
    0x02: _text,
    0x03: _document,
    0x04: _array,
    0x05: _binary,
    0x06: _constant('{"$undefined":true}'),
    0x07: _object_id,
    0x08: lambda data, at: (("false", "true")[data[at]], at + 1),
    0x09: _date,
    0x0A: _constant("null"),
    0x0B: _regex,
    0x0C: _db_pointer,
    0x0D: _wrapped("$code"),
    0x0E: _wrapped("$symbol"),
    0x0F: _code_with_scope,
    0x10: lambda data, at: (str(_INT32(data, at)[0]), at + 4),
    0x11: _timestamp,
    0x12: lambda data, at: (str(_INT64(data, at)[0]), at + 8),
    0x13: lambda data, at: (f'{{"$numberDecimal":"{Decimal128.from_bid(data[at : at + 16])}"}}', at + 16),
    0x7F: _constant('{"$maxKey":1}'),
    0xFF: _constant('{"$minKey":1}'),
})  # fmt: skip
"""How the value of each BSON type is written."""
