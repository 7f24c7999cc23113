"""Existing documents of a database and of a deployment: collection after collection, whatever is created, dropped or
renamed meanwhile."""

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import bson
import pytest
from bson import ObjectId
from pymongo.database import Database

import feedmux
from feedmux.v1 import change_feed_pb2 as wire
from feedmux.v1 import feed_pb2, subscriptions_pb2
from feedmux_embedded import RedisServer, ReplicaSet
from feedmux_server.core.positions.position import inspect_position
from feedmux_server.source import deployment
from tests.documents import Client, Documents
from tests.integration.grants_support import granted, key_of
from tests.integration.servers import SMALL_STEPS, DocumentsRead, Here
from tests.integration.test_snapshot import SNAPSHOT, is_copied, restarts
from tests.integration.wire import LATEST, MANY, feed, refused

State = dict[tuple[str, str], dict[bytes, dict[str, Any]]]
NAMES = ("a", "b", "c.d")


class Mirror:
    """Applies events as a program that mirrors collections would, renames too."""

    def __init__(self) -> None:
        self.state: State = {}

    def apply(self, event: dict[str, Any]) -> None:
        operation, name = event["operationType"], of(event.get("ns", {"db": ""}))
        if operation in ("drop", "rename"):
            documents = self.state.pop(name, {})
            if operation == "rename":
                self.state[of(event["to"])] = documents
            return
        if "documentKey" not in event:
            return
        documents, key = self.state.setdefault(name, {}), bson.encode(event["documentKey"])
        if operation == "delete":
            documents.pop(key, None)
        elif operation == "update":
            changed = event["updateDescription"]["updatedFields"]
            documents[key] = {**documents.get(key, event["documentKey"]), **changed}
        else:
            documents[key] = event["fullDocument"]

    def shown(self) -> State:
        return {name: documents for name, documents in self.state.items() if documents}


def of(name: dict[str, str]) -> tuple[str, str]:
    return name["db"], name.get("coll", "")


def current(client: Client, *databases: str) -> State:
    """What the databases hold."""
    found: State = {}
    for database in databases:
        for name in client[database].list_collection_names(filter={"type": "collection"}):
            documents = {bson.encode({"_id": each["_id"]}): each for each in client[database][name].find()}
            if documents and not name.startswith("system."):
                found[database, name] = documents
    return found


def scope(database: str = "", stages: str = "") -> feed_pb2.Feed:
    wanted = feed_pb2.Feed(source="main", database=database)
    if stages:
        wanted.pipeline.extended_json = stages
    return wanted


def filled(database: Documents, count: int = 200) -> None:
    """Collections with mixed `_id`s, and beside them what has no change stream."""
    for name in NAMES:
        ids = [number if number % 3 else f"s{number}" if number % 2 else ObjectId() for number in range(count)]
        database[name].insert_many([{"_id": each, "v": 0} for each in ids])
    database.create_collection("aview", viewOn="a", pipeline=[])
    database.create_collection("bseries", timeseries={"timeField": "t"})


def _out_and_drop(database: Documents) -> None:
    """`$out` writes a collection under another name, and renames it."""
    database["c.d"].aggregate([{"$out": "a"}])
    database["c.d"].drop()


CHANGES: dict[str, Callable[[Documents], object]] = {
    "create before": lambda database: database.a1.insert_one({"_id": 1}),
    "rename over the present one": lambda database: database["c.d"].rename("b", dropTarget=True),
    "rename the present one back": lambda database: database.b.rename("a1"),
    "write and rename, then drop": _out_and_drop,
    "drop all": lambda database: database.client.drop_database(database.name),
}
"""The rest in any order, many of them in one copy, is in the simulation ("snapshot of a database")."""
WITHOUT_RENAMES = json.dumps([{"$match": {"operationType": {"$ne": "rename"}}}])


@pytest.mark.parametrize("change", CHANGES)
async def test_whatever_happens_to_collections_meanwhile(
    stepwise: Here, database: Documents, mongo_client: Client, documents_read: DocumentsRead, change: str
) -> None:
    """In the end a program that follows drops and renames holds what there is, also if it is interrupted after each
    batch and keeps what it has applied."""
    filled(database, 100)
    reads = documents_read(before=lambda *read: read == ("b", 2) and CHANGES[change](database))
    mirror, position, cuts, end = Mirror(), b"", 0, (database.name, "end")

    def write_the_end(notice: feedmux.Notice) -> None:
        if isinstance(notice, feedmux.SnapshotComplete):
            database.end.insert_one({})

    async with feedmux.AsyncClient(f"127.0.0.1:{stepwise.api.data_port}") as user:
        while end not in mirror.state:
            start = feedmux.Start.position(position) if position else feedmux.Start.snapshot()
            opening = user.feed(feedmux.Feed(database.name)).open(start, on_notice=write_the_end)
            try:
                async with opening as session:
                    async for batch in session.batches():
                        for event in batch:
                            mirror.apply(event.document)
                        position = batch.position
                        if batch.snapshot or end in mirror.state:
                            cuts += 1
                            break
            except feedmux.FeedInvalidated as error:
                position = error.position
    assert reads["b"] >= 2
    assert cuts > 3
    assert mirror.shown() == current(mongo_client, database.name)


async def test_a_rename_that_the_pipeline_drops(
    stepwise: Here, database: Documents, documents_read: DocumentsRead
) -> None:
    """The documents come with their new name all the same."""
    filled(database, 100)
    documents_read(before=lambda *read: read == ("b", 1) and database["c.d"].rename("a1"))
    before = await restarts(stepwise, "RENAMED")
    session = await stepwise.api.open(feed=scope(database.name, WITHOUT_RENAMES), start=SNAPSHOT)
    await session.until(lambda: is_copied(session))
    found = {event.document["ns"]["coll"] for event in await session.take(session.received)}
    assert found == {"a", "a1", "b"}
    assert await restarts(stepwise, "RENAMED") > before
    session.cancel()


async def test_what_a_client_sees_of_several_databases(
    stepwise: Here, database: Documents, mongo_client: Client
) -> None:
    """Collection after collection, of one database and then of the next one, and no view, time series or internal
    collection."""
    other = mongo_client[f"{database.name}b"]
    for each in (other, database):
        filled(each, 30)
    session = stepwise.api.watch(scope(), SNAPSHOT)
    opened = await session.opened()
    assert opened.snapshot.documents_estimated >= 180
    await session.until(lambda: is_copied(session))
    events = [each.document for each in await session.take(session.received)]
    mine = [of(each["ns"]) for each in events if each["ns"]["db"].startswith(database.name)]
    assert list(dict.fromkeys(mine)) == [(each.name, name) for each in (database, other) for name in NAMES]
    assert len(mine) == 180
    assert len({bson.encode(each["_id"]) for each in events}) == len(events)
    done = session.notices[-1].snapshot
    assert (done.documents, done.namespace) == (len(events), "*")
    session.cancel()
    mongo_client.drop_database(other.name)


async def test_a_subscription_to_a_database(stepwise: Here, database: Documents, name: str) -> None:
    """It says which collection is being copied, and continues there."""
    api, wanted = stepwise.api, scope(database.name)
    filled(database, 60)
    explained = await api.feeds.Explain(wire.ExplainRequest(feed=wanted, start=SNAPSHOT))
    assert (explained.HasField("refusal"), explained.documents_estimated) == (False, 180)
    await api.create(name, wanted, SNAPSHOT)
    session = await api.session(name, credit=wire.Credit(events=100, bytes=1 << 20))
    assert (await session.opened()).snapshot.documents_estimated == 180
    await session.take(100)
    await session.ack_and_wait(100)
    await session.close()
    stored = (await api.control.GetSubscription(subscriptions_pb2.GetSubscriptionRequest(name=name))).snapshot
    assert (stored.documents, stored.namespace) == (100, f"{database.name}.b")
    session = await api.open(name)
    assert [each.document["ns"]["coll"] for each in await session.take(80)] == ["b"] * 20 + ["c.d"] * 60
    await session.until(lambda: is_copied(session))
    session.cancel()


async def test_a_collection_that_cannot_be_copied_is_named(stepwise: Here, database: Documents) -> None:
    """A copy does not lack it in silence; a pipeline may leave it out."""
    filled(database, 10)
    database.create_collection("log", capped=True, size=4096)
    resolve = wire.ResolvePositionRequest(feed=scope(database.name), start=SNAPSHOT)
    end = await refused(stepwise.api.feeds.ResolvePosition(resolve))
    assert (end.reason, end.metadata["kind"]) == ("SNAPSHOT_UNSUITABLE", "capped")
    assert f"{database.name}.log" in end.message
    without = scope(database.name, json.dumps([{"$match": {"ns.coll": {"$in": list(NAMES)}}}]))
    session = await stepwise.api.open(feed=without, start=SNAPSHOT)
    assert len(await session.take(30)) == 30
    session.cancel()


async def test_one_that_appears_during_the_copy_ends_it(
    stepwise: Here, database: Documents, documents_read: DocumentsRead
) -> None:
    filled(database, 60)
    documents_read(before=lambda *read: read == ("a", 1) and database.create_collection("log", capped=True, size=4096))
    session = await stepwise.api.open(feed=scope(database.name), start=SNAPSHOT)
    end = await session.end()
    assert (end.reason, end.metadata["kind"]) == ("SNAPSHOT_UNSUITABLE", "capped")


GRANTS: dict[str, list[dict[str, Any]] | None] = {
    "some": [
        {"database": "test_*", "collection": "a"},
        {"database": "test_*", "collection": "c.d", "match": {"owner": "a"}, "hide": ["secret"]},
    ],
}


async def test_grants_narrow_a_copy_by_collection(
    mongo: ReplicaSet,
    redis_server: RedisServer,
    database: Documents,
    documents_read: DocumentsRead,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """What a tenant may not see is not read, and no reason to reject its copy."""
    filled(database, 30)
    database["c.d"].insert_many([{"_id": f"x{n}", "owner": "ab"[n % 2], "secret": n} for n in range(10)])
    database.create_collection("log", capped=True, size=4096)
    read = documents_read()
    folder = tmp_path_factory.mktemp("scopes")
    async with (
        granted(mongo.uri, redis_server.url, folder, GRANTS, **SMALL_STEPS) as here,
        here.api.with_key(key_of("some")) as api,
    ):
        session = await api.open(feed=scope(database.name), start=SNAPSHOT)
        await session.until(lambda: is_copied(session))
        events = [each.document for each in await session.take(session.received)]
        assert [each["ns"]["coll"] for each in events] == ["a"] * 30 + ["c.d"] * 5
        assert [each["_id"]["snapshot"]["ns"] for each in events] == [each["ns"] for each in events]
        assert [each["fullDocument"] for each in events[30:]] == [
            {"_id": f"x{n}", "owner": "a"} for n in range(0, 10, 2)
        ]
        assert session.notices[-1].snapshot.documents_estimated == 0, "how many documents are withheld is a secret"
        session.cancel()
    assert set(read) == {"a", "c.d"}


@pytest.mark.parametrize("collection", ["", "a"])
async def test_a_token_does_not_say_how_far_a_copy_is(
    stepwise: Here, database: Documents, name: str, collection: str
) -> None:
    """So a session begins at the stored position, also if its client has acknowledged a later change."""
    watched = feed(database.name, collection) if collection else scope(database.name)
    filled(database, 60)
    await stepwise.api.create(name, watched, SNAPSHOT)
    session = await stepwise.api.session(name, credit=wire.Credit(events=20, bytes=1 << 20))
    epoch = (await session.opened()).epoch
    documents = await session.take(20)
    await session.ack_and_wait(20)
    stored = session.position
    database.a.update_one({"_id": documents[0].document["documentKey"]["_id"]}, {"$set": {"v": 1}})
    await session.send(credit=MANY)
    update: dict[str, Any] = {}
    while update.get("operationType") != "update":
        [event] = await session.take(1)
        update = event.document
    await session.close()
    token = wire.LastAcked(epoch=epoch, resume_token=bson.encode(update["_id"]))
    session = await stepwise.api.session(name, last_acked=token, credit=MANY)
    opened = await session.opened()
    assert inspect_position(opened.position) == inspect_position(stored)
    assert not opened.at_last_acked
    await session.until(lambda: is_copied(session))
    assert any(notice.HasField("rewound") for notice in session.notices)
    session.cancel()


async def test_nothing_is_skipped_where_a_copy_begins(stepwise: Here, database: Documents, name: str) -> None:
    api = stepwise.api
    await api.create(name, feed(database.name, "a"), LATEST)
    session = await api.session(name, credit=MANY)
    epoch = (await session.opened()).epoch
    database.a.insert_many([{"_id": number} for number in range(5)])
    await session.take(5)
    await session.ack_and_wait(5)
    await session.close()
    acked = wire.LastAcked(position=session.position, epoch=epoch)
    database.a.insert_one({"_id": 5})
    seek = subscriptions_pb2.SeekSubscriptionRequest(name=name, to=SNAPSHOT)
    await api.control.SeekSubscription(seek, metadata=api.metadata)
    session = await api.session(name, credit=MANY, last_acked=acked)
    await session.until(lambda: is_copied(session))
    assert [notice.WhichOneof("kind") for notice in session.notices] == ["snapshot"]
    assert session.received == 6
    session.cancel()


async def test_the_end_of_a_copy_is_repeated_also_where_the_client_knows_a_later_position(
    stepwise: Here, database: Documents, name: str
) -> None:
    """The server was lost before that was stored, and the client may not have noticed the end yet."""
    watched = feed(database.name, "a")
    database.a.insert_many([{"_id": number} for number in range(20)])
    await stepwise.api.create(name, watched, SNAPSHOT)
    session = await stepwise.api.session(name, credit=MANY)
    opened = await session.opened()
    await session.take(5)
    await session.ack_and_wait(5)
    await session.close()
    database.b.insert_one({})
    later = (await stepwise.api.resolve(watched, LATEST)).position
    acked = wire.LastAcked(epoch=opened.epoch, position=later)
    for last_acked in (acked, None):
        session = await stepwise.api.session(name, credit=MANY, last_acked=last_acked)
        assert (await session.opened()).at_last_acked is (last_acked is not None)
        await session.until(partial(is_copied, session))
        assert session.notices[0].snapshot.generation == opened.snapshot.generation
        await session.close()


async def test_the_token_of_a_copied_document_is_no_position_of_a_feed(
    stepwise: Here, database: Documents, name: str
) -> None:
    """The server may have lost the beginning of the copy. Without it, the rest of the documents would be missing."""
    watched = feed(database.name, "a")
    await stepwise.api.create(name, watched, LATEST)
    session = await stepwise.api.session(name)
    epoch = (await session.opened()).epoch
    await session.close()
    filled(database, 60)
    [document] = await stepwise.api.watch(watched, SNAPSHOT).take(1)
    token = wire.LastAcked(epoch=epoch, resume_token=bson.encode(document.document["_id"]))
    session = await stepwise.api.session(name, last_acked=token, credit=MANY)
    assert not (await session.opened()).at_last_acked
    assert [each.document["operationType"] for each in await session.take(3)] == ["insert"] * 3
    session.cancel()


@pytest.mark.parametrize("collection", ["", "c"])
async def test_a_view_that_takes_the_place_of_a_collection_shows_nothing(
    here: Here, database: Database[Any], documents_read: DocumentsRead, collection: str
) -> None:
    """MongoDB reads it as of a time when there was only the collection. The one shown may not be granted."""
    database.c.insert_many([{"_id": number} for number in range(5)])
    database.d.insert_many([{"_id": number} for number in range(100, 105)])

    def replace(read: str, number: int) -> None:
        if (read, number) == ("c", 1):
            database.c.drop()
            database.create_collection("c", viewOn="d", pipeline=[])

    documents_read(before=replace)
    watch = here.api.watch(feed(database.name, collection), SNAPSHOT)
    if collection:
        assert (await watch.end()).reason == "OPTION_REFUSED", "MongoDB opens no change stream on a view"
        assert watch.received == 0
    else:
        events = [each.document for each in await watch.take(6)]
        assert [(each["operationType"], each["ns"]["coll"]) for each in events] == [("drop", "c")] + [
            ("insert", "d")
        ] * 5
        watch.cancel()


async def test_collections_are_listed_in_parts(
    here: Here, database: Database[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deployment, "LISTED_AT_ONCE", 2)
    for name in "abcde":
        database.create_collection(name)
    database.create_collection("capped", capped=True, size=4096)
    database.create_collection("collated", collation={"locale": "en"})
    database.create_collection("view", viewOn="a")
    source = here.server.service.manager.source("main")
    listed = [*"abc", "capped", "collated", *"de", "system.views"]
    assert await source.collection_names(database.name, "", bool, 9) == (listed, len(listed))
    wanted = {*"acde", "collated"}.__contains__
    assert await source.collection_names(database.name, "b\0", wanted, 2) == (["c", "collated"], len(listed) - 2)
    special = await source.special_collections(database.name)
    assert sorted((name, each.capped, each.collation) for name, each in special.items()) == [
        ("capped", True, False), ("collated", False, True),
    ]  # fmt: skip
    assert len(await source.names(database.name, most=3)) == 3
