"""Wide streams begin when enough feeds share one, and end after the feeds' readers have moved or left."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from feedmux_server.core.delivery.wide_plan import WideLimits, WideState, group_of
from feedmux_server.core.feeds.feed import FeedSpec, Scope
from feedmux_server.core.feeds.stream_key import StreamKey, stream_key
from feedmux_server.source.read_limits import ReadLimits
from feedmux_server.streams.wide.manager import WideStreams
from feedmux_server.streams.wide.stream import WideStreamLimits
from feedmux_server.supervision import Tasks
from tests.sim.mongo import SimMongo, SimSource
from tests.unit.simulated import connected
from tests.virtual_time import in_virtual_time


def key(number: int, database: str = "db") -> StreamKey:
    return stream_key(FeedSpec(Scope("main", database, f"c{number}")))


GROUP = group_of(key(0))


@asynccontextmanager
async def streams(feeds_min: int = 2) -> AsyncIterator[tuple[WideStreams, SimMongo]]:
    source, mongo = await connected(SimSource)
    async with Tasks() as tasks:
        made = WideStreams({"main": source}, tasks, WideLimits(feeds_min=feeds_min), WideStreamLimits(), ReadLimits())
        try:
            yield made, mongo
        finally:
            made.stop()
    assert not list(made.streams())
    await source.close()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(600):  # of virtual time
        while not condition():
            await asyncio.sleep(0.1)


@in_virtual_time
async def test_one_that_fails_is_given_up_and_tried_again_later_though_no_feed_comes_or_goes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fails(self: object) -> None:
        raise ValueError("canary")

    loop = asyncio.get_running_loop()
    async with streams() as (wide, _):
        with monkeypatch.context() as broken, caplog.at_level(logging.WARNING):
            broken.setattr("feedmux_server.streams.wide.manager.ChangeStreamReader.open", fails)
            wide.enter(key(1))
            wide.enter(key(2))
            await until(lambda: wide.plan.state(GROUP) is WideState.REJECTED)
        given_up_s = loop.time()
        assert wide.of(GROUP) is None
        assert "a wide stream was given up" in caplog.text
        await until(lambda: wide.of(GROUP))
        assert loop.time() - given_up_s >= WideLimits().retry_s - 1


@in_virtual_time
async def test_an_unavailable_mongodb_is_asked_again_and_no_reason_to_give_up() -> None:
    async with streams() as (wide, mongo):
        mongo.away = True
        wide.enter(key(1))
        wide.enter(key(2))
        await asyncio.sleep(60.0)
        assert (wide.of(GROUP), wide.plan.state(GROUP)) == (None, WideState.SHARED)
        mongo.away = False
        await until(lambda: wide.of(GROUP))
