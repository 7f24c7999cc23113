"""The data path against a real MongoDB: the requested events arrive complete, in order, byte for byte."""

import asyncio
import time
from typing import Any

import bson
import pytest
from bson import json_util
from google.protobuf import timestamp_pb2
from pymongo import MongoClient
from pymongo.database import Database

from feedmux.v1 import change_feed_pb2 as wire
from feedmux.v1 import feed_pb2
from tests.integration.wire import EARLIEST, LATEST, MANY, Api, Receiver, at, feed, refused, seconds

Documents = Database[dict[str, Any]]

INSERTS = '[{"$match": {"operationType": "insert"}}]'


def insert(database: Documents, numbers: range, collection: str = "c", pad: int = 0) -> None:
    database[collection].insert_many([{"n": n, "pad": "x" * pad} for n in numbers])


async def watching(api: Api, *args: Any, **kwargs: Any) -> Receiver:
    receiver = api.watch(*args, **kwargs)
    await receiver.opened()
    return receiver


@pytest.mark.parametrize("scope", ["collection", "database", "cluster"])
@pytest.mark.parametrize("rpc", ["watch", "subscribe"])
async def test_scopes(api: Api, database: Documents, scope: str, rpc: str) -> None:
    wanted = {
        "collection": feed(database.name, "c"),
        "database": feed(database.name),
        "cluster": feed(pipeline=f'[{{"$match": {{"ns.db": "{database.name}"}}}}]'),
    }[scope]
    if rpc == "watch":
        receiver = await watching(api, wanted)
    else:
        receiver = await api.open(feed=wanted)
    insert(database, range(3))
    insert(database, range(100, 102), "d")
    insert(database, range(3, 5))
    if scope == "collection":
        assert await receiver.numbers(5) == [0, 1, 2, 3, 4]
    else:
        assert await receiver.numbers(7) == [0, 1, 2, 100, 101, 3, 4]
    receiver.cancel()


async def test_same_bytes_as_a_raw_change_stream(api: Api, database: Documents) -> None:
    receiver = await watching(api, feed(database.name, "c"))
    with database.c.watch() as opened:
        token = opened.resume_token
    database.c.insert_one({"_id": 1, "a": {"b": [1, 2.5, None, "é", bson.Int64(3)]}, "d": bson.Decimal128("1.10")})
    database.c.update_one({"_id": 1}, {"$set": {"a.b": 1}, "$unset": {"d": 1}})
    database.c.replace_one({"_id": 1}, {"x": bson.Binary(b"\0\1"), "far": bson.DatetimeMS(2**62)})
    database.c.delete_one({"_id": 1})
    events = await receiver.take(4)
    direct = b""
    with database.c.aggregate_raw_batches([{"$changeStream": {"resumeAfter": token}}]) as batches:
        while len(direct) < sum(len(event.data) for event in events):
            direct += batches.next()  # type: ignore[operator]
    assert b"".join(event.data for event in events) == direct
    assert bson.decode(receiver.resume_token)["_data"] >= bson.decode(events[-1].data, _FAR)["_id"]["_data"]
    receiver.cancel()


_FAR: Any = bson.CodecOptions(datetime_conversion=bson.codec_options.DatetimeConversion.DATETIME_AUTO)


async def test_pipeline_and_options(api: Api, database: Documents) -> None:
    stages = bson.encode({"pipeline": [{"$match": {"operationType": "update"}}, {"$addFields": {"mark": 7}}]})
    wanted = feed(database.name, "c", full_document="updateLookup")
    wanted.pipeline.bson = stages
    receiver = await watching(api, wanted)
    insert(database, range(2))
    database.c.update_one({"n": 1}, {"$set": {"m": 1}})
    [event] = await receiver.take(1)
    assert event.document["mark"] == 7
    assert event.document["fullDocument"]["m"] == 1
    receiver.cancel()


async def test_collation_and_comment(api: Api, database: Documents, mongo_client: MongoClient[dict[str, Any]]) -> None:
    wanted = feed(
        database.name,
        "c",
        pipeline='[{"$match": {"fullDocument.word": "straße"}}]',
        collation=bson.encode({"locale": "de", "strength": 1}),
        comment=bson.encode({"comment": f"who-{database.name}"}),
    )
    receiver = await watching(api, wanted)
    database.c.insert_many([{"n": 1, "word": "STRASSE"}, {"n": 2, "word": "Weg"}, {"n": 3, "word": "straße"}])
    assert await receiver.numbers(2) == [1, 3]
    ops = list(
        mongo_client.admin.aggregate(
            [
                {"$currentOp": {"allUsers": True, "idleCursors": True}},
                {"$match": {"cursor.originatingCommand.comment": f"who-{database.name}"}},
            ]
        )
    )
    assert len(ops) == 1
    receiver.cancel()


async def test_pre_images(api: Api, database: Documents) -> None:
    database.create_collection("c", changeStreamPreAndPostImages={"enabled": True})
    wanted = feed(database.name, "c", full_document="required", full_document_before_change="required")
    receiver = await watching(api, wanted)
    insert(database, range(1))
    database.c.update_one({"n": 0}, {"$set": {"m": 1}})
    event = (await receiver.take(2))[1].document
    assert "m" not in event["fullDocumentBeforeChange"]
    assert event["fullDocument"]["m"] == 1
    receiver.cancel()


# --- Where to begin.


async def test_latest_is_from_the_moment_of_asking(api: Api, database: Documents) -> None:
    wanted = feed(database.name, "c")
    first = await watching(api, wanted)
    insert(database, range(5))
    late = await watching(api, wanted, LATEST)
    insert(database, range(5, 8))
    assert await first.numbers(8) == list(range(8))
    assert await late.numbers(3) == [5, 6, 7]
    first.cancel()
    late.cancel()


async def test_position_and_native_tokens(api: Api, database: Documents) -> None:
    wanted = feed(database.name, "c")
    receiver = await api.session(feed=wanted, credit=wire.Credit(events=3, bytes=1 << 20))
    await receiver.opened()
    insert(database, range(8))
    events = await receiver.take(3)
    token = bson.encode(events[2].document["_id"])
    for start in (at(position=receiver.position), at(resume_after=token), at(start_after=token)):
        again = await watching(api, wanted, start)
        assert await again.numbers(5) == [3, 4, 5, 6, 7]
        again.cancel()
    assert bson.decode(receiver.resume_token) == events[2].document["_id"]
    receiver.cancel()
    # Feeds with comments of their own have no stream yet, so MongoDB must be asked.
    for start in (at(position=receiver.position), at(resume_after=token), at(start_after=token)):
        again = await watching(api, feed(database.name, "c", comment=bson.encode({"comment": str(start)})), start)
        assert await again.numbers(5) == [3, 4, 5, 6, 7]
        again.cancel()


async def test_position_fits_another_pipeline_of_the_scope(api: Api, database: Documents) -> None:
    receiver = await api.open(feed=feed(database.name), credit=wire.Credit(events=2, bytes=1 << 20))
    insert(database, range(2))
    insert(database, range(2, 5), "d")
    await receiver.take(2)
    # Its token is an event's that this pipeline hides.
    pipeline = '[{"$match": {"fullDocument.n": {"$in": [0, 1, 3, 4]}, "ns.coll": "d"}}]'
    again = await watching(api, feed(database.name, pipeline=pipeline), at(position=receiver.position))
    assert await again.numbers(2) == [3, 4]
    again.cancel()
    receiver.cancel()


async def test_times_and_earliest(api: Api, database: Documents) -> None:
    before = int(time.time()) - 1
    wanted = feed(database.name, "c", INSERTS)
    receiver = await watching(api, wanted)
    insert(database, range(4))
    events = await receiver.take(4)
    cluster_time = events[1].document["clusterTime"]
    operation_time = feed_pb2.ClusterTime(seconds=cluster_time.time, increment=cluster_time.inc)
    exact = await watching(api, wanted, at(start_at_operation_time=operation_time))
    assert await exact.numbers(3) == [1, 2, 3]
    for start in (at(time=timestamp_pb2.Timestamp(seconds=before)), EARLIEST):
        each = await watching(api, wanted, start)
        assert await each.numbers(4) == [0, 1, 2, 3]
        each.cancel()
    exact.cancel()
    receiver.cancel()


async def test_a_future_start_is_refused(api: Api, database: Documents) -> None:
    later = int(time.time()) + 100
    for start in (
        at(time=timestamp_pb2.Timestamp(seconds=later)),
        at(start_at_operation_time=feed_pb2.ClusterTime(seconds=later, increment=1)),
    ):
        outcome = await refused(api.watch(feed(database.name), start).opened())
        assert (outcome.code, outcome.reason) == ("OUT_OF_RANGE", "START_IN_FUTURE")


async def test_resolve_position(api: Api, database: Documents) -> None:
    wanted = feed(database.name, "c")
    now = await api.resolve(wanted, LATEST)
    insert(database, range(3))
    receiver = await watching(api, wanted, at(position=now.position))
    events = await receiver.take(3)
    cluster_time = events[1].document["clusterTime"]
    starts = {
        1: at(start_at_operation_time=feed_pb2.ClusterTime(seconds=cluster_time.time, increment=cluster_time.inc)),
        2: at(resume_after=bson.encode(events[1].document["_id"])),
    }
    for first, start in starts.items():
        resolved = await api.resolve(wanted, start)
        again = await watching(api, wanted, at(position=resolved.position))
        assert await again.numbers(3 - first) == list(range(first, 3))
        assert resolved.time.seconds == resolved.cluster_time.seconds
        again.cancel()
    earliest = await api.resolve(wanted, EARLIEST)
    assert earliest.cluster_time.seconds <= now.cluster_time.seconds
    receiver.cancel()


async def test_absent_collections_wait(api: Api, database: Documents) -> None:
    receiver = await watching(api, feed(database.name, "not.yet"))
    insert(database, range(1), "not.yet")
    assert await receiver.numbers(1) == [0]
    receiver.cancel()


# --- Formats and sizes.


@pytest.mark.parametrize(
    ("wire_format", "options"),
    [
        (feed_pb2.FORMAT_EXTENDED_JSON_RELAXED, json_util.RELAXED_JSON_OPTIONS),
        (feed_pb2.FORMAT_EXTENDED_JSON_CANONICAL, json_util.CANONICAL_JSON_OPTIONS),
    ],
)
async def test_json_says_the_same_as_bson(
    api: Api, database: Documents, wire_format: Any, options: json_util.JSONOptions
) -> None:
    wanted = feed(database.name, "c")
    as_bson = await watching(api, wanted)
    as_json = await watching(api, wanted, format=wire_format)
    database.c.insert_many(
        [{"i": 1, "l": bson.Int64(2**40), "f": 1.5, "d": bson.Decimal128("2.5"), "b": b"\0", "t": bson.Timestamp(1, 2)}]
        + [{"s": 'é\u0000"\\\u2028', "e": {}, "a": [[], None, True], "nan": float("inf")} for _ in range(50)]
    )
    for one, other in zip(await as_bson.take(51), await as_json.take(51), strict=True):
        text = other.data.decode()
        assert json_util.loads(text, json_options=options) == json_util.loads(
            json_util.dumps(one.document, json_options=options), json_options=options
        )
        canonical = options.json_mode == json_util.JSONMode.CANONICAL
        assert ("$numberInt" in text) == (canonical and "i" in one.document["fullDocument"])
    as_bson.cancel()
    as_json.cancel()


async def test_batches_stay_under_the_message_limit(api: Api, database: Documents) -> None:
    limit = 64 * 1024
    receiver = await watching(api, feed(database.name, "c"), message_bytes_max=limit)
    insert(database, range(600), pad=1000)
    assert await receiver.numbers(600) == list(range(600))
    assert len(receiver.batches) >= 600 * 1000 // limit
    receiver.cancel()


@pytest.mark.parametrize("wire_format", [feed_pb2.FORMAT_BSON, feed_pb2.FORMAT_EXTENDED_JSON_RELAXED])
async def test_a_large_event_comes_in_fragments(api: Api, database: Documents, wire_format: Any) -> None:
    wanted = feed(database.name, "c")
    session = await api.open(feed=wanted, message_bytes_max=64 * 1024, format=wire_format)
    whole = await watching(api, wanted, format=wire_format, message_bytes_max=16 << 20)
    insert(database, range(1))
    insert(database, range(1, 2), pad=3 << 20)
    insert(database, range(2, 3))
    events = await session.take(3)
    assert [event.fragments > 1 for event in events] == [False, True, False]
    assert events[1].fragments >= 48
    assert [event.data for event in events] == [event.data for event in await whole.take(3)]
    # A position after the fragments is valid.
    assert session.position
    session.cancel()
    whole.cancel()


async def test_two_sources_in_one_server(api: Api, database: Documents) -> None:
    receivers = [await watching(api, feed(database.name, "c", source=source)) for source in ("main", "other")]
    insert(database, range(3))
    for receiver in receivers:
        assert await receiver.numbers(3) == [0, 1, 2]
    streams = await api.streams(f"{database.name}.c")
    assert sorted(each.source for each in streams) == ["main", "other"]
    for receiver in receivers:
        receiver.cancel()


async def test_transactions_keep_their_order(api: Api, database: Documents) -> None:
    insert(database, range(100, 101))
    receiver = await watching(api, feed(database.name))
    with database.client.start_session() as session, session.start_transaction():
        for n in range(10):
            database["cd"[n % 2]].insert_one({"n": n}, session=session)
    first = await receiver.take(4)
    assert [event.n for event in first] == [0, 1, 2, 3]
    assert await receiver.numbers(6) == [4, 5, 6, 7, 8, 9]
    # From the middle of the transaction.
    token = bson.encode(first[3].document["_id"])
    again = await watching(api, feed(database.name, pipeline=INSERTS), at(resume_after=token))
    assert await again.numbers(6) == [4, 5, 6, 7, 8, 9]
    again.cancel()
    receiver.cancel()


# --- The end of a feed.


async def test_invalidate_stops_and_start_after_goes_on(api: Api, database: Documents) -> None:
    wanted = feed(database.name, "c")
    receiver = await watching(api, wanted)
    insert(database, range(2))
    database.drop_collection("c")
    events = await receiver.take(4)
    assert [event.document["operationType"] for event in events] == ["insert", "insert", "drop", "invalidate"]
    outcome = await receiver.end()
    assert (outcome.code, outcome.reason) == ("FAILED_PRECONDITION", "FEED_INVALIDATED")
    insert(database, range(2, 4))
    token = receiver.resume_token
    for start in (at(position=receiver.position), at(start_after=token)):
        again = await watching(api, wanted, start)
        assert await again.numbers(2) == [2, 3]
        again.cancel()
    outcome = await api.watch(wanted, at(resume_after=token)).end()
    assert (outcome.code, outcome.reason) == ("FAILED_PRECONDITION", "START_AFTER_REQUIRED")


async def test_invalidate_reaches_every_subscriber(api: Api, database: Documents) -> None:
    wanted = feed(database.name, "c")
    receivers = [await watching(api, wanted) for _ in range(3)]
    paused = await api.session(feed=wanted)
    await paused.opened()
    insert(database, range(2))
    database.drop_collection("c")
    for receiver in receivers:
        assert (await receiver.end()).reason == "FEED_INVALIDATED"
        assert receiver.received == 4
    await paused.credit(100)
    assert (await paused.end()).reason == "FEED_INVALIDATED"
    assert paused.received == 4


async def test_invalidate_continue(api: Api, database: Documents, name: str) -> None:
    await api.create(name, feed(database.name, "c"), on_invalidate=feed_pb2.ON_INVALIDATE_CONTINUE)
    session = await api.open(name)
    for generation in range(3):
        insert(database, range(generation, generation + 1))
        kinds = [event.document["operationType"] for event in await session.take(1)]
        database.drop_collection("c")
        kinds += [event.document["operationType"] for event in await session.take(2)]
        assert kinds == ["insert", "drop", "invalidate"]
    await session.ack_and_wait(9)
    await session.close()
    insert(database, range(9, 10))
    again = await api.open(name)
    assert await again.numbers(1) == [9]
    await again.close()


async def test_a_failing_stage_ends_its_own_feed_only(api: Api, database: Documents) -> None:
    good = await watching(api, feed(database.name, "c"))
    bad = await watching(api, feed(database.name, "c", '[{"$addFields": {"x": {"$divide": [1, "$fullDocument.n"]}}}]'))
    insert(database, range(1, 2))
    assert await bad.numbers(1) == [1]
    insert(database, range(1))
    outcome = await bad.end()
    assert (outcome.code, outcome.reason) == ("FAILED_PRECONDITION", "PIPELINE_FAILED")
    assert await good.numbers(2) == [1, 0]
    good.cancel()


async def test_missing_required_image(api: Api, database: Documents) -> None:
    receiver = await watching(api, feed(database.name, "c", full_document_before_change="required"))
    insert(database, range(1))
    database.c.update_one({"n": 0}, {"$set": {"m": 1}})
    outcome = await receiver.end()
    assert (outcome.code, outcome.reason) == ("FAILED_PRECONDITION", "IMAGE_UNAVAILABLE")


async def test_a_changed_resume_token_is_final(api: Api, database: Documents) -> None:
    receiver = api.watch(feed(database.name, "c", '[{"$project": {"_id": 0}}]'))
    insert_soon = asyncio.get_running_loop().call_later(0.3, insert, database, range(1))
    outcome = await receiver.end()
    insert_soon.cancel()
    assert (outcome.code, outcome.reason) == ("INVALID_ARGUMENT", "RESUME_TOKEN_MODIFIED")


# --- Heartbeats.


@pytest.mark.parametrize("rpc", ["watch", "subscribe"])
async def test_progress_moves_without_matches(api: Api, database: Documents, rpc: str) -> None:
    wanted = feed(database.name, "c", '[{"$match": {"fullDocument.n": -1}}]')
    if rpc == "watch":
        receiver = api.watch(wanted, heartbeat_interval=seconds(1))
    else:
        receiver = await api.session(feed=wanted, credit=MANY, heartbeat_interval=seconds(1))
    opened = await receiver.opened()
    assert opened.heartbeat_interval == seconds(1)
    insert(database, range(10))
    # A high-water mark is before the events of the same cluster time.
    insert(database, range(1), "elsewhere")
    await receiver.until(lambda: len(receiver.progress) >= 2)
    first, second = receiver.progress[0].cluster_time, receiver.progress[1].cluster_time
    assert (opened.cluster_time.seconds, opened.cluster_time.increment) < (second.seconds, second.increment)
    assert (first.seconds, first.increment) <= (second.seconds, second.increment)
    again = await watching(api, feed(database.name, "c"), at(position=receiver.position))
    insert(database, range(77, 78))
    assert await again.numbers(1) == [77]
    again.cancel()
    receiver.cancel()


async def test_heartbeats_come_without_credit(api: Api, database: Documents) -> None:
    session = await api.session(feed=feed(database.name, "c"), heartbeat_interval=seconds(1))
    opened = await session.opened()
    insert(database, range(10))
    await session.until(lambda: len(session.progress) >= 2)
    # Nothing was delivered, so the position does not move.
    assert {each.position for each in session.progress} == {opened.position}
    await session.credit(10)
    assert await session.numbers(10) == list(range(10))
    session.cancel()
