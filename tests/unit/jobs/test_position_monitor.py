"""Stored positions of consumers that are not connected: their times, what is damaged, and groups without members."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable

import pytest

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.limits.oplog_forecast import OplogState
from feedmux_server.jobs.monitor_results import MonitorResults
from feedmux_server.jobs.position_monitor import PositionMonitor
from feedmux_server.store.model import StoredSubscription
from tests.unit.rpc.service_support import served
from tests.unit.store.store_support import key
from tests.virtual_time import in_virtual_time

EVERY_S = 60.0


@in_virtual_time
async def test_times_are_sorted_and_damage_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async with served() as there:
        for name in "abc":
            there.mongo.insert("db", "a", 0)
            await there.create(name)
            await asyncio.sleep(5.0)
        await there.create("group", group={})
        there.redis.run(("HDEL", key("b", "default"), "order"))
        results = MonitorResults.of_sources(["main"])
        with caplog.at_level(logging.ERROR):
            task = asyncio.create_task(PositionMonitor(there.service, results, EVERY_S).run())
            await asyncio.sleep(3.5 * EVERY_S)
        times = list(results.stored_times["main", "default"])
        assert (len(times), times) == (3, sorted(times))
        assert results.damaged == results.unattended == {"default": 1}
        assert [each.__dict__["subscription"] for each in caplog.records] == ["b"]
        task.cancel()
        await asyncio.wait([task])


@in_virtual_time
async def test_a_position_at_risk_is_logged_once_for_each_threshold(caplog: pytest.LogCaptureFixture) -> None:
    async with served(limits={"history_at_risk_s": (3_600.0, 600.0)}) as there:
        made = await there.create("s")
        results = MonitorResults.of_sources(["main"])
        place_s = made.cluster_time.seconds
        # An oplog that keeps what was written in the last hour, and advances a second each second.
        results.forecasts["main"].observe(OplogState(place_s - 1_000, place_s, None, None), 0.0)
        results.forecasts["main"].observe(OplogState(place_s - 900, place_s + 100, None, None), 100.0)
        with caplog.at_level(logging.WARNING):
            task = asyncio.create_task(PositionMonitor(there.service, results, EVERY_S).run())
            await asyncio.sleep(3.5 * EVERY_S)
        assert [each.__dict__["subscription"] for each in caplog.records] == ["s"]
        there.redis.down = True
        await asyncio.sleep(3 * EVERY_S)
        assert not task.done(), "while Redis is unavailable, the last results remain"
        assert results.stored_times
        task.cancel()
        await asyncio.wait([task])


@in_virtual_time
async def test_an_error_of_one_tenant_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async with served() as there:
        every, failing = there.service.store.every, {"a"}

        async def failing_every(tenant: str, on_damaged: Callable[[str], None]) -> AsyncIterator[StoredSubscription]:
            async for stored in every("default", on_damaged):
                yield stored
                if tenant in failing:
                    raise FeedmuxError(ErrorReason.STATE_UNAVAILABLE, "the answer is too large")

        monkeypatch.setattr(there.service.store, "every", failing_every)
        monkeypatch.setattr(there.service.access, "grants", {"a": None, "default": None})
        await there.create("one")
        results = MonitorResults.of_sources(["main"])
        task = asyncio.create_task(PositionMonitor(there.service, results, EVERY_S).run())
        await asyncio.sleep(EVERY_S / 2)
        assert {key: len(times) for key, times in results.stored_times.items()} == {("main", "default"): 1}
        failing.clear()
        await asyncio.sleep(EVERY_S)
        assert len(results.stored_times["main", "a"]) == 1
        await there.create("two")
        failing.add("a")
        await asyncio.sleep(EVERY_S)
        assert [len(results.stored_times["main", tenant]) for tenant in ("a", "default")] == [1, 2], (
            "the last results remain"
        )
        task.cancel()
        await asyncio.wait([task])
