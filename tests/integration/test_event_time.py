"""How long MongoDB may compute on one event: a feed whose pipeline takes longer ends, and no other feed does."""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from bson.timestamp import Timestamp
from pymongo import MongoClient
from pymongo.database import Database

from feedmux.v1 import feed_pb2
from feedmux_server.embedded import RedisServer, ReplicaSet
from tests.integration.servers import Here, serving, settings
from tests.integration.wire import at, feed, seconds

EVENT_TIME_S = 1.0
Documents = Database[dict[str, Any]]


def work(steps: int) -> dict[str, Any]:
    """An expression of so many million steps for an event whose document has `slow`, and little memory."""
    inner = {"$size": {"$map": {"input": {"$range": [0, 1000]}, "in": {"$add": ["$$this", "$fullDocument.slow"]}}}}
    many = {"$map": {"input": {"$range": [0, 1000 * steps]}, "in": inner}}
    return {"$cond": [{"$gt": ["$fullDocument.slow", 0]}, {"$size": many}, 0]}


def work_for(database: Documents, event_s: float) -> dict[str, Any]:
    """An expression that takes MongoDB about so long for each event, as fast as this machine is now. `database.c` holds
    a hundred documents at least."""

    def steps(number: int, field: str) -> dict[str, Any]:
        return {"$size": {"$map": {"input": {"$range": [0, number]}, "in": {"$add": ["$$this", field]}}}}

    tried, documents = 6000, 100
    began_s = time.monotonic()
    stages: list[dict[str, Any]] = [{"$limit": documents}, {"$set": {"x": steps(tried, "$n")}}, {"$match": {"x": 5}}]
    assert list(database["c"].aggregate(stages)) == []
    return steps(int(tried * event_s * documents / (time.monotonic() - began_s)), "$fullDocument.n")


def reached(time_: feed_pb2.ClusterTime) -> Timestamp:
    return Timestamp(time_.seconds, time_.increment)


@pytest_asyncio.fixture
async def here(mongo: ReplicaSet, redis_server: RedisServer) -> AsyncIterator[Here]:
    async with serving(settings(mongo.uri, redis_server.url, event_time_s=EVENT_TIME_S)) as here:
        yield here


def active(client: MongoClient[dict[str, Any]], database: Documents) -> list[dict[str, Any]]:
    wanted = {"ns": {"$regex": f"^{database.name}"}, "op": "getmore"}
    return list(client.admin.aggregate([{"$currentOp": {}}, {"$match": wanted}]))


async def test_a_feed_that_computes_too_long_on_one_event_ends(here: Here, database: Documents) -> None:
    stages = json.dumps([{"$set": {"x": work(60)}}])
    slow, same = (here.api.watch(feed(database.name, "c", stages)) for _ in range(2))
    neighbour = here.api.watch(feed(database.name, "c", '[{"$project": {"operationType": 1}}]'))
    for receiver in (slow, same, neighbour):
        await receiver.opened()
    database["c"].insert_one({"slow": 0})
    for receiver in (slow, same, neighbour):
        await receiver.take(1)
    database["c"].insert_one({"slow": 1})
    began_s = time.monotonic()
    await neighbour.take(1)
    for receiver in (slow, same):
        ended = await receiver.end(30)
        assert (ended.code, ended.reason) == ("FAILED_PRECONDITION", "PIPELINE_FAILED")
        assert "limits.event_time_s" in ended.message
    # Twice the limit: first a batch takes too long, and then a single event. Looks are a second apart.
    assert time.monotonic() - began_s < 2 * (EVENT_TIME_S + 2) + 3
    database["c"].insert_one({"slow": 0})
    await neighbour.take(1)
    neighbour.cancel()


async def test_a_batch_of_many_events_is_no_event_that_takes_long(
    here: Here, database: Documents, caplog: pytest.LogCaptureFixture
) -> None:
    """MongoDB computes on all of a batch without a yield. Nothing is lost where the read is stopped and repeated."""
    caplog.set_level(logging.WARNING)
    start = here.api.watch(feed(database.name, "c"))
    opened = await start.opened()
    start.cancel()
    database["c"].insert_many([{"n": number} for number in range(1500)])
    stages = json.dumps([{"$set": {"x": work_for(database, 8 * EVENT_TIME_S / 1500)}}])
    receiver = here.api.watch(feed(database.name, "c", stages), at(position=opened.position))
    events = await receiver.take(1500, 120)
    assert [each.document["fullDocument"]["n"] for each in events] == list(range(1500))
    receiver.cancel()
    assert "MongoDB takes too long" in caplog.text  # else this test shows nothing


async def test_a_long_search_that_finds_nothing_goes_on(
    here: Here, database: Documents, mongo_client: MongoClient[dict[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    start = here.api.watch(feed(database.name, "c"))
    opened = await start.opened()
    start.cancel()
    database["c"].insert_many([{"n": number} for number in range(1000)])
    stages = json.dumps([{"$set": {"x": work_for(database, 8 * EVENT_TIME_S / 1000)}}, {"$match": {"x": 5}}])
    receiver = here.api.watch(
        feed(database.name, "c", stages), at(position=opened.position), heartbeat_interval=seconds(1)
    )
    await receiver.opened()
    longest_s = 0.0
    until = database.client.admin.command("ping")["operationTime"]
    while not receiver.progress or reached(receiver.progress[-1].cluster_time) < until:
        for each in active(mongo_client, database):
            longest_s = max(longest_s, each["microsecs_running"] / 1e6)
        await receiver.during(0.2)
    assert longest_s > 2 * EVENT_TIME_S  # else this test shows nothing
    assert "MongoDB takes too long" not in caplog.text
    receiver.cancel()


async def test_with_the_least_privileges(redis_server: RedisServer, tmp_path: Path) -> None:
    """What is under way on one's own account may be seen and killed without any."""
    key = tmp_path / "key"
    key.write_text("members of one set know it")
    key.chmod(0o600)
    async with ReplicaSet(oplog_mb=64, arguments=["--keyFile", str(key)]) as mongo:
        address = mongo.nodes[0].address
        with MongoClient[dict[str, Any]](mongo.nodes[0].uri) as first:
            first.admin.command("createUser", "root", pwd="root-canary", roles=["root"])
        with MongoClient[dict[str, Any]](f"mongodb://root:root-canary@{address}/?replicaSet=feedmux") as admin:
            admin.admin.command("createUser", "feeds", pwd="feeds-canary", roles=[{"role": "read", "db": "shop"}])
            uri = f"mongodb://feeds:feeds-canary@{address}/?replicaSet=feedmux"
            configuration = settings(uri, redis_server.url, event_time_s=EVENT_TIME_S)
            del configuration["sources"]["other"]
            async with serving(configuration) as here:
                receiver = here.api.watch(feed("shop", "c", json.dumps([{"$set": {"x": work(60)}}])))
                await receiver.opened()
                admin["shop"]["c"].insert_one({"slow": 1})
                assert (await receiver.end(30)).reason == "PIPELINE_FAILED"
                killed = {"$match": {"ns": "shop.c", "op": "getmore", "killPending": {"$ne": True}}}
                assert not list(admin.admin.aggregate([{"$currentOp": {"allUsers": True}}, killed]))


async def test_a_feed_that_waits_goes_on(here: Here, database: Documents) -> None:
    receiver = here.api.watch(feed(database.name, "c", '[{"$match": {"operationType": "insert"}}]'))
    await receiver.opened()
    await asyncio.sleep(0)
    await receiver.quiet(3 * EVENT_TIME_S)
    database["c"].insert_one({})
    await receiver.take(1)
    receiver.cancel()
