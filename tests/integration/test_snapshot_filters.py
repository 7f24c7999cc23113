"""Existing documents through pipelines and grants: what a filter, a condition and a hidden field withhold of changes,
they withhold of the copy."""

import asyncio
import contextlib
import json
import random
import uuid
from collections.abc import AsyncIterator, Iterator
from functools import partial
from itertools import product
from typing import Any

import bson
import pytest
import pytest_asyncio
from bson.raw_bson import RawBSONDocument
from pymongo import AsyncMongoClient, MongoClient

import feedmux
from feedmux.v1 import change_feed_pb2 as wire
from feedmux.v1 import feed_pb2
from feedmux_embedded import RedisServer, ReplicaSet
from feedmux_server.core.feeds import pipeline_policy, snapshot_stages
from feedmux_server.core.grants.grant import make_grant
from feedmux_server.core.positions.position import inspect_position
from feedmux_server.core.positions.resume_token import ResumeToken, key_string
from feedmux_server.source.deployment import Source
from tests.documents import Documents
from tests.integration.conftest import on_one_that_splits
from tests.integration.grants_support import granted, key_of
from tests.integration.servers import SMALL_STEPS, DocumentsRead, Here, serving, settings
from tests.integration.test_event_time import asleep
from tests.integration.test_snapshot import ANY_IDS, SNAPSHOT, Sink, is_copied, source_at
from tests.integration.wire import MANY, Api, Receiver, at, feed, seconds

HIDE = ["secret", "a.secret", "items.price", "map.deep.secret"]
GRANTS: dict[str, list[dict[str, Any]] | None] = {
    "all": None,
    "own": [{"database": "test_*", "collection": "c", "match": {"owner": "a"}}],
    "hiding": [{"database": "test_*", "collection": "c", "hide": HIDE}],
    "both": [{"database": "test_*", "collection": "c", "match": {"owner": "a"}, "hide": HIDE}],
    "plain": [{"database": "test_*", "collection": "c"}],
}


@pytest_asyncio.fixture(scope="session")
async def here(
    version: ReplicaSet, redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Here]:
    folder = tmp_path_factory.mktemp("snapshot")
    async with granted(version.uri, redis_server.url, folder, GRANTS, **SMALL_STEPS) as here:
        yield here


@pytest.fixture
def database(version: ReplicaSet) -> Iterator[Documents]:
    with MongoClient[dict[str, Any]](version.uri) as client:
        name = f"test_{uuid.uuid4().hex[:12]}"
        yield client[name]
        client.drop_database(name)


@pytest_asyncio.fixture
async def tenant(here: Here) -> AsyncIterator[Any]:
    """The client of a tenant, by its name."""
    async with contextlib.AsyncExitStack() as apis:

        async def client(name: str) -> Api:
            return await apis.enter_async_context(here.api.with_key(key_of(name)))

        yield client


def stages(*stages: dict[str, Any]) -> str:
    return json.dumps(stages)


async def copied(api: Api, wanted: feed_pb2.Feed) -> tuple[list[dict[str, Any]], Receiver]:
    """What a tenant sees of the documents that exist."""
    receiver = api.watch(wanted, SNAPSHOT)
    await receiver.opened()
    await receiver.until(lambda: receiver.notices)
    return [event.document for event in await receiver.take(receiver.received)], receiver


async def ended(api: Api, wanted: feed_pb2.Feed) -> Any:
    return await api.watch(wanted, SNAPSHOT).end()


# Pipelines


async def test_stages_see_a_document_as_an_insert(here: Here, database: Documents) -> None:
    database.c.insert_many([{"_id": number, "n": number % 3, "pad": "x" * 100} for number in range(200)])
    wanted = feed(
        database.name,
        "c",
        stages(
            {"$match": {"operationType": {"$in": ["insert", "delete"]}, "fullDocument.n": {"$ne": 1}}},
            {"$set": {"n": "$fullDocument.n", "where": "$ns.coll", "key": "$documentKey._id"}},
            {"$project": {"n": 1, "where": 1, "key": 1}},
        ),
    )
    events, receiver = await copied(here.api, wanted)
    assert [{name: each[name] for name in ("n", "where", "key")} for each in events] == [
        {"n": number % 3, "where": "c", "key": number} for number in range(200) if number % 3 != 1
    ]
    assert len({bson.encode(each["_id"]) for each in events}) == len(events)
    assert receiver.notices[0].snapshot.documents == len(events)
    database.c.insert_many([{"_id": "a", "n": 1}, {"_id": "b", "n": 2}])
    [change] = await receiver.take(1)
    assert change.document["key"] == "b"
    receiver.cancel()


async def test_the_position_of_a_filter_that_drops_everything_can_be_continued_at(
    here: Here, database: Documents, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session that ends before the first document that passes does not begin again."""
    database.c.insert_many([{"_id": number} for number in range(2_000)])
    asked: list[int] = []
    find_id = Source.find_id

    async def found(source: Source, spec: Any, find: dict[str, Any], time: int) -> bytes:
        after = bson.decode(bson.encode(find)).get("min", {"_id": -1})["_id"]
        asked.append(after)
        await asyncio.to_thread(database.other.insert_one, {})  # a position moves with the cluster time
        if after > 1_000 and len(receivers) == 1:
            stopped.set()
            await asyncio.Event().wait()
        return await find_id(source, spec, find, time)

    monkeypatch.setattr(Source, "find_id", found)
    wanted, stopped = feed(database.name, "c", stages({"$match": {"fullDocument.x": 1}})), asyncio.Event()
    name = database.name
    await here.api.create(name, wanted, SNAPSHOT)
    receivers = [await here.api.session(name, credit=MANY, heartbeat_interval=seconds(1))]
    await asyncio.wait_for(stopped.wait(), 60)
    await receivers[0].until(lambda: receivers[0].progress)
    await receivers[0].close()
    asked.clear()
    receivers.append(await here.api.session(name, credit=MANY))
    await receivers[1].until(lambda: receivers[1].notices)
    assert asked[0] > 0
    receivers[1].cancel()


async def test_any_id_behind_a_filter(version: ReplicaSet, redis_server: RedisServer, database: Documents) -> None:
    """Each document is a read of its own."""
    database.c.insert_many([{"_id": each, "n": number % 2} for number, each in enumerate(ANY_IDS)])
    raw = database.c.with_options(codec_options=bson.CodecOptions(document_class=RawBSONDocument))
    for condition in ({"fullDocument.n": 1}, {"fullDocument.n": 2}):
        expected = [bytes(each.raw) for each in raw.find({"n": condition["fullDocument.n"]}, sort=[("_id", 1)])]
        limits: dict[str, Any] = {**SMALL_STEPS, "batch_events": 1}
        async with serving(settings(version.uri, redis_server.url, **limits)) as here:
            receiver = here.api.watch(feed(database.name, "c", stages({"$match": condition})), SNAPSHOT)
            await receiver.until(partial(getattr, receiver, "notices"))
            events = await receiver.take(receiver.received)
            assert [bytes(RawBSONDocument(each.data)["fullDocument"].raw) for each in events] == expected
            receiver.cancel()


@pytest.mark.parametrize(
    "changes",
    [
        {"$unset": "_id"},
        {"$project": {"_id": 0, "fullDocument": 1}},
        {"$replaceWith": {"n": "$fullDocument.n"}},
        {"$set": {"_id._data": "82"}},
        {"$set": {"_id.more": 1}},
        {"$set": {"_id.snapshot._id": 10**6}},
        {"$set": {"_id": {"$cond": [{"$eq": ["$fullDocument.n", 7]}, "x", "$_id"]}}},
    ],
)
async def test_a_pipeline_that_changes_the_id_is_rejected(
    here: Here, tenant: Any, database: Documents, changes: dict[str, Any]
) -> None:
    database.c.insert_many([{"n": number, "owner": "a"} for number in range(20)])
    for name in ("all", "both"):
        end = await ended(await tenant(name), feed(database.name, "c", stages(changes)))
        assert (end.code, end.reason) == ("INVALID_ARGUMENT", "RESUME_TOKEN_MODIFIED")


async def test_an_id_that_stays_may_move(here: Here, database: Documents) -> None:
    database.c.insert_many([{"_id": number} for number in range(100)])
    moved = stages({"$replaceWith": {"key": "$documentKey._id", "_id": "$_id"}})
    events, receiver = await copied(here.api, feed(database.name, "c", moved))
    assert [each["key"] for each in events] == list(range(100))
    receiver.cancel()


async def test_what_fails_on_a_document_ends_the_feed(here: Here, tenant: Any, database: Documents) -> None:
    database.c.insert_many([{"_id": number, "n": 9 - number, "owner": "a"} for number in range(10)])
    failing = feed(database.name, "c", stages({"$set": {"x": {"$divide": [1, "$fullDocument.n"]}}}))
    end = await ended(here.api, failing)
    assert (end.reason, "divide by zero" in end.message) == ("PIPELINE_FAILED", True)
    end = await ended(await tenant("own"), failing)
    assert (end.reason, "divide by zero" in end.message) == ("PIPELINE_FAILED", False)
    database.d.insert_one({"_id": 1, "pad": "x" * (9 << 20)})
    doubled = stages({"$set": {"again": "$fullDocument.pad"}})
    too_large = await ended(here.api, feed(database.name, "d", doubled))
    assert (too_large.reason, "$match" in too_large.message) == ("EVENT_TOO_LARGE", True)


@on_one_that_splits
async def test_large_documents_come_as_fragments_also_where_changes_are_split(
    here: Here, tenant: Any, database: Documents
) -> None:
    pad = 16 * 1024 * 1024 - 100
    database.c.insert_many([{"_id": number, "owner": "a", "pad": "x" * pad} for number in range(2)])
    split = feed(database.name, "c", stages({"$changeStreamSplitLargeEvent": {}}))
    for name in ("all", "both"):
        receiver = (await tenant(name)).watch(split, SNAPSHOT)
        events = await receiver.take(2)
        assert [len(each.document["fullDocument"]["pad"]) for each in events] == [pad, pad]
        assert "splitEvent" not in events[0].document
        receiver.cancel()


@on_one_that_splits
async def test_changes_between_documents_are_split(here: Here, database: Documents) -> None:
    """Also for a client that is interrupted in the middle of an event."""
    database.create_collection("c", changeStreamPreAndPostImages={"enabled": True})
    database.c.insert_many([{"_id": number, "v": 0, "pad": "x" * (9 << 20) * (number == 5)} for number in range(200)])
    images = {"full_document": "required", "full_document_before_change": "required"}
    wanted = feed(database.name, "c", stages({"$changeStreamSplitLargeEvent": {}}), **images)
    session = await here.api.session(feed=wanted, start=SNAPSHOT, credit=wire.Credit(events=60, bytes=1 << 30))
    await session.take(60)
    database.c.update_one({"_id": 5}, {"$set": {"v": 1}})
    parts: list[tuple[int, int]] = []
    numbers = list(range(60))
    while len(parts) < 2:
        position = session.position
        session.cancel()
        session = await here.api.session(
            feed=wanted, start=at(position=position), credit=wire.Credit(events=1, bytes=1 << 30)
        )
        [event] = await session.take(1)
        if "splitEvent" in event.document:
            parts.append((event.document["splitEvent"]["fragment"], event.document["splitEvent"]["of"]))
        else:
            numbers.append(event.document["documentKey"]["_id"])
    assert parts == [(1, 2), (2, 2)]
    assert inspect_position(session.position).token.copied is not None
    await session.credit(1_000)
    await session.until(lambda: session.notices)
    numbers += [each.document["documentKey"]["_id"] for each in await session.take(session.received - 1)]
    assert numbers == list(range(200))
    session.cancel()


async def test_a_document_on_which_the_pipeline_computes_too_long_ends_the_feed(
    version: ReplicaSet, redis_server: RedisServer, database: Documents, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline_policy, "OPERATORS_REFUSED", frozenset())
    database.c.insert_many([{"_id": number, "slow": 3_600_000 * (number == 50)} for number in range(60)])
    slow = stages({"$set": {"x": asleep("$fullDocument.slow")}})
    async with serving(settings(version.uri, redis_server.url, event_time_s=1.0)) as here:
        end = await ended(here.api, feed(database.name, "c", slow))
    assert (end.code, end.reason) == ("FAILED_PRECONDITION", "PIPELINE_FAILED")
    assert "limits.event_time_s" in end.message


async def test_many_documents_that_a_slow_filter_drops_are_no_document_that_takes_long(
    version: ReplicaSet, redis_server: RedisServer, database: Documents, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MongoDB computes on them without a pause, and returns nothing meanwhile."""
    monkeypatch.setattr(pipeline_policy, "OPERATORS_REFUSED", frozenset())
    database.c.insert_many([{"_id": number, "slow": 30} for number in range(100)])
    dropping = stages({"$match": {"$expr": {"$eq": [asleep("$fullDocument.slow"), 1]}}})
    async with serving(settings(version.uri, redis_server.url, event_time_s=0.5)) as here:
        events, receiver = await copied(here.api, feed(database.name, "c", dropping))
        assert events == []
        receiver.cancel()


@pytest.mark.parametrize("name", ["plain", "all"])
async def test_what_is_renamed_to_the_name_is_copied_also_where_the_invalidate_is_hidden(
    tenant: Any, database: Documents, documents_read: DocumentsRead, name: str
) -> None:
    """And where it comes together with a change that is shown."""
    database.c.insert_many([{"_id": number} for number in range(100)])
    database.other.insert_many([{"_id": number, "new": True} for number in range(90)])

    def before(_: str, number: int) -> None:
        if number == 2:
            database.c.update_one({"_id": 0}, {"$set": {"v": 1}})
            database.other.rename("c", dropTarget=True)

    documents_read(before=before)
    api, shown = await tenant(name), stages({"$match": {"operationType": {"$nin": ["rename", "invalidate"]}}})
    subscription = f"s{uuid.uuid4().hex}"
    wanted = feed(database.name, "c", shown)
    await api.create(subscription, wanted, SNAPSHOT, on_invalidate=feed_pb2.ON_INVALIDATE_CONTINUE)
    session = await api.open(subscription)
    await session.until(lambda: is_copied(session))
    events = [each.document for each in await session.take(session.received)]
    assert any(each["operationType"] == "update" for each in events)
    found = [each["fullDocument"]["_id"] for each in events if each.get("fullDocument", {}).get("new")]
    assert found == list(range(90))
    session.cancel()


# Grants


async def test_a_condition_judges_documents_without_images(tenant: Any, database: Documents) -> None:
    database.c.insert_many([{"_id": number, "owner": "ab"[number % 2]} for number in range(300)])
    events, receiver = await copied(await tenant("own"), feed(database.name, "c"))
    assert [each["fullDocument"]["_id"] for each in events] == list(range(0, 300, 2))
    assert set(events[0]) == {"_id", "operationType", "clusterTime", "wallTime", "fullDocument", "ns", "documentKey"}
    receiver.cancel()
    odd = feed(database.name, "c", stages({"$match": {"fullDocument.owner": "b"}}))
    events, receiver = await copied(await tenant("own"), odd)
    assert events == []
    receiver.cancel()


async def test_no_position_says_the_id_of_a_document_that_is_not_granted(tenant: Any, database: Documents) -> None:
    """Nor does anything else: a copy passes such documents, and its positions say how far it is."""
    database.c.insert_many([{"_id": f"canary-{number}", "owner": "b", "x": "canary"} for number in range(500)])
    database.c.insert_many([{"_id": f"own-{number}", "owner": "a"} for number in range(5)])
    database.c.insert_many([{"_id": f"z-canary-{number}", "owner": "b"} for number in range(500)])
    for name, wanted in (
        ("own", feed(database.name, "c")),
        ("both", feed(database.name, "c", stages({"$set": {"x": 1}}))),
    ):
        events, receiver = await copied(await tenant(name), wanted)
        assert len(events) == 5
        messages = (*receiver.batches, *receiver.progress, *receiver.notices)
        assert not any(b"canary" in message.SerializeToString() for message in messages)
        assert receiver.notices[0].snapshot.documents == 5
        receiver.cancel()


def planted(mark: str) -> list[dict[str, Any]]:
    """Documents that try to pass their hidden fields off as what the policy made itself, whose mark they guess."""
    secret = {"secret": "canary"}
    kept: dict[str, Any] = {"m": mark, "d": False, **secret, "7": secret, "v": secret, "k": "x"}
    token: dict[str, Any] = {"_id": {"_data": mark, "snapshot": {"_id": 1}}, **secret, "7": secret}
    whole: dict[str, Any] = {"e": {"_id": {"_data": mark}}, **secret, "7": secret}
    return [
        {"a": form}
        for each in (kept, token, whole, {"m": mark, "7": secret}, {"7": secret, "m": mark, "d": False})
        for form in (
            each,
            [each],
            [[each]],
            {"7": each},
            {"deep": each},
            {"0": {"0": each}},
            [{"7": [each]}],
        )
    ] + [
        {
            "a": secret,
            "e": {"_id": {"_data": mark}},
            "m": mark,
            "d": False,
            "g": 0,
            "op": "insert",
            "h": {"0h": {"m": mark}},
        },
        {"a": {"7": secret, "pad": "x" * 3_000_000}, "m": mark},
        {
            "map": {"deep": {"m": mark, "d": False, "7": secret}},
            "items": [{"m": mark, "d": False, "1": {"price": "canary"}}],
        },
        {"map": {"_id": {"_data": mark}, "deep": {"7": secret, "_id": {"_data": mark}}}},
        {"secret": "canary", "_data": mark},
    ]


async def test_a_guessed_mark_shows_no_hidden_field(
    tenant: Any, database: Documents, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The token of a copied document is a time. Whoever may write documents can write every one of a minute into
    them."""
    data = key_string(ResumeToken.high_water_mark(database.client.admin.command("ping")["operationTime"].time << 32))
    assert data is not None
    documents = planted(data.hex().upper())
    database.c.insert_many([{"_id": number, "owner": "a", **each} for number, each in enumerate(documents)])
    dotted: dict[str, Any] = {"_id": "dotted", "owner": "a", "a.secret": "shown", "$m": data.hex().upper()}
    database.c.insert_one(
        {**dotted, "a": {"$m": data.hex().upper(), "m.d": False, "secret": "canary", "7": {"secret": "canary"}}}
    )
    monkeypatch.setattr(snapshot_stages, "key_string", lambda _: data)  # every step is at the time of the documents
    for name in ("hiding", "both"):
        for collection, stages_ in product(("c", ""), ("", stages({"$set": {"again": "$$ROOT"}}))):
            events, receiver = await copied(await tenant(name), feed(database.name, collection, stages_))
            assert len(events) == len(documents) + 1
            assert all(each["_id"]["_data"] == data.hex().upper() for each in events)
            assert [number for number, each in enumerate(events) if "canary" in repr(each)] == []
            receiver.cancel()


async def test_hidden_fields_are_absent_and_the_rest_is_there(tenant: Any, database: Documents) -> None:
    document = {
        "_id": 1, "owner": "a", "secret": 1, "a": {"secret": 1, "b": 2}, "items": [{"price": 1, "n": 1}, {"n": 2}],
        "map": {"deep": [{"secret": 1, "x": 1}]},
    }  # fmt: skip
    shown = {"_id": 1, "owner": "a", "a": {"b": 2}, "items": [{"n": 1}, {"n": 2}], "map": {"deep": [{"x": 1}]}}
    database.c.insert_one(document)
    for name, expected in (("hiding", shown), ("both", shown), ("plain", document), ("all", document)):
        events, receiver = await copied(await tenant(name), feed(database.name, "c"))
        assert [each["fullDocument"] for each in events] == [expected]
        assert events[0]["_id"]["_data"].startswith("82")
        receiver.cancel()


async def test_the_secret_of_a_read_cannot_be_asked_for(tenant: Any, database: Documents) -> None:
    """The user's stages see the token; none of them is moved to where the secret still is."""
    database.c.insert_one({"_id": 1, "owner": "a"})
    for condition in (
        {"_id._data": {"$not": {"$regex": "^82"}}},
        {"$expr": {"$ne": [{"$substrBytes": ["$_id._data", 0, 2]}, "82"]}},
    ):
        events, receiver = await copied(await tenant("both"), feed(database.name, "c", stages({"$match": condition})))
        assert events == []
        receiver.cancel()
    seen = feed(database.name, "c", stages({"$set": {"seen": "$_id._data"}}))
    [event], receiver = await copied(await tenant("both"), seen)
    assert event["seen"] == event["_id"]["_data"]
    receiver.cancel()


async def test_a_document_that_leaves_the_view_is_deleted_also_if_it_comes_after_the_position(
    tenant: Any, database: Documents
) -> None:
    database.create_collection("c", changeStreamPreAndPostImages={"enabled": True})
    database.c.insert_many([{"_id": number, "owner": "a"} for number in range(100)])
    api, wanted = await tenant("own"), feed(database.name, "c")
    await api.create(database.name, wanted, SNAPSHOT)
    session = await api.session(database.name, credit=wire.Credit(events=50, bytes=1 << 20))
    sink = Sink()
    for event in await session.take(50):
        sink.apply(event.document)
    await session.ack_and_wait(10)
    await session.close()
    database.c.update_many({"_id": {"$in": [5, 30]}}, {"$set": {"owner": "b"}})
    database.c.update_one({"_id": 40}, {"$set": {"x": 1}})
    session = await api.session(database.name, credit=MANY)
    expected = {bson.encode({"_id": each["_id"]}): each for each in database.c.find({"owner": "a"})}
    while sink.state != expected:
        [event] = await session.take(1)
        sink.apply(event.document)
    session.cancel()


async def change(uri: str, database: str, ids: list[int]) -> None:
    """Changes documents, and who owns them, until it is cancelled."""
    rng = random.Random(1)
    async with AsyncMongoClient[dict[str, Any]](uri) as client:
        for number in range(10**9):
            one, kind, owner = rng.choice(ids), rng.random(), rng.choice("ab")
            if kind < 0.6:
                await client[database].c.update_one({"_id": one}, {"$set": {"owner": owner, "v": number}})
            elif kind < 0.8:
                await client[database].c.update_one({"_id": one}, {"$set": {"secret": number}})
            elif kind < 0.9:
                await client[database].c.delete_one({"_id": one})
            else:
                await client[database].c.replace_one({"_id": one}, {"owner": owner, "secret": 1}, upsert=True)


def shown_at(database: Documents, place: ResumeToken, tenant: str) -> dict[bytes, dict[str, Any]]:
    """What the grants of a tenant show of the documents that a position covers."""
    found = source_at(database.client, database.name, place)
    if tenant == "own":
        return {key: each for key, each in found.items() if each["owner"] == "a"}
    return {key: {name: each[name] for name in each if name != "secret"} for key, each in found.items()}


@pytest.mark.parametrize("tenant_name", ["own", "hiding"])
async def test_a_copy_of_what_is_granted_is_exact(
    here: Here, version: ReplicaSet, database: Documents, tenant_name: str
) -> None:
    """While documents change, and move into view and out of it, and the program continues from its positions."""
    database.create_collection("c", changeStreamPreAndPostImages={"enabled": True})
    ids = list(range(600))
    database.c.insert_many([{"_id": one, "owner": "ab"[one % 2], "secret": one, "v": 0} for one in ids])
    sink, rng, position, checked, after_copy = Sink(), random.Random(1), b"", 0, 0
    writer = asyncio.create_task(change(version.uri, database.name, ids))
    try:
        target = f"127.0.0.1:{here.api.data_port}"
        async with feedmux.AsyncClient(target, api_key=key_of(tenant_name)) as user:
            while after_copy < 5:
                start = feedmux.Start.position(position) if position else feedmux.Start.snapshot()
                async with user.feed(feedmux.Feed(database.name, "c")).open(
                    start, window_events=rng.choice((7, 60, 500))
                ) as session:
                    async for batch in session.batches():
                        for event in batch:
                            sink.apply(event.document)
                        position, place = batch.position, inspect_position(batch.position).token
                        after_copy += place.copied is None
                        if place.is_high_water_mark:
                            expected = await asyncio.to_thread(shown_at, database, place, tenant_name)
                            # Beyond the last document that was granted, there may be changes of those that were passed.
                            up_to = b"" if place.copied is None else place.copied.up_to
                            last = bson.decode(up_to)["_id"] if up_to else -1
                            covered = {
                                key: each
                                for key, each in sink.state.items()
                                if place.copied is None or each["_id"] <= last
                            }
                            assert covered == expected
                            checked += 1
                        if after_copy >= 5 or rng.random() < 0.1:
                            break
    finally:
        writer.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await writer
    assert checked > 5


async def test_a_copy_continues_under_the_present_grants(here: Here, tenant: Any, database: Documents) -> None:
    """What was narrowed in the middle holds for all documents that are still to come."""
    database.c.insert_many([{"_id": number, "owner": "ab"[number % 2], "secret": "canary"} for number in range(200)])
    api, wanted, sessions = await tenant("plain"), feed(database.name, "c"), here.server.service.sessions
    before = here.server.service.access.grants
    receiver = await api.session(feed=wanted, start=SNAPSHOT, credit=wire.Credit(events=50, bytes=1 << 20))
    try:
        await receiver.take(50)
        narrowed = make_grant("*", "test_*", "c", {"owner": "a"}, ["secret"])
        assert await sessions.change_grants({**before, "plain": (narrowed,)}) == 1
        assert (await receiver.end()).reason == "GRANTS_CHANGED"
        receiver = api.watch(wanted, at(position=receiver.position))
        await receiver.until(lambda: receiver.notices)
        found = [each.document["fullDocument"] for each in await receiver.take(receiver.received)]
        assert found == [{"_id": number, "owner": "a"} for number in range(50, 200, 2)]
        receiver.cancel()
    finally:
        await sessions.change_grants(before)


async def test_what_a_copy_costs_is_told_where_all_documents_are_granted(tenant: Any, database: Documents) -> None:
    database.c.insert_many([{"_id": number} for number in range(30)])
    told = {}
    for name in GRANTS:
        explained = await (await tenant(name)).explain(feed=feed(database.name, "c"), start=SNAPSHOT)
        assert not explained.HasField("refusal")
        told[name] = explained.documents_estimated
    assert told == {"all": 30, "hiding": 30, "plain": 30, "own": 0, "both": 0}
    latest = await (await tenant("all")).explain(feed=feed(database.name, "c"))
    assert latest.documents_estimated == 0


async def test_a_database_that_is_not_granted_is_denied_before_anything_is_said_of_it(
    tenant: Any, database: Documents
) -> None:
    database.create_collection("d", capped=True, size=4096)
    api = await tenant("own")
    assert (await ended(api, feed(database.name, "d"))).reason == "NAMESPACE_DENIED"
    explained = await api.explain(feed=feed(database.name, "d"), start=SNAPSHOT)
    assert explained.refusal.reason == "NAMESPACE_DENIED"
