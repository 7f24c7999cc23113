"""The oplogs as the monitor sees them: forecasts, sources that do not answer, and accounts that may not read."""

import asyncio
import logging

import pytest

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.jobs.monitor_results import MonitorResults
from feedmux_server.jobs.oplog_monitor import OplogMonitor
from feedmux_server.supervision import Tasks
from tests.unit.rpc.service_support import INLINE, Served, Stream, served
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


@in_virtual_time
async def test_a_session_is_told_at_each_threshold_before_it_loses_history() -> None:
    """The oplog keeps ten minutes. One session does not grant credit, another keeps up."""
    thresholds_s = [300.0, 60.0]
    async with served(limits={"history_at_risk_s": thresholds_s}) as there, Tasks() as tasks:
        mongo, credit = there.mongo, {"events": 100, "bytes": 1 << 20}

        async def second() -> None:
            await asyncio.sleep(1.0)
            mongo.insert("db", "b", 0)
            mongo.forget(mongo.latest - (600 << 32))

        for _ in range(700):
            await second()
        standing, keeping_up = Stream(there, **INLINE), Stream(there, **INLINE, credit=credit)
        await standing.opened()
        await keeping_up.opened()
        mongo.insert("db", "a", 0)
        needed = mongo.latest
        _, task = begin(there, tasks)
        while mongo.oldest <= needed:
            await second()
        warnings = [
            each.notice.history_at_risk for each in standing.received if each.notice.HasField("history_at_risk")
        ]
        for warning, threshold_s in zip(warnings, thresholds_s, strict=True):
            assert threshold_s - EVERY_S <= warning.remaining.seconds < threshold_s
        assert not any(each.notice.HasField("history_at_risk") for each in keeping_up.received)
        task.cancel()
        standing.task.cancel()
        keeping_up.task.cancel()
        await asyncio.wait([standing.task, keeping_up.task])
