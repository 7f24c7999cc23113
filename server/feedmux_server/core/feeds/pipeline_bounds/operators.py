"""Operators that MongoDB applies to the values of their operands: the bound of the result, from those of the operands.

`expressions` has the others, which bind variables, choose what is evaluated, or take constants.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from feedmux_server.core.feeds.pipeline_bounds.budget import Budget
from feedmux_server.core.feeds.pipeline_bounds.weights import (
    DOCUMENT,
    EMPTY_BYTES,
    SCALAR_BYTES,
    Bound,
    largest_of,
    sum_of,
)

SHORT_TEXT_BYTES: Final = 64
# 22 comparisons for each of a few million elements, of 3 bytes at least.
SORT_WORK: Final = 8
# {k: name, v: value} of 25 bytes and the two, from a field of 2 bytes and the two.
_PAIR_BYTES: Final = 25
_PAIR_BYTES_MIN: Final = 19
_OBJECT_TO_ARRAY: Final = 13
# An element of 14 bytes and the text, from a separator of 1 byte and the text.
_SPLIT: Final = 15
# Every %-mark of two bytes becomes at most ten.
_DATE_FORMAT: Final = 5
# A text of 10 bytes ("false") and 3 around it, from a boolean of 1 byte and 3 around it.
_TEXT_OF_ELEMENT: Final = 4
# An index of 7 digits where it was one of 1, and 2 bytes around it.
_LONGER_INDEX: Final = 3
_DATE_PARTS_BYTES: Final = 150
_INSTEAD: Final = ("onError", "onNull")
"""Operands that may be the result instead."""


def _scalar(budget: Budget, name: str, operands: list[Bound]) -> Bound:
    budget.drop(*operands)
    return Bound(SHORT_TEXT_BYTES if name == "$type" else SCALAR_BYTES)


def _reader(budget: Budget, name: str, operands: list[Bound]) -> Bound:
    budget.drop(*operands)
    budget.charge(*operands)
    return Bound(SCALAR_BYTES)


def _comparison(budget: Budget, name: str, operands: list[Bound]) -> Bound:
    budget.drop(*operands)
    costs = [each for each in operands if each.is_constant] or [
        each for each in operands if all(symbol == budget.symbol for symbol, _ in each.weights)
    ]
    # A comparison ends where the smaller operand does.
    budget.charge(*(costs[:1] or operands))
    return Bound(SCALAR_BYTES)


def _all_together(budget: Budget, name: str, operands: list[Bound]) -> Bound:
    total = sum_of(operands, EMPTY_BYTES)
    if name == "$concatArrays":
        # An element's index may take more digits than before.
        total = total.times(_LONGER_INDEX)
    budget.charge(total.times(SORT_WORK) if name.startswith("$set") else total)
    return total.times(_LONGER_INDEX) if name == "$setUnion" else total


def _part_of_array(budget: Budget, name: str, operands: list[Bound]) -> Bound:
    budget.drop(*operands[1:])
    budget.charge(operands[0])
    return operands[0].same_elements()


def _part_of_text(budget: Budget, name: str, operands: list[Bound]) -> Bound:
    budget.drop(*operands[1:])
    budget.charge(operands[0])
    return _as_text(budget, operands[0])


def _set_difference(budget: Budget, name: str, operands: list[Bound]) -> Bound:
    budget.drop(*operands[1:])
    budget.charge(*(each.times(SORT_WORK) for each in operands))
    return _as_text(budget, operands[0])


def _as_text(budget: Budget, bound: Bound) -> Bound:
    """A text made of it, also of a number or a date: in a loop by its size, as there a constant counts for more."""
    if budget.symbol != DOCUMENT:
        return bound.times(_TEXT_OF_ELEMENT, EMPTY_BYTES)
    return bound.times(2, SHORT_TEXT_BYTES)


def _one_element(budget: Budget, name: str, operands: list[Bound]) -> Bound:
    first, *others = operands
    budget.drop(*others)
    if first.element is None:
        return first.plain()
    budget.drop(first)
    return first.element.copy()


def _choice(budget: Budget, name: str, operands: list[Bound]) -> Bound:
    if name != "$ifNull":
        budget.charge(*operands)
    return largest_of(operands)


def _search_array(budget: Budget, name: str, operands: list[Bound]) -> Bound:
    budget.drop(*operands)
    budget.charge(operands[1 if name == "$in" else 0])
    return Bound(SCALAR_BYTES)


def _index_of_text(budget: Budget, name: str, operands: list[Bound]) -> Bound:
    text, needle, *others = operands
    budget.drop(text, *others)
    _search(budget, name, text, needle)
    return Bound(SCALAR_BYTES)


def _search(budget: Budget, name: str, text: Bound, needle: Bound) -> None:
    """Looking for a text takes as long as both lengths multiplied."""
    if not needle.is_constant:
        raise budget.rejection(name, "what it looks for must be a constant")
    budget.charge(text.times(1 + needle.constant / 8))


def _object_to_array(budget: Budget, name: str, operands: list[Bound]) -> Bound:
    (source,) = operands
    budget.charge(source)
    total = source.times(_OBJECT_TO_ARRAY, 5)
    total.element_bytes = _PAIR_BYTES_MIN
    total.of_objects = True
    total.element = source.times(1, _PAIR_BYTES)
    total.back = source.plain()
    return total


def _array_to_object(budget: Budget, name: str, operands: list[Bound]) -> Bound:
    (source,) = operands
    budget.charge(source)
    if source.back is None:
        return source.plain()
    budget.drop(source)
    return source.back.copy()


def _split(budget: Budget, name: str, operands: list[Bound]) -> Bound:
    text, separator = operands
    _search(budget, name, text, separator)
    total = text.times(_SPLIT, SCALAR_BYTES)
    total.element = text.plain()
    return total


def _to_string(budget: Budget, name: str, operands: list[Bound]) -> Bound:
    budget.charge(*operands)
    return _as_text(budget, operands[0])


def _trim(budget: Budget, name: str, found: Mapping[str, Bound]) -> Bound:
    _search(budget, name, found["input"], found.get("chars", Bound(SHORT_TEXT_BYTES)))
    return found["input"].plain()


def _replace_one(budget: Budget, name: str, found: Mapping[str, Bound]) -> Bound:
    _search(budget, name, found["input"], found["find"])
    return sum_of([found["input"], found["replacement"]])


def _convert(budget: Budget, name: str, found: Mapping[str, Bound]) -> Bound:
    budget.charge(found["input"])
    budget.drop(found["to"])
    return largest_of([_as_text(budget, found["input"]), Bound(SCALAR_BYTES), *_others(found)])


def _date_to_string(budget: Budget, name: str, found: Mapping[str, Bound]) -> Bound:
    text = found.get("format", Bound()).times(_DATE_FORMAT, SHORT_TEXT_BYTES)
    budget.drop(found["date"], found.get("timezone", Bound()))
    budget.charge(text)
    return largest_of([text, *_others(found)])


def _date_to_parts(budget: Budget, name: str, found: Mapping[str, Bound]) -> Bound:
    budget.drop(*found.values())
    return Bound(_DATE_PARTS_BYTES)


def _date_from_string(budget: Budget, name: str, found: Mapping[str, Bound]) -> Bound:
    read = [bound for each, bound in found.items() if each not in _INSTEAD]
    budget.charge(*read)
    budget.drop(*read)
    return largest_of([Bound(SCALAR_BYTES), *_others(found)])


def _others(found: Mapping[str, Bound]) -> list[Bound]:
    return [found[each] for each in _INSTEAD if each in found]


def _set_field(budget: Budget, name: str, found: Mapping[str, Bound]) -> Bound:
    budget.charge(found["input"])
    return sum_of(found.values(), SCALAR_BYTES)


def _unset_field(budget: Budget, name: str, found: Mapping[str, Bound]) -> Bound:
    budget.drop(found["field"])
    budget.charge(found["input"])
    return found["input"].plain()


@dataclass(frozen=True, slots=True)
class Listed:
    """Takes operands in a list, or one alone."""

    result: Callable[[Budget, str, list[Bound]], Bound]
    least: int = 0
    most: int | None = None


@dataclass(frozen=True, slots=True)
class Named:
    """Takes operands by name."""

    result: Callable[[Budget, str, Mapping[str, Bound]], Bound]
    required: tuple[str, ...]
    optional: tuple[str, ...] = ()


_SCALARS: Final = (
    "$abs", "$add", "$ceil", "$divide", "$exp", "$floor", "$ln", "$log", "$log10", "$mod", "$multiply", "$pow",
    "$round", "$sqrt", "$subtract", "$trunc", "$sin", "$cos", "$tan", "$asin", "$acos", "$atan", "$atan2", "$asinh",
    "$acosh", "$atanh", "$sinh", "$cosh", "$tanh", "$degreesToRadians", "$radiansToDegrees", "$bitAnd", "$bitOr",
    "$bitXor", "$bitNot", "$and", "$or", "$not", "$isArray", "$isNumber", "$size", "$type", "$binarySize",
    "$strLenBytes", "$year", "$month", "$week", "$dayOfYear", "$dayOfMonth", "$dayOfWeek", "$hour", "$minute",
    "$second", "$millisecond", "$isoDayOfWeek", "$isoWeek", "$isoWeekYear", "$dateAdd", "$dateSubtract",
    "$dateDiff", "$dateTrunc", "$dateFromParts", "$tsSecond", "$tsIncrement", "$toBool",
)  # fmt: skip
"""A value of a few bytes, made without looking through the contents of an operand."""
_READERS: Final = (
    "$strLenCP", "$bsonSize", "$strcasecmp", "$setEquals", "$setIsSubset", "$allElementsTrue", "$anyElementTrue",
    "$sum", "$avg", "$stdDevPop", "$stdDevSamp", "$toInt", "$toLong", "$toDouble", "$toDecimal", "$toDate",
    "$toObjectId",
)  # fmt: skip
"""A value of a few bytes, for which MongoDB looks through its operands."""

COMBINING: Final[Mapping[str, Listed | Named]] = {
    **dict.fromkeys(_SCALARS, Listed(_scalar)),
    **dict.fromkeys(_READERS, Listed(_reader)),
    **dict.fromkeys(("$eq", "$ne", "$gt", "$gte", "$lt", "$lte", "$cmp"), Listed(_comparison)),
    # At most all operands together.
    **dict.fromkeys(
        ("$concat", "$concatArrays", "$mergeObjects", "$setUnion", "$setIntersection"), Listed(_all_together)
    ),
    # At most the first operand.
    **dict.fromkeys(("$slice", "$reverseArray"), Listed(_part_of_array, 1)),
    **dict.fromkeys(("$substr", "$substrBytes", "$substrCP", "$toLower", "$toUpper"), Listed(_part_of_text, 1)),
    "$setDifference": Listed(_set_difference, 1),
    **dict.fromkeys(("$arrayElemAt", "$first", "$last"), Listed(_one_element, 1)),
    # At most the largest operand.
    **dict.fromkeys(("$ifNull", "$min", "$max"), Listed(_choice)),
    "$in": Listed(_search_array, 2, 2),
    "$indexOfArray": Listed(_search_array, 1),
    "$indexOfBytes": Listed(_index_of_text, 2, 4),
    "$indexOfCP": Listed(_index_of_text, 2, 4),
    "$objectToArray": Listed(_object_to_array, 1, 1),
    "$arrayToObject": Listed(_array_to_object, 1, 1),
    "$split": Listed(_split, 2, 2),
    "$toString": Listed(_to_string, 1, 1),
    **dict.fromkeys(("$trim", "$ltrim", "$rtrim"), Named(_trim, ("input",), ("chars",))),
    "$replaceOne": Named(_replace_one, ("input", "find", "replacement")),
    "$convert": Named(_convert, ("input", "to"), ("onError", "onNull")),
    "$dateToString": Named(_date_to_string, ("date",), ("format", "timezone", "onNull")),
    "$dateToParts": Named(_date_to_parts, ("date",), ("timezone", "iso8601")),
    "$dateFromString": Named(_date_from_string, ("dateString",), ("format", "timezone", "onError", "onNull")),
    "$setField": Named(_set_field, ("field", "input", "value")),
    "$unsetField": Named(_unset_field, ("field", "input")),
}
