"""Extended JSON that people type, and that commands print: neither loses a type, nor a name that comes twice."""

import json
from collections.abc import Mapping
from typing import Any, Final, NoReturn
from uuid import UUID

import bson
from bson.binary import Binary

from feedmux.extended_json import unwrapped
from feedmux.json_writer import definition_json, event_json

_OF_A_DBREF: Final = frozenset({"$ref", "$id", "$db"})


class _Object(dict[str, Any]):
    """An object in which a name may come twice: `json` writes what `items` returns."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self._pairs = pairs

    def items(self) -> Any:
        return self._pairs


def shown(event: bytes) -> Any:
    """Return an event, a BSON document, as `print_json` takes it."""
    return json.loads(event_json(event), object_pairs_hook=_Object)


def shown_definition(value: Mapping[str, Any]) -> Any:
    """The same of a document that can be typed again: an int64 stays one."""
    return json.loads(definition_json(bson.encode(value)), object_pairs_hook=_Object)


def parse(text: str) -> Any:
    """Return the value of a text in Extended JSON version 2. Raises ValueError, which says why."""
    try:
        value = _value(json.loads(text, object_pairs_hook=_once, parse_constant=_no_constant))
        bson.encode({"": value})
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error}") from None
    except (OverflowError, RecursionError, bson.errors.BSONError) as error:
        raise ValueError(f"no value of BSON: {error}") from None
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"a name comes twice in one document: {', '.join(name for name, _ in pairs)}")
    return found


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f'{text} is no JSON: write {{"$numberDouble": "{text}"}}')


def _value(given: Any) -> Any:
    """As `extended_json.value_of`, but what looks like a value of a type has to be one."""
    if isinstance(given, list):
        return [_value(each) for each in given]
    if not isinstance(given, dict):
        return given
    if tuple(given) == ("$uuid",) and isinstance(given["$uuid"], str):
        return Binary.from_uuid(UUID(given["$uuid"]))
    value = unwrapped(given)
    if value is not given:
        return value
    if unknown := [name for name in given if name.startswith("$") and name not in _OF_A_DBREF]:
        raise ValueError(f"{unknown[0]} is not written as in Extended JSON version 2")
    return {name: _value(each) for name, each in given.items()}
