"""Pipelines: every allowed stage, in any order and several times; what may not be in one."""

import asyncio
import itertools
import json
import random
from collections.abc import Sequence

import bson
import pytest
from bson import Int64, MaxKey, Regex

from feedmux.v1 import feed_pb2
from tests.conformance.asked import logged
from tests.conformance.conftest import Document, Site, on_both_versions
from tests.conformance.same import (
    after,
    assert_refused_alike,
    check_events,
    check_refusal,
    operation_time,
    read_directly,
    read_through,
)
from tests.conformance.statements import DRIVERS, FEEDMUX, SERVER, shows
from tests.documents import Documents
from tests.integration.wire import feed, refused
from tests.unit.core.feeds.queries import EXPRESSIONS, OBJECTS, PAIRS, QUERIES

STAGES: dict[str, Document] = {
    "$match": {"$match": {"operationType": {"$in": ["insert", "update", "delete"]}}},
    "$project": {"$project": {"clusterTime": 0, "fullDocument.secret": 0}},
    "$addFields": {"$addFields": {"added": {"$concat": ["<", "$operationType", ">"]}}},
    "$set": {"$set": {"fullDocument.n": {"$add": [{"$ifNull": ["$fullDocument.n", 0]}, 1]}}},
    "$unset": {"$unset": ["wallTime", "updateDescription.truncatedArrays"]},
    "$replaceRoot": {
        "$replaceRoot": {"newRoot": {"inner": "$$ROOT", "operationType": "$operationType", "_id": "$_id"}}
    },
    "$replaceWith": {"$replaceWith": {"$mergeObjects": ["$$ROOT", {"from": "$ns.coll"}]}},
    "$redact": {"$redact": {"$cond": [{"$eq": ["$level", "secret"]}, "$$PRUNE", "$$DESCEND"]}},
}


def act(database: Documents) -> None:
    database.c.insert_one({"_id": 1, "n": 1, "secret": 1, "part": {"level": "secret", "x": 1}, "list": [1, 2, 3]})
    database.c.update_one({"_id": 1}, {"$set": {"n": 2, "part.x": 2}})
    database.c.update_one({"_id": 1}, [{"$set": {"list": [1]}}])
    database.c.replace_one({"_id": 1}, {"n": 3, "secret": 2})
    database.c.delete_one({"_id": 1})


def with_stages(database: Documents, stages: list[Document]) -> feed_pb2.Feed:
    wanted = feed(database.name, "c")
    wanted.pipeline.bson = bson.encode({"pipeline": stages})
    return wanted


async def assert_pipelines_same(site: Site, database: Documents, pipelines: list[list[Document]]) -> None:
    """All of them over one history."""
    start = after(site)
    act(database)
    until = operation_time(site)
    few = asyncio.Semaphore(8)

    async def compare(stages: list[Document]) -> int:
        wanted = with_stages(database, stages)
        async with few:
            expected = await asyncio.to_thread(read_directly, site, wanted, start, until)
            assert expected.error is None, stages
            receiver = site.api.watch(wanted, start)
            check_events(await read_through(receiver, expected), expected)
            receiver.cancel()
        return len(expected.events)

    counts = await asyncio.gather(*(compare(stages) for stages in pipelines))
    assert min(counts) > 0


@shows(DRIVERS, "Helper Method", "$match, $project, $addFields, $replaceRoot and $redact follow $changeStream")
@shows(SERVER, "Adding more Pipeline Stages", "also $replaceWith, $set and $unset")
async def test_every_stage_and_every_pair(site: Site, database: Documents) -> None:
    pairs = [list(pair) for pair in itertools.product(STAGES.values(), repeat=2)]
    await assert_pipelines_same(site, database, [[stage] for stage in STAGES.values()] + pairs)


@shows(DRIVERS, "Helper Method", "stages come in the user's order, as often as the user likes")
@pytest.mark.parametrize("seed", range(4))
async def test_every_stage_in_any_order_and_several_times(site: Site, database: Documents, seed: int) -> None:
    shuffled = random.Random(seed)
    pipelines = []
    for _ in range(6):
        stages = list(STAGES.values()) * shuffled.randint(1, 2)
        shuffled.shuffle(stages)
        pipelines.append(stages)
    await assert_pipelines_same(site, database, pipelines)


MATCHES: dict[str, Document] = {
    "operation": {"operationType": "insert"},
    "not": {"operationType": {"$ne": "insert"}},
    "namespace": {"ns.coll": {"$regex": "^c$"}},
    "key": {"documentKey._id": 1},
    "new value": {"fullDocument.n": {"$gt": 0}},
    "updated": {"updateDescription.updatedFields.n": 2},
    "removed": {"updateDescription.removedFields": {"$size": 0}},
    "expression": {"$expr": {"$in": ["$operationType", ["insert", "delete"]]}},
    "or": {"$or": [{"operationType": "delete"}, {"fullDocument.n": 1}]},
    "missing": {"fullDocument": {"$exists": False}},
    "schema": {"$jsonSchema": {"required": ["updateDescription"]}},
    "all": {},
}


@shows(SERVER, "Change Stream Namespace Scopes", "$match filters further")
async def test_matches(site: Site, database: Documents) -> None:
    """MongoDB rewrites these into filters of the oplog; the events must be the same."""
    await assert_pipelines_same(site, database, [[{"$match": match}] for match in MATCHES.values()])


@shows(DRIVERS, "Helper Method", "$project may change the event's shape as the user likes, but for _id")
async def test_shapes(site: Site, database: Documents) -> None:
    shapes: list[Document] = [
        {"$project": {"_id": 1}},
        {"$project": {"only": "$documentKey._id"}},
        {"$replaceWith": {"last": "$$ROOT", "_id": "$_id"}},
        {"$replaceRoot": {"newRoot": {"_id": "$_id"}}},
        {"$unset": ["operationType", "clusterTime", "ns", "documentKey", "fullDocument", "wallTime"]},
        {"$set": {"operationType": 7, "clusterTime": "x"}},
    ]
    await assert_pipelines_same(site, database, [[shape] for shape in shapes])


WITHOUT_ID: dict[str, Document] = {
    "projected out": {"$project": {"_id": 0}},
    "unset": {"$unset": "_id"},
    "replaced": {"$set": {"_id": "mine"}},
    "a part added": {"$set": {"_id.more": 1}},
    "a part replaced": {"$addFields": {"_id._data": "00"}},
    "the document's": {"$replaceRoot": {"newRoot": {"$mergeObjects": ["$ns", "$fullDocument"]}}},
    "not in the new root": {"$replaceWith": {"a": 1}},
    "redacted": {"$redact": {"$cond": [{"$ifNull": ["$_data", False]}, "$$PRUNE", "$$DESCEND"]}},
}


@shows(DRIVERS, "ChangeStream", "an event without its resume token is an error, and the stream is closed")
@shows(DRIVERS, "Helper Method", "the server produces an error where _id is projected out")
@shows(DRIVERS, "Notes and Restrictions", "$project, $redact and $replaceRoot can remove the resume token")
@pytest.mark.parametrize("case", WITHOUT_ID)
@shows(FEEDMUX, "Errors", "RESUME_TOKEN_MODIFIED (280): the pipeline removed or changed _id; trying again is of no use")
async def test_without_the_resume_token(site: Site, database: Documents, case: str) -> None:
    wanted, start = with_stages(database, [WITHOUT_ID[case]]), after(site)
    receiver = site.api.watch(wanted, start)
    await receiver.opened()
    act(database)
    direct = read_directly(site, wanted, start, operation_time(site))
    assert direct.error is not None
    outcome = await receiver.end()
    assert (outcome.code, outcome.reason) == ("INVALID_ARGUMENT", "RESUME_TOKEN_MODIFIED")
    check_refusal(outcome, direct.error)
    assert receiver.received == 0


FAILING: dict[str, Document] = {
    "division by zero": {"$set": {"a": {"$divide": [1, {"$subtract": ["$fullDocument.n", 1]}]}}},
    "new root is text": {"$replaceRoot": {"newRoot": "x"}},
    "no date": {"$set": {"a": {"$dateFromString": {"dateString": "$operationType"}}}},
    "too large a number": {"$set": {"a": {"$toInt": {"$pow": [10, {"$add": [12, "$fullDocument.n"]}]}}}},
}


@shows(FEEDMUX, "Errors", "PIPELINE_FAILED: a user's stage failed on an event, on that feed only")
@pytest.mark.parametrize("case", FAILING)
async def test_stages_that_fail_on_an_event(site: Site, database: Documents, case: str) -> None:
    wanted, start = with_stages(database, [FAILING[case]]), after(site)
    receiver, neighbour = site.api.watch(wanted, start), site.api.watch(feed(database.name, "c"), start)
    await receiver.opened()
    act(database)
    direct = read_directly(site, wanted, start, operation_time(site))
    assert direct.error is not None
    outcome = await receiver.end()
    assert (outcome.code, outcome.reason) == ("FAILED_PRECONDITION", "PIPELINE_FAILED")
    check_refusal(outcome, direct.error)
    assert len(await neighbour.take(5)) == 5
    neighbour.cancel()


@shows(SERVER, "Large Events", "A server without the stage rejects it, and the client gets its message")
@shows(SERVER, "Adding more Pipeline Stages", "$changeStreamSplitLargeEvent, where the server has it")
@shows(SERVER, "Large Events", "$changeStreamSplitLargeEvent is the last stage")
@on_both_versions
async def test_split_stage(site: Site, database: Documents) -> None:
    split: Document = {"$changeStreamSplitLargeEvent": {}}
    if site.version < (6, 0, 9):
        await assert_refused_alike(site, with_stages(database, [split]))
        return
    others = [list(STAGES.values())[:count] for count in range(4)]
    await assert_pipelines_same(site, database, [[*stages, split] for stages in others])
    for refused_stages in ([split, STAGES["$match"]], [split, split]):
        await assert_refused_alike(site, with_stages(database, refused_stages))


WRONG: dict[str, Document] = {
    "match operator": {"$match": {"a": {"$nonsense": 1}}},
    "match text": {"$match": "x"},
    "project nothing": {"$project": {}},
    "project mixed": {"$project": {"a": 1, "b": 0}},
    "set to an unknown function": {"$set": {"a": {"$nonsense": 1}}},
    "unset a number": {"$unset": 1},
    "replace root without": {"$replaceRoot": {}},
    "redact constant": {"$redact": {"$cond": [1]}},
    "text search": {"$match": {"$text": {"$search": "x"}}},
    "near": {"$match": {"loc": {"$near": [0, 0]}}},
}


@shows(DRIVERS, "Helper Method", "what is wrong with a stage is the server's to say")
@pytest.mark.parametrize("case", WRONG)
async def test_wrong_stages(site: Site, database: Documents, case: str) -> None:
    with logged(database) as asked:
        outcome = await assert_refused_alike(site, with_stages(database, [WRONG[case]]))
        assert len(asked.commands("aggregate", refused=True)) == 1
    assert outcome.code == "INVALID_ARGUMENT"


FORBIDDEN = (
    *("$bucket", "$bucketAuto", "$changeStream", "$collStats", "$count", "$currentOp", "$densify", "$documents"),
    *("$facet", "$fill", "$geoNear", "$graphLookup", "$group", "$indexStats", "$limit", "$listLocalSessions"),
    *("$listSessions", "$lookup", "$merge", "$out", "$planCacheStats", "$sample", "$search", "$searchMeta"),
    *("$setWindowFields", "$shardedDataDistribution", "$skip", "$sort", "$sortByCount", "$unionWith", "$unwind"),
    *("$_internalChangeStreamTransform", "$_internalInhibitOptimization", "match", ""),
)


@shows(FEEDMUX, "Bad input", "stages outside the list are rejected before MongoDB sees them")
async def test_forbidden_stages(site: Site, database: Documents) -> None:
    with logged(database) as asked:
        for name in FORBIDDEN:
            forbidden: Document = {name: {}}
            for stages in ([forbidden], [STAGES["$match"], forbidden], [forbidden, STAGES["$match"]]):
                outcome = await refused(site.api.watch(with_stages(database, stages)).opened())
                assert (outcome.code, outcome.reason) == ("INVALID_ARGUMENT", "STAGE_NOT_ALLOWED"), name
                assert outcome.metadata["operator"] == name
        assert asked.aggregates == asked.commands("aggregate", refused=True) == []


CODE = {"body": "function () { return true }", "args": [], "lang": "js"}
OPERATORS: dict[str, Document] = {
    "$function in $match": {"$match": {"$expr": {"$function": CODE}}},
    "$function in $set": {"$set": {"a": {"b": [{"$cond": [1, {"$function": CODE}, 2]}]}}},
    "$function in $redact": {"$redact": {"$function": CODE}},
    "$where": {"$match": {"$where": "true"}},
    "$where in $or": {"$match": {"$or": [{"a": 1}, {"$nor": [{"$where": "true"}]}]}},
    "$accumulator": {"$project": {"a": {"$accumulator": {}}}},
}


@shows(FEEDMUX, "Bad input", "operators that run code are rejected at any depth")
@pytest.mark.parametrize("case", OPERATORS)
async def test_forbidden_operators(site: Site, database: Documents, case: str) -> None:
    with logged(database) as asked:
        outcome = await refused(site.api.watch(with_stages(database, [OPERATORS[case]])).opened())
        assert (outcome.code, outcome.reason) == ("INVALID_ARGUMENT", "STAGE_NOT_ALLOWED")
        assert outcome.metadata["operator"] == case.partition(" ")[0]
        assert asked.aggregates == asked.commands("aggregate", refused=True) == []


@shows(DRIVERS, "Helper Method", "the pipeline is written as for aggregate")
async def test_both_notations(site: Site, database: Documents) -> None:
    """Extended JSON and BSON of one pipeline are one feed."""
    start = after(site)
    act(database)
    stages = [{"$match": {"fullDocument.n": {"$lt": {"$numberDouble": "2.5"}}}}, {"$unset": "wallTime"}]
    notations = (
        with_stages(database, bson.json_util.loads(json.dumps(stages))),
        feed(database.name, "c", json.dumps(stages)),
    )
    readings = []
    for wanted in notations:
        expected = read_directly(site, wanted, start, operation_time(site))
        receiver = site.api.watch(wanted, start)
        readings.append(await read_through(receiver, expected))
        receiver.cancel()
    assert readings[0] == readings[1] != []


VALUES: list[object] = [
    *("abc", "abd", "aBD", "b", "", 5, 7, 5.5, Int64(8), None, True, {"x": 1}, b"abc", Regex("^a"), MaxKey()),
    *([], ["abc", "abd"], ["abd", 5], [1, 2], ["abc"]),
]


@shows(DRIVERS, "Helper Method", "the pipeline is written as for aggregate")
async def test_text_with_every_condition_beside_every_other(site: Site, database: Documents) -> None:
    """Field `b` of a document selects the pair of conditions that it is for."""
    start = after(site)
    most = max(map(len, PAIRS.values()))
    database.c.insert_many([{"b": b, "v": value} for b in range(most) for value in VALUES])
    await assert_text_same(
        site,
        database,
        start,
        [
            [{"$match": {"$or": [{"fullDocument.b": b, "fullDocument.v": each} for b, each in enumerate(conditions)]}}]
            for conditions in PAIRS.values()
        ],
    )


@shows(DRIVERS, "Helper Method", "the pipeline is written as for aggregate")
async def test_text_with_names_that_extended_json_has_too(site: Site, database: Documents) -> None:
    start = after(site)
    database.c.insert_many([{"v": value} for value in VALUES])
    only_v: Document = {"$replaceWith": {"_id": "$_id", "v": "$fullDocument.v"}}
    await assert_text_same(
        site,
        database,
        start,
        [
            *([only_v, {"$match": query}] for query in QUERIES),
            *([only_v, {"$set": {"x": expression}}] for expression in EXPRESSIONS),
            [only_v, {"$set": {"x": {"$literal": OBJECTS[:1000]}}}],
        ],
    )


async def assert_text_same(
    site: Site, database: Documents, start: feed_pb2.Start, pipelines: Sequence[list[Document]]
) -> None:
    """The events of a pipeline in BSON, straight from MongoDB, are those of its text through feedmux."""
    until = operation_time(site)
    few = asyncio.Semaphore(8)

    async def compare(stages: list[Document]) -> None:
        async with few:
            expected = await asyncio.to_thread(read_directly, site, with_stages(database, stages), start, until)
            assert expected.error is None, stages
            assert expected.events
            receiver = site.api.watch(feed(database.name, "c", json.dumps(stages)), start)
            check_events(await read_through(receiver, expected), expected)
            receiver.cancel()

    await asyncio.gather(*map(compare, pipelines))
