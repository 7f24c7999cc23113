"""Pipelines that a view can serve: interpreted exactly, or left to MongoDB."""

from typing import Any

import bson
from bson import Regex

from feedmux_server.core.feeds.feed import FeedSpec, Scope
from feedmux_server.core.feeds.simple_filter import EVERYTHING, SimpleFilter, simple_filter_of
from tests.tables import over


def of(*stages: dict[str, Any], **options: Any) -> SimpleFilter | None:
    return simple_filter_of(FeedSpec(Scope("main", "d"), bson.encode({"pipeline": list(stages)}), **options))


def match(**conditions: Any) -> dict[str, Any]:
    return {"$match": {name.replace("_", "."): condition for name, condition in conditions.items()}}


@over(
    ("stages", "operations", "collections"),
    [
        ((match(operationType="insert"),), {b"insert"}, None),
        ((match(operationType={"$eq": "insert"}),), {b"insert"}, None),
        ((match(operationType={"$in": ["insert", "delete"]}),), {b"insert", b"delete"}, None),
        ((match(operationType={"$in": []}),), set(), None),
        ((match(ns_coll={"$in": ["a", "ä"]}),), None, {b"a", "ä".encode()}),
        ((match(operationType="insert", ns_coll="a"),), {b"insert"}, {b"a"}),
        ((match(operationType={"$in": ["insert", "update"]}), match(operationType="update")), {b"update"}, None),
        ((match(operationType="insert"), match(operationType="update")), set(), None),
        ((match(),), None, None),
    ],
)
def test_what_a_pipeline_admits(
    stages: tuple[dict[str, Any], ...], operations: set[bytes] | None, collections: set[bytes] | None
) -> None:
    def frozen(values: set[bytes] | None) -> frozenset[bytes] | None:
        return None if values is None else frozenset(values)

    assert of(*stages) == SimpleFilter(frozen(operations), frozen(collections))


@over(
    "stage",
    [
        match(operationType={"$ne": "insert"}),
        match(operationType={"$in": ["insert", None]}),
        match(operationType={"$in": ["insert", Regex("^u")]}),
        match(operationType={"$eq": "insert", "$ne": "update"}),
        match(operationType=Regex("insert")),
        match(operationType=None),
        match(operationType="insert", fullDocument_n=1),
        match(**{"$or": [{"operationType": "insert"}]}),
        match(ns={"db": "d", "coll": "a"}),
        {"$match": {"operationType": "insert"}, "$project": {"a": 1}},
        {"$project": {"fullDocument": 1}},
        {"$match": "insert"},
        {},
    ],
)
def test_everything_else_is_mongodbs(stage: dict[str, Any]) -> None:
    assert of(stage) is None
    assert of(match(operationType="insert"), stage) is None


def test_a_field_that_comes_twice_is_mongodbs() -> None:
    twice = bson.encode({"pipeline": [match(operationType="insert", operationtypf="delete")]})
    spec = FeedSpec(Scope("main", "d"), twice.replace(b"operationtypf", b"operationType"))
    assert simple_filter_of(spec) is None


def test_a_collation_compares_otherwise() -> None:
    collation = bson.encode({"locale": "en", "strength": 1})
    assert of(match(operationType="insert"), collation=collation) is None
    assert of(collation=collation) == EVERYTHING


def test_no_stages_admit_everything() -> None:
    assert of() == simple_filter_of(FeedSpec(Scope("main", "d"))) == EVERYTHING
    assert EVERYTHING.admits(b"insert", b"a")


def test_admitted_means_all_conditions() -> None:
    narrowing = SimpleFilter(frozenset({b"insert"}), frozenset({b"a"}))
    assert narrowing.admits(b"insert", b"a")
    assert not narrowing.admits(b"insert", b"b")
    assert not narrowing.admits(b"delete", b"a")


@over(("names", "is_read"), [(2_400, True), (2_700, False)])
def test_pipelines_of_the_usual_quota_are_read(names: int, is_read: bool) -> None:
    narrowing = of(match(ns_coll={"$in": [f"collection-{number:04}" for number in range(names)]}))
    assert (narrowing is not None and len(narrowing.collections or ()) == names) == is_read
