"""One read for many: sharing, catch-up streams, resting. The small server's rings hold 1,000 events."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest_asyncio
from pymongo import MongoClient
from pymongo.database import Database

from feedmux.v1 import change_feed_pb2 as wire
from feedmux.v1 import operator_pb2
from feedmux_embedded import RedisServer, ReplicaSet
from tests.integration.servers import Here, cursors, serving, settings, until
from tests.integration.wire import MANY, Api, Receiver, Session, at, feed

Documents = Database[dict[str, Any]]
Client = MongoClient[dict[str, Any]]
State = operator_pb2.SharedStream.State


@pytest_asyncio.fixture(scope="module")
async def here(mongo: ReplicaSet, redis_server: RedisServer) -> AsyncIterator[Here]:
    """A server whose feeds all have cursors of their own: on one that many tests share, feeds of others make a merged
    stream, and so no cursor, of these."""
    async with serving({**settings(mongo.uri, redis_server.url), "wide": {"enabled": False}}) as here:
        yield here


def insert(database: Documents, numbers: range, pad: int = 100) -> None:
    for first in range(numbers.start, numbers.stop, 500):
        part = range(first, min(first + 500, numbers.stop))
        database.c.insert_many([{"n": n, "pad": "x" * pad} for n in part])


async def pull(session: Session, numbers: range, step: int = 400) -> None:
    """Receives exactly these, granting as it goes."""
    for first in range(numbers.start, numbers.stop, step):
        count = min(step, numbers.stop - first)
        await session.credit(count)
        assert await session.numbers(count) == list(range(first, first + count))


async def has_cursors(client: Client, scope: str, count: int) -> None:
    """Never more. MongoDB lists a cursor neither as idle nor as active for a moment between the two."""

    async def listed() -> bool:
        found = len(cursors(client, scope))
        assert found <= count
        return found == count

    await until(listed)


async def test_many_subscribers_one_cursor(api: Api, database: Documents, mongo_client: Client) -> None:
    wanted, scope = feed(database.name, "c"), f"{database.name}.c"
    receivers: list[Receiver] = [api.watch(wanted) for _ in range(10)]
    receivers += [await api.session(feed=wanted, credit=MANY) for _ in range(10)]
    await asyncio.gather(*(receiver.opened() for receiver in receivers))
    insert(database, range(1000))
    for numbers in await asyncio.gather(*(receiver.numbers(1000) for receiver in receivers)):
        assert numbers == list(range(1000))
    await has_cursors(mongo_client, scope, 1)
    [stream] = await api.streams(scope)
    assert stream.subscriber_count == len(stream.subscribers) == 20
    assert stream.events_read == 1000
    assert stream.cursor_open
    assert {each.state for each in stream.subscribers} == {"live"}
    assert {each.events_sent for each in stream.subscribers} == {1000}
    for receiver in receivers:
        receiver.cancel()


async def test_late_joiner_catches_up_is_handed_over_and_its_stream_closes(
    small: Here, database: Documents, mongo_client: Client
) -> None:
    api, wanted, scope = small.api, feed(database.name, "c"), f"{database.name}.c"
    live = await api.session(feed=wanted)
    start = (await live.opened()).position
    insert(database, range(3000))
    await pull(live, range(3000))
    [leader] = await api.streams(scope)
    assert leader.ring_events <= 1000
    late = await api.session(feed=wanted, start=at(position=start), credit=wire.Credit(events=50, bytes=1 << 20))
    await late.opened()
    assert await late.numbers(50) == list(range(50))
    streams = await api.streams(scope)
    assert sorted(each.catch_up for each in streams) == [False, True]
    assert [each.subscribers[0].state for each in streams if each.catch_up] == ["catch_up"]
    await pull(late, range(50, 3000))
    insert(database, range(3000, 3010))
    await late.credit(100)
    await live.credit(100)
    assert await late.numbers(10) == await live.numbers(10) == list(range(3000, 3010))

    async def one_stream() -> bool:
        return len(await api.streams(scope)) == 1 == len(cursors(mongo_client, scope))

    await until(one_stream)
    [stream] = await api.streams(scope)
    assert stream.id == leader.id
    assert stream.subscriber_count == 2
    late.cancel()
    live.cancel()
