"""Pipelines are checked beside the event loop: same verdicts, in turn by tenant, once, within bounds."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import bson
import pytest
import pytest_asyncio

from feedmux_server.core.errors import FeedmuxError
from feedmux_server.core.feeds.feed_check import FeedParts, check_parts
from feedmux_server.workers import check_worker, request_checks
from feedmux_server.workers.request_checks import INLINE_BYTES, RequestChecks


def large(stage: dict[str, Any], number: int = 0) -> FeedParts:
    pad = {"$match": {"pad": f"{number}" + "x" * INLINE_BYTES}}
    return FeedParts(bson.encode({"pipeline": [stage, pad]}))


def as_json(stage: dict[str, Any]) -> FeedParts:
    return FeedParts(json.dumps([stage, {"$match": {"pad": "x" * INLINE_BYTES}}]).encode(), is_json=True)


GOOD = large({"$match": {"a": 1}})
CASES = {
    "good": GOOD,
    "JSON": as_json({"$match": {"a": {"$oid": "0" * 24}}}),
    "bad JSON": FeedParts(b"[" * 5000, is_json=True),
    "stage": large({"$out": "x"}),
    "operator": large({"$match": {"$where": "1"}}),
    "BSON": FeedParts(b"x" * 1000),
    "cut": replace(GOOD, pipeline=GOOD.pipeline[:-1]),
    "too large": large({"$match": {"a": "x" * 70_000}}),
    "collation": replace(GOOD, collation=b"junk"),
    "comment": replace(GOOD, comment=bson.encode({"x": 1})),
}


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


@pytest.mark.parametrize("bounded", [True, False])
@pytest.mark.parametrize("case", CASES)
async def test_the_verdict_is_that_of_the_check(checks: RequestChecks, case: str, bounded: bool) -> None:
    parts = replace(CASES[case], bounded=bounded)

    async def outcome(tenant: str) -> Any:
        try:
            return await checks.check(parts, tenant, Charged())
        except FeedmuxError as error:
            return error.reason, error.message, error.metadata, error.field

    try:
        wanted: Any = check_parts(parts)
    except FeedmuxError as error:
        wanted = error.reason, error.message, error.metadata, error.field
    assert [await outcome("a"), await outcome("a"), await outcome("b")] == [wanted] * 3


async def test_a_pipeline_is_checked_once_for_each_tenant_and_policy(checks: RequestChecks) -> None:
    charged = Charged()
    found = await asyncio.gather(*(checks.check(GOOD, "a", charged) for _ in range(5)))
    assert set(found) == {GOOD.pipeline}
    await checks.check(GOOD, "a", charged)
    assert len(charged.cpu_s) == 1
    await checks.check(GOOD, "b", charged)
    await checks.check(replace(GOOD, bounded=False), "a", charged)
    await checks.check(replace(GOOD, comment=bson.encode({"comment": 1})), "a", charged)
    assert len(charged.cpu_s) == 4
    assert all(cpu_s > 0 for cpu_s in charged.cpu_s)


async def test_one_that_is_rejected_is_remembered_too(checks: RequestChecks) -> None:
    charged = Charged()
    for _ in range(3):
        with pytest.raises(FeedmuxError, match=r"\$out"):
            await checks.check(CASES["stage"], "a", charged)
    assert len(charged.cpu_s) == 1


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

    async def ask(self, request: bytes) -> bytes:
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


async def test_stages_are_rendered_and_cut(checks: RequestChecks) -> None:
    for count in (1, 200):
        pipeline = bson.encode({"pipeline": [{"$match": {f"f{number}": number}} for number in range(count)]})
        text = await checks.render(pipeline, "a", Charged())
        assert json.loads(text) == bson.decode(pipeline)["pipeline"]
    assert len(await checks.render(pipeline, "a", Charged(), 100)) < 150
