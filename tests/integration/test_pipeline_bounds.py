"""Holds the bounds of `core.feeds.pipeline_bounds` against MongoDB: random pipelines that pass, run on random documents
of an event's shape, never make more of a document than the analysis says."""

import os
from collections.abc import Callable
from typing import Any

import bson
import pytest
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st
from pymongo import MongoClient
from pymongo.collection import Collection
from pymongo.errors import OperationFailure

from feedmux_server.core.feeds.pipeline_bounds import operators
from feedmux_server.core.feeds.pipeline_bounds.budget import PipelineUnbounded
from feedmux_server.core.feeds.pipeline_bounds.stages import check_bounds

EXAMPLES = int(os.environ.get("FEEDMUX_BOUNDS_EXAMPLES", "100"))
_RAW = CodecOptions(document_class=RawBSONDocument)
NAMES = ("a", "b", "c", "k", "v")

SCALARS: st.SearchStrategy[Any] = st.one_of(
    st.none(), st.booleans(), st.integers(-9, 2**40), st.floats(allow_nan=False), st.text("a,xß", max_size=12)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(st.sampled_from((None, {}, [], [[]], {"a": 1}, {"a": [], "b": []})), max_size=30),
        st.dictionaries(st.sampled_from((*NAMES, "", "0")), inner, max_size=5),
    ),
    max_leaves=12,
)
OBJECTS = st.dictionaries(st.sampled_from((*NAMES, "", "0")), VALUES, max_size=5)
WIDE = st.integers(0, 120).map(lambda count: {f"{index:x}": None for index in range(count)})
EVENTS = st.fixed_dictionaries(
    {
        "operationType": st.sampled_from(("insert", "update")),
        "ns": st.just({"db": "d", "coll": "c"}),
        "fullDocument": st.one_of(OBJECTS, WIDE, st.none()),
        "documentKey": OBJECTS,
    },
    optional={"updateDescription": st.fixed_dictionaries({"updatedFields": OBJECTS, "removedFields": VALUES})},
)

ROOTS = (
    "$fullDocument",
    "$documentKey",
    "$updateDescription",
    "$updateDescription.updatedFields",
    "$x",
    "$y",
    "$$ROOT",
)
PATTERNS = ("a", "^a*", "(x)(,)?", ",")


@st.composite
def paths(draw: st.DrawFn, variables: tuple[str, ...]) -> str:
    start = draw(st.sampled_from((*ROOTS, *variables, *variables)))
    return ".".join((start, *draw(st.lists(st.sampled_from(NAMES), max_size=3))))


def constants() -> st.SearchStrategy[Any]:
    return st.one_of(SCALARS, st.just([]), st.just({}), st.just("$$REMOVE"), st.just({"$literal": "$a"}))


@st.composite
def expressions(draw: st.DrawFn, depth: int, variables: tuple[str, ...] = ()) -> Any:
    def inner(more: tuple[str, ...] = ()) -> Any:
        return draw(expressions(depth - 1, (*variables, *more)))

    def array(of: Any) -> Any:
        """So that fewer pipelines fail by types."""
        return {"$cond": [{"$isArray": [of]}, of, []]} if draw(st.integers(0, 3)) else of

    def object_(of: Any) -> Any:
        return {"$cond": [{"$eq": [{"$type": of}, "object"]}, of, {}]} if draw(st.integers(0, 3)) else of

    def text(of: Any) -> Any:
        return {"$convert": {"input": of, "to": "string", "onError": "x", "onNull": ""}}

    if depth == 0 or draw(st.integers(0, 9)) == 0:
        return draw(st.one_of(paths(variables), paths(variables), constants()))
    loop = draw(st.sampled_from(("this", "one", "CURRENT")))
    match draw(st.sampled_from(tuple(KINDS))):
        case "path":
            return draw(paths(variables))
        case "array":
            return [inner() for _ in range(draw(st.integers(1, 3)))]
        case "object":
            return {
                name: inner() for name in draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True))
            }
        case "$map":
            body = draw(expressions(depth - 1, (f"$${loop}",) if draw(st.booleans()) else (*variables, f"$${loop}")))
            return {"$map": {"input": array(inner()), "as": loop, "in": body}}
        case "$filter":
            return {"$filter": {"input": array(inner()), "as": loop, "cond": inner((f"$${loop}",))}}
        case "$let":
            return {"$let": {"vars": {"z": inner(), "w": inner()}, "in": inner(("$$z", "$$w"))}}
        case "$concatArrays" | "$setUnion" | "$setIntersection" | "$setDifference" as name:
            return {name: [array(inner()), array(inner())]}
        case "$mergeObjects":
            return {"$mergeObjects": [object_(inner()), object_(inner())]}
        case "$concat":
            return {"$concat": [text(inner()), text(inner())]}
        case "$split":
            return {"$split": [text(inner()), ","]}
        case "$objectToArray":
            return {"$objectToArray": object_(inner())}
        case "$arrayToObject":
            pairs = {"$map": {"input": {"$objectToArray": object_(inner())}, "in": {"k": "$$this.k", "v": "$$this.v"}}}
            return {"$arrayToObject": draw(st.sampled_from((pairs, [pairs])))}
        case "$getField":
            return {"$getField": {"field": draw(st.sampled_from(NAMES)), "input": inner()}}
        case "$setField":
            return {"$setField": {"field": "c", "input": object_(inner()), "value": inner()}}
        case "$unsetField":
            return {"$unsetField": {"field": "a", "input": object_(inner())}}
        case "$slice" | "$arrayElemAt" as name:
            return {name: [array(inner()), 1]}
        case "$first" | "$reverseArray" as name:
            return {name: array(inner())}
        case "$sortArray":
            return {"$sortArray": {"input": array(inner()), "sortBy": 1}}
        case "$cond":
            return {"$cond": [inner(), inner(), inner()]}
        case "$switch":
            return {"$switch": {"branches": [{"case": inner(), "then": inner()}], "default": inner()}}
        case "$ifNull" | "$min" | "$max" as name:
            return {name: [inner(), inner()]}
        case "$toLower" | "$toString" as name:
            return {name: {"$convert": {"input": inner(), "to": "string", "onError": "x"}}}
        case "$substrBytes":
            return {"$substrBytes": [{"$convert": {"input": inner(), "to": "int", "onError": 5}}, 0, 5]}
        case "$dateToString":
            return {"$dateToString": {"date": "$$NOW", "format": draw(st.sampled_from(("%Y", "%z%Z%L%j%G", "x%%")))}}
        case "$dateToParts":
            return {"$dateToParts": {"date": "$$NOW"}}
        case "$regexFind":
            return {"$regexFind": {"input": text(inner()), "regex": draw(st.sampled_from(PATTERNS))}}
        case "$replaceOne":
            return {"$replaceOne": {"input": text(inner()), "find": "a", "replacement": text(inner())}}
        case "$trim":
            return {"$trim": {"input": text(inner()), "chars": "a "}}
        case "$type" | "$isArray" as name:
            return {name: [inner()]}
        case "$eq" | "$cmp" as name:
            return {name: [inner(), inner()]}
        case "$in":
            return {"$in": [inner(), array(inner())]}
        case "$size" | "$sum" as name:
            return {name: array(inner())}
        case other:
            raise AssertionError(other)


KINDS = (
    "path", "array", "object", "$map", "$map", "$filter", "$let", "$concatArrays", "$setUnion", "$setIntersection",
    "$setDifference", "$mergeObjects", "$concat", "$split", "$objectToArray", "$arrayToObject", "$getField",
    "$setField", "$unsetField", "$slice", "$arrayElemAt", "$first", "$reverseArray", "$sortArray", "$cond", "$switch",
    "$ifNull", "$min", "$max", "$toLower", "$toString", "$substrBytes", "$dateToString", "$dateToParts", "$regexFind",
    "$replaceOne", "$trim", "$type", "$isArray", "$eq", "$cmp", "$in", "$size", "$sum",
)  # fmt: skip

TARGETS = (
    "x",
    "y",
    "fullDocument",
    "fullDocument.a",
    "fullDocument.a.b",
    "documentKey.c.k.v",
    "x.a",
    "updateDescription.a",
)


@st.composite
def stages(draw: st.DrawFn) -> dict[str, Any]:
    depth = draw(st.integers(0, 3))
    match draw(st.integers(0, 8)):
        case 0 | 1 | 2:
            return {
                draw(st.sampled_from(("$set", "$addFields"))): {
                    draw(st.sampled_from(TARGETS)): draw(expressions(depth))
                }
            }
        case 3:
            wanted = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True))
            return {"$set": {f"{name}{name}": f"$fullDocument.{name}.{other}" for name in wanted for other in wanted}}
        case 4:
            wanted = draw(st.lists(st.sampled_from(("x", "y", "z")), min_size=1, unique=True))
            return {
                "$project": {"fullDocument": 1, "documentKey.a": 1}
                | {each: draw(expressions(depth)) for each in wanted}
            }
        case 5:
            return {"$replaceWith": {"a": draw(expressions(depth)), "fullDocument": draw(expressions(depth))}}
        case 6:
            return {
                "$replaceWith": {
                    "$mergeObjects": [{"_id": "$_id"}, draw(st.sampled_from(("$fullDocument", "$$ROOT", "$x")))]
                }
            }
        case 7:
            return {
                "$redact": {"$cond": [draw(expressions(1)), "$$DESCEND", draw(st.sampled_from(("$$KEEP", "$$PRUNE")))]}
            }
        case _:
            return {"$unset": draw(st.sampled_from(TARGETS))}


@pytest.fixture(scope="module")
def collection(mongo_client: MongoClient[dict[str, Any]]) -> Collection[Any]:
    return mongo_client["bounds"].get_collection("events", codec_options=_RAW)


def sizes(collection: Collection[Any], pipeline: list[Any]) -> list[int]:
    return [len(document.raw) for document in collection.aggregate(pipeline, batchSize=10)]


def check(
    collection: Collection[Any],
    pipeline: list[Any],
    document: dict[str, Any],
    say: Callable[[str], None] = lambda _: None,
) -> bool:
    """Whether MongoDB ran it. Raises AssertionError where it made more of the document than was said."""
    encoded = bson.encode({"pipeline": pipeline})
    try:
        bound = check_bounds(encoded)
    except PipelineUnbounded as refusal:
        say(f"refused: {refusal.message[:30]}")
        return False
    collection.delete_many({})
    collection.insert_one({"_id": {"_data": "82"}} | document)
    (before,) = sizes(collection, [])
    try:
        after = sizes(collection, pipeline)
    except OperationFailure as error:
        say(f"failed: {error.code}")
        return False
    say("ran")
    for each in after:
        assert each <= bound.weight * before + bound.constant, (pipeline, bound, before, each)
    return True


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(st.lists(stages(), min_size=1, max_size=4), EVENTS)
def test_no_output_is_larger_than_its_bound(
    collection: Collection[Any], pipeline: list[Any], document: dict[str, Any]
) -> None:
    assume(check(collection, pipeline, document, event))


def nulls(count: int) -> dict[str, Any]:
    return {"fullDocument": {"a": [None] * count}}


WORST: list[tuple[list[Any], dict[str, Any]]] = [
    ([{"$set": {"x": {"$map": {"input": "$fullDocument.a", "in": {"n": 1}}}}}], nulls(1000)),
    ([{"$set": {"x": {"$objectToArray": "$fullDocument"}}}], {"fullDocument": {f"{i:x}": None for i in range(5000)}}),
    ([{"$set": {"x": {"$split": ["$fullDocument.a", ","]}}}], {"fullDocument": {"a": "," * 5000}}),
    (
        [{"$project": {f"f{i}": f"$fullDocument.a.{i}" for i in range(20)}}],
        {"fullDocument": {"a": [{str(i): None for i in range(20)}] * 500}},
    ),
    ([{"$set": {f"f{i}": f"$fullDocument.a.b.{i}" for i in range(25)}}], {"fullDocument": {"a": [{"b": []}] * 500}}),
    ([{"$set": {"fullDocument.a.b.c": 1}}], nulls(3000)),
    ([{"$set": {"fullDocument.a": "$fullDocument"}}, {"$unset": "fullDocument.a"}], {"fullDocument": None}),
    ([{"$set": {"x": {"$concatArrays": ["$fullDocument.a", "$fullDocument.a", "$fullDocument.a"]}}}], nulls(9)),
    (
        [{"$set": {"x": {"$map": {"input": "$fullDocument.a", "in": {"$toString": "$$this"}}}}}],
        {"fullDocument": {"a": [False] * 999}},
    ),
    (
        [{"$set": {"x": {"$map": {"input": "$fullDocument.a", "in": ["$$this.b", "$$this.c"]}}}}],
        {"fullDocument": {"a": [[]] * 999}},
    ),
]


@pytest.mark.parametrize(("pipeline", "document"), WORST, ids=range(len(WORST)))
def test_what_grows_most_keeps_within_its_bound(
    collection: Collection[Any], pipeline: list[Any], document: dict[str, Any]
) -> None:
    assert check(collection, pipeline, document)


def test_the_comparison_finds_a_bound_that_is_too_small(
    collection: Collection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operators, "_OBJECT_TO_ARRAY", 2)
    with pytest.raises(AssertionError):
        check(collection, *WORST[1])
