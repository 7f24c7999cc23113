"""How long MongoDB may compute on one event: a feed whose pipeline takes longer ends, and no other feed does."""

import asyncio
import json
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from bson.datetime_ms import DatetimeMS
from pymongo import MongoClient
from pymongo.errors import OperationFailure

from feedmux_embedded import RedisServer, ReplicaSet
from feedmux_server.core.delivery.shared_stream import SharedStream
from feedmux_server.core.feeds import pipeline_policy
from feedmux_server.core.grants import stages
from feedmux_server.core.grants.hidden import hidden_stages
from feedmux_server.source.deployment import Source
from feedmux_server.source.read_watch import Operation
from tests.documents import Documents
from tests.integration.grants_support import granted
from tests.integration.servers import Here, guarded, serving, settings, until
from tests.integration.wire import PATIENCE_S, at, feed

EVENT_TIME_S = 1.0
FAR_MS = 10**15
"""A date of the year 33658, in milliseconds since 1970."""


def asleep(field: str) -> dict[str, Any]:
    """An expression that takes as many milliseconds as `field` says, however fast the machine is; with `javascript`."""
    return {"$function": {"body": "function(ms) { sleep(ms > 0 ? ms : 0); return 0; }", "args": [field], "lang": "js"}}


def hold_reads(client: MongoClient[dict[str, Any]], namespace: str, mode: str) -> None:
    """Holds the reads of a collection, as a pipeline does that computes and does not yield; mode `off` lets them go."""
    data = {"nss": namespace, "shouldCheckForInterrupt": True}
    command = {"configureFailPoint": "waitWithPinnedCursorDuringGetMoreBatch", "mode": mode}
    client.admin.command(command if mode == "off" else {**command, "data": data})


@pytest.fixture
def javascript(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server accepts pipelines with `$function`: nothing else takes MongoDB a time that one can choose."""
    monkeypatch.setattr(pipeline_policy, "OPERATORS_REFUSED", frozenset())


def streams_of(here: Here, database: Documents) -> list[SharedStream]:
    keyed = [each for each in here.server.service.manager.keyed() if each.key.spec.scope.database == database.name]
    return [stream for each in keyed for stream in each.streams.open]


@pytest_asyncio.fixture
async def here(mongo: ReplicaSet, redis_server: RedisServer) -> AsyncIterator[Here]:
    async with serving(settings(mongo.uri, redis_server.url, event_time_s=EVENT_TIME_S)) as here:
        yield here


@pytest.mark.usefixtures("javascript")
async def test_a_feed_that_computes_too_long_on_one_event_ends(here: Here, database: Documents) -> None:
    pipeline = json.dumps([{"$set": {"x": asleep("$fullDocument.slow")}}])
    slow, same = (here.api.watch(feed(database.name, "c", pipeline)) for _ in range(2))
    neighbour = here.api.watch(feed(database.name, "c", '[{"$project": {"operationType": 1}}]'))
    for receiver in (slow, same, neighbour):
        await receiver.opened()
    database["c"].insert_one({"slow": 0})
    for receiver in (slow, same, neighbour):
        await receiver.take(1)
    [stream] = [each for each in streams_of(here, database) if len(each.subscribers) == 2]
    database["c"].insert_one({"slow": 3_600_000})
    await neighbour.take(1)
    for receiver in (slow, same):
        async with asyncio.timeout(PATIENCE_S):  # without an end, heartbeats continue
            ended = await receiver.end()
        assert (ended.code, ended.reason) == ("FAILED_PRECONDITION", "PIPELINE_FAILED")
        assert "limits.event_time_s" in ended.message
    assert stream.resumes == 1  # first a batch takes too long, and then a single event
    database["c"].insert_one({"slow": 0})
    await neighbour.take(1)
    neighbour.cancel()


@pytest.mark.usefixtures("javascript")
async def test_what_the_policy_takes_for_an_event_is_allowed_in_addition(
    mongo: ReplicaSet, redis_server: RedisServer, database: Documents, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the event follows others, which the pipeline drops."""
    waits = {"$set": {"e.n": asleep("$e.fullDocument.policy")}}
    monkeypatch.setattr(stages, "hidden_stages", lambda hides: [*hidden_stages(hides), waits])
    grants = {"tenant": [{"database": "*", "hide": ["secret"]}]}
    pipeline = [{"$match": {"fullDocument.own": {"$exists": True}}}, {"$set": {"x": asleep("$fullDocument.own")}}]
    async with granted(mongo.uri, redis_server.url, tmp_path, grants, event_time_s=EVENT_TIME_S) as here:
        receiver = here.api.watch(feed(database.name, "c", json.dumps(pipeline)))
        await receiver.opened()
        database["c"].insert_many([*({"_id": number} for number in range(30)), {"policy": 4_000, "own": 0}])
        async with asyncio.timeout(PATIENCE_S):
            await receiver.take(1)
        database["c"].insert_one({"own": 3_600_000})
        async with asyncio.timeout(PATIENCE_S):
            assert (await receiver.end()).reason == "PIPELINE_FAILED"


async def test_a_batch_of_many_events_is_no_event_that_takes_long(
    here: Here, database: Documents, mongo_client: MongoClient[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """MongoDB computes on all of a batch without a yield. Nothing is lost where the read is stopped and repeated."""
    stopped = 0
    kill_operation = Source.kill_operation
    hold = partial(hold_reads, mongo_client, f"{database.name}.c")

    async def killed(source: Source, *operation: Any) -> None:
        """Lets the next read pass: feedmux checks no other read before this returns."""
        nonlocal stopped
        stopped += 1
        await kill_operation(source, *operation)
        hold("off")

    monkeypatch.setattr(Source, "kill_operation", killed)
    start = here.api.watch(feed(database.name, "c"))
    opened = await start.opened()
    start.cancel()
    database["c"].insert_many([{"n": number} for number in range(1500)])
    hold("alwaysOn")
    try:
        receiver = here.api.watch(feed(database.name, "c", '[{"$set": {"x": 1}}]'), at(position=opened.position))
        events = await receiver.take(1500)
    finally:
        hold("off")
    assert [each.document["fullDocument"]["n"] for each in events] == list(range(1500))
    assert stopped == 1
    receiver.cancel()


async def test_a_pipeline_with_values_that_the_driver_refuses(
    here: Here, database: Documents, mongo_client: MongoClient[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """MongoDB lists the operations with their pipelines; Python has no date after 9999."""
    found: list[Operation] = []
    operations = Source.operations

    async def listed(source: Source, *reads: Any) -> list[Operation]:
        answer = await operations(source, *reads)
        found.extend(answer)
        return answer

    monkeypatch.setattr(Source, "operations", listed)
    late = {"$date": {"$numberLong": str(FAR_MS - 1)}}
    receiver = here.api.watch(
        feed(database.name, "c", json.dumps([{"$match": {"fullDocument.at": {"$gt": late}}}])),
    )
    await receiver.opened()
    hold_reads(mongo_client, f"{database.name}.c", "alwaysOn")
    try:
        await until(lambda: found)
    finally:
        hold_reads(mongo_client, f"{database.name}.c", "off")
    database["c"].insert_one({"at": DatetimeMS(FAR_MS)})
    await receiver.take(1)
    receiver.cancel()
    assert all("pipeline" not in each["command"] for each in found)


@pytest.mark.usefixtures("javascript")
async def test_with_the_least_privileges(redis_server: RedisServer, tmp_path: Path) -> None:
    """What is under way on one's own account may be seen and killed without any."""
    async with guarded(tmp_path) as (admin, address):
        admin.admin.command("createUser", "feeds", pwd="feeds-canary", roles=[{"role": "read", "db": "shop"}])
        uri = f"mongodb://feeds:feeds-canary@{address}"
        configuration = settings(uri, redis_server.url, event_time_s=EVENT_TIME_S)
        del configuration["sources"]["other"]
        async with serving(configuration) as here:
            receiver = here.api.watch(feed("shop", "c", json.dumps([{"$set": {"x": asleep("$fullDocument.slow")}}])))
            await receiver.opened()
            admin["shop"]["c"].insert_one({"slow": 3_600_000})
            async with asyncio.timeout(PATIENCE_S):
                assert (await receiver.end()).reason == "PIPELINE_FAILED"
            under_way: list[dict[str, Any]] = [
                {"$currentOp": {"allUsers": True}},
                {"$match": {"ns": "shop.c", "op": "getmore"}},
            ]
            await until(lambda: not list(admin.admin.aggregate(under_way)))
            # Whether feedmux killed the operation or closed its cursor before: this one has no other end.
            await see_and_kill(here.server.service.manager.sources["main"], uri)


async def see_and_kill(source: Source, uri: str) -> None:
    """An operation of the same account."""
    with MongoClient[dict[str, Any]](uri) as own, own.start_session() as session:
        endless = own["shop"]["c"].find({"$where": "sleep(3600000)"}, session=session)
        reading = asyncio.create_task(asyncio.to_thread(list, endless))
        session_id, found = bytes(session.session_id["id"]), list[Operation]()

        async def listed() -> bool:
            found[:] = await source.operations(None, [session_id])
            return bool(found)

        await until(listed)
        await source.kill_operation(None, found[0]["opid"])
        with pytest.raises(OperationFailure, match="interrupted"):
            await reading
