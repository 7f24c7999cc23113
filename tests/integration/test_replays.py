"""Quarantine and replay from end to end: a poison event, its key, and what comes after it, on a real MongoDB."""

import asyncio
from typing import Any

import bson
from pymongo import MongoClient
from pymongo.database import Database

from feedmux.v1 import change_feed_pb2 as wire
from feedmux.v1 import subscriptions_pb2
from feedmux_embedded import RedisServer, ReplicaSet
from tests.integration.letters_support import is_ready
from tests.integration.servers import Here, serving, settings, until
from tests.integration.tenancy import configuration, entry, tenancy
from tests.integration.test_dead_letters import KEYS, discarded, listed
from tests.integration.test_set_aside import member, reject
from tests.integration.wire import PATIENCE_S, Api, Session, feed

GROUP: dict[str, Any] = {"after_dead_letter": subscriptions_pb2.AFTER_DEAD_LETTER_QUARANTINE}


async def replayed(api: Api, name: str, **which: Any) -> subscriptions_pb2.ReplayDeadLettersResponse:
    call: Any = api.control.ReplayDeadLetters
    request = subscriptions_pb2.ReplayDeadLettersRequest(name=name, **which)
    answer = await call(request, metadata=api.metadata, timeout=PATIENCE_S)
    assert isinstance(answer, subscriptions_pb2.ReplayDeadLettersResponse)
    return answer


def change(database: Database[Any], key: int, *steps: int) -> None:
    for step in steps:
        database.orders.update_one({"_id": key}, {"$set": {"step": step}}, upsert=True)


def steps(events: list[Any]) -> list[tuple[int, int]]:
    found = []
    for each in events:
        event = each.document
        step = (event.get("fullDocument") or event["updateDescription"]["updatedFields"])["step"]
        found.append((event["documentKey"]["_id"], step))
    return found


async def settle(session: Session, first: int, last: int) -> None:
    await session.send(settle=wire.Settle(done=[wire.Settle.Range(first=first, last=last)]))


async def letters_are(here: Here, name: str, count: int) -> None:
    async def there() -> bool:
        return len((await listed(here.api, name)).dead_letters) == count

    await until(there)


async def quarantined(here: Here, database: Database[Any], name: str) -> Session:
    """Key 1 is quarantined with its steps 0 to 3, and key 2 is not."""
    session = await member(here, name)
    change(database, 1, 0)
    await session.take(1)
    await reject(session, 1, "no such customer")
    await letters_are(here, name, 1)
    change(database, 1, 1, 2, 3)
    change(database, 2, 0)
    assert steps(await session.take(1)) == [(2, 0)], "other keys go on"
    await settle(session, 2, 2)
    await letters_are(here, name, 4)
    return session


async def test_a_key_is_set_aside_fixed_replayed_and_free(
    mongo: ReplicaSet,
    redis_server: RedisServer,
    database: Database[Any],
    name: str,
) -> None:
    configured: dict[str, Any] = settings(mongo.uri, redis_server.url)
    configured["dead_letters"] = {"source": "main", "database": f"{database.name}_letters"}
    async with asyncio.timeout(6 * PATIENCE_S):
        async with serving(configured) as here:
            await until(lambda: is_ready(here))
            await here.api.create(name, feed(database.name, "orders"), group=GROUP)
            session = await quarantined(here, database, name)
            listed_ = (await listed(here.api, name, key=bson.encode({"_id": 1}))).dead_letters
            assert [each.attempts for each in listed_] == [1, 0, 0, 0]
            assert (await replayed(here.api, name, key=bson.encode({"_id": 1}))).chosen == 4
            events = await session.take(4)
            assert steps(events) == [(1, 0), (1, 1), (1, 2), (1, 3)]
            change(database, 1, 4)
            change(database, 2, 1)
            assert steps(await session.take(1)) == [(2, 1)], "what comes meanwhile waits for the letters of its key"
            await settle(session, 3, 4)
            await letters_are(here, name, 2)
        async with serving(configured) as again:  # the host is lost within the replay
            await until(lambda: is_ready(again))
            session = await member(again, name)
            change(database, 1, 5)
            got = steps(await session.take(3))
            assert [each for each in got if each[0] == 1][:2] == [(1, 2), (1, 3)], "what is left comes again"
            await settle(session, 1, 3)
            got += steps(await session.take(2))
            assert [each for each in got if each[0] == 1] == [(1, 2), (1, 3), (1, 4), (1, 5)]
            await settle(session, 4, 5)
            await letters_are(again, name, 0)
            change(database, 1, 6)
            assert steps(await session.take(1)) == [(1, 6)], "the key is free"
            await session.close()
    with MongoClient[dict[str, Any]](mongo.uri) as client:
        assert client[f"{database.name}_letters"].dead_letters.count_documents({"_id.host": {"$exists": False}}) == 0


async def test_a_key_that_changes_often_is_free_when_its_letters_are_discarded(
    mongo: ReplicaSet, redis_server: RedisServer, database: Database[Any], name: str
) -> None:
    configured: dict[str, Any] = settings(mongo.uri, redis_server.url)
    configured["dead_letters"] = {"source": "main", "database": f"{database.name}_letters"}
    async with serving(configured) as here, asyncio.timeout(4 * PATIENCE_S):
        await until(lambda: is_ready(here))
        await here.api.create(name, feed(database.name, "orders"), group=GROUP)
        session = await quarantined(here, database, name)
        assert await discarded(here.api, name, key=bson.encode({"_id": 1})) == 4
        change(database, 1, 4, 5)  # before the host has looked
        assert steps(await session.take(1)) == [(1, 4)]
        await settle(session, 3, 3)  # the second may come after the look, and then waits for this one
        assert steps(await session.take(1)) == [(1, 5)]
        await settle(session, 4, 4)
        await letters_are(here, name, 0)
        await session.close()


async def test_what_narrower_grants_withhold_is_not_replayed(
    mongo: ReplicaSet, redis_server: RedisServer, database: Database[Any], name: str, tmp_path: Any
) -> None:
    configured = configuration(mongo, redis_server, tmp_path, entry("a", KEYS["a"]), entry("b", KEYS["b"]))
    configured["dead_letters"] = {"source": "main", "database": f"{database.name}_letters"}
    async with tenancy(configured, KEYS["a"]) as served, asyncio.timeout(4 * PATIENCE_S):
        here = served.here
        await until(lambda: is_ready(here))
        await here.api.create(name, feed(database.name, "orders"), group=GROUP)
        session = await quarantined(here, database, name)
        await session.close()
        hidden = [{"source": "main", "database": database.name, "collection": "orders", "hide": ["secret"]}]
        served.write(entry("a", KEYS["a"], grants=hidden), entry("b", KEYS["b"]))

        async def is_withheld() -> bool:
            return all(each.withheld for each in (await listed(here.api, name)).dead_letters)

        await until(is_withheld)
        answer = await replayed(here.api, name, all={})
        assert (answer.chosen, answer.withheld) == (0, 4)
        ids = [each.id for each in (await listed(here.api, name)).dead_letters]
        answer = await replayed(here.api, name, ids={"ids": ids[:2]})
        assert (answer.chosen, answer.withheld) == (0, 2)
        assert (await replayed(here.api, name, key=bson.encode({"_id": 1}))).chosen == 0
        session = await member(here, name)
        change(database, 1, 4)
        await letters_are(here, name, 5)
        assert (await replayed(here.api, name, all={})).chosen == 1
        change(database, 2, 1)
        assert steps(await session.take(1)) == [(2, 1)]
        await letters_are(here, name, 5)
        assert await discarded(here.api, name, ids={"ids": ids}) == 4
        await replayed(here.api, name, all={})
        assert steps(await session.take(1)) == [(1, 4)], "once nothing before it is withheld"
        await settle(session, 1, 2)
        await letters_are(here, name, 0)
        await session.close()
