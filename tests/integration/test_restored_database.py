"""MongoDB is stopped, an older copy of its data is put back, and MongoDB starts: what was read since the copy was made
has never happened there, and whoever has read it must learn that."""

import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from pymongo import MongoClient

from feedmux_embedded import RedisServer, ReplicaSet
from tests.integration.servers import Here, serving, settings
from tests.integration.wire import EARLIEST, LATEST, MANY, Refused, at, feed, refused, seconds


@dataclass
class Restorable:
    """A replica set of one node whose data can be put back."""

    mongo: ReplicaSet
    folder: Path

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    async def copy(self) -> None:
        await self.mongo.terminate()
        shutil.copytree(self._data, self.folder / "copy")
        await self._start()

    async def restore(self) -> None:
        await self.mongo.terminate()
        shutil.rmtree(self._data)
        shutil.copytree(self.folder / "copy", self._data)
        await self._start()

    async def restart(self) -> None:
        await self.mongo.terminate()
        await self._start()

    async def _start(self) -> None:
        await self.mongo.restart()
        await self.mongo.wait_for_primary()

    def insert(self, *numbers: int) -> None:
        with MongoClient[dict[str, Any]](self.mongo.uri) as client:
            for number in numbers:
                client.db.c.insert_one({"n": number})


@pytest_asyncio.fixture
async def database(tmp_path: Path) -> AsyncIterator[Restorable]:
    """Its document 0 is in the copy, and nothing else is."""
    async with ReplicaSet(oplog_mb=64, data_dir=tmp_path / "data") as mongo:
        database = Restorable(mongo, tmp_path)
        database.insert(0)
        await database.copy()
        yield database


@pytest_asyncio.fixture
async def here(database: Restorable, redis_server: RedisServer) -> AsyncIterator[Here]:
    async with serving(settings(database.mongo.uri, redis_server.url)) as here:
        yield here


FEED = feed("db", "c")


def is_forked(end: Refused) -> bool:
    return (end.code, end.reason) == ("OUT_OF_RANGE", "TIMELINE_FORKED") and "last_common_time" in end.metadata


async def test_everything_that_was_read_after_the_copy_is_dropped_and_everybody_is_told(
    here: Here, database: Restorable, name: str
) -> None:
    api = here.api
    await api.create(name, FEED, LATEST)
    session, watch = await api.open(name), api.watch(FEED, LATEST)
    await watch.opened()
    before = (await api.resolve(FEED, LATEST)).position
    database.insert(1, 2)
    assert await session.numbers(2) == await watch.numbers(2) == [1, 2]
    await session.ack_and_wait(1)
    plan = await api.plan(feed=FEED, after=before, events_max=100, bytes_max=1 << 20)
    assert plan.event_count == 2
    await database.restore()
    database.insert(3)
    assert is_forked(await session.end())
    assert is_forked(await watch.end())
    assert [session.received, watch.received] == [2, 2], "an event of the restored database without a word"
    for position in (watch.position, plan.end):
        assert is_forked(await api.watch(FEED, at(position=position)).end())
        assert is_forked(await refused(api.resolve(FEED, at(position=position))))
        assert is_forked(await refused(api.plan(feed=FEED, after=position, events_max=1, bytes_max=1)))
    assert is_forked(await api.read_range(feed=FEED, after=plan.after, until=plan.end).end())
    assert is_forked(await (await api.session(name)).end()), "the stored position"
    await api.seek(name, EARLIEST)
    assert await (await api.open(name)).numbers(2) == [0, 3]


async def test_positions_that_were_stored_before_a_restart_of_everything(
    database: Restorable, redis_server: RedisServer, name: str
) -> None:
    """MongoDB is asked for the event of a position. One without an event is known by what servers have stored."""
    names = {"same": FEED, "other": feed("db", "c", '[{"$match": {"operationType": "insert"}}]')}
    async with serving(settings(database.mongo.uri, redis_server.url)) as here:
        for each in names:
            await here.api.create(f"{name}-{each}", FEED, LATEST)
            session = await here.api.open(f"{name}-{each}")
            database.insert(1, 2)
            await session.take(2)
            await session.ack_and_wait(1)
            session.cancel()
        idle = await here.api.create(f"{name}-idle", feed("db", "nothing"), LATEST)
        session = await here.api.open(f"{name}-idle", heartbeat_interval=seconds(1))
        database.insert(9)  # otherwise its position moves with the next no-op, which MongoDB writes every 10 s
        await session.until(lambda: session.progress and session.progress[-1].position != idle.position)
        source = here.server.service.manager.sources["main"]
        await source.timeline.check()
        session.cancel()
    await database.restore()
    database.insert(3)
    async with serving(settings(database.mongo.uri, redis_server.url)) as here:
        assert is_forked(await (await here.api.session(f"{name}-idle", credit=MANY)).end()), "idle"
        for each, wanted in names.items():
            await here.api.update(["feed"], name=f"{name}-{each}", feed=wanted)
            assert is_forked(await (await here.api.session(f"{name}-{each}", credit=MANY)).end()), each


async def test_a_restart_alone_is_no_restore_and_neither_is_a_filter_that_hides_the_position(
    here: Here, database: Restorable, name: str
) -> None:
    api = here.api
    shown = feed("db", "c", '[{"$match": {"fullDocument.n": {"$gte": 0}}}]', full_document="updateLookup")
    await api.create(name, shown, LATEST)
    session = await api.open(name)
    database.insert(1, 2)
    await session.take(2)
    await session.ack_and_wait(1)
    session.cancel()
    with MongoClient[dict[str, Any]](database.mongo.uri) as client:
        client.db.c.update_one({"n": 1}, {"$set": {"n": -1}})
    await database.restart()
    database.insert(3)
    again = await api.open(name, takeover=True)
    assert await again.numbers(2) == [2, 3]
    hiding = feed("db", "c", '[{"$match": {"fullDocument.n": {"$gte": 2}}}]')
    await api.update(["feed"], name=name, feed=hiding)
    third = await api.open(name, takeover=True)
    assert await third.numbers(2) == [2, 3]


@pytest.mark.full
async def test_elections_from_a_lower_number_do_not_keep_the_driver_away(here: Here, database: Restorable) -> None:
    watch = here.api.watch(FEED, LATEST)
    await watch.opened()
    for _ in range(3):
        await database.restart()
    database.insert(1)
    assert await watch.numbers(1) == [1]
    await database.restore()
    assert is_forked(await watch.end())
