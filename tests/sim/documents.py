"""The documents of the model's collections: what a collection held at each position, and the stages of a copy.

`tests/integration/test_models.py` asks MongoDB the same questions. Pure; `mongo` reads and writes.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

import bson
from bson.objectid import ObjectId

from feedmux_server.core.positions.resume_token import PlaceKey, ResumeToken

_TYPES: Final[dict[type, int]] = {int: 0, str: 1, ObjectId: 2}
"""The types of `_id`s, in the order in which MongoDB sorts them."""
KEYS: Final = (*range(25), *(f"s{number:02}" for number in range(20)), *(ObjectId(f"{n:024x}") for n in range(20)))
"""The `_id`s that a run draws from, in MongoDB's order."""
Kind = Literal["upsert", "update", "delete"]
Event = dict[str, Any]
State = dict[str, dict[str, Any]]
"""Documents, by the rank of their `_id`s."""


def rank_of(key: Any) -> str:
    """The rank of an `_id`: ranks sort as MongoDB sorts `_id`s."""
    return f"{_TYPES[type(key)]}{key:06}" if isinstance(key, int) else f"{_TYPES[type(key)]}{key}"


@dataclass(frozen=True, slots=True)
class Change:
    """A change to one document. Without that document an update or a delete changes nothing."""

    kind: Kind
    key: Any
    fields: tuple[tuple[str, Any], ...] = ()

    def event(self, state: State, number: int) -> Event | None:
        """The event in the collection's present state; None if nothing changes. `n` is the number of the last change to
        the document, `v` that of the last one that replaced it."""
        is_there = rank_of(self.key) in state
        if not is_there and self.kind != "upsert":
            return None
        event: Event = {"operationType": self.kind, "documentKey": {"_id": self.key}}
        if self.kind == "upsert":
            event["operationType"] = "replace" if is_there else "insert"
            event["fullDocument"] = {"_id": self.key, "n": number, "v": number, **dict(self.fields)}
        elif self.kind == "update":
            updated = {"n": number, **dict(self.fields)}
            event["updateDescription"] = {"updatedFields": updated, "removedFields": [], "truncatedArrays": []}
        return event


def apply(state: State, event: Event, prefix: str = "") -> None:
    """Change the state as a program does that mirrors a collection: an event may name a document that it has or has
    not. `prefix`: of the ranks of the event's collection."""
    kind = event["operationType"]
    if kind in ("drop", "rename"):
        for rank in [rank for rank in state if rank.startswith(prefix)]:
            del state[rank]
    if "documentKey" not in event:
        return
    rank = prefix + rank_of(event["documentKey"]["_id"])
    match kind:
        case "delete":
            state.pop(rank, None)
        case "update":
            state[rank] = (state.get(rank) or event["documentKey"]) | event["updateDescription"]["updatedFields"]
        case _:
            state[rank] = event["fullDocument"]


class Versions:
    """What one collection held after each of its changes."""

    def __init__(self) -> None:
        self.read = 0
        """The number of entries of the oplog that were looked at."""
        self._keys: list[PlaceKey] = []
        self._states: list[State] = [{}]

    def add(self, token: ResumeToken, event: Event, moved: State | None = None) -> None:
        """`moved`: what a rename has brought."""
        state = dict(self._states[-1] if moved is None else moved)
        if moved is None:
            apply(state, event)
        self._keys.append(token.key)
        self._states.append(state)

    def after(self, token: ResumeToken) -> State:
        """What it held at a position."""
        return self._states[bisect_right(self._keys, token.key)]


# The stages of a copy.

_COMPARISONS: Final[dict[str, Callable[[str, str], bool]]] = {
    "$eq": lambda one, other: one == other,
    "$lt": lambda one, other: one < other,
    "$lte": lambda one, other: one <= other,
    "$gt": lambda one, other: one > other,
    "$gte": lambda one, other: one >= other,
}
_WITHOUT_DOCUMENT: Final = {"documentKey": {"$exists": False}}


def without_gate(stages: list[dict[str, Any]]) -> tuple[Callable[[Event], bool], list[dict[str, Any]]]:
    """The condition of the gate of a copy, if there is one among the stages, and the other stages."""
    for number, stage in enumerate(stages):
        branches = stage.get("$match", {}).get("$or", [])
        if _WITHOUT_DOCUMENT in branches:
            return _gate(branches), [*stages[:number], *stages[number + 1 :]]
    return lambda event: True, stages


def _gate(branches: list[dict[str, Any]]) -> Callable[[Event], bool]:
    conditions = [[_condition(name, value) for name, value in each.items()] for each in branches]

    def passes(event: Event) -> bool:
        return any(all(condition(event) for condition in each) for each in conditions)

    return passes


def _condition(name: str, value: Any) -> Callable[[Event], bool]:
    """One condition of a branch of the gate."""
    match name:
        case "operationType":
            return lambda event: event["operationType"] == value
        case "documentKey":
            return lambda event: "documentKey" not in event
        case "ns.db" | "ns.coll":
            compares, other = ("$eq", value) if isinstance(value, str) else next(iter(value.items()))
            return lambda event: _COMPARISONS[compares](event["ns"][name[3:]], other)
        case "$expr":
            bound = _bound(value, "$documentKey._id")
            return lambda event: "documentKey" in event and bound(rank_of(event["documentKey"]["_id"]))
    raise ValueError(f"the model knows no {name} in a gate")


def _bound(expression: dict[str, Any], field: str) -> Callable[[str], bool]:
    [(name, (left, right))] = expression.items()
    assert left == field
    compares, other = _COMPARISONS[name], rank_of(right["$literal"])
    return lambda rank: compares(rank, other)


def read_documents(stages: list[dict[str, Any]], state: State) -> Iterator[bytes]:
    """The documents that the stages of a copy return."""
    bounds: list[Callable[[str], bool]] = []
    shape: Any = "$$ROOT"
    for stage in stages:
        [(name, value)] = stage.items()
        match name:
            case "$match":
                expression = value["$expr"]
                bounds += [_bound(each, "$_id") for each in expression.get("$and", [expression])]
            case "$sort":
                assert value == {"_id": 1}
            case "$replaceWith":
                shape = value
            case _:
                raise ValueError(f"the model knows no {name} in a read of documents")
    for rank in sorted(state):
        if all(bound(rank) for bound in bounds):
            yield bson.encode(_shaped(shape, state[rank]))


def _shaped(shape: Any, document: dict[str, Any]) -> Any:
    """The value of an expression."""
    if isinstance(shape, dict):
        if "$literal" in shape:
            return shape["$literal"]
        return {name: _shaped(each, document) for name, each in shape.items()}
    if shape == "$$ROOT":
        return document
    if isinstance(shape, str) and shape.startswith("$"):
        return document[shape[1:]]
    return shape
