"""The language of a grant's `match`: a small part of MongoDB's, with MongoDB's meaning, as an expression.

`$match` can only keep or drop an event; to tell an update that moves a document into view from one that moves it out,
the images before and after must be judged one by one, and so by expressions. Only what can be said exactly in both
languages is taken: equality with a scalar, `$eq`, `$ne`, `$in`, `$nin`, and `$and`, `$or`, `$nor`. As in MongoDB a
condition on an array holds if it holds for an element, and `$ne` and `$nin` are the negations of that.
"""

import math
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import bson
from bson import Binary, DatetimeMS, Decimal128, Int64, ObjectId
from bson.codec_options import CodecOptions, DatetimeConversion

Expression = Any
"""A MongoDB aggregation expression, as it is encoded to BSON."""

_LOGICAL: Final = frozenset({"$and", "$or", "$nor"})
_LISTS: Final = frozenset({"$in", "$nin"})
_SINGLE: Final = frozenset({"$eq", "$ne"})
_NEGATIVE: Final = frozenset({"$ne", "$nin"})
_SCALARS: Final = (str, bool, int, float, Int64, ObjectId, UUID, Binary, Decimal128, datetime, DatetimeMS)
# A date beyond the year 9999 has no datetime.
_CODEC: Final = CodecOptions[dict[str, Any]](datetime_conversion=DatetimeConversion.DATETIME_MS)
_PATH_BYTES_MAX: Final = 1024
_PATH_PARTS_MAX: Final = 20
_TERMS_MAX: Final = 100
_DEPTH_MAX: Final = 5


def check_match(match: Mapping[str, Any]) -> None:
    """Raises ValueError with what is wrong."""
    if not match:
        raise ValueError("match is empty; leave it out where nothing is to be matched")
    if _check_document(match, _DEPTH_MAX) > _TERMS_MAX:
        raise ValueError(f"match has more than {_TERMS_MAX} conditions")
    try:
        bson.encode(dict(match))
    except Exception:  # noqa: BLE001 - bson raises several kinds: integers over 64 bits, NUL, broken UTF-8
        raise ValueError("match holds a value that BSON cannot express") from None


def is_text(value: object, bytes_max: int) -> bool:
    """Whether BSON can have the value as a name, in so many bytes."""
    try:
        return isinstance(value, str) and len(value.encode()) <= bytes_max and "\0" not in value
    except UnicodeEncodeError:
        return False


def check_path(field: str, path: str) -> None:
    """A dotted path as of a document's field. Raises ValueError."""
    if not is_text(path, _PATH_BYTES_MAX):
        raise ValueError(f"{field}: a path is valid Unicode of at most {_PATH_BYTES_MAX} bytes without NUL")
    parts = path.split(".")
    if len(parts) > _PATH_PARTS_MAX:
        raise ValueError(f"{field}: a path has at most {_PATH_PARTS_MAX} parts")
    for part in parts:
        if not part or part.startswith("$"):
            raise ValueError(f"{field}: {path!r} has a part that is empty or begins with $")
        if part.isdigit():
            raise ValueError(f"{field}: {path!r} has a part that is a number; leave array indices out of a path")


def match_expression(match: bytes, document: str) -> Expression:
    """True where `document` (an expression such as `$$post`) is a document that the condition holds for."""
    conditions: dict[str, Any] = bson.decode(match, _CODEC)
    condition = _all_of(conditions, document)
    return {"$and": [{"$eq": [{"$type": document}, "object"]}, condition]}


def _check_document(match: Mapping[str, Any], depth: int) -> int:
    if depth == 0:
        raise ValueError("match is nested too deeply")
    terms = 0
    for name, value in match.items():
        if name in _LOGICAL:
            if (
                not isinstance(value, list)
                or not value
                or not all(isinstance(each, Mapping) and each for each in value)
            ):
                raise ValueError(f"match: {name} takes a list of conditions that are not empty")
            terms += sum(_check_document(each, depth - 1) for each in value)
        elif isinstance(name, str) and name.startswith("$"):
            raise ValueError(f"match: {name} is not one of $and, $or, $nor")
        else:
            check_path("match", name)
            terms += _check_operators(name, value)
    return terms


def _check_operators(path: str, value: Any) -> int:
    operators = value if isinstance(value, Mapping) else {"$eq": value}
    if not operators:
        raise ValueError(f"match: {path} is compared with an empty document")
    terms = 0
    for operator, operand in operators.items():
        if operator in _LISTS:
            if not isinstance(operand, list) or not operand:
                raise ValueError(f"match: {operator} of {path} takes a list that is not empty")
            for each in operand:
                _check_scalar(path, each)
            terms += len(operand)
        elif operator in _SINGLE:
            _check_scalar(path, operand)
            terms += 1
        else:
            raise ValueError(f"match: {path} takes a value, $eq, $ne, $in or $nin, not {operator}")
    return terms


def _check_scalar(path: str, value: Any) -> None:
    if not isinstance(value, _SCALARS) or (isinstance(value, float) and math.isnan(value)):
        raise ValueError(
            f"match: {path} must be compared with text, a number, a boolean, a date, an ObjectId or binary data"
        )


def _all_of(match: Mapping[str, Any], document: str) -> Expression:
    return {"$and": [_term(name, value, document) for name, value in match.items()]}


def _term(name: str, value: Any, document: str) -> Expression:
    match name:
        case "$and":
            return {"$and": [_all_of(each, document) for each in value]}
        case "$or":
            return {"$or": [_all_of(each, document) for each in value]}
        case "$nor":
            return {"$not": [{"$or": [_all_of(each, document) for each in value]}]}
    operators = value if isinstance(value, Mapping) else {"$eq": value}
    return {"$and": [_compared(name, operator, operand, document) for operator, operand in operators.items()]}


def _compared(path: str, operator: str, operand: Any, document: str) -> Expression:
    holds = _holds(path, operand if operator in _LISTS else [operand], document)
    return {"$not": [holds]} if operator in _NEGATIVE else holds


def _holds(path: str, wanted: list[Any], document: str) -> Expression:
    """Whether one of the wanted values is at a path, through arrays of documents as MongoDB's queries go: not through
    arrays in arrays. Each array is gone through once: a list of all values, which `$reduce` would make, takes a time
    that grows with the square of the array."""
    part, _, rest = path.partition(".")
    value = f"{document}.{part}"
    elements = {"$cond": [{"$isArray": [value]}, value, [value]]}
    values = {"$cond": [{"$eq": [{"$type": document}, "object"]}, elements, []]}
    if rest:
        return {"$anyElementTrue": {"$map": {"input": values, "in": _holds(rest, wanted, "$$this")}}}
    held = {"$or": [{"$in": [{"$literal": each}, "$$values"]} for each in wanted]}
    return {"$let": {"vars": {"values": values}, "in": held}}
