"""A position that the oplog will soon lose: the server notifies its readers and the operator in time."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pymongo import AsyncMongoClient, MongoClient

import feedmux
from feedmux.notices import HistoryAtRisk
from feedmux_embedded import RedisServer, ReplicaSet
from tests.cli.guides import mongosh
from tests.cli.pages import blocks
from tests.integration.servers import Here, guarded, serving, settings, until
from tests.integration.wire import feed
from tests.telemetry.scrape import scrape

THRESHOLD_S = 1200.0
"""More than an oplog of 8 MB keeps as soon as somebody writes."""


@asynccontextmanager
async def shallow(redis_server: RedisServer, **limits: Any) -> AsyncIterator[tuple[ReplicaSet, Here]]:
    """A server on an oplog of 8 MB that is cut every second."""
    watching = {
        "history_at_risk_s": [THRESHOLD_S],
        "oplog_check_interval_s": 0.25,
        "position_check_interval_s": 1,
        "unused_stream_s": 0.05,
    }
    async with ReplicaSet(oplog_mb=8, arguments=["--syncdelay", "1"]) as mongo:
        configuration = settings(mongo.uri, redis_server.url, **watching, **limits)
        del configuration["sources"]["other"]
        async with serving(configuration) as here:
            yield mongo, here


@asynccontextmanager
async def written_to(mongo: ReplicaSet, bytes_per_s: int) -> AsyncIterator[None]:
    """Something else writes all the time, at a pace that a slow machine only makes slower."""

    async def write() -> None:
        async with AsyncMongoClient[dict[str, Any]](mongo.uri) as client:
            while True:
                await client["padding"]["p"].insert_one({"data": os.urandom(bytes_per_s // 20)})
                await asyncio.sleep(0.05)

    task = asyncio.create_task(write(), name="padding")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_the_client_hears_of_it(redis_server: RedisServer) -> None:
    async with shallow(redis_server) as (mongo, here):
        told: list[object] = []
        address = f"127.0.0.1:{here.server.ports.data}"
        async with feedmux.AsyncClient(address) as client:
            wanted = client.feed(feedmux.Feed(database="shop", collection="orders"))
            async with wanted.open(on_notice=told.append) as session, written_to(mongo, 600_000):
                reading = asyncio.ensure_future(anext(aiter(session)))
                await until(lambda: any(isinstance(each, HistoryAtRisk) for each in told), 60)
                page = await scrape(here.server.metrics_port)
                reading.cancel()
                await asyncio.wait([reading])
        [notice] = [each for each in told if isinstance(each, HistoryAtRisk)][:1]
        assert isinstance(notice, HistoryAtRisk)
        assert 0 < notice.remaining_s < THRESHOLD_S
        assert page.value("feedmux_history_at_risk", source="main", tenant="default") == 1
        assert page.value("feedmux_history_notices_total", tenant="default") >= 1
        assert page.value("feedmux_oplog_headroom_seconds", source="main") < 1.5 * THRESHOLD_S


async def test_a_member_that_was_resynchronized_loses_no_history(redis_server: RedisServer, tmp_path: Path) -> None:
    """Its oplog begins at the synchronization, and the primary's before."""
    async with ReplicaSet(2, data_dir=tmp_path) as mongo:
        secondary = 1 - await mongo.wait_for_primary()
        configuration = settings(mongo.uri, redis_server.url)
        del configuration["sources"]["other"]
        with MongoClient[dict[str, Any]](mongo.uri) as client:
            async with serving(configuration) as here:
                for name in ("ON_HISTORY_LOST_FAIL", "ON_HISTORY_LOST_EARLIEST"):
                    wanted = feed("shop", "c", read_preference="secondary")
                    await here.api.create(name, wanted, on_history_lost=name)
                client["shop"]["c"].insert_many([{"n": n} for n in range(3)])
            await mongo.terminate(secondary)
            shutil.rmtree(tmp_path / f"node{secondary}")
            (tmp_path / f"node{secondary}").mkdir()
            await mongo.restart(secondary)

            def is_synchronized() -> bool:
                members = client.admin.command("replSetGetStatus")["members"]
                return {each["stateStr"] for each in members} == {"PRIMARY", "SECONDARY"}

            await until(is_synchronized, 60)
            async with serving(configuration) as here:
                for name in ("ON_HISTORY_LOST_FAIL", "ON_HISTORY_LOST_EARLIEST"):
                    session = await here.api.open(name)
                    assert await session.numbers(3) == [0, 1, 2]
                    assert not any(notice.HasField("gap") for notice in session.notices)
                    session.cancel()


async def test_an_oplog_that_may_not_be_read_is_said_once(
    redis_server: RedisServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with guarded(tmp_path) as (admin, address):
        roles = [{"role": "read", "db": "shop"}]
        admin.admin.command("createUser", "feeds", pwd="feeds-canary", roles=roles)
        configuration = settings(
            f"mongodb://feeds:feeds-canary@{address}",
            redis_server.url,
            oplog_check_interval_s=0.1,
            history_at_risk_s=[3600.0],
        )
        del configuration["sources"]["other"]
        async with serving(configuration) as here:
            watch = here.api.watch(feed("shop", "c"))
            await watch.opened()
            admin["shop"]["c"].insert_one({"n": 1})
            assert await watch.numbers(1) == [1]
            await until(lambda: _complaints(caplog))
            page = await scrape(here.server.metrics_port)
            watch.cancel()
        # With the role of docs/telemetry.md it can.
        (role,) = blocks("docs/telemetry.md", "js")
        database, command = mongosh(role)
        admin[database].command(command)
        admin.admin.command("grantRolesToUser", "feeds", roles=["feedmuxOplog"])
        async with serving(configuration) as here:
            forecast = here.server.assembly.results.forecasts["main"]
            await until(lambda: forecast.state is not None)
            assert forecast.state is not None
            assert forecast.state.size_max_bytes == 64 << 20
    assert len(_complaints(caplog)) == 1
    assert "collStats" in _complaints(caplog)[0]
    assert not page.has("feedmux_oplog_headroom_seconds")
    assert not page.has("feedmux_oplog_window_seconds")
    assert page.value("feedmux_source_available", source="main") == 1


def _complaints(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if "the oplog cannot be read" in each.getMessage()]
