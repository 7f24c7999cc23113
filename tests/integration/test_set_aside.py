"""Dead letters from end to end: a group on a real server, with its collection in a deployment of its own."""

import asyncio
from typing import Any

import bson
from pymongo import MongoClient
from pymongo.database import Database

from feedmux.v1 import change_feed_pb2 as wire
from feedmux_embedded import RedisServer, ReplicaSet
from tests.conftest import ReplicaSetFactory
from tests.integration.letters_support import is_ready
from tests.integration.servers import Here, serving, settings, until
from tests.integration.test_dead_letters import discarded, got, listed
from tests.integration.wire import PATIENCE_S, Session, feed
from tests.telemetry.scrape import scrape

ODD = {"a.b": {"$set": 1}, "$x": [None], "": 1.5}


async def member(here: Here, name: str) -> Session:
    credit = wire.Credit(events=100, bytes=1 << 24)
    session = await here.api.session(name, join=True, instance_id="worker-1", credit=credit)
    await session.opened()
    return session


async def reject(session: Session, sequence: int, reason: str) -> None:
    failed = wire.Settle.Failed(delivery_sequence=sequence, reject=True, reason=reason)
    await session.send(settle=wire.Settle(failed=[failed]))


async def test_what_is_rejected_is_written_once_whatever_happens_to_its_collection(
    mongo: ReplicaSet,
    redis_server: RedisServer,
    replica_set_factory: ReplicaSetFactory,
    database: Database[Any],
    name: str,
) -> None:
    beside = await replica_set_factory()
    configured: dict[str, Any] = settings(mongo.uri, redis_server.url)
    configured["dead_letters"] = {"uri": beside.uri, "server_selection_timeout_ms": 500}
    async with serving(configured) as here, asyncio.timeout(4 * PATIENCE_S):
        await until(lambda: is_ready(here))
        await here.api.create(name, feed(database.name, "orders"), group={"attempts_max": 5})
        session = await member(here, name)
        database.orders.insert_one({"_id": 1, "n": 1, **ODD})
        (first,) = await session.take(1)
        await reject(session, 1, "no such customer")

        async def is_listed() -> bool:
            return len((await listed(here.api, name)).dead_letters) == 1

        await until(is_listed)
        (letter,) = (await listed(here.api, name)).dead_letters
        assert (list(letter.reasons), letter.member, letter.attempts) == (["no such customer"], "worker-1", 1)
        assert (await got(here.api, name, letter.id)).event == first.data, "bit for bit"

        (group,) = here.server.service.groups
        await until(lambda: group.ledger.aside == 0)  # the letter is found before its writer knows
        beside.pause()
        database.orders.insert_many([{"_id": number, "n": number} for number in (2, 3)])
        events = await session.take(2)
        held = events[0].document["documentKey"]["_id"]
        await reject(session, 2, "while the collection is away")
        await until(lambda: group.ledger.aside == 1)
        seen = await scrape(here.server.metrics_port)
        assert seen.value("feedmux_group_dead_letters_waiting", tenant="default") == 1
        await session.send(settle=wire.Settle(done=[wire.Settle.Range(first=3, last=3)]))
        database.orders.update_one({"_id": held}, {"$set": {"n": 20}})
        database.orders.insert_many([{"_id": number, "n": number} for number in range(10, 30)])
        others = await session.take(20)
        assert held not in [each.document["documentKey"]["_id"] for each in others], "its key is held"
        await session.send(settle=wire.Settle(done=[wire.Settle.Range(first=4, last=23)]))
        beside.resume()
        (after,) = await session.take(1)
        assert after.document["documentKey"]["_id"] == held, "its key goes on when the letter is written"
        assert after.document["operationType"] == "update"
        await session.send(settle=wire.Settle(done=[wire.Settle.Range(first=24, last=24)]))
        await session.until(lambda: any(each.delivery_sequence == 24 for each in session.committed))
        by_key = (await listed(here.api, name, key=bson.encode({"_id": held}))).dead_letters
        assert len(by_key) == 1
        with MongoClient[dict[str, Any]](beside.uri) as client:
            assert client.feedmux.dead_letters.count_documents({}) == 2
        seen = await scrape(here.server.metrics_port)
        assert seen.value("feedmux_group_dead_letters_total", tenant="default") == 2
        assert seen.value("feedmux_group_dead_letters_waiting", tenant="default") == 0
        assert 0 < seen.value("feedmux_dead_letters_utilization", tenant="default") < 1
        await session.close()
        assert await discarded(here.api, name, ids={"ids": [letter.id, by_key[0].id]}) == 2
    async with serving(configured) as again:
        await until(lambda: is_ready(again))
        session = await member(again, name)
        database.orders.insert_one({"_id": 99, "n": 99})
        (only,) = await session.take(1)
        assert only.document["documentKey"]["_id"] == 99, "what was set aside does not come again"
        await session.close()
