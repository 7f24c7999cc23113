"""Python members of a group on a real server, whose handlers fail."""

import asyncio
import random
from collections import Counter
from typing import Any

import pytest
from pymongo import UpdateOne
from pymongo.database import Database

import feedmux
from feedmux.member_connection import MemberConnection
from tests.integration.servers import Here
from tests.integration.wire import PATIENCE_S

EVENTS, KEYS = 1_000, 25


def value_of(event: feedmux.MemberEvent) -> tuple[int, int]:
    document = event.document
    return document["documentKey"]["_id"], document["updateDescription"]["updatedFields"]["n"]


async def test_failed_events_come_again_in_order(small: Here, database: Database[dict[str, Any]], name: str) -> None:
    rng = random.Random(5)
    database.orders.insert_many([{"_id": key, "n": 0} for key in range(KEYS)])
    options = feedmux.SessionOptions(backoff_first_s=0.01, backoff_most_s=0.05)
    last: Counter[int] = Counter()
    failed: Counter[tuple[int, int]] = Counter()
    attempts: list[int] = []
    busy: set[int] = set()

    async def handle(event: feedmux.MemberEvent) -> None:
        key, value = value_of(event)
        assert key not in busy
        busy.add(key)
        try:
            await asyncio.sleep(rng.expovariate(1000))
            assert value == last[key] + 1, f"key {key}: {value} after {last[key]}"
            attempts.append(event.attempt)
            if rng.random() < 0.1:
                failed[key, value] += 1
                if rng.random() < 0.5:
                    raise ValueError("no")
                raise feedmux.RetryAfter(rng.choice((0, 0.05)))
            last[key] = value
        finally:
            busy.remove(key)

    async with feedmux.AsyncClient(f"127.0.0.1:{small.api.data_port}", session=options) as client:
        group = feedmux.Group(60, 0.01, 0.1)
        await client.create_subscription(name, database=database.name, group=group)
        values: Counter[int] = Counter()
        writes = []
        for _ in range(EVENTS):
            key = rng.choice((0, rng.randrange(KEYS)))
            values[key] += 1
            writes.append(UpdateOne({"_id": key}, {"$set": {"n": values[key]}}))
        members = [client.subscription(name).join(on_notice=lambda _: None, window_events=16) for _ in range(3)]
        running = [asyncio.create_task(each.run(handle, concurrency=4)) for each in members]
        async with asyncio.timeout(2 * PATIENCE_S):
            for begin in range(0, EVENTS, 200):
                await asyncio.to_thread(database.orders.bulk_write, writes[begin : begin + 200])
            while last != values:
                await asyncio.sleep(rng.uniform(0.02, 0.1))
                open_ = [each for each in client._api.transport.sessions if isinstance(each, MemberConnection)]
                attempt = rng.choice(open_)._attempt if open_ else None
                if attempt is not None:
                    attempt.cut("by the test")
            for each in members:
                await each.close()
            await asyncio.gather(*running)
    assert last == values
    assert failed
    assert max(attempts) > 1


async def test_the_rest_of_a_run_comes_again_after_its_failed_event(
    small: Here, database: Database[dict[str, Any]], name: str
) -> None:
    database.orders.insert_one({"_id": 1, "n": 0})
    seen: list[tuple[int, int]] = []
    async with feedmux.AsyncClient(f"127.0.0.1:{small.api.data_port}") as client:
        await client.create_subscription(name, database=database.name, group=feedmux.Group(retry_first_s=0.01))
        writes = [UpdateOne({"_id": 1}, {"$set": {"n": value}}) for value in range(1, 101)]
        await asyncio.to_thread(database.orders.bulk_write, writes)
        member = client.subscription(name).join(window_events=200)

        async def handle(event: feedmux.MemberEvent) -> None:
            _, value = value_of(event)
            seen.append((value, event.attempt))
            if value == 50 and event.attempt < 4:
                raise feedmux.RetryAfter(0, "three times")
            if value == 100:
                await member.close()

        async with asyncio.timeout(PATIENCE_S):
            await member.run(handle, concurrency=4, timeout_s=30)
    before, after = ([(value, 1) for value in numbers] for numbers in (range(1, 50), range(51, 101)))
    assert seen == [*before, (50, 1), (50, 2), (50, 3), (50, 4), *after]


async def test_reject_needs_dead_letters(small: Here, database: Database[dict[str, Any]], name: str) -> None:
    database.orders.insert_one({"_id": 1, "n": 0})
    async with feedmux.AsyncClient(f"127.0.0.1:{small.api.data_port}") as client:
        await client.create_subscription(name, database=database.name, group=feedmux.Group())
        await asyncio.to_thread(database.orders.update_one, {"_id": 1}, {"$set": {"n": 1}})

        async def handle(event: feedmux.MemberEvent) -> None:
            raise feedmux.Reject("no")

        with pytest.raises(feedmux.DeadLettersUnavailable):
            async with asyncio.timeout(PATIENCE_S):
                await client.subscription(name).join().run(handle)
