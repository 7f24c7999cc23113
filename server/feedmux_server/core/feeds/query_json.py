"""MongoDB's query language as JSON: operators stay as written, and values are in Extended JSON v2.

`bson.json_util` reads data, not queries: for it, `{"$regex": "^a", "$ne": "abc"}` is one regular expression in the
notation of Extended JSON v1, and the other operators of the object disappear. Here only the names of `FORMS` mark a
value. No operator of MongoDB has one of these names, so an object with such a name is exactly that form, or an error.
"""

import json
import math
import re
from base64 import b64decode
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple
from uuid import UUID

from bson import Binary, Code, DatetimeMS, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp

from feedmux_server.core.events.bson_check import DEPTH_MAX


class QueryInvalid(ValueError):
    """The text is not a query in JSON."""

    def __init__(self, message: str, *path: str) -> None:
        super().__init__(message)
        self.message = message
        self.path = path
        """The names of the fields around the fault, outermost first."""


def parse_query(text: str, name: str) -> Any:
    """The value for `bson.encode`. `name` is the first part of every path. Raises QueryInvalid, and nothing else."""
    try:
        tree = json.loads(text, object_pairs_hook=_Object)
    except json.JSONDecodeError as error:
        raise QueryInvalid(f"not JSON (line {error.lineno}, column {error.colno})", name) from None
    except ValueError:  # of `int`, for more than 4,300 digits
        raise QueryInvalid("a number has too many digits", name) from None
    except RecursionError:
        raise QueryInvalid("documents are nested too deeply", name) from None
    return _field(name, tree, 1)


class _Object(list[tuple[str, Any]]):
    """A JSON object as it is written. A dict would drop a name that appears twice."""


def _field(name: str | int, node: Any, depth: int) -> Any:
    try:
        return _value(node, depth)
    except QueryInvalid as error:
        error.path = (str(name), *error.path)
        raise


def _value(node: Any, depth: int) -> Any:
    # This bounds the recursion. The forms of values add two levels; `bson_check` checks the exact bound.
    if depth > DEPTH_MAX + 2:
        raise QueryInvalid(f"documents are nested more than {DEPTH_MAX} deep")
    match node:
        case _Object():
            return _document(node, depth)
        case list():
            return [_field(index, each, depth + 1) for index, each in enumerate(node)]
        case str():
            _check_unicode(node)
        case int() if not -(2**63) <= node < 2**63:
            raise QueryInvalid('an integer has at most 64 bits; write {"$numberDecimal": "…"} for a larger number')
        case float() if not math.isfinite(node):
            raise QueryInvalid('not a finite double; write {"$numberDouble": "Infinity"}, "-Infinity" or "NaN"')
    return node


def _document(pairs: _Object, depth: int) -> Any:
    document: dict[str, Any] = {}
    for name, node in pairs:
        _check_unicode(name)
        if "\0" in name:
            raise QueryInvalid("a field name contains NUL")
        if name in document:
            raise QueryInvalid("this name appears twice in its document", name)
        document[name] = _field(name, node, depth + 1)
    for name in document:
        if name in FORMS:
            return _typed(name, document)
    return document


def _typed(name: str, document: dict[str, Any]) -> Any:
    form = FORMS[name]
    try:
        if len(document) == 1:
            return form.make(document[name])
        if document.keys() == {"$code", "$scope"} and isinstance(document["$scope"], dict):
            return Code(_text(document["$code"]), document["$scope"])
    except (ValueError, ArithmeticError):
        pass
    raise QueryInvalid(f"{name} marks {form.rule}")


def _check_unicode(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise QueryInvalid("a text contains half of a surrogate pair") from None


def _text(value: Any, pattern: str = "") -> str:
    """Raises ValueError if the value is not a text of this pattern. Every pattern matches in linear time."""
    if not isinstance(value, str) or (pattern and not re.fullmatch(pattern, value)):
        raise ValueError
    return value


def _fields(value: Any, *names: str) -> list[Any]:
    """The values of a document that has exactly these fields. Raises ValueError."""
    if not isinstance(value, dict) or value.keys() != set(names):
        raise ValueError
    return [value[name] for name in names]


_NUMBER: Final = r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?|-?Infinity|NaN"


def _integer(value: Any, bits: int) -> int:
    number = int(_text(value, r"-?[0-9]{1,19}"))
    if not -(2 ** (bits - 1)) <= number < 2 ** (bits - 1):
        raise ValueError
    return number


def _double(value: Any) -> float:
    text = _text(value, _NUMBER)
    number = float(text)
    if math.isinf(number) and not text.endswith("Infinity"):
        raise ValueError
    return number


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def _date(value: Any) -> DatetimeMS:
    if isinstance(value, Int64):  # {"$numberLong": "…"}
        return DatetimeMS(int(value))
    # MongoDB has no parts of a millisecond, and a rounded date would match other events.
    text = _text(
        value, r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,3}0{0,6})?(Z|[+-][0-9]{2}:?[0-9]{2})"
    )
    return DatetimeMS((datetime.fromisoformat(text) - _EPOCH) // timedelta(milliseconds=1))


def _binary(value: Any) -> Binary:
    data, subtype = _fields(value, "base64", "subType")
    return Binary(b64decode(_text(data), validate=True), int(_text(subtype, "[0-9a-fA-F]{1,2}"), 16))


def _uuid(value: Any) -> Binary:
    return Binary(UUID(_text(value, "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")).bytes, 4)


def _timestamp(value: Any) -> Timestamp:
    time, increment = _fields(value, "t", "i")
    if type(time) is not int or type(increment) is not int:
        raise ValueError
    return Timestamp(time, increment)


def _regex(value: Any) -> Regex[str]:
    pattern, options = _fields(value, "pattern", "options")
    # Other letters would disappear: Python has no such flags.
    return Regex(_text(pattern, r"[^\0]*"), _text(options, "[ilmsux]*"))


def _key(value: Any, key: MinKey | MaxKey) -> MinKey | MaxKey:
    if type(value) is not int or value != 1:
        raise ValueError
    return key


class _Form(NamedTuple):
    rule: str
    make: Callable[[Any], Any]
    """From the only field of the object. Raises ValueError or ArithmeticError."""


def _form(form: str, make: Callable[[Any], Any]) -> _Form:
    return _Form(f"extended JSON, whose form is {form}", make)


def _deprecated(value: Any) -> Any:
    raise ValueError


_DEPRECATED: Final = _Form("a value of a deprecated type, which only BSON can contain", _deprecated)
FORMS: Final[dict[str, _Form]] = {
    "$oid": _form('{"$oid": "24 hexadecimal digits"}', lambda value: ObjectId(_text(value, "[0-9a-fA-F]{24}"))),
    "$date": _form(
        '{"$date": "2026-11-28T05:30:00.123Z"}, with Z or an offset and at most three digits after the second, or'
        ' {"$date": {"$numberLong": "milliseconds since 1970"}}',
        _date,
    ),
    "$numberInt": _form('{"$numberInt": "an integer of 32 bits"}', lambda value: _integer(value, 32)),
    "$numberLong": _form('{"$numberLong": "an integer of 64 bits"}', lambda value: Int64(_integer(value, 64))),
    "$numberDouble": _form('{"$numberDouble": "1.5"}, "Infinity", "-Infinity" or "NaN"', _double),
    "$numberDecimal": _form(
        '{"$numberDecimal": "a number of at most 34 digits"}', lambda value: Decimal128(_text(value, _NUMBER))
    ),
    "$uuid": _form('{"$uuid": "00000000-0000-0000-0000-000000000000"}', _uuid),
    "$binary": _form('{"$binary": {"base64": "…", "subType": "two hexadecimal digits"}}', _binary),
    "$timestamp": _form('{"$timestamp": {"t": seconds, "i": increment}}', _timestamp),
    "$regularExpression": _form('{"$regularExpression": {"pattern": "…", "options": "letters of ilmsux"}}', _regex),
    "$minKey": _form('{"$minKey": 1}', lambda value: _key(value, MinKey())),
    "$maxKey": _form('{"$maxKey": 1}', lambda value: _key(value, MaxKey())),
    "$code": _form('{"$code": "…"} or {"$code": "…", "$scope": {…}}', lambda value: Code(_text(value))),
    "$symbol": _DEPRECATED,
    "$dbPointer": _DEPRECATED,
    "$undefined": _DEPRECATED,
}
