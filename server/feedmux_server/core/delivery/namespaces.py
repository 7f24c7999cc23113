"""Finds which events of a chunk belong to which namespace: for views of a wide stream, and only when a view asks.

Inserts, updates, replaces and deletes concern one namespace. Every other event (drop, rename, dropDatabase, …) is a
boundary event: only MongoDB knows what comes after it in a stream of one namespace, for example an invalidate. So a
view of that namespace asks MongoDB there. The fields are found by walking over the elements of the event; nothing is
decoded.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from feedmux_server.core.events.bson_walk import DOCUMENT, STRING, find_text, length_at, text_at, value_end
from feedmux_server.core.events.chunk import Chunk, Rendition
from feedmux_server.core.feeds.feed import Scope
from feedmux_server.core.feeds.simple_filter import EVERYTHING, SimpleFilter

Namespace = tuple[bytes, bytes]
"""Database and collection, as UTF-8; the collection is empty where an event concerns the whole database."""

_ALL: Final = b""
_DEPLOYMENT: Final = (b"", _ALL)
_CHANGES: Final = {each: each for each in (b"insert", b"update", b"replace", b"delete")}
_EVENT_BYTES: Final = 160
"""What an index costs for each event, and for each collection: measured with tracemalloc."""
_NAMESPACE_BYTES: Final = 400


@dataclass(frozen=True, slots=True)
class Boundary:
    """A boundary event: it is more than a change to a document."""

    index: int
    namespaces: tuple[Namespace, ...]
    """The namespaces of the event: one, or both sides of a rename. Empty if the event names none; then it concerns all
    views."""


class Scopes:
    """Scopes of one deployment, to find those that a boundary event concerns: without a look at the others, since a
    batch may have thousands of boundary events."""

    __slots__ = ("_by_database",)

    def __init__(self) -> None:
        self._by_database: dict[bytes, dict[bytes, Scope]] = {}

    def add(self, scope: Scope) -> None:
        self._by_database.setdefault(scope.database.encode(), {})[scope.collection.encode()] = scope

    def remove(self, scope: Scope) -> None:
        """Nothing when it is not there."""
        database = scope.database.encode()
        scopes = self._by_database.get(database, {})
        scopes.pop(scope.collection.encode(), None)
        if not scopes:
            self._by_database.pop(database, None)

    def concerned(self, boundary: Boundary) -> list[Scope]:
        """The scopes of the event's collections and databases, and the deployment."""
        if not boundary.namespaces:
            return [scope for scopes in self._by_database.values() for scope in scopes.values()]
        found: dict[Scope, None] = {}
        for database, collection in (_DEPLOYMENT, *boundary.namespaces):
            scopes = self._by_database.get(database)
            if scopes is None:
                continue
            if not collection:
                found.update(dict.fromkeys(scopes.values()))
                continue
            for each in (_ALL, collection):
                scope = scopes.get(each)
                if scope is not None:
                    found[scope] = None
        return list(found)


class NamespaceIndex:
    """The index of one chunk: event indexes in order, by collection and by database, and the boundaries."""

    __slots__ = (
        "_boundaries_in", "_boundaries_of", "_changes", "_events", "_unnamed", "boundaries", "collections",
        "databases", "size_bytes",
    )  # fmt: skip

    def __init__(self, chunk: Chunk, read: int | None = None) -> None:
        """`read` is how many events are read at first, all by default; `read_on` reads the others."""
        self.size_bytes = 0
        self.collections: dict[Namespace, list[int]] = {}
        self.databases: dict[bytes, list[int]] = {}
        self.boundaries: list[Boundary] = []
        self._boundaries_of: dict[Namespace, list[int]] = {}
        self._boundaries_in: dict[bytes, list[int]] = {}
        """Those of a database, whatever they name there."""
        self._unnamed: list[int] = []
        """Those that concern all."""
        self._changes: list[tuple[bytes, bytes]] = []
        """Operation type and collection of each event; empty for a boundary."""
        view = chunk.bson
        if view is None:
            raise LookupError("the chunk's bytes are gone")
        self._events: Rendition | None = view
        """Until all are read."""
        self.read_on(chunk.count if read is None else read)

    def read_on(self, most: int) -> bool:
        """Read up to `most` further events. Returns whether there are more."""
        if self._events is None:
            return False
        data, offsets, first = self._events.data, self._events.offsets, len(self._changes)
        stop = min(first + most, len(offsets) - 1)
        for index in range(first, stop):
            operation, namespace, to = _concerned(data, offsets[index])
            if operation in _CHANGES and namespace is not None:
                self.collections.setdefault(namespace, []).append(index)
                self.databases.setdefault(namespace[0], []).append(index)
                self._changes.append((_CHANGES[operation], namespace[1]))
            else:
                self._changes.append((b"", b""))
                self._add(Boundary(index, tuple(each for each in (namespace, to) if each is not None)))
        named = len(self.collections) + len(self._boundaries_of)
        self.size_bytes = _EVENT_BYTES * stop + _NAMESPACE_BYTES * named
        if stop == len(offsets) - 1:
            self._events = None
        return self._events is not None

    def _add(self, boundary: Boundary) -> None:
        self.boundaries.append(boundary)
        if not boundary.namespaces:
            self._unnamed.append(boundary.index)
        for namespace in boundary.namespaces:
            self._boundaries_of.setdefault(namespace, []).append(boundary.index)
            self._boundaries_in.setdefault(namespace[0], []).append(boundary.index)

    def events_of(self, scope: Scope) -> list[int]:
        """Changes to documents in a database or collection."""
        if scope.collection:
            return self.collections.get((scope.database.encode(), scope.collection.encode()), [])
        return self.databases.get(scope.database.encode(), [])

    def admitted(self, events: list[int], simple_filter: SimpleFilter, first: int) -> list[int]:
        """The indexes in `events`, from `first` on, of the changes that `simple_filter` admits."""
        if simple_filter != EVERYTHING:
            return [each for each in events if each >= first and simple_filter.admits(*self._changes[each])]
        return [each for each in events if each >= first] if first else events

    def boundary_of(self, scope: Scope, first: int) -> int | None:
        """The first boundary at or after event `first` that concerns a scope."""
        database, collection = scope.database.encode(), scope.collection.encode()
        if not database:
            return next((boundary.index for boundary in self.boundaries if boundary.index >= first), None)
        found = [self._unnamed]
        if not collection:
            found.append(self._boundaries_in.get(database, []))
        else:
            found += (self._boundaries_of.get((database, each), []) for each in (_ALL, collection))
        at = ((indexes, bisect_left(indexes, first)) for indexes in found)
        return min((indexes[place] for indexes, place in at if place < len(indexes)), default=None)


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
    """Operation type, `ns` and `to` of the event at `at`.

    One loop reads all three. A generator would take a third longer for each event.
    """
    end = at + length_at(data, at)[0] - 1
    operation, namespace, to = b"", None, None
    at += 4
    while at < end:
        kind = data[at]
        name_end = data.index(0, at + 1)
        name, value = data[at + 1 : name_end], name_end + 1
        if kind == DOCUMENT and name == b"ns":
            namespace = _namespace(data, value)
            if operation in _CHANGES:
                break  # `to` comes with renames only
        elif kind == STRING and name == b"operationType":
            operation = text_at(data, value)
        elif kind == DOCUMENT and name == b"to":
            to = _namespace(data, value)
        at = value_end(data, kind, value)
    return operation, namespace, to


def _namespace(data: bytes, at: int) -> Namespace | None:
    database = find_text(data, at, b"db")
    return (database, find_text(data, at, b"coll")) if database else None
