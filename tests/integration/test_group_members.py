"""Python members of a group on a real server: streams that break, members that come and go, events without a key."""

import asyncio
import random
from collections import Counter
from typing import Any

from pymongo import UpdateOne
from pymongo.database import Database

import feedmux
from feedmux.member_connection import MemberConnection
from tests.integration.servers import Here
from tests.integration.wire import PATIENCE_S

EVENTS, KEYS = 2_000, 25


class Pool:
    """Workers in one program: what is handled, and by whom now."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.handled: list[tuple[object, int]] = []
        self.busy: set[object] = set()
        self.cuts = 0
        self.all_done = asyncio.Event()

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
        await asyncio.sleep(self.rng.expovariate(1000))
        self.busy.remove(key)
        self.handled.append((key, document["updateDescription"]["updatedFields"]["n"]))

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
    assert pool.handled.pop() == ("drop", 1)
    assert len(pool.handled) == EVENTS
    for key, most in values.items():
        assert [value for handled, value in pool.handled if handled == key] == list(range(1, most + 1))
