"""A group on a real server that is killed."""

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc.aio
from bson.int64 import Int64
from bson.timestamp import Timestamp
from pymongo.database import Database
from redis.asyncio import Redis

from feedmux.v1 import change_feed_pb2 as wire
from feedmux_embedded import RedisServer, ReplicaSet
from feedmux_server.core.positions.position import inspect_position
from tests.integration.servers import Here, server_process, settings, until
from tests.integration.wire import PATIENCE_S, Api, Session, at, feed, refusal, seconds


async def test_a_member_hears_what_was_moved_without_it(here: Here, database: Database[Any], name: str) -> None:
    async def opened() -> wire.Opened:
        session = await here.api.session(name, join=True, credit=wire.Credit(events=10, bytes=1 << 20))
        answer = await session.opened()
        await session.close()
        return answer

    content = feed(database.name, "orders")
    await here.api.create(name, content, group={})
    position = (await here.api.get(name)).position
    first = await opened()
    await here.api.seek(name, at(position=position))
    second = await opened()
    await here.api.delete(name)
    await here.api.create(name, content, at(position=position), group={})
    third = await opened()
    assert first.group.seek_epoch < first.epoch < second.group.seek_epoch < second.epoch
    assert second.epoch < third.group.seek_epoch < third.epoch


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
            await api.create(
                name, feed(database.name, "orders"), group={"retry_most": seconds(1), "reconnect_time": seconds(1)}
            )
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
