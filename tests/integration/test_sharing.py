"""One read for many."""

import asyncio
from collections.abc import AsyncIterator

import pytest_asyncio

from feedmux_embedded import RedisServer, ReplicaSet
from tests.documents import Client, Documents
from tests.integration.servers import Here, cursors, serving, settings, until
from tests.integration.wire import MANY, Api, Receiver, feed


@pytest_asyncio.fixture(scope="module")
async def here(mongo: ReplicaSet, redis_server: RedisServer) -> AsyncIterator[Here]:
    """A server whose feeds all have cursors of their own: on one that many tests share, feeds of others make a merged
    stream, and so no cursor, of these."""
    async with serving({**settings(mongo.uri, redis_server.url), "wide": {"enabled": False}}) as here:
        yield here


async def test_many_subscribers_one_cursor(api: Api, database: Documents, mongo_client: Client) -> None:
    wanted, scope = feed(database.name, "c"), f"{database.name}.c"
    receivers: list[Receiver] = [api.watch(wanted) for _ in range(10)]
    receivers += [await api.session(feed=wanted, credit=MANY) for _ in range(10)]
    await asyncio.gather(*(receiver.opened() for receiver in receivers))
    database.c.insert_many([{"n": n, "pad": "x" * 100} for n in range(1000)])
    for numbers in await asyncio.gather(*(receiver.numbers(1000) for receiver in receivers)):
        assert numbers == list(range(1000))

    async def has_one_cursor() -> bool:
        found = len(cursors(mongo_client, scope))
        assert found <= 1
        return found == 1  # MongoDB lists a cursor neither as idle nor as active for a moment between the two

    await until(has_one_cursor)
    [stream] = await api.streams(scope)
    assert stream.subscriber_count == len(stream.subscribers) == 20
    assert stream.events_read == 1000
    assert stream.cursor_open
    assert {each.state for each in stream.subscribers} == {"live"}
    assert {each.events_sent for each in stream.subscribers} == {1000}
    for receiver in receivers:
        receiver.cancel()
