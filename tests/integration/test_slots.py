"""Cursors beside the leading one of a feed: how many a tenant may have, and that idle ones keep nobody else waiting."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import bson
import pytest
from pymongo.database import Database

from feedmux.v1 import feed_pb2
from feedmux_embedded import RedisServer, ReplicaSet
from feedmux_server.core.positions.resume_token import ResumeToken
from tests.integration.servers import KEY_A, KEY_B, Here, serving, settings, tenants_file, until
from tests.integration.wire import EARLIEST, LATEST, Api, Receiver, feed
from tests.integration.wire import at as start_at

Documents = Database[dict[str, Any]]
Limited = Callable[..., AbstractAsyncContextManager[Here]]
MANY = 40


@pytest.fixture
def limited(mongo: ReplicaSet, redis_server: RedisServer, tmp_path: Path) -> Limited:
    """`async with limited(quotas, **limits) as here`: tenant `a` with these quotas; `b` has the defaults."""

    @asynccontextmanager
    async def make(quotas: dict[str, int], **limits: int) -> AsyncIterator[Here]:
        path = tenants_file(tmp_path)
        content = json.loads(path.read_text())
        content["tenants"][0]["quotas"] = quotas
        path.write_text(json.dumps(content))
        configuration = settings(mongo.uri, redis_server.url, **limits) | {"tenants_file": str(path)}
        async with serving(configuration, key=KEY_A) as here:
            yield here

    return make


async def newest_of(here: Here, wanted: feed_pb2.Feed, database: Documents) -> bytes:
    """The token of the feed's newest event, which no ring has any more."""
    receiver = here.api.watch(wanted, LATEST)
    await receiver.opened()
    database[wanted.collection].insert_one({"n": 0})
    [event] = await receiver.take(1)
    receiver.cancel()
    await until(lambda: not here.server.service.manager.cursors)
    return bson.encode(event.document["_id"])


def ahead(token: bytes, number: int) -> ResumeToken:
    """A time of the same second as the token's, which MongoDB does not come to within it."""
    second = ResumeToken.decode(token).cluster_time >> 32
    return ResumeToken.high_water_mark(second << 32 | (1 << 30) + number)


def made_up(token: bytes, number: int) -> bytes:
    """A token of an event that there was not, of the same second."""
    data = bytes.fromhex(bson.decode(token)["_data"])
    moved = data[:1] + ahead(token, number).cluster_time.to_bytes(8) + data[9:]
    return bson.encode({"_data": moved.hex().upper()})


def starts_of(kind: str, newest: bytes) -> list[feed_pb2.Start]:
    match kind:
        case "times":
            return [start_at(resume_after=ahead(newest, number).raw) for number in range(MANY)]
        case "events that were not":
            return [start_at(resume_after=made_up(newest, number)) for number in range(MANY)]
    return [start_at(start_after=newest)] * MANY


@pytest.mark.parametrize("kind", ["times", "events that were not", "events"])
async def test_an_idle_feed_has_no_more_cursors_than_the_quotas(
    limited: Limited, database: Documents, kind: str
) -> None:
    async with limited({"shared_streams": 2, "catch_up_streams": 3}) as here:
        wanted = feed(database.name, "c")
        newest = await newest_of(here, wanted, database)
        manager = here.server.service.manager
        receivers = [here.api.watch(wanted, start) for start in starts_of(kind, newest)]
        await until(lambda: len(here.server.service.sessions) == MANY)
        # Later than all of them: one more stream of another feed has been opened and read.
        other = here.api.watch(feed(database.name, "d"), LATEST)
        await other.opened()
        database["d"].insert_one({"n": 0})
        assert await other.numbers(1) == [0]
        assert manager.cursors <= 1 + 1 + 3 + 1  # both live streams, slots, and the room of `shared_streams`
        assert manager.slots.may_catch_up("b")
        for receiver in (*receivers, other):
            receiver.cancel()


@pytest.mark.parametrize("reader", ["a", "b"])
async def test_idle_starts_of_a_quiet_feed_keep_no_reader_of_history_waiting(
    limited: Limited, database: Documents, reader: str
) -> None:
    """Four readers at tokens of their own, which MongoDB judges when the quiet feed has its next event."""
    async with (
        limited({}, catch_up_streams=4) as here,
        here.api.with_key(KEY_A if reader == "a" else KEY_B) as other,
    ):
        quiet, busy = feed(database.name, "quiet"), feed(database.name, "busy")
        newest = await newest_of(here, quiet, database)
        database["busy"].insert_many([{"n": n} for n in range(1_249)])
        live = other.watch(busy, LATEST)
        await live.opened()
        first = here.api.watch(quiet, LATEST)
        await first.opened()
        idle = [await opened(here.api, quiet, start_at(start_after=newest)) for _ in range(4)]
        late = other.watch(busy, EARLIEST)
        assert await late.numbers(1_249) == list(range(1_249))
        database["quiet"].insert_one({"n": 1})
        for receiver in idle:
            assert await receiver.numbers(1) == [1]
        for receiver in (live, first, late, *idle):
            receiver.cancel()


async def opened(api: Api, wanted: feed_pb2.Feed, start: feed_pb2.Start) -> Receiver:
    receiver = api.watch(wanted, start)
    await receiver.opened()
    return receiver
