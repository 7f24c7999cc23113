"""What monitors of sources find: forecasts of oplogs, sources that do not answer, and restores."""

import asyncio
import logging

import pytest

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.positions.timeline import Fork
from feedmux_server.jobs.monitor_results import MonitorResults
from feedmux_server.jobs.oplog_monitor import OplogMonitor
from feedmux_server.jobs.timeline_monitor import watch_timeline
from feedmux_server.source.oplog import DENIED_S
from feedmux_server.supervision import Tasks
from tests.sim.mongo import SimSource
from tests.unit.rpc.service_support import Served, served
from tests.unit.simulated import connected
from tests.virtual_time import in_virtual_time

EVERY_S = 10.0


def begin(there: Served, tasks: Tasks) -> tuple[MonitorResults, "asyncio.Task[None]"]:
    results = MonitorResults.of_sources(["main"])
    sources = there.service.manager.sources.values()
    (task,) = OplogMonitor(sources, there.service.sessions, results, EVERY_S).start(tasks)
    return results, task


@in_virtual_time
async def test_a_source_that_does_not_answer_is_unavailable_until_it_does() -> None:
    async with served() as there, Tasks() as tasks:
        there.mongo.insert("db", "a", 0)
        results, task = begin(there, tasks)
        found = []
        for away in (False, True, False):
            there.mongo.away = away
            await asyncio.sleep(6 * EVERY_S)
            found.append(set(results.unavailable))
        assert found == [set(), {"main"}, set()]
        assert results.forecasts["main"].state is not None
        task.cancel()


@in_virtual_time
async def test_an_oplog_that_may_not_be_read_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def denied() -> None:
        raise FeedmuxError(ErrorReason.SOURCE_UNAUTHORIZED, "not permitted")

    async with served() as there, Tasks() as tasks:
        monkeypatch.setattr(there.service.manager.sources["main"].oplog, "state", denied)
        with caplog.at_level(logging.WARNING):
            results, task = begin(there, tasks)
            await asyncio.sleep(6 * EVERY_S)
        assert len(caplog.records) == 1
        assert results.unavailable == set()
        there.mongo.away = True
        await asyncio.sleep(6 * EVERY_S)
        assert results.unavailable == {"main"}, "it is still asked whether it answers"
        there.mongo.away = False
        monkeypatch.undo()  # it is permitted now
        await asyncio.sleep(DENIED_S + EVERY_S)
        assert results.forecasts["main"].state is not None
        task.cancel()


@in_virtual_time
async def test_it_looks_from_time_to_time_and_after_a_doubt() -> None:
    (source, mongo), found = await connected(SimSource), list[Fork]()
    source.timeline.listeners.append(found.append)
    task = asyncio.create_task(watch_timeline(source, 60.0))
    await asyncio.sleep(65)
    mongo.restore(mongo.latest - (30 << 32))
    await asyncio.sleep(30)
    assert found == []
    await asyncio.sleep(40)
    assert len(found) == 1
    mongo.restore(mongo.latest - (30 << 32))
    mongo.away = True
    source.timeline.doubt()
    await asyncio.sleep(10)
    mongo.away = False
    source.timeline.doubt()
    await asyncio.sleep(5)
    assert len(found) == 2
    task.cancel()
