"""Writes events as MongoDB's Extended JSON, for the server, the Spark connector and the commands.

Canonical text parses back to the same document. The text is written from BSON's bytes, since decoded documents may no
longer be the same: `relaxed_json`, which is faster, writes those that are, in relaxed Extended JSON. These modules and
`json_dates` may import no other of the client: the server's core imports them. `relaxed_json` needs `orjson`, which
comes with the extras `server` and `spark`.
"""

import math
import struct
from base64 import b64encode
from collections.abc import Callable
from functools import lru_cache, partial
from json.encoder import encode_basestring as quoted
from typing import Final, NamedTuple

from bson.decimal128 import Decimal128

from feedmux.json_dates import date_text

try:
    from feedmux.relaxed_json import text_of
except ImportError:

    def text_of(event: bytes) -> bytes | None:
        return None


_INT32: Final = struct.Struct("<i").unpack_from
_INT64: Final = struct.Struct("<q").unpack_from
_DOUBLE: Final = struct.Struct("<d").unpack_from
_TIMESTAMP: Final = struct.Struct("<II").unpack_from
_DOCUMENT, _ARRAY = 0x03, 0x04
_OLD_BINARY: Final = 2
_LENGTH_BYTES: Final = 4
_NAME_KEPT_MAX: Final = 100
"""The most bytes of a name that is kept for the next event: a document can have names of megabytes."""

_Value = tuple[str, int]
"""A value's text, and the offset of the byte after it."""


def event_json(event: bytes, canonical: bool = False) -> bytes:
    """One event, a BSON document, as JSON text in UTF-8. Raises ValueError for bytes that are not one."""
    if not canonical and (fast := text_of(event)) is not None:
        return fast
    try:
        text, end = _document(event, 0, _CANONICAL if canonical else _RELAXED)
    except (IndexError, KeyError, struct.error, RecursionError):
        raise ValueError from None
    if end != len(event):
        raise ValueError
    return text.encode()


def stages_json(data: bytes, at: int) -> str:
    """The array of stages at `at`, for people: with blanks, and each int64 readable as one. Raises ValueError and
    others for anything else."""
    return _array(data, at, _STAGES)[0]


def definition_json(data: bytes) -> str:
    """A BSON document that is no event, as `stages_json` writes its parts."""
    return _document(data, 0, _STAGES)[0]


def _document(data: bytes, at: int, style: "_Style") -> _Value:
    texts: list[str] = []
    values = style.values
    end = _end(data, at)
    at += 4
    while at < end:
        name_end = data.index(0, at + 1, end)
        text, after = values[data[at]](data, name_end + 1)
        texts.append(f"{_name(data[at + 1 : name_end])}{style.colon}{text}")
        at = after
    if at != end:
        raise ValueError
    return f"{{{style.comma.join(texts)}}}", end + 1


def _array(data: bytes, at: int, style: "_Style") -> _Value:
    texts: list[str] = []
    values = style.values
    end = _end(data, at)
    at += 4
    while at < end:
        text, after = values[data[at]](data, data.index(0, at + 1, end) + 1)
        texts.append(text)
        at = after
    if at != end:
        raise ValueError
    return f"[{style.comma.join(texts)}]", end + 1


def _end(data: bytes, at: int) -> int:
    """The offset of the last byte of a document, which is zero."""
    (size,) = _INT32(data, at)
    end: int = at + size - 1
    if size < 5 or data[end]:
        raise ValueError
    return end


def _name(name: bytes) -> str:
    return _usual_name(name) if len(name) <= _NAME_KEPT_MAX else quoted(name.decode(errors="replace"))


@lru_cache(4096)
def _usual_name(name: bytes) -> str:
    return quoted(name.decode(errors="replace"))


def _text(data: bytes, at: int) -> _Value:
    """A string. MongoDB takes text with broken UTF-8: it must not end the feed."""
    (size,) = _INT32(data, at)
    end = at + 4 + size
    if size < 1 or data[end - 1]:
        raise ValueError
    return quoted(data[at + 4 : end - 1].decode(errors="replace")), end


def _c_text(data: bytes, at: int) -> tuple[str, int]:
    end = data.index(0, at)
    return data[at:end].decode(errors="replace"), end + 1


def _double(data: bytes, at: int, canonical: bool) -> _Value:
    (value,) = _DOUBLE(data, at)
    if not math.isfinite(value):
        word = "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        return f'{{"$numberDouble":"{word}"}}', at + 8
    return f'{{"$numberDouble":"{value!r}"}}' if canonical else repr(value), at + 8


def _int32(data: bytes, at: int, canonical: bool) -> _Value:
    (value,) = _INT32(data, at)
    return f'{{"$numberInt":"{value}"}}' if canonical else str(value), at + 4


def _typed_int64(data: bytes, at: int) -> _Value:
    """As a plain number only if its size says that it has 64 bits."""
    (value,) = _INT64(data, at)
    return _int64(data, at, canonical=-(2**31) <= value < 2**31)


def _int64(data: bytes, at: int, canonical: bool) -> _Value:
    (value,) = _INT64(data, at)
    return f'{{"$numberLong":"{value}"}}' if canonical else str(value), at + 8


def _binary(data: bytes, at: int) -> _Value:
    (size,) = _INT32(data, at)
    subtype, start = data[at + 4], at + 5
    end = start + size
    if size < 0 or end > len(data):
        raise ValueError
    if subtype == _OLD_BINARY and size >= _LENGTH_BYTES and _INT32(data, start)[0] == size - _LENGTH_BYTES:
        start += _LENGTH_BYTES  # MongoDB takes a value without this second length too: it must not end the feed
    text = b64encode(data[start:end]).decode()
    return f'{{"$binary":{{"base64":"{text}","subType":"{subtype:02x}"}}}}', end


def _constant(text: str, _data: bytes, at: int) -> _Value:
    return text, at


def _object_id(data: bytes, at: int) -> _Value:
    return f'{{"$oid":"{data[at : at + 12].hex()}"}}', at + 12


def _boolean(data: bytes, at: int) -> _Value:
    return ("false", "true")[data[at]], at + 1


def _date(data: bytes, at: int, canonical: bool) -> _Value:
    (ms,) = _INT64(data, at)
    text = None if canonical else date_text(ms)
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


def _wrapped_text(name: str, data: bytes, at: int) -> _Value:
    text, at = _text(data, at)
    return f'{{"{name}":{text}}}', at


def _code_with_scope(data: bytes, at: int, style: "_Style") -> _Value:
    end = at + _INT32(data, at)[0]
    code, at = _text(data, at + 4)
    scope, at = _document(data, at, style)
    if at != end:
        raise ValueError
    return f'{{"$code":{code},"$scope":{scope}}}', at


def _timestamp(data: bytes, at: int) -> _Value:
    increment, seconds = _TIMESTAMP(data, at)
    return f'{{"$timestamp":{{"t":{seconds},"i":{increment}}}}}', at + 8


def _decimal(data: bytes, at: int) -> _Value:
    return f'{{"$numberDecimal":"{Decimal128.from_bid(data[at : at + 16])}"}}', at + 16


class _Style(NamedTuple):
    """How the value of each type is written, and what is between them."""

    values: dict[int, Callable[[bytes, int], _Value]]
    colon: str
    comma: str


def _style(*, canonical: bool, blank: str = "") -> _Style:
    style = _Style({}, f":{blank}", f",{blank}")
    style.values.update(_values(canonical, style))
    return style


def _values(canonical: bool, style: _Style) -> dict[int, Callable[[bytes, int], _Value]]:
    return {
        0x01: partial(_double, canonical=canonical),
        0x02: _text,
        _DOCUMENT: partial(_document, style=style),
        _ARRAY: partial(_array, style=style),
        0x05: _binary,
        0x06: partial(_constant, '{"$undefined":true}'),
        0x07: _object_id,
        0x08: _boolean,
        0x09: partial(_date, canonical=canonical),
        0x0A: partial(_constant, "null"),
        0x0B: _regex,
        0x0C: _db_pointer,
        0x0D: partial(_wrapped_text, "$code"),
        0x0E: partial(_wrapped_text, "$symbol"),
        0x0F: partial(_code_with_scope, style=style),
        0x10: partial(_int32, canonical=canonical),
        0x11: _timestamp,
        0x12: partial(_int64, canonical=canonical),
        0x13: _decimal,
        0x7F: partial(_constant, '{"$maxKey":1}'),
        0xFF: partial(_constant, '{"$minKey":1}'),
    }


_CANONICAL: Final = _style(canonical=True)
_RELAXED: Final = _style(canonical=False)
_STAGES: Final = _style(canonical=False, blank=" ")
_STAGES.values[0x12] = _typed_int64
