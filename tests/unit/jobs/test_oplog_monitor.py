"""The oplogs as the monitor sees them: forecasts, sources that do not answer, and accounts that may not read."""

import asyncio
import logging

import pytest

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.jobs.monitor_results import MonitorResults
from feedmux_server.jobs.oplog_monitor import OplogMonitor
from feedmux_server.supervision import Tasks
from tests.unit.rpc.service_support import Served, served
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
        task.cancel()
