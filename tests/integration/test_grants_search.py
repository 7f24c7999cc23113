"""Searches for a leak: random changes and random pipelines of all allowed stages, against a view with hidden fields.

The same changes are made twice, in two worlds that differ only in what the tenant may not see. What it receives must
hold no canary, and must be the same in both worlds: events, and how the feed ends.
"""

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from typing import Any

import pytest
import pytest_asyncio
from bson import Binary, Timestamp, encode
from bson.raw_bson import RawBSONDocument
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pymongo import MongoClient

from feedmux.v1 import feed_pb2
from feedmux_embedded import RedisServer, ReplicaSet
from tests.documents import Documents
from tests.integration.grants_support import Seen, granted, now, see, with_images
from tests.integration.servers import Here
from tests.integration.wire import feed

Change = tuple[str, int, int]
"""What is done, to which document, with which variant."""

EXAMPLES = int(os.environ.get("FEEDMUX_SEARCH_EXAMPLES", "12"))
VIEW = [
    {"database": "search", "collection": "*", "match": {"owner": "a"}, "hide": ["secret", "items.price", "deep.x.y"]}
]


@pytest_asyncio.fixture(scope="module")
async def here(
    mongo: ReplicaSet, redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Here]:
    folder = tmp_path_factory.mktemp("search")
    async with granted(mongo.uri, redis_server.url, folder, {"tenant": VIEW}, unused_stream_s=0.0) as here:
        yield here


def hidden(world: int, variant: int) -> Any:
    """A value the tenant must not see, of a kind by the variant, so that computing on it goes differently."""
    return [f"canary-{world}", world, {"canary": f"canary-{world}"}, [f"canary-{world}"] * (world + 1)][variant % 4]


def mine(world: int, variant: int) -> dict[str, Any]:
    secret = hidden(world, variant)
    document = {
        "owner": "a",
        "n": variant,
        "secret": secret,
        "items": [{"price": secret, "n": 1}, [{"price": secret}]],
        "deep": {"x": {"y": secret, "z": 1}},
        "odd": {"$price": 1, "a.b": {"": variant}, "": [variant], "3": {"4": variant}},
    }
    # Maps with numeric keys above what is hidden, which the name of an update does not tell from arrays.
    maps: list[dict[str, Any]] = [
        {},
        {"0": {"secret": secret}, "items": {"0": {"price": secret}, "n": 1}},
        {"deep": {"7": {"x": {"y": secret}}, "x": [{"5": [{"y": secret}]}, {"y": secret}]}},
        {"items": [{"1": {"2": {"price": secret}}}, [[{"3": {"price": secret}}]], 1], "8": [{"9": {"secret": secret}}]},
        {"": {"secret": 1}, "deep": {"": 1, "x": {"0": {"y": secret}, "$y": 1, "": 2}}},
    ]
    return document | maps[variant % len(maps)]


UPDATES: list[Callable[[Any, int], Any]] = [
    lambda secret, variant: {"$set": {"secret": secret}},
    lambda secret, variant: {"$set": {"n": variant, "secret": secret}},
    lambda secret, variant: {"$set": {"items": [{"price": secret, "n": variant}, secret if variant < 0 else 1]}},
    lambda secret, variant: {"$push": {"items": {"price": secret, "n": variant}}},
    lambda secret, variant: {"$set": {"items.0": {"price": secret, "n": variant}}},
    lambda secret, variant: {"$set": {"items.1": {"price": secret}}},
    lambda secret, variant: {"$set": {"deep.x": {"y": secret, "z": variant}}},
    lambda secret, variant: {"$set": {"deep": [{"x": [{"y": secret}, variant]}]}},
    lambda secret, variant: {"$unset": {"secret": 1, "n": 1}},
    lambda secret, variant: {"$unset": {"deep": 1}},
    lambda secret, variant: {"$set": {"deep.7": {"x": {"y": secret}}, "n": variant}},
    lambda secret, variant: {"$set": {"deep.7.x": {"y": secret, "z": 1}}},
    lambda secret, variant: {"$set": {"0": {"secret": secret}, "n": variant}},
    lambda secret, variant: {"$set": {"0.secret": secret, "9.deep.x.y": secret, "9.deep.x.z": 1}},
    lambda secret, variant: {"$set": {"items": {"5": {"price": secret}}, "n": variant}},
    lambda secret, variant: {"$set": {"odd": {"$x": variant, "a.b": 1, "": 2}, "secret": secret}},
    lambda secret, variant: [{"$set": {"secret": secret, "n": {"$add": [{"$ifNull": ["$n", 0]}, 1]}}}],
]


RAW = len(UPDATES)
"""The variant of an update that only raw BSON can tell."""


def no_utf8(secret: Any) -> RawBSONDocument:
    """Sets names that are not UTF-8, beside a hidden field and below one above it."""
    update = encode({"$set": {"odd?": 1, "deep.??": 1, "secret": secret, "items": [{"price": secret, "??": 1}]}})
    return RawBSONDocument(update.replace(b"?", b"\xff"))


def change(collection: Any, world: int, step: Change) -> None:
    """Documents 0 to 2 are the tenant's, 3 and 4 another's, 5 goes to and fro."""
    kind, which, variant = step
    secret = hidden(world, variant)
    if which >= 5:
        key: dict[str, Any] = {"_id": "mover"}
        if kind == "delete":
            collection.delete_one({**key, "owner": "a"})
        elif kind in ("insert", "replace"):
            collection.replace_one(key, mine(world, variant), upsert=True)
        elif variant % 2:
            collection.update_one(key, {"$set": {"owner": "b", "n": secret, "note": secret}})
        else:
            collection.update_one(key, {"$set": {"owner": "a", "n": 1}, "$unset": {"note": 1}})
        return
    own = which < 3
    key = {"_id": f"mine-{which}" if own else f"canary-{world}-{which}"}
    content = mine(world, variant) if own else {"owner": "b", "n": secret, f"canary-{world}": secret}
    match kind:
        case "insert" | "replace":
            collection.replace_one(key, content, upsert=True)
        case "delete":
            collection.delete_one(key)
        case "update" if own:
            update = UPDATES[variant % len(UPDATES)](secret, variant)
            if variant == RAW:
                collection.database.command({"update": collection.name, "updates": [{"q": key, "u": no_utf8(secret)}]})
            elif isinstance(update, dict) and "$push" in update:
                collection.update_one({**key, "items": {"$type": "array"}}, update)
            elif isinstance(update, dict) and "deep.x" in update.get("$set", {}):
                collection.update_one(
                    {**key, "deep.x": {"$type": "object"}, "deep": {"$not": {"$type": "array"}}}, update
                )
            else:
                collection.update_one(key, update)
        case "update":
            collection.update_one(key, {"$set": {"n": secret, "more": secret}})


CHANGES = st.lists(
    st.tuples(
        st.sampled_from(("insert", "update", "update", "update", "replace", "delete")),
        st.integers(0, 5),
        st.integers(0, RAW),
    ),
    min_size=3,
    max_size=12,
)
REFERENCES = (
    "$$ROOT", "$$CURRENT", "$fullDocument", "$fullDocument.secret", "$fullDocument.items", "$fullDocument.n",
    "$fullDocumentBeforeChange", "$fullDocumentBeforeChange.secret", "$updateDescription",
    "$updateDescription.updatedFields", "$updateDescription.updatedFields.secret", "$updateDescription.removedFields",
    "$documentKey", "$documentKey._id", "$operationType", "$e", "$e.fullDocument", "$h", "$op", "$g", "$$CURRENT.e",
)  # fmt: skip
LEAVES: st.SearchStrategy[Any] = st.sampled_from((*REFERENCES, 0, 1, None, "x", [], {}))


def nodes(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    field = st.sampled_from(("secret", "n", "fullDocument", "items", "price", "e"))
    return st.one_of(
        inner.map(lambda one: {"$objectToArray": one}),
        st.tuples(inner, inner).map(lambda two: {"$mergeObjects": list(two)}),
        st.tuples(inner, inner).map(lambda two: {"$ifNull": list(two)}),
        st.tuples(inner, inner).map(lambda two: {"$divide": list(two)}),
        st.tuples(field, inner).map(lambda two: {"$getField": {"field": two[0], "input": two[1]}}),
        st.tuples(field, inner, inner).map(lambda t: {"$setField": {"field": t[0], "input": t[1], "value": t[2]}}),
        st.tuples(field, inner).map(lambda two: {"$unsetField": {"field": two[0], "input": two[1]}}),
        st.tuples(inner, inner).map(lambda two: {"$map": {"input": two[0], "in": two[1]}}),
        st.tuples(inner, inner).map(lambda two: {"$filter": {"input": two[0], "cond": two[1]}}),
        inner.map(lambda one: {"$regexMatch": {"input": one, "regex": "^c.*0"}}),
        inner.map(lambda one: {"$convert": {"input": one, "to": "int"}}),
        inner.map(lambda one: {"$convert": {"input": one, "to": "string", "onError": "no"}}),
        inner.map(lambda one: {"$type": one}),
        inner.map(lambda one: {"$size": one}),
        st.tuples(inner, inner, inner).map(lambda three: {"$cond": list(three)}),
        st.tuples(inner, inner).map(lambda two: {"$in": list(two)}),
    )


EXPRESSIONS = st.recursive(LEAVES, nodes, max_leaves=4)
PATHS = (
    "fullDocument",
    "fullDocument.secret",
    "fullDocument.items.price",
    "updateDescription",
    "e",
    "h",
    "stolen",
    "ns",
)
FILTERS = st.one_of(
    st.sampled_from(PATHS).map(lambda path: {path: {"$exists": True}}),
    st.sampled_from(PATHS).map(lambda path: {path: {"$type": "string"}}),
    st.sampled_from(PATHS).map(lambda path: {path: {"$regex": "0"}}),
    st.sampled_from(PATHS).map(lambda path: {path: {"$in": [0, 1, "x"]}}),
    EXPRESSIONS.map(lambda expression: {"$expr": expression}),
)
STAGES = st.one_of(
    FILTERS.map(lambda condition: {"$match": condition}),
    st.tuples(FILTERS, FILTERS).map(lambda two: {"$match": {"$or": list(two)}}),
    st.tuples(st.sampled_from(("$set", "$addFields")), EXPRESSIONS).map(lambda two: {two[0]: {"stolen": two[1]}}),
    EXPRESSIONS.map(lambda one: {"$set": {"fullDocument": one}}),
    EXPRESSIONS.map(lambda one: {"$project": {"stolen": one, "operationType": 1, "fullDocument.secret": 1}}),
    st.sampled_from(PATHS).map(lambda path: {"$project": {path: 1}}),
    st.sampled_from(PATHS).map(lambda path: {"$unset": path}),
    EXPRESSIONS.map(lambda one: {"$replaceRoot": {"newRoot": {"_id": "$_id", "stolen": one}}}),
    EXPRESSIONS.map(lambda one: {"$replaceWith": {"$mergeObjects": ["$$ROOT", {"stolen": one}]}}),
    EXPRESSIONS.map(lambda one: {"$redact": {"$cond": [one, "$$DESCEND", "$$KEEP"]}}),
    EXPRESSIONS.map(lambda one: {"$redact": {"$cond": [one, "$$PRUNE", "$$KEEP"]}}),
)
PIPELINES = st.lists(STAGES, max_size=3)


def same_in_both(value: Any) -> Any:
    """Without what differs between any two runs: tokens, times, ids and the collection's name."""
    if isinstance(value, dict):
        return {name: same_in_both(each) for name, each in value.items() if name not in ("_data", "coll", "lsid")}
    if isinstance(value, list):
        return [same_in_both(each) for each in value]
    return type(value).__name__ if isinstance(value, Binary | Timestamp | datetime) else value


async def look(here: Here, documents: Documents, changes: list[Change], pipelines: list[list[Any]]) -> list[list[Seen]]:
    """What the tenant sees of each pipeline, in each of the two worlds."""
    names = [f"w{world}-{uuid.uuid4().hex[:8]}" for world in range(2)]
    with_images(documents, *names)
    since = now(documents)
    for world, name in enumerate(names):
        for step in changes:
            change(documents[name], world, step)

    def asked(name: str, stages: list[Any], images: bool) -> feed_pb2.Feed:
        mode = "whenAvailable" if images else ""
        made = feed("search", name, full_document=mode, full_document_before_change=mode)
        made.pipeline.bson = encode({"pipeline": stages})
        return made

    found = await asyncio.gather(
        *(
            see(here.api, documents, asked(name, stages, number % 2 == 0), since)
            for name in names
            for number, stages in enumerate(pipelines)
        )
    )
    for name in names:
        documents[name].drop()
    return [list(found[: len(pipelines)]), list(found[len(pipelines) :])]


def check(pipelines: list[list[Any]], worlds: list[list[Seen]]) -> None:
    for stages, *both in zip(pipelines, *worlds, strict=True):
        one, other = both
        for seen in both:
            assert "canary" not in seen, stages
        assert one.end == other.end, stages
        if one.end is None:
            assert same_in_both(one.events) == same_in_both(other.events), stages


@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
@given(CHANGES, st.lists(PIPELINES, min_size=6, max_size=6))
async def test_no_change_and_no_pipeline_shows_a_canary(
    here: Here,
    mongo_client: MongoClient[dict[str, Any]],
    changes: list[Change],
    pipelines: list[list[Any]],
) -> None:
    check(pipelines, await look(here, mongo_client["search"], changes, pipelines))


def empty_updates(seen: Seen) -> list[Any]:
    """Updates that show nothing but that they happened."""
    updates = [each for each in seen.events if each["operationType"] == "update"]
    return [each for each in updates if not any(each["updateDescription"].values())]


TELLING: list[Change] = [
    *(("insert", which, 0) for which in range(6)),
    *(("update", 0, variant) for variant in range(len(UPDATES))),
    ("update", 1, RAW),
    ("update", 3, 0),
    ("update", 5, 1),
    ("update", 5, 2),
    ("delete", 0, 0),
    ("delete", 3, 0),
]


async def test_the_usual_changes_show_no_canary(here: Here, mongo_client: MongoClient[dict[str, Any]]) -> None:
    pipelines: list[list[Any]] = [[], []]
    worlds = await look(here, mongo_client["search"], TELLING, pipelines)
    check(pipelines, worlds)
    assert worlds[0][0].end is None, "names that are not UTF-8 end no feed with hidden fields"
    assert len(worlds[0][0].events) > len(UPDATES)
    assert not empty_updates(worlds[0][0])
