"""Find which events of a chunk belong to which namespace, without decoding them."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import bson
from hypothesis import given
from hypothesis import strategies as st

from feedmux_server.core.delivery.namespaces import NamespaceIndex, Scopes, runs
from feedmux_server.core.events.chunk import Chunk, document_offsets
from feedmux_server.core.feeds.feed import Scope
from feedmux_server.core.feeds.simple_filter import EVERYTHING, SimpleFilter
from feedmux_server.core.positions.resume_token import ResumeToken
from tests.unit.core.events.test_bson_walk import EVERY_TYPE


def index_of(*events: Mapping[str, Any]) -> NamespaceIndex:
    data = b"".join(bson.encode({"_id": {"_data": "82"}, **event}) for event in events)
    place = ResumeToken.high_water_mark(1)
    return NamespaceIndex(Chunk(data, document_offsets(data), place, place, 0.0))


def change(database: str, collection: str, operation: str = "insert", **fields: object) -> dict[str, Any]:
    return {"operationType": operation, **fields, "ns": {"db": database, "coll": collection}, "documentKey": {"_id": 1}}


def test_what_a_narrowing_admits() -> None:
    index = index_of(change("d", "a"), change("d", "b"), change("d", "a", "delete"), change("d", "a", "drop"))
    events = index.events_of(Scope("main", "d"))
    deletes, of_a = SimpleFilter(operations=frozenset({b"delete"})), SimpleFilter(collections=frozenset({b"a"}))
    assert index.admitted(events, EVERYTHING, 0) == [0, 1, 2]
    assert index.admitted(events, EVERYTHING, 1) == [1, 2]
    assert index.admitted(events, deletes, 0) == [2]
    assert index.admitted(events, of_a, 0) == [0, 2]
    assert index.admitted(events, of_a, 1) == [2]


def test_changes_are_found_between_fields_of_every_type() -> None:
    changes = [{**EVERY_TYPE, **change("d", "c")}, change("d", "c", "delete"), change("d", "other"), change("e", "c")]
    index = index_of(*changes)
    assert index.events_of(Scope("s", "d", "c")) == [0, 1]
    assert index.events_of(Scope("s", "d")) == [0, 1, 2]
    assert index.events_of(Scope("s", "nothing")) == []
    assert not index.boundaries


def test_everything_else_is_a_turn_for_whom_it_concerns() -> None:
    index = index_of(
        change("d", "c"),
        {"operationType": "drop", "ns": {"db": "d", "coll": "c"}},
        {"operationType": "rename", "ns": {"db": "d", "coll": "x"}, "to": {"db": "e", "coll": "y"}},
        {"operationType": "dropDatabase", "ns": {"db": "f"}},
        {"operationType": "of a later MongoDB"},
    )
    concerned = {
        ("d", "c"): [1, 4],
        ("d", "x"): [2, 4],
        ("e", "y"): [2, 4],
        ("e", ""): [2, 4],
        ("d", ""): [1, 2, 4],
        ("f", "any"): [3, 4],
        ("g", ""): [4],
        ("", ""): [1, 2, 3, 4],
    }
    for (database, collection), boundaries in concerned.items():
        scope = Scope("s", database, collection)
        scopes = Scopes()
        for each in (scope, Scope("s", "other"), Scope("s", "d", "other"), Scope("s", "f", "other")):
            scopes.add(each)
        assert [each.index for each in index.boundaries if scope in scopes.concerned(each)] == boundaries
        firsts = [index.boundary_of(scope, first) for first in range(6)]
        assert firsts == [min((each for each in boundaries if each >= first), default=None) for first in range(6)]


def test_an_index_in_parts_is_the_same() -> None:
    events = [
        *(change("d", f"c{n % 3}") for n in range(10)),
        {"operationType": "drop", "ns": {"db": "d", "coll": "c1"}},
    ]
    data = b"".join(bson.encode({"_id": {"_data": "82"}, **event}) for event in events)
    place = ResumeToken.high_water_mark(1)
    chunk = Chunk(data, document_offsets(data), place, place, 0.0)
    index, whole = NamespaceIndex(chunk, read=0), NamespaceIndex(chunk)
    assert [index.read_on(4) for _ in range(4)] == [True, True, False, False]
    scopes = [Scope("s", "d"), *(Scope("s", "d", f"c{n}") for n in range(3))]
    for scope in scopes:
        assert index.events_of(scope) == whole.events_of(scope)
        assert index.boundary_of(scope, 0) == whole.boundary_of(scope, 0)
    assert index.size_bytes == whole.size_bytes
    assert not whole.read_on(1)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("cd")), max_size=30))
def test_each_change_is_in_one_collection_and_one_database(places: list[tuple[str, str]]) -> None:
    index = index_of(*(change(*place) for place in places))
    for database in "ab":
        of_database = [n for n, place in enumerate(places) if place[0] == database]
        assert index.events_of(Scope("s", database)) == of_database
        by_collection = [n for each in "cd" for n in index.events_of(Scope("s", database, each))]
        assert sorted(by_collection) == of_database


@given(st.sets(st.integers(0, 40)))
def test_runs_are_whole_and_apart(indexes: set[int]) -> None:
    found = list(runs(sorted(indexes)))
    assert [n for first, stop in found for n in range(first, stop)] == sorted(indexes)
    assert all(stop < following for (_, stop), (following, _) in pairwise(found))
