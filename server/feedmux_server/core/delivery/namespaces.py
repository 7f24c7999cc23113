"""Finds which events of a chunk belong to which namespace: for views of a wide stream, and only when a view asks.

Inserts, updates, replaces and deletes concern one namespace. Every other event is a turn: what follows it on a narrow
stream (an invalidate, nothing, both sides of a rename) only MongoDB knows, so a view that it concerns asks MongoDB.
The fields are found by walking over the elements of the event; nothing is decoded.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct
from typing import Final

from feedmux_server.core.events.chunk import Chunk
from feedmux_server.core.feeds.feed import Scope
from feedmux_server.core.feeds.simple_filter import EVERYTHING, SimpleFilter

Namespace = tuple[bytes, bytes]
"""Database and collection, as UTF-8; the collection is empty where an event concerns the whole database."""

_CHANGES: Final = {each: each for each in (b"insert", b"update", b"replace", b"delete")}
_STRING, _DOCUMENT, _ARRAY, _BINARY, _REGEX = 2, 3, 4, 5, 11
_FIXED_BYTES: Final = {1: 8, 6: 0, 7: 12, 8: 1, 9: 8, 10: 0, 16: 4, 17: 8, 18: 8, 19: 16, 127: 0, 255: 0}
_LENGTH = Struct("<i").unpack_from
_EVENT_BYTES: Final = 160
"""What an index costs for each event, and for each collection: measured with tracemalloc."""
_NAMESPACE_BYTES: Final = 400


@dataclass(frozen=True, slots=True)
class Turn:
    """An event that is more than a change to a document."""

    index: int
    namespaces: tuple[Namespace, ...]
    """What it concerns: one, or both sides of a rename; none where it does not say, and then it concerns everyone."""

    def concerns(self, scope: Scope) -> bool:
        if not self.namespaces or not scope.database:
            return True
        database, collection = scope.database.encode(), scope.collection.encode()
        return any(
            there == database and (not collection or not which or which == collection)
            for there, which in self.namespaces
        )


class NamespaceIndex:
    """The index of one chunk: event indexes in order, by collection and by database, and the turns."""

    __slots__ = ("_changes", "collections", "databases", "size_bytes", "turns")

    def __init__(self, chunk: Chunk) -> None:
        self.collections: dict[Namespace, list[int]] = {}
        self.databases: dict[bytes, list[int]] = {}
        self.turns: list[Turn] = []
        self._changes: list[tuple[bytes, bytes]] = []
        """Operation type and collection of each event; empty ones of a turn."""
        view = chunk.bson
        if view is None:
            raise LookupError("the chunk's bytes are gone")
        data, offsets = view.data, view.offsets
        for index in range(chunk.count):
            operation, namespace, to = _concerned(data, offsets[index])
            if operation in _CHANGES and namespace is not None:
                self.collections.setdefault(namespace, []).append(index)
                self.databases.setdefault(namespace[0], []).append(index)
                self._changes.append((_CHANGES[operation], namespace[1]))
            else:
                self._changes.append((b"", b""))
                self.turns.append(Turn(index, tuple(each for each in (namespace, to) if each is not None)))
        self.size_bytes = _EVENT_BYTES * chunk.count + _NAMESPACE_BYTES * len(self.collections)

    def events_of(self, scope: Scope) -> list[int]:
        """Changes to documents in a database or collection."""
        if scope.collection:
            return self.collections.get((scope.database.encode(), scope.collection.encode()), [])
        return self.databases.get(scope.database.encode(), [])

    def admitted(self, events: list[int], narrowing: SimpleFilter, first: int) -> list[int]:
        """Of the indexes `events` of changes, those from `first` on that `narrowing` admits."""
        if narrowing != EVERYTHING:
            return [each for each in events if each >= first and narrowing.admits(*self._changes[each])]
        return [each for each in events if each >= first] if first else events

    def turn_of(self, scope: Scope, first: int) -> int | None:
        """The first turn from event `first` on that concerns a scope."""
        return next((turn.index for turn in self.turns if turn.index >= first and turn.concerns(scope)), None)


def runs(indexes: list[int]) -> Iterator[tuple[int, int]]:
    """Consecutive indexes as (first, stop)."""
    if not indexes:
        return
    first = last = indexes[0]
    for index in indexes[1:]:
        if index != last + 1:
            yield first, last + 1
            first = index
        last = index
    yield first, last + 1


def _concerned(data: bytes, at: int) -> tuple[bytes, Namespace | None, Namespace | None]:
    """Operation type, `ns` and `to` of the event at `at`."""
    end = at + _LENGTH(data, at)[0] - 1
    operation, namespace, to = b"", None, None
    at += 4
    while at < end:
        kind = data[at]
        name_end = data.index(0, at + 1)
        name, value = data[at + 1 : name_end], name_end + 1
        if kind == _DOCUMENT and name == b"ns":
            namespace = _namespace(data, value)
            if operation in _CHANGES:
                break  # `to` comes with renames only
        elif kind == _STRING and name == b"operationType":
            operation = data[value + 4 : value + 3 + _LENGTH(data, value)[0]]
        elif kind == _DOCUMENT and name == b"to":
            to = _namespace(data, value)
        at = _behind(data, kind, value)
    return operation, namespace, to


def _namespace(data: bytes, at: int) -> Namespace | None:
    end = at + _LENGTH(data, at)[0] - 1
    database = collection = b""
    at += 4
    while at < end:
        kind = data[at]
        name_end = data.index(0, at + 1)
        value = name_end + 1
        if kind == _STRING:
            text = data[value + 4 : value + 3 + _LENGTH(data, value)[0]]
            name = data[at + 1 : name_end]
            if name == b"db":
                database = text
            elif name == b"coll":
                collection = text
        at = _behind(data, kind, value)
    return (database, collection) if database else None


def _behind(data: bytes, kind: int, value: int) -> int:
    """Where the element after the value of type `kind` at `value` begins. Raises ValueError on a type there is not."""
    fixed = _FIXED_BYTES.get(kind)
    if fixed is not None:
        return value + fixed
    if kind in (_DOCUMENT, _ARRAY):
        return value + int(_LENGTH(data, value)[0])
    if kind == _REGEX:
        return data.index(0, data.index(0, value) + 1) + 1
    size = int(_LENGTH(data, value)[0])
    if kind in (_STRING, 13, 14):
        return value + 4 + size
    if kind == _BINARY:
        return value + 5 + size
    if kind == 12:
        return value + 4 + size + 12
    if kind == 15:
        return value + size
    raise ValueError(f"no BSON type {kind}")
