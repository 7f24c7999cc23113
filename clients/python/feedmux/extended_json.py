"""Reads events in MongoDB's Extended JSON.

`json_util.loads` takes any document with a name like `$oid` or `$regex` for a value's wrapper, but a document may have
such names itself. Here only what the server writes for a value of that type is one: exactly its names, and a text of
its form. Everything else is the document that it is.
"""

import base64
import json
import re
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import bson
from bson.binary import Binary
from bson.code import Code
from bson.codec_options import CodecOptions
from bson.datetime_ms import DatetimeMS
from bson.dbref import DBRef
from bson.decimal128 import Decimal128
from bson.int64 import Int64
from bson.max_key import MaxKey
from bson.min_key import MinKey
from bson.objectid import ObjectId
from bson.regex import Regex
from bson.timestamp import Timestamp

from feedmux.errors import ProtocolError

_OID: Final = re.compile("[0-9a-f]{24}")
_INTEGER: Final = re.compile("0|-?[1-9][0-9]{0,18}")
_DOUBLE: Final = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?|NaN|-?Infinity")
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{3})?Z")
_SUBTYPE: Final = re.compile("[0-9a-f]{2}")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_FIRST_DOCUMENT: Final = 6
"""Where the document begins in the BSON of a document whose first field, without a name, is that document."""


def decode(text: str, options: CodecOptions[Any]) -> Any:
    """Return a document, decoded from its text with codec options as from its BSON.

    Raises ProtocolError for a text that is no document in Extended JSON, and bson.errors.InvalidBSON for a value that
    the codec options cannot represent.
    """
    try:
        # As a field, because bson puts a document's own `_id` first.
        raw = bson.encode({"": _document(json.loads(text))})
    except (ValueError, TypeError, OverflowError, RecursionError, bson.errors.BSONError) as error:
        raise ProtocolError("an event cannot be decoded from its Extended JSON; use format 'bson'") from error
    return bson.decode(raw[_FIRST_DOCUMENT:-1], options)


def _document(given: Any) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise TypeError
    return {name: value_of(each) for name, each in given.items()}


def value_of(given: Any) -> Any:
    """Return the value that JSON, as `json` has parsed it, stands for."""
    if isinstance(given, dict):
        value = unwrapped(given)
        return _document(given) if value is given else value
    if isinstance(given, list):
        return [value_of(each) for each in given]
    return given


def unwrapped(given: dict[str, Any]) -> Any:
    """Return the value of a type that an object stands for, or the object itself, which is a document."""
    if len(given) in (1, 2) and (wrapper := _WRAPPERS.get(tuple(given))) is not None:
        with suppress(ValueError, TypeError, ArithmeticError):  # the document's own
            return wrapper(*given.values())
    return given


def _matched(pattern: re.Pattern[str], text: Any) -> str:
    """Return the text. Raises ValueError if it has not the form, TypeError if it is no text."""
    if not pattern.fullmatch(text):
        raise ValueError
    return str(text)


def _text(text: Any) -> str:
    if not isinstance(text, str):
        raise TypeError
    return text


def _exactly(wanted: Any, value: Any) -> Callable[[Any], Any]:
    """Return the wrapper of a type that has one value, written as `wanted`."""

    def wrapper(given: Any) -> Any:
        if type(given) is not type(wanted) or given != wanted:
            raise ValueError
        return value

    return wrapper


def _parts(given: Any, *names: str) -> tuple[Any, ...]:
    """Return the values of an object that has exactly these names. Raises ValueError."""
    if not isinstance(given, dict) or tuple(given) != names:
        raise ValueError
    return tuple(given.values())


def _integer(text: Any, bits: int) -> int:
    value = int(_matched(_INTEGER, text))
    if not -(1 << bits - 1) <= value < 1 << bits - 1:
        raise ValueError
    return value


def _uint32(value: Any) -> int:
    if type(value) is not int:
        raise TypeError
    return value


def _decimal(text: Any) -> Decimal128:
    value = Decimal128(_text(text))
    if str(value) != text:
        raise ValueError
    return value


def _date(given: Any) -> DatetimeMS:
    if isinstance(given, str):
        at = datetime.fromisoformat(_matched(_DATE, given))
        return DatetimeMS((at - _EPOCH) // _MILLISECOND)
    (text,) = _parts(given, "$numberLong")
    return DatetimeMS(_integer(text, 64))


def _binary(given: Any) -> Binary:
    content, subtype = _parts(given, "base64", "subType")
    return Binary(base64.b64decode(_text(content), validate=True), int(_matched(_SUBTYPE, subtype), 16))


def _regex(given: Any) -> Regex[str]:
    pattern, options = _parts(given, "pattern", "options")
    if "\0" in _text(pattern) + _text(options):
        raise ValueError
    return Regex(pattern, options)


def _timestamp(given: Any) -> Timestamp:
    seconds, increment = _parts(given, "t", "i")
    return Timestamp(_uint32(seconds), _uint32(increment))


def _db_pointer(given: Any) -> DBRef:
    """What pymongo decodes a DBPointer to."""
    collection, object_id = _parts(given, "$ref", "$id")
    return DBRef(_text(collection), _object_id(*_parts(object_id, "$oid")))


def _object_id(text: Any) -> ObjectId:
    return ObjectId(_matched(_OID, text))


def _code_with_scope(code: Any, scope: Any) -> Code:
    return Code(_text(code), _document(scope))


_WRAPPERS: Final[dict[tuple[str, ...], Callable[..., Any]]] = {
    ("$oid",): _object_id,
    ("$date",): _date,
    ("$numberInt",): lambda text: _integer(text, 32),
    ("$numberLong",): lambda text: Int64(_integer(text, 64)),
    ("$numberDouble",): lambda text: float(_matched(_DOUBLE, text)),
    ("$numberDecimal",): _decimal,
    ("$binary",): _binary,
    ("$regularExpression",): _regex,
    ("$timestamp",): _timestamp,
    ("$code",): lambda code: Code(_text(code)),
    ("$code", "$scope"): _code_with_scope,
    ("$minKey",): _exactly(1, MinKey()),
    ("$maxKey",): _exactly(1, MaxKey()),
    # What pymongo decodes these to.
    ("$symbol",): _text,
    ("$undefined",): _exactly(True, None),
    ("$dbPointer",): _db_pointer,
}
