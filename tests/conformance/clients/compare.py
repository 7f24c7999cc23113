"""Comparing what a runner reported with what it should have. Raises AssertionError."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

Json = dict[str, Any]
NOTICES: Final = {
    "draining",
    "rewound",
    "skipped",
    "history_at_risk",
    "gap",
    "degraded",
    "unacknowledged",
    "snapshot_progress",
    "snapshot_complete",
    "disconnected",
}
_NUMBERS: Final = ("$numberInt", "$numberLong", "$numberDouble")


def label(event: Mapping[str, Any]) -> int | str:
    """What a scenario calls an event: its `n`, else its operation type."""
    document = event["document"]
    for place in (document.get("fullDocument") or {}, document):
        if "n" in place:
            return int(_number(place["n"]))
    return str(document["operationType"])


def same_value(found: Any, wanted: Any) -> bool:
    """Equal; floats nearly so."""
    if isinstance(found, float) and isinstance(wanted, int | float):
        return math.isclose(found, wanted, rel_tol=1e-6, abs_tol=1e-9)
    return bool(found == wanted)


def differences(found: Any, wanted: Any, where: str = "") -> str:
    """The first difference between two documents in canonical extended JSON; empty if there is none.

    Numbers are compared by value, because some languages have one type for them all.
    """
    numbers = _number(found), _number(wanted)
    if None not in numbers:
        same = numbers[0] == numbers[1] or (math.isnan(numbers[0]) and math.isnan(numbers[1]))
        return "" if same else f"{where}: {found} is not {wanted}"
    if isinstance(found, Mapping) and isinstance(wanted, Mapping):
        if set(found) != set(wanted):
            return f"{where}: fields {sorted(found)}, not {sorted(wanted)}"
        parts = (differences(found[key], wanted[key], f"{where}.{key}") for key in wanted)
        return next(filter(None, parts), "")
    if _is_list(found) and _is_list(wanted):
        if len(found) != len(wanted):
            return f"{where}: {len(found)} elements, not {len(wanted)}"
        parts = (differences(a, b, f"{where}[{n}]") for n, (a, b) in enumerate(zip(found, wanted, strict=True)))
        return next(filter(None, parts), "")
    return "" if found == wanted and type(found) is type(wanted) else f"{where}: {found!r} is not {wanted!r}"


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _number(value: Any) -> float | Any:
    """The number that a value in extended JSON is, or None. Whole ones exactly."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return value
    if isinstance(value, Mapping) and len(value) == 1:
        ((tag, text),) = value.items()
        if tag in _NUMBERS:
            number = float(text) if tag == "$numberDouble" else int(text)
            return int(number) if isinstance(number, float) and number.is_integer() else number
    return None


def kind(item: Mapping[str, Any]) -> str:
    """The kind of a notice, as reported or as a scenario names it."""
    notice = item["notice"]
    return notice if isinstance(notice, str) else str(notice["kind"])


def check_notices(found: Sequence[Json], wanted: Sequence[Any]) -> None:
    """The notices of these kinds are these, in this order; none at all where none is wanted.

    A client may fail to connect again any number of times: disconnects one after another count as one.
    """
    expected = [{"kind": each} if isinstance(each, str) else each for each in wanted]
    kinds = {each["kind"] for each in expected}
    shown = [each for each in found if each["kind"] in kinds or not kinds]
    shown = [
        each
        for before, each in zip([None, *shown], shown, strict=False)
        if before is None or not before["kind"] == each["kind"] == "disconnected"
    ]
    assert len(shown) == len(expected), f"notices are {found}, not {expected}"
    for notice, named in zip(shown, expected, strict=True):
        for name, value in named.items():
            if value is None:
                continue
            assert same_value(notice.get(name), value), f"{name} of {notice} is not {value!r}"


def check_items(found: Sequence[Json], wanted: Sequence[Any]) -> None:
    """The events, and the notices of the kinds named, are these, in this order."""
    expected = [kind(each) if isinstance(each, Mapping) else each for each in wanted]
    shown = [kind(item) if "notice" in item else label(item["event"]) for item in found]
    shown = [each for each in shown if each in expected or each not in NOTICES]
    assert shown == expected, f"{shown}, not {expected}"


def check_error(error: Json, wanted: Json) -> None:
    """What is wanted is so; of `metadata`, what is named in it; True: there is some."""
    for name, value in wanted.items():
        found = error.get(name)
        if value is None:
            continue
        if name in ("position", "resume_token") and value is True:
            assert found, f"the error has no {name}: {error}"
        elif isinstance(value, Mapping):
            assert isinstance(found, Mapping), f"{name} is {found!r}"
            assert value.items() <= found.items(), f"{name} is {found!r}, not {value!r}"
        else:
            assert same_value(found, value), f"{name} is {found!r}, not {value!r}: {error}"
