"""Existing documents, then every change: exact at every position, on real servers, whatever breaks in between."""

import asyncio
import contextlib
import datetime
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import bson
import pytest
from bson import Binary, Decimal128, Int64, MaxKey, MinKey, ObjectId, Timestamp
from bson.code import Code
from bson.codec_options import CodecOptions
from bson.datetime_ms import DatetimeMS
from bson.raw_bson import RawBSONDocument
from pymongo import AsyncMongoClient, MongoClient
from pymongo.errors import PyMongoError

import feedmux
from feedmux.v1 import change_feed_pb2 as wire
from feedmux.v1 import feed_pb2, subscriptions_pb2
from feedmux_embedded import RedisServer, ReplicaSet
from feedmux_server.core.positions.position import COPIED_BYTES_MAX, POSITION_BYTES_MAX, inspect_position
from feedmux_server.core.positions.resume_token import Copied, ResumeToken
from tests.conformance.faults import failing as fail_command
from tests.documents import Client, Documents
from tests.integration.conftest import on_both_versions
from tests.integration.servers import SMALL_STEPS, DocumentsRead, Here, serving, settings
from tests.integration.wire import LATEST, MANY, Api, Receiver, at, feed, refused, seconds
from tests.telemetry.scrape import scrape

SNAPSHOT = at(snapshot=feed_pb2.Snapshot())
KINDS = (
    lambda i: i,
    lambda i: f"s{i}",
    lambda i: ObjectId(),
    lambda i: {"a": i, "b": i, "c": i, "d": i, "e": i, "f": i, "g": i, "h": i, "i": i},
    lambda i: i + 0.5,
    lambda i: Int64(i + 10**12),
    lambda i: datetime.datetime(2020, 1, 1) + datetime.timedelta(seconds=i),  # noqa: DTZ001 as pymongo returns it
    lambda i: Binary(i.to_bytes(4)),
    lambda i: Decimal128(f"{i}.25"),
)


class Sink:
    """Applies events, as a program that mirrors the collection would."""

    def __init__(self) -> None:
        self.state: dict[bytes, dict[str, Any]] = {}
        self.wrong: list[str] = []
        """What cannot happen to a sink that stores its state with its position."""

    def apply(self, event: dict[str, Any]) -> None:
        key, operation = bson.encode(event["documentKey"]), event["operationType"]
        known = key in self.state
        if operation == "delete":
            self.state.pop(key, None)
        elif operation == "update":
            if not known:
                self.wrong.append("an update of what was not copied")
            changed = event["updateDescription"]
            self.state[key] = {**self.state.get(key, event["documentKey"]), **changed["updatedFields"]}
        else:
            if known != (operation == "replace"):
                self.wrong.append(f"{operation} of a document that is {'' if known else 'not '}known")
            self.state[key] = event["fullDocument"]


def source_at(client: Client, database: str, place: ResumeToken) -> dict[bytes, dict[str, Any]]:
    """What the source held at a position, of the documents that the position covers."""
    time = place.cluster_time - 1
    stages: list[dict[str, Any]] = []
    if place.copied is not None:
        if not place.copied.up_to:
            return {}
        last = RawBSONDocument(place.copied.up_to)["_id"]
        stages = [{"$match": {"$expr": {"$lte": ["$_id", {"$literal": last}]}}}]
    command = {
        "aggregate": "c",
        "pipeline": stages,
        "cursor": {"batchSize": 100_000},
        "readConcern": {"level": "snapshot", "atClusterTime": Timestamp(time >> 32, time & 0xFFFF_FFFF)},
    }
    return {
        bson.encode({"_id": each["_id"]}): each for each in client[database].command(command)["cursor"]["firstBatch"]
    }


async def write(uri: str, database: str, ids: list[Any], seed: int) -> None:
    """Changes documents until it is cancelled, whatever happens to the server."""
    rng = random.Random(seed)
    async with AsyncMongoClient[dict[str, Any]](uri, serverSelectionTimeoutMS=1000) as client:
        collection = client[database].c
        for number in range(10**9):
            one, kind = rng.choice(ids), rng.random()
            with contextlib.suppress(PyMongoError):
                if kind < 0.5:
                    await collection.update_one({"_id": one}, {"$inc": {"v": 1}})
                elif kind < 0.75:
                    await collection.delete_one({"_id": one})
                elif kind < 0.95:
                    await collection.replace_one({"_id": one}, {"v": 0, "n": number}, upsert=True)
                else:
                    async with client.start_session() as session, await session.start_transaction():
                        for each in rng.sample(ids, 3):
                            await collection.update_one({"_id": each}, {"$set": {"t": number}}, session=session)
            await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def writers(uri: str, database: str, ids: list[Any]) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(write(uri, database, ids, seed)) for seed in range(2)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def filled(client: Client, database: str, count: int) -> list[Any]:
    """The `_id`s of `count` new documents, of nine types."""
    ids = [KINDS[number % len(KINDS)](number) for number in range(count)]
    client[database].c.insert_many([{"_id": each, "v": 0, "pad": "x" * 100} for each in ids])
    return ids


async def test_each_position_is_exact(version: ReplicaSet, redis_server: RedisServer, name: str) -> None:
    """A sink that stores its state with its position, and continues there again and again."""
    database, rng = f"test_{name[4:]}", random.Random(1)
    with MongoClient[dict[str, Any]](version.uri) as client:
        ids = filled(client, database, 600)
        sink, position, checked, restarts = Sink(), b"", 0, 0
        async with (
            serving(settings(version.uri, redis_server.url, **SMALL_STEPS)) as here,
            writers(version.uri, database, ids),
            feedmux.AsyncClient(f"127.0.0.1:{here.api.data_port}") as user,
        ):
            after_copy = 0
            while after_copy < 5:
                start = feedmux.Start.position(position) if position else feedmux.Start.snapshot()
                async with user.feed(feedmux.Feed(database, "c")).open(
                    start, window_events=rng.choice((7, 60, 500))
                ) as session:
                    async for batch in session.batches():
                        for event in batch:
                            sink.apply(event.document)
                        position = batch.position
                        place = inspect_position(position).token
                        after_copy += place.copied is None
                        if place.is_high_water_mark:
                            assert sink.state == await asyncio.to_thread(source_at, client, database, place)
                            checked += 1
                        if after_copy >= 5 or rng.random() < 0.1:
                            restarts += 1
                            break
        assert sink.wrong == []
        assert checked > 10
        assert restarts > 1
        client.drop_database(database)


async def restarts(here: Here, cause: str) -> float:
    """How many copies the server began again."""
    page = await scrape(here.server.metrics_port)
    return page.value("feedmux_snapshot_restarts_total", source="main", tenant="default", error_type=cause)


ANY_IDS: list[Any] = [
    MinKey(), MaxKey(), None, -1, 0, 2**31, 2.5, Decimal128("1E400"), Decimal128("NaN"), "", "a\0b", {},
    {"b": {"c": 1}}, {"$ref": "c", "$id": 1}, Binary(b""), Binary(b"\0", 128), ObjectId(), False, True, Int64(-(2**63)),
    DatetimeMS(-(2**62)), DatetimeMS(2**62), Timestamp(0, 0), Timestamp(1, 1), Code("f"), Code("f", {"a": 1}),
    float("-inf"),
]  # fmt: skip


async def test_any_id(mongo: ReplicaSet, redis_server: RedisServer, database: Documents) -> None:
    """Each document is a step, and a position that can be continued at."""
    database.c.insert_many([{"_id": each} for each in ANY_IDS])
    raw = database.c.with_options(codec_options=CodecOptions(document_class=RawBSONDocument))
    in_order = [bytes(each.raw) for each in raw.find(sort=[("_id", 1)])]
    async with serving(settings(mongo.uri, redis_server.url, **{**SMALL_STEPS, "batch_events": 1})) as here:
        position, found = b"", list[bytes]()
        while len(found) < len(ANY_IDS):
            session = await here.api.session(
                feed=feed(database.name, "c"),
                start=at(position=position) if position else SNAPSHOT,
                credit=wire.Credit(events=2, bytes=1 << 20),
            )
            for event in await session.take(min(2, len(ANY_IDS) - len(found))):
                found.append(bytes(RawBSONDocument(event.data)["fullDocument"].raw))
            position = session.position
            session.cancel()
    assert found == in_order


async def test_large_ids(stepwise: Here, database: Documents, name: str) -> None:
    """A position has no room for them: the documents of the same batch come again, and nothing is lost."""
    ids = [f"{number}{'x' * size}" for number, size in enumerate((0, COPIED_BYTES_MAX, 5_000, 100_000, 3_000_000, 0))]
    database.c.insert_many([{"_id": each, "v": 0} for each in ids])
    await stepwise.api.create(name, feed(database.name, "c"), SNAPSHOT)
    session = await stepwise.api.session(name, credit=wire.Credit(events=4, bytes=1 << 30))
    assert [each.document["documentKey"]["_id"] for each in await session.take(4)] == ids[:4]
    await session.ack_and_wait(4)
    await session.close()
    for changed in (ids[0], ids[3]):
        database.c.update_one({"_id": changed}, {"$inc": {"v": 1}})
    session = await stepwise.api.open(name)
    await session.until(lambda: is_copied(session))
    database.c.update_one({"_id": ids[4]}, {"$inc": {"v": 1}})
    database.c.delete_one({"_id": ids[5]})
    sink, copied = Sink(), list[str]()
    while ids[5] not in copied or bson.encode({"_id": ids[5]}) in sink.state:
        [event] = await session.take(1)
        if "snapshot" in event.document["_id"]:
            copied.append(event.document["documentKey"]["_id"])
        sink.apply(event.document)
        assert len(session.position) <= POSITION_BYTES_MAX
    assert copied == ids
    assert sorted((each["_id"], each["v"]) for each in sink.state.values()) == [
        (each["_id"], each["v"]) for each in database.c.find(sort=[("_id", 1)])
    ]
    session.cancel()


Change = Callable[[Documents], Any]
DDL: dict[str, Change] = {
    "drop": lambda database: database.drop_collection("c"),
    "rename": lambda database: database.c.rename("other"),
    "drop and create": lambda database: (database.drop_collection("c"), database.c.insert_one({"_id": 1000})),
    "rename of another": lambda database: (
        database.other.insert_many([{"_id": number} for number in range(90)]),
        database.other.rename("c", dropTarget=True),
    ),
}


@pytest.mark.parametrize(
    ("ddl", "stages"),
    [*((ddl, "") for ddl in (*DDL, "rename and back")), ("drop and create", '[{"$set": {"x": 1}}]')],
)
async def test_a_collection_that_is_gone_is_not_taken_for_one_that_is_copied(
    stepwise: Here, database: Documents, documents_read: DocumentsRead, ddl: str, stages: str
) -> None:
    """MongoDB reads it as empty, as of a time before that, without an error. The documents of the one that has its name
    next are copied from the first one on: of one that was renamed, no change says them."""
    database.c.insert_many([{"_id": number} for number in range(100)])
    documents_read(
        before=lambda _, number: number == 2 and DDL[ddl.removesuffix(" and back")](database),
        after=lambda _, number: number == 2 and ddl == "rename and back" and database.other.rename("c"),
    )
    wanted = feed(database.name, "c", stages)
    session = await stepwise.api.open(feed=wanted, start=SNAPSHOT)
    assert (await session.end()).reason == "FEED_INVALIDATED"
    assert not is_copied(session)
    events = [each.document for each in await session.take(session.received)]
    changes = [each["operationType"] for each in events if "snapshot" not in each["_id"]]
    assert changes == [ddl.split()[0], "invalidate"]
    position = session.position
    if ddl == "rename and back":
        session = await stepwise.api.open(feed=wanted, start=at(position=position))
        assert (await session.end()).reason == "FEED_INVALIDATED"
        position = session.position
    session = await stepwise.api.open(feed=wanted, start=at(position=position), credit=MANY)
    await session.until(lambda: is_copied(session))
    copied = [each.document["documentKey"]["_id"] for each in await session.take(session.received)]
    assert copied == [each["_id"] for each in database.c.find(sort=[("_id", 1)])]
    session.cancel()


@pytest.mark.parametrize(("command", "code"), [("aggregate", 72), ("getMore", 239)])
async def test_documents_that_cannot_be_read_as_of_a_time_are_read_as_of_a_later_one(
    stepwise: Here, mongo_client: Client, database: Documents, documents_read: DocumentsRead, command: str, code: int
) -> None:
    database.c.insert_many([{"_id": number} for number in range(100)])
    with contextlib.ExitStack() as fails:

        def fail(_: str, number: int) -> None:
            if number == 2:
                fails.enter_context(fail_command(mongo_client, f"{database.name}.c", command, errorCode=code))

        steps = documents_read(**{"before" if command == "aggregate" else "after": fail})
        session = await stepwise.api.open(feed=feed(database.name, "c"), start=SNAPSHOT)
        await session.until(lambda: is_copied(session))
    assert [each.document["documentKey"]["_id"] for each in await session.take(session.received)] == list(range(100))
    assert steps["c"] > 3
    session.cancel()


async def test_what_is_copied_again_and_again_in_vain_ends(
    stepwise: Here, database: Documents, documents_read: DocumentsRead
) -> None:
    """A collection that becomes capped is another one: MongoDB says that the former was dropped, and answers reads with
    the code of a temporary error each time."""
    database.c.insert_many([{"_id": number} for number in range(100)])
    documents_read(before=lambda *_: database.command("convertToCapped", "c", size=100_000))
    session = await stepwise.api.open(feed=feed(database.name, "c"), start=SNAPSHOT)
    assert (await session.end()).reason == "FEED_INVALIDATED"


UNSUITABLE: dict[str, tuple[Callable[[Documents], Any], feed_pb2.Feed]] = {
    "view": (lambda database: database.create_collection("c", viewOn="d", pipeline=[]), feed_pb2.Feed(collection="c")),
    "time series": (
        lambda database: database.create_collection("c", timeseries={"timeField": "t"}),
        feed_pb2.Feed(collection="c"),
    ),
    "capped": (lambda database: database.create_collection("c", capped=True, size=4096), feed_pb2.Feed(collection="c")),
    "collation": (
        lambda database: database.create_collection("c", collation={"locale": "fr"}),
        feed_pb2.Feed(collection="c"),
    ),
}


@pytest.mark.parametrize("kind", UNSUITABLE)
async def test_what_cannot_be_copied_is_rejected_by_kind(api: Api, database: Documents, name: str, kind: str) -> None:
    prepare, wanted = UNSUITABLE[kind]
    wanted = feed_pb2.Feed(source="main", database=database.name, collection=wanted.collection)
    resolve = wire.ResolvePositionRequest(feed=wanted, start=SNAPSHOT)
    before = at(position=(await api.feeds.ResolvePosition(resolve)).position)
    prepare(database)
    session = await api.session(feed=wanted, start=SNAPSHOT)
    for end in (
        await session.end(),
        await refused(api.create(name, wanted, SNAPSHOT)),
        await refused(api.feeds.ResolvePosition(resolve)),
        await api.watch(wanted, SNAPSHOT).end(),
        await api.watch(wanted, before).end(),
    ):
        assert (end.code, end.reason, end.metadata["kind"]) == ("FAILED_PRECONDITION", "SNAPSHOT_UNSUITABLE", kind)
    for start in (SNAPSHOT, before):
        explained = await api.feeds.Explain(wire.ExplainRequest(feed=wanted, start=start))
        assert explained.refusal.reason == "SNAPSHOT_UNSUITABLE"


@on_both_versions
async def test_a_clustered_collection(version: ReplicaSet, redis_server: RedisServer, name: str) -> None:
    """MongoDB 6.0.5 would read all of it for each step."""
    database = f"test_{name[4:]}"
    with MongoClient[dict[str, Any]](version.uri) as client:
        client[database].create_collection("c", clusteredIndex={"key": {"_id": 1}, "unique": True})
        client[database].c.insert_many([{"_id": number} for number in range(100)])
        async with serving(settings(version.uri, redis_server.url, **SMALL_STEPS)) as here:
            for stages in ("", '[{"$match": {"fullDocument.n": null}}]'):  # a read with stages has a bound
                session = await here.api.session(feed=feed(database, "c", stages), start=SNAPSHOT, credit=MANY)
                if client.server_info()["version"] == "6.0.5":
                    assert (await session.end()).metadata["kind"] == "clustered"
                else:
                    assert len(await session.take(100)) == 100
                    session.cancel()
        client.drop_database(database)


async def test_a_collection_that_does_not_exist_is_copied_at_once(api: Api, database: Documents) -> None:
    session = await api.open(feed=feed(database.name, "c"), start=SNAPSHOT)
    await session.until(lambda: is_copied(session))
    database.c.insert_one({"n": 1})
    assert await session.numbers(1) == [1]
    session.cancel()


@pytest.mark.parametrize("wire_format", [feed_pb2.FORMAT_BSON, feed_pb2.FORMAT_EXTENDED_JSON_RELAXED])
async def test_what_a_client_sees(stepwise: Here, database: Documents, wire_format: feed_pb2.Format) -> None:
    """Documents in the order of `_id` in batches of their own, each with another `_id`; then a notice; then changes."""
    database.c.insert_many([{"_id": number, "n": number} for number in range(99)])
    database.c.insert_one({"_id": 99, "n": 99, "pad": "x" * 3_000_000})
    session = stepwise.api.watch(feed(database.name, "c"), SNAPSHOT, format=wire_format)
    opened = await session.opened()
    assert opened.snapshot == feed_pb2.SnapshotStatus(
        state=feed_pb2.SnapshotStatus.STATE_RUNNING,
        documents_estimated=100,
        namespace=f"{database.name}.c",
        generation=opened.snapshot.generation,
    )
    events = await session.take(100)
    assert all(batch.snapshot for batch in session.batches)
    assert events[99].fragments > 1
    await session.until(lambda: is_copied(session))
    done = session.notices[-1].snapshot
    assert (done.state, done.documents) == (feed_pb2.SnapshotStatus.STATE_DONE, 100)
    assert (done.documents_estimated, done.HasField("remaining")) == (100, False)
    assert done.bytes == sum(len(event.data) for event in events)
    assert done.read_time.seconds > 0
    database.c.update_one({"_id": 5}, {"$set": {"n": 105}})
    [update] = await session.take(1)
    assert not session.batches[-1].snapshot
    session.cancel()
    if wire_format == feed_pb2.FORMAT_BSON:
        documents = [event.document for event in events]
        assert [each["documentKey"]["_id"] for each in documents] == list(range(100))
        assert len({bson.encode(each["_id"]) for each in documents}) == 100
        first = documents[0]
        assert first == {
            "_id": {"_data": first["_id"]["_data"], "snapshot": {"_id": 0}},
            "operationType": "insert",
            "clusterTime": first["clusterTime"],
            "wallTime": first["wallTime"],
            "fullDocument": {"_id": 0, "n": 0},
            "ns": {"db": database.name, "coll": "c"},
            "documentKey": {"_id": 0},
        }
        # MongoDB takes it as a resume token, so a program can return to a plain change stream.
        with database.c.watch(resume_after=first["_id"]) as plain:
            assert plain.next()["_id"] == update.document["_id"]
        end = await refused_start(stepwise.api, database.name, at(start_after=bson.encode(first["_id"])))
        assert (end.code, end.reason) == ("INVALID_ARGUMENT", "POSITION_INVALID")


def is_copied(session: Receiver) -> bool:
    done = feed_pb2.SnapshotStatus.STATE_DONE
    return bool(session.notices) and session.notices[-1].snapshot.state == done


async def refused_start(api: Api, database: str, start: feed_pb2.Start) -> Any:
    return await (await api.session(feed=feed(database, "c"), start=start)).end()


async def test_a_subscription(stepwise: Here, database: Documents, name: str) -> None:
    """It says how far its copy is, can be sought into another one, and cannot be given what a copy does not allow."""
    api, wanted = stepwise.api, feed(database.name, "c")
    database.c.insert_many([{"_id": number} for number in range(100)])
    assert not (await api.feeds.Explain(wire.ExplainRequest(feed=wanted, start=SNAPSHOT))).HasField("refusal")
    created = await api.create(name, wanted, SNAPSHOT)
    assert (created.snapshot.state, created.snapshot.documents) == (feed_pb2.SnapshotStatus.STATE_RUNNING, 0)
    session = await api.session(name, credit=wire.Credit(events=50, bytes=1 << 20))
    await session.take(50)
    await session.ack_and_wait(45)
    get = subscriptions_pb2.GetSubscriptionRequest(name=name)
    stored = (await api.control.GetSubscription(get)).snapshot
    assert (stored.documents, stored.documents_estimated) == (45, 100), "while a session of this server reads it"
    await session.close()
    stored = (await api.control.GetSubscription(get)).snapshot
    assert (stored.documents, stored.documents_estimated, stored.bytes) == (45, 0, 0), "what the position says"
    assert stored.read_time.seconds > 0
    french = feed(database.name, "c", collation=bson.encode({"locale": "fr"}))
    collated = subscriptions_pb2.Subscription(name=name, feed=french)
    update = api.control.UpdateSubscription(subscriptions_pb2.UpdateSubscriptionRequest(subscription=collated))
    assert (await refused(update)).metadata["kind"] == "collation"
    session = await api.open(name, heartbeat_interval=seconds(1))
    assert [each.document["documentKey"]["_id"] for each in await session.take(55)] == list(range(45, 100))
    await session.until(lambda: is_copied(session))
    await session.ack(55)
    await session.until(lambda: not inspected(session).copied)
    await session.close()
    assert (await api.create(name, wanted, SNAPSHOT)).snapshot.state == feed_pb2.SnapshotStatus.STATE_DONE
    stored = await api.control.GetSubscription(subscriptions_pb2.GetSubscriptionRequest(name=name))
    sought = await api.control.SeekSubscription(subscriptions_pb2.SeekSubscriptionRequest(name=name, to=SNAPSHOT))
    assert sought.snapshot.state == feed_pb2.SnapshotStatus.STATE_RUNNING
    session = await api.open(name)
    assert len(await session.take(100)) == 100
    session.cancel()


def inspected(session: Receiver) -> ResumeToken:
    return inspect_position(session.position).token


async def test_the_ranges_of_a_copy_can_be_read_again(
    version: ReplicaSet, redis_server: RedisServer, name: str
) -> None:
    """Retained, and then from MongoDB by the two positions alone: the same events, and exact at each end."""
    database, rng = f"test_{name[4:]}", random.Random(1)
    wanted, sink, checked, after_copy = feed(database, "c"), Sink(), 0, 0
    with MongoClient[dict[str, Any]](version.uri) as client:
        ids = filled(client, database, 600)
        async with (
            serving(settings(version.uri, redis_server.url, **SMALL_STEPS)) as here,
            writers(version.uri, database, ids),
        ):
            api, cache = here.api, here.server.service.ranges
            after = (await api.resolve(wanted, SNAPSHOT)).position
            while after_copy < 5:
                plan = await api.plan(feed=wanted, after=after, events_max=rng.choice((7, 60, 500)), slices=3)
                assert [each.after for each in plan.slices[1:]] == [each.until for each in plan.slices[:-1]]
                read = [await events_of(api, wanted, each.after, each.until) for each in plan.slices]
                assert [len(each) for each in read] == [each.event_count for each in plan.slices]
                cache.close()
                if inspect_position(after).token.copied is not None:
                    exact = await api.plan(feed=wanted, after=after, until=plan.end)
                    assert (exact.end, exact.caught_up, len(exact.slices)) == (plan.end, True, 1)
                for each, events in zip(plan.slices, read, strict=True):
                    assert await events_of(api, wanted, each.after, each.until) == events
                for event in (event for each in read for event in each):
                    sink.apply(bson.decode(event))
                after = plan.end
                place = inspect_position(after).token
                after_copy += place.copied is None
                if place.is_high_water_mark:
                    held = await asyncio.to_thread(source_at, client, database, place)
                    assert sink.state == held
                    checked += 1
        assert sink.wrong == []
        assert checked > 5
        client.drop_database(database)


async def events_of(api: Api, wanted: feed_pb2.Feed, after: bytes, until: bytes) -> list[bytes]:
    return [event.data for event in await api.read_range(feed=wanted, after=after, until=until).rest()]


async def test_a_range_that_can_no_longer_be_read_as_it_was(
    stepwise: Here, mongo_client: Client, database: Documents
) -> None:
    """MongoDB has no documents of that time any more: they come as they are now, and the changes since then follow."""
    api, wanted = stepwise.api, feed(database.name, "c")
    database.c.insert_many([{"_id": number} for number in range(10)])
    plan = await api.plan(feed=wanted, after=(await api.resolve(wanted, SNAPSHOT)).position, events_max=5)
    was = inspect_position(plan.end).token
    stepwise.server.service.ranges.close()
    database.c.delete_one({"_id": 1})
    database.c.update_one({"_id": 2}, {"$set": {"a": 1}})
    database.c.insert_many([{"_id": 1.5}, {"_id": 2.5}])
    with fail_command(mongo_client, f"{database.name}.c", "aggregate", errorCode=239):
        read = [bson.decode(event) for event in await events_of(api, wanted, plan.after, plan.end)]
    assert [event["documentKey"]["_id"] for event in read] == [0, 1.5, 2, 2.5, 3, 4]
    assert read[2]["fullDocument"] == {"_id": 2, "a": 1}
    assert all(event["clusterTime"].as_datetime().timestamp() >= was.cluster_time >> 32 for event in read)
    after = await api.plan(feed=wanted, after=plan.end)
    later = [bson.decode(event) for event in await events_of(api, wanted, after.after, after.end)]
    assert [event["operationType"] for event in later[:4]] == ["delete", "update", "insert", "insert"]
    assert [event["documentKey"]["_id"] for event in later[4:]] == [5, 6, 7, 8, 9]


@pytest.mark.parametrize("events_max", [1, 1000])
@pytest.mark.parametrize("ddl", ["drop", "rename"])
async def test_ranges_of_a_collection_that_is_gone(
    stepwise: Here, database: Documents, ddl: str, events_max: int
) -> None:
    """The feed continues after the invalidate, with the collection that is created next."""
    api, wanted = stepwise.api, feed(database.name, "c")
    database.c.insert_many([{"_id": number} for number in range(100)])
    plan = await api.plan(feed=wanted, after=(await api.resolve(wanted, SNAPSHOT)).position, events_max=30)
    database.c.delete_one({"_id": 1})
    await asyncio.to_thread(DDL[ddl], database)
    database.c.insert_many([{"_id": 5}, {"_id": 50}])
    stepwise.server.service.ranges.close()
    # As of a later time, if MongoDB does not read before a drop: of the next collection, whose changes follow.
    again = [bson.decode(event) for event in await events_of(api, wanted, plan.after, plan.end)]
    assert [event["documentKey"]["_id"] for event in again] in ([], [5], list(range(30)))
    found = list[Any]()
    while inspect_position(plan.end).token.copied is not None:
        plan = await api.plan(feed=wanted, after=plan.end, events_max=events_max, slices=3)
        # Who passes over empty ranges has the next one from their beginning on.
        assert plan.event_count or inspect_position(plan.end).token.copied is None
        events = [await events_of(api, wanted, each.after, each.until) for each in plan.slices]
        stepwise.server.service.ranges.close()
        assert [await events_of(api, wanted, each.after, each.until) for each in plan.slices] == events
        found += [bson.decode(event) for each in events for event in each]
    assert [event["operationType"] for event in found] == ["delete", ddl, "invalidate", "insert", "insert"]
    assert {event["documentKey"]["_id"] for event in found[3:]} == {5, 50}


@pytest.mark.parametrize("kind", ["view", "capped"])
@pytest.mark.parametrize("before", [True, False])
async def test_a_range_of_a_collection_whose_name_another_kind_has_taken(
    stepwise: Here, database: Documents, documents_read: DocumentsRead, kind: str, before: bool
) -> None:
    """Its documents are gone. MongoDB reads the view, which may show what is not granted, as of a time before it."""
    api, wanted = stepwise.api, feed(database.name, "c")
    database.c.insert_many([{"_id": number} for number in range(5)])
    database.other.insert_many([{"_id": number} for number in range(5)])
    kinds: dict[str, Any] = {"view": {"viewOn": "other"}, "capped": {"capped": True, "size": 4096}}
    plan = await api.plan(feed=wanted, after=(await api.resolve(wanted, SNAPSHOT)).position, events_max=3)
    stepwise.server.service.ranges.close()

    def replace(_: str = "", number: int = 1) -> None:
        if number == 1:
            database.c.drop()
            database.create_collection("c", **kinds[kind])

    if before:
        replace()
    else:
        documents_read(before=replace)
    if kind == "view":  # on which MongoDB opens no change stream that says so
        ranged = api.read_range(feed=wanted, after=plan.after, until=plan.end)
        assert ((await ranged.end()).metadata["kind"], ranged.received) == ("view", 0)
    else:
        assert await events_of(api, wanted, plan.after, plan.end) == []


async def test_a_range_of_a_collection_that_was_never_fit_for_it(stepwise: Here, database: Documents) -> None:
    """Its documents are there, and cannot be read."""
    api, wanted = stepwise.api, feed(database.name, "c")
    after = (await api.resolve(wanted, SNAPSHOT)).position
    database.create_collection("c", capped=True, size=4096)
    until = (await api.resolve(wanted, LATEST)).position
    assert (await api.read_range(feed=wanted, after=after, until=until).end()).metadata["kind"] == "capped"


async def test_a_range_up_to_the_least_id(stepwise: Here, database: Documents) -> None:
    """MongoDB finds nothing before it."""
    api, wanted = stepwise.api, feed(database.name, "c", '[{"$set": {"x": 1}}]')
    database.c.insert_many([{"_id": MinKey()}, {"_id": 1}])
    plan = await api.plan(feed=wanted, after=(await api.resolve(wanted, SNAPSHOT)).position, events_max=1)
    stepwise.server.service.ranges.close()
    [event] = await events_of(api, wanted, plan.after, plan.end)
    assert bson.decode(event)["documentKey"] == {"_id": MinKey()}


async def test_an_empty_range_ends_before_the_drop_that_follows_it(stepwise: Here, database: Documents) -> None:
    api, wanted, service = stepwise.api, feed(database.name, "c"), stepwise.server.service
    database.c.insert_one({"_id": 1})
    after = (await api.resolve(wanted, SNAPSHOT)).position
    database.other.insert_one({})
    latest = inspect_position((await api.resolve(wanted, LATEST)).position).token
    database.c.drop()
    key = service.access.key_of(await service.access.feed_of(wanted, "default"), "default")
    copied = inspect_position(after).token.copied
    assert copied is not None
    until = latest.while_copying(copied)
    assert await events_of(api, wanted, after, service.starts(key, "default").encoder().encode(until)) == []


async def test_a_copy_is_not_planned_by_the_reader_of_another_query(stepwise: Here, database: Documents) -> None:
    """One that waits at the very time at which the copy begins."""
    api, wanted = stepwise.api, feed(database.name, "c")
    database.c.insert_many([{"_id": number} for number in range(10)])
    service = stepwise.server.service
    idle = await api.plan(feed=wanted, after=(await api.resolve(wanted, LATEST)).position)
    token = inspect_position(idle.end).token.while_copying(Copied(generation=1))
    key = service.access.key_of(await service.access.feed_of(wanted, "default"), "default")
    copying = service.starts(key, "default").encoder().encode(token)
    plan = await api.plan(feed=wanted, after=copying)
    assert plan.event_count == 10


async def test_what_is_retained_of_another_step_is_not_read(
    stepwise: Here, mongo_client: Client, database: Documents
) -> None:
    api, wanted = stepwise.api, feed(database.name, "c")
    database.c.insert_many([{"_id": number} for number in range(10)])
    after = (await api.resolve(wanted, SNAPSHOT)).position
    first = await api.plan(feed=wanted, after=after, events_max=5)
    mongo_client[database.name].other.insert_one({})
    second = await api.plan(feed=wanted, after=after, events_max=8)  # of a later time: it has no document of the first
    assert inspect_position(second.end).token.cluster_time > inspect_position(first.end).token.cluster_time
    for _ in range(2):  # then it is retained no longer
        assert len(await events_of(api, wanted, first.after, first.end)) == 5
    assert len(await events_of(api, wanted, second.after, second.end)) == 8


async def test_what_is_retained_of_a_copy_is_not_read_by_others(stepwise: Here, database: Documents) -> None:
    """It has the changes to the documents that were copied, and no others."""
    api, wanted = stepwise.api, feed(database.name, "c")
    database.c.insert_many([{"_id": number} for number in range(10)])
    copying = await api.plan(feed=wanted, after=(await api.resolve(wanted, SNAPSHOT)).position, events_max=5)
    database.other.insert_one({})
    after = (await api.resolve(wanted, LATEST)).position
    for number in range(9, -1, -1):
        database.c.update_one({"_id": number}, {"$set": {"a": 1}})
    copying = await api.plan(feed=wanted, after=copying.end)
    plan = await api.plan(feed=wanted, after=after, events_max=8)
    assert inspect_position(copying.end).token.cluster_time > inspect_position(plan.end).token.cluster_time
    read = [bson.decode(event) for event in await events_of(api, wanted, plan.after, plan.end)]
    assert [event["documentKey"]["_id"] for event in read] == list(range(9, 1, -1))


async def test_ranges_of_documents_with_large_ids(stepwise: Here, database: Documents) -> None:
    """No range ends, and no slice begins, where a position would leave a document out."""
    api, wanted = stepwise.api, feed(database.name, "c")
    large = "x" * 3000
    ids = [0, 1, *(f"{large}{number}" for number in range(5)), "y", f"z{large}", "zz"]
    database.c.insert_many([{"_id": each} for each in ids])
    after, found = (await api.resolve(wanted, SNAPSHOT)).position, list[Any]()
    while inspect_position(after).token.copied is not None:
        plan = await api.plan(feed=wanted, after=after, events_max=8, slices=4)
        for retained in (True, False):
            if not retained:
                stepwise.server.service.ranges.close()
            for each in plan.slices:
                found += map(bson.decode, await events_of(api, wanted, each.after, each.until))
        after = plan.end
    assert {event["documentKey"]["_id"] for event in found} == set(ids)
    database.c.delete_many({"_id": {"$type": "number"}})
    after = (await api.resolve(wanted, SNAPSHOT)).position
    request = wire.PlanRangeRequest(feed=wanted, after=after, events_max=5, bytes_max=1)
    assert (await refused(api.feeds.PlanRange(request))).metadata["kind"] == "_id"


async def test_what_is_no_range_of_a_copy(stepwise: Here, database: Documents, name: str) -> None:
    api, wanted, wide = stepwise.api, feed(database.name, "c"), feed(database.name)
    database.c.insert_one({})

    async def position(of: feed_pb2.Feed, start: feed_pb2.Start) -> bytes:
        return (await api.resolve(of, start)).position

    copying, plain = await position(wanted, SNAPSHOT), await position(wanted, LATEST)
    most: dict[str, Any] = {"events_max": 1, "bytes_max": 1}
    filtered = feed(database.name, "c", '[{"$match": {"fullDocument.x": 1}}]')
    for of, kind in ((wide, "mode"), (filtered, "filter")):
        begin = await position(of, SNAPSHOT)
        several: tuple[dict[str, Any], ...] = {"after": begin}, {"after": await position(of, LATEST), "until": begin}
        for ends in several:
            end = await refused(api.feeds.PlanRange(wire.PlanRangeRequest(feed=of, **ends, **most)))
            assert (end.code, end.reason, end.metadata["kind"]) == ("FAILED_PRECONDITION", "SNAPSHOT_UNSUITABLE", kind)
    database.c.insert_one({})
    other = await position(wanted, SNAPSHOT)
    event = (await api.plan(feed=wanted, after=plain)).end
    for after, until, field in ((plain, copying, "after"), (copying, other, "until"), (copying, event, "until")):
        request = wire.PlanRangeRequest(feed=wanted, after=after, until=until, **most)
        assert (await refused(api.feeds.PlanRange(request))).metadata == {"field": field}
        read = Receiver(api.feeds.ReadRange(wire.ReadRangeRequest(feed=wanted, after=after, until=until)))
        assert (await read.end()).metadata == {"field": field}
