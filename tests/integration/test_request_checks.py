"""Pipelines are checked beside the event loop: in turn by tenant, within bounds, whatever happens to the process."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from typing import Any

import bson
import pytest
import pytest_asyncio

from feedmux_server.core.errors import FeedmuxError
from feedmux_server.core.feeds.feed_check import FeedParts
from feedmux_server.workers import check_worker, request_checks
from feedmux_server.workers.request_checks import INLINE_BYTES, RequestChecks
from feedmux_server.workers.side_worker import Answer


def large(stage: dict[str, Any], number: int = 0) -> FeedParts:
    pad = {"$match": {"pad": f"{number}" + "x" * INLINE_BYTES}}
    return FeedParts(bson.encode({"pipeline": [stage, pad]}))


GOOD = large({"$match": {"a": 1}})


class Charged:
    def __init__(self) -> None:
        self.cpu_s: list[float] = []

    def __call__(self, cpu_s: float) -> None:
        self.cpu_s.append(cpu_s)


@pytest_asyncio.fixture
async def checks() -> AsyncIterator[RequestChecks]:
    made = RequestChecks()
    yield made
    await made.close()


async def test_tenants_take_turns(checks: RequestChecks) -> None:
    done: list[str] = []

    async def check(tenant: str, number: int) -> None:
        await checks.check(large({"$match": {"a": 1}}, number), tenant, Charged())
        done.append(tenant)

    busy = [asyncio.create_task(check("busy", number)) for number in range(30)]
    await asyncio.sleep(0)
    await check("quiet", 0)
    assert len(done) <= 3
    await asyncio.gather(*busy)


async def test_what_waits_is_bounded(checks: RequestChecks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_checks, "TENANT_WAITING_BYTES_MAX", 10_000)
    asked = [
        asyncio.create_task(checks.check(large({"$match": {"a": "x" * 3000}}, number), "a", Charged()))
        for number in range(10)
    ]
    outcomes = await asyncio.gather(*asked, return_exceptions=True)
    rejected = [each for each in outcomes if isinstance(each, FeedmuxError)]
    assert len(rejected) >= 7
    assert {(each.status, each.metadata["quota"]) for each in rejected} == {("RESOURCE_EXHAUSTED", "checks")}
    assert all(each.retry_after_s for each in rejected)
    await checks.check(large({"$match": {"a": "x" * 3000}}), "a", Charged())


async def test_nothing_is_checked_for_callers_that_have_gone(checks: RequestChecks) -> None:
    charged = Charged()
    asked = [
        asyncio.create_task(checks.check(large({"$match": {"a": 1}}, number), "a", charged)) for number in range(20)
    ]
    await asyncio.sleep(0)
    for each in asked:
        each.cancel()
    await asyncio.wait(asked)
    await checks.check(large({"$match": {"a": 1}}, 99), "a", Charged())
    assert len(charged.cpu_s) <= 1


class _Held:
    """In the process's stead: answers when it is let go."""

    def __init__(self) -> None:
        self.gate = asyncio.get_running_loop().create_future()

    async def ask(self, request: bytes) -> Answer:
        await self.gate
        return check_worker.answer(request)

    async def close(self) -> None:
        """Nothing runs."""


async def test_who_comes_as_a_forsaken_check_is_dropped_gets_a_verdict(
    checks: RequestChecks, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = _Held()
    monkeypatch.setattr(checks, "_process", held)
    first = asyncio.create_task(checks.check(large({"$match": {"a": 1}}, 1), "t", Charged()))
    forsaken = asyncio.create_task(checks.check(GOOD, "t", Charged()))
    await asyncio.sleep(0.01)
    forsaken.cancel()
    await asyncio.wait([forsaken])
    held.gate.set_result(None)
    await asyncio.sleep(0)  # The worker answers the first and drops the other; nobody has been notified yet.
    async with asyncio.timeout(60):
        assert await checks.check(GOOD, "t", Charged()) == GOOD.pipeline
        await first


async def test_a_process_that_dies_is_replaced(checks: RequestChecks) -> None:
    await checks.check(GOOD, "a", Charged())
    pid = checks._process.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert await checks.check(large({"$match": {"a": 1}}, 7), "a", Charged())
