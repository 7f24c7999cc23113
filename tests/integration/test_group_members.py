"""Python members of a group on a real server: streams that break, members that come and go, events without a key."""

import asyncio
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

from pymongo import UpdateOne
from pymongo.database import Database

import feedmux
from feedmux.member_connection import MemberConnection
from feedmux_embedded import RedisServer, ReplicaSet
from tests.integration.servers import Here, server_process, settings, until
from tests.integration.wire import PATIENCE_S

EVENTS, KEYS, GATED = 2_000, 25, 6


class Pool:
    """Workers in one program: what is handled, and by whom now."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.handled: list[tuple[object, int]] = []
        self.busy: set[object] = set()
        self.cuts = 0
        self.all_done = asyncio.Event()
        self.gate = asyncio.Event()
        """While it is not set, the handlers of the first `gated` keys do not end."""
        self.gate.set()
        self.gated = 0

    async def handle(self, event: feedmux.MemberEvent) -> None:
        document = event.document
        if document["operationType"] == "drop":
            assert not self.busy, "an event without a key is alone"
            self.handled.append(("drop", 1))
            self.all_done.set()
            return
        key = document["documentKey"]["_id"]
        assert key not in self.busy, "a key at two handlers"
        self.busy.add(key)
        if key < self.gated:
            await self.gate.wait()
        await asyncio.sleep(self.rng.expovariate(1000))
        self.busy.remove(key)
        self.handled.append((key, document["updateDescription"]["updatedFields"]["n"]))

    def check(self, values: Counter[int]) -> None:
        """Each event was handled once, those of a key in order, and the drop last."""
        assert self.handled.pop() == ("drop", 1)
        assert len(self.handled) == sum(values.values())
        for key, most in values.items():
            assert [value for handled, value in self.handled if handled == key] == list(range(1, most + 1))

    async def cut(self, client: feedmux.AsyncClient) -> None:
        """End streams at random, as a network does."""
        while not self.all_done.is_set():
            await asyncio.sleep(self.rng.uniform(0.02, 0.1))
            open_ = [each for each in client._api.transport.sessions if isinstance(each, MemberConnection)]
            attempt = self.rng.choice(open_)._attempt if open_ else None
            if attempt is not None:
                attempt.cut("by the test")
                self.cuts += 1


async def test_members_whose_streams_break(small: Here, database: Database[dict[str, Any]], name: str) -> None:
    """No event is handled twice, none is left out, and those of a key are handled in order."""
    rng = random.Random(11)
    database.orders.insert_many([{"_id": key, "n": 0} for key in range(KEYS)])
    options = feedmux.SessionOptions(backoff_first_s=0.01, backoff_most_s=0.05)
    async with feedmux.AsyncClient(f"127.0.0.1:{small.api.data_port}", session=options) as client:
        await client.create_subscription(name, database=database.name, group=feedmux.Group(reconnect_time_s=60))
        values: Counter[int] = Counter()
        writes = []
        for _ in range(EVENTS):
            key = rng.choice((0, rng.randrange(KEYS)))
            values[key] += 1
            writes.append(UpdateOne({"_id": key}, {"$set": {"n": values[key]}}))
        pool = Pool(rng)
        members = [client.subscription(name).join(on_notice=lambda _: None, window_events=16) for _ in range(3)]
        running = [asyncio.create_task(each.run(pool.handle, concurrency=4)) for each in members]
        cutting = asyncio.create_task(pool.cut(client))
        async with asyncio.timeout(2 * PATIENCE_S):
            for begin in range(0, EVENTS, 200):
                await asyncio.to_thread(database.orders.bulk_write, writes[begin : begin + 200])
            await asyncio.to_thread(database.drop_collection, "orders")
            await pool.all_done.wait()
            await cutting
            for each in members:
                await each.close()
            await asyncio.gather(*running)
    assert pool.cuts > 5
    pool.check(values)


async def test_the_host_is_killed(
    mongo: ReplicaSet, redis_server: RedisServer, database: Database[dict[str, Any]], name: str, tmp_path: Path
) -> None:
    """Members that have events in hand when their host is killed keep them, and what they have settled stays so."""
    rng, pool, values = random.Random(12), Pool(random.Random(13)), Counter[int]()
    database.orders.insert_many([{"_id": key, "n": 0} for key in range(KEYS)])

    async def write(count: int) -> None:
        writes = []
        for _ in range(count):
            key = rng.randrange(KEYS)
            values[key] += 1
            writes.append(UpdateOne({"_id": key}, {"$set": {"n": values[key]}}))
        await asyncio.to_thread(database.orders.bulk_write, writes)

    slow = os.environ | {"GATHER_S": "8"}  # for slow machines
    async with (
        asyncio.timeout(4 * PATIENCE_S),
        server_process(settings(mongo.uri, redis_server.url), tmp_path, slow) as server,
        feedmux.AsyncClient(f"127.0.0.1:{server.ports[0]}") as client,
    ):
        await client.create_subscription(name, database=database.name, group=feedmux.Group())
        members = [client.subscription(name).join(on_notice=lambda _: None, window_events=256) for _ in range(4)]
        running = [asyncio.create_task(each.run(pool.handle, concurrency=4)) for each in members]
        pool.gate.clear()
        pool.gated = GATED
        await write(500)
        await until(lambda: len(pool.busy) >= GATED and len(pool.handled) >= 200)
        await server.kill9()
        await server.start()
        await write(500)
        await until(lambda: len(pool.handled) >= 600)
        pool.gate.set()
        await until(lambda: len(pool.handled) >= 1000)
        await asyncio.to_thread(database.drop_collection, "orders")
        await pool.all_done.wait()
        for each in members:
            await each.close()
        await asyncio.gather(*running)
    pool.check(values)
