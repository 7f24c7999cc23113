"""A group on a real server, whose members are killed at random."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc.aio
from bson.int64 import Int64
from bson.timestamp import Timestamp
from pymongo import UpdateOne
from pymongo.database import Database
from redis.asyncio import Redis

from feedmux.v1 import change_feed_pb2 as wire
from feedmux_embedded import RedisServer, ReplicaSet
from feedmux_server.core.positions.position import inspect_position
from tests.integration.servers import Here, server_process, settings, until
from tests.integration.wire import PATIENCE_S, Api, Session, feed, refusal, seconds

EVENTS, KEYS, MEMBERS = 4_000, 60, 8


class Crew:
    """The members, and what they have done."""

    def __init__(self, here: Here, name: str, rng: random.Random) -> None:
        self.here, self.name, self.rng = here, name, rng
        self.done: list[tuple[int, int]] = []
        """Key and value of each event, in the order of processing."""
        self.maybe_lost: Counter[tuple[int, int]] = Counter()
        """What members had processed when they were killed, and the server had not reported as stored: a message that
        settles it may be lost with its member."""
        self.kills = self.in_hand_at_kills = 0
        self._working: dict[int, str] = {}

    @property
    def distinct(self) -> int:
        return len(set(self.done))

    async def member(self, instance_id: str) -> None:
        while self.distinct < EVENTS:
            credit = wire.Credit(events=self.rng.choice((8, 64)), bytes=1 << 20)
            session = await self.here.api.session(self.name, join=True, instance_id=instance_id, credit=credit)
            await session.opened()
            try:
                await self._work(session, instance_id, batches=self.rng.randint(1, 15))
            except grpc.aio.AioRpcError as error:
                raise AssertionError(f"{instance_id}: {error.details()}") from error
            finally:
                session.cancel()

    async def _work(self, session: Session, instance_id: str, batches: int) -> None:
        """Process batches until there is no more, or until the member is killed."""
        seen, unsettled = 0, dict[int, tuple[int, int]]()
        while self.distinct < EVENTS:
            try:
                await session.until(lambda: session.batches, timeout_s=0.5)
            except TimeoutError:
                continue
            batch, seen = session.batches.pop(0), seen + 1
            events = await session.take(batch.event_count)
            assert sum(batch.runs) == batch.event_count
            killed = seen == batches
            done_runs = self.rng.randint(0, len(batch.runs)) if killed else len(batch.runs)
            done = [await self._process(event.document, instance_id) for event in events[: sum(batch.runs[:done_runs])]]
            if done:
                first = batch.first_delivery_sequence
                unsettled |= enumerate(done, first)
                settled = wire.Settle.Range(first=first, last=first + len(done) - 1)
                await session.send(settle=wire.Settle(done=[settled]))
            if killed:
                self.kills += 1
                self.in_hand_at_kills += batch.event_count - len(done)
                stored = max((each.delivery_sequence for each in session.committed), default=0)
                self.maybe_lost.update(each for sequence, each in unsettled.items() if sequence > stored)
                return

    async def _process(self, event: dict[str, Any], instance_id: str) -> tuple[int, int]:
        key, value = event["documentKey"]["_id"], event["updateDescription"]["updatedFields"]["n"]
        assert self._working.setdefault(key, instance_id) == instance_id, "a key at two members"
        await asyncio.sleep(self.rng.expovariate(2000))
        del self._working[key]
        self.done.append((key, value))
        return key, value


async def test_members_killed_at_random(small: Here, database: Database[dict[str, Any]], name: str) -> None:
    rng = random.Random(7)
    collection = database.orders
    collection.insert_many([{"_id": key, "n": 0} for key in range(KEYS)])
    await small.api.create(name, feed(database.name, "orders"), group={"reconnect_time": seconds(1)})
    values: Counter[int] = Counter()
    writes = []
    for _ in range(EVENTS):
        key = rng.choice((0, rng.randrange(KEYS)))
        values[key] += 1
        writes.append(UpdateOne({"_id": key}, {"$set": {"n": values[key]}}))
    crew = Crew(small, name, rng)
    async with asyncio.timeout(2 * PATIENCE_S):
        members = [asyncio.create_task(crew.member(f"member-{number}")) for number in range(MEMBERS)]
        for begin in range(0, EVENTS, 500):
            await asyncio.to_thread(collection.bulk_write, writes[begin : begin + 500])
        await asyncio.gather(*members)
    assert crew.kills > MEMBERS
    assert crew.in_hand_at_kills > 0
    last: Counter[int] = Counter()
    repeats: Counter[tuple[int, int]] = Counter()
    for key, value in crew.done:
        if value <= last[key]:
            repeats[key, value] += 1
        else:
            assert value == last[key] + 1, f"key {key}: {value} after {last[key]}"
            last[key] = value
    assert last == values
    assert repeats <= crew.maybe_lost, "only what was not stored when its member was killed comes again"

    async def is_released() -> bool:
        return not (await small.api.get(name)).active

    await until(is_released)
    session = await small.api.session(name, join=True, credit=wire.Credit(events=10, bytes=1 << 20))
    await session.opened()
    collection.update_one({"_id": 0}, {"$set": {"n": -1}})
    (event,) = await session.take(1)
    while event.document["updateDescription"]["updatedFields"]["n"] != -1:  # what the last members had not settled
        (event,) = await session.take(1)
    await session.close()


def id_of(key: int) -> Any:
    """`_id`s of several types: the resume tokens of all but the first have `_typeBits`."""
    return (key, Int64(key), float(key), {"tenant": "x", "n": Int64(key)})[key % 4]


class Worker:
    """Processes all events but those of sick keys, which fail."""

    def __init__(self) -> None:
        self.done: Counter[tuple[int, int]] = Counter()
        """Key and value of each event."""
        self.last_of: Counter[int] = Counter()
        self.is_sick: Callable[[int], bool] = lambda key: key % 10 == 0
        self.last_time = Timestamp(0, 0)

    async def work(self, session: Session, until: Callable[[], bool]) -> int:
        """Process batches. Returns the most attempts of an event in the first one."""
        attempts_first = 0
        while not until():
            await session.until(lambda: session.batches)
            batch = session.batches.pop(0)
            events = await session.take(batch.event_count)
            attempts_first = attempts_first or max(batch.attempts, default=1)
            settle = wire.Settle()
            for count in batch.runs:
                run, events = events[:count], events[count:]
                for event in run:
                    document = event.document
                    raw_id, value = document["documentKey"]["_id"], document["updateDescription"]["updatedFields"]["n"]
                    key = int(raw_id["n"] if isinstance(raw_id, dict) else raw_id)
                    self.last_time = max(self.last_time, document["clusterTime"])
                    if self.is_sick(key):
                        settle.failed.add(delivery_sequence=event.sequence, reason="sick")
                        break
                    assert value == self.last_of[key] + 1, f"key {key}: {value} after {self.last_of[key]}"
                    self.last_of[key] = value
                    self.done[key, value] += 1
                    settle.done.add(first=event.sequence, last=event.sequence)
            await session.send(settle=settle)
        return attempts_first


async def test_what_is_settled_stays_settled_when_the_host_is_killed(
    mongo: ReplicaSet, redis_server: RedisServer, database: Database[dict[str, Any]], name: str, tmp_path: Path
) -> None:
    """Every tenth key fails, over and over: the position stays before its first event, and what others have settled is
    stored. The ring is so small that it evicts what failed."""
    keys, worker = 100, Worker()
    configuration = settings(mongo.uri, redis_server.url, ring_bytes=4 << 20)
    collection = database.orders
    collection.insert_many([{"_id": id_of(key), "n": 0} for key in range(keys)])

    async with server_process(configuration, tmp_path) as server, Redis.from_url(redis_server.url) as redis:

        async def is_stored() -> bool:
            position = await redis.hget(f"feedmux:1:{{default/{name}}}", "position")
            assert isinstance(position, bytes)
            ahead, last_time = inspect_position(position).ahead, worker.last_time.time << 32 | worker.last_time.inc
            return ahead is not None and len(ahead.holes) == 10 and ahead.high.cluster_time >= last_time

        async def joined(api: Api) -> Session:
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    session = await api.session(name, join=True, credit=wire.Credit(events=64, bytes=1 << 20))
                    try:
                        await session.opened()
                    except grpc.aio.AioRpcError as error:
                        if refusal(error).reason != "GROUP_ELSEWHERE":
                            raise
                        await asyncio.sleep(0.2)
                    else:
                        return session

        async with server.api() as api:
            await api.create(name, feed(database.name, "orders"), group={"retry_most": seconds(1)})
        for value in (1, 2, 3):
            async with server.api() as api:
                session = await joined(api)
                collection.update_many({}, {"$set": {"n": value, "pad": "x" * 60_000}})
                attempts = await worker.work(session, lambda: len(worker.done) == value * keys * 9 // 10)  # noqa: B023
                assert (attempts > 1) is (value > 1), "attempts are kept"
                await until(is_stored)
                await server.kill9()
                session.cancel()
            await server.start()
        worker.is_sick = lambda key: False
        async with server.api() as api:
            session = await joined(api)
            await worker.work(session, lambda: len(worker.done) == 3 * keys)
            await session.close()
    assert set(worker.done.values()) == {1}, "nothing that was settled and stored came again"
