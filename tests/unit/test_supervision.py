"""Tasks of a server: no task ends the server, and no task ends unnoticed."""

import asyncio
import logging
from contextvars import ContextVar
from itertools import pairwise

import pytest

from feedmux_server.supervision import RECOVERED_S, RETRY_MAX_S, Tasks
from feedmux_server.telemetry.metrics import Metric
from feedmux_server.telemetry.observer import Observer
from tests.virtual_time import in_virtual_time


class Counted(Observer):
    def __init__(self) -> None:
        self.kinds: list[str] = []

    def count(self, metric: Metric, number: int, *attributes: str) -> None:
        self.kinds.extend(attributes * number)


async def cancelled_elsewhere() -> None:
    """Await something that another task cancels."""
    waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    waiting.cancel()
    await waiting


@pytest.mark.parametrize("failure", ["error", "cancellation"])
@in_virtual_time
async def test_a_task_that_fails_runs_again_and_the_others_go_on(
    failure: str, caplog: pytest.LogCaptureFixture
) -> None:
    observer, began_s = Counted(), list[float]()

    async def fail() -> None:
        began_s.append(asyncio.get_running_loop().time())
        if len(began_s) == 4:
            return
        if failure == "cancellation":
            await cancelled_elsewhere()
        raise RuntimeError("broken")

    async with Tasks(observer) as tasks:
        other = tasks.keep_running("other", lambda: asyncio.sleep(1000))
        task = tasks.keep_running("failing", fail, of="main")
        assert task.get_name() == "failing-main"
        await task
        assert not other.done()
    assert observer.kinds == ["failing"] * 3
    pauses = [after - before for before, after in pairwise(began_s)]
    assert all(most / 2 <= pause <= most for pause, most in zip(pauses, (1, 2, 4), strict=True))
    lines = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [record.__dict__["task"] for record in lines] == ["failing-main"] * 3
    assert all(record.exc_info for record in lines)


async def test_only_a_task_that_keeps_running_is_no_part_of_the_call_that_begins_it() -> None:
    call, seen = ContextVar("call", default="none"), list[str]()

    async def note() -> None:
        seen.append(call.get())

    call.set("a call")
    async with Tasks() as tasks:
        await tasks.keep_running("kept", note)
        await tasks.run_once("once", note)
    assert seen == ["none", "a call"]


@in_virtual_time
async def test_pauses_are_bounded_and_a_task_that_recovered_is_tried_soon() -> None:
    began_s: list[float] = []
    sound = False

    async def fail() -> None:
        began_s.append(asyncio.get_running_loop().time())
        if sound:
            await asyncio.sleep(RECOVERED_S)
        raise RuntimeError("broken")

    async with Tasks() as tasks:
        task = tasks.keep_running("failing", fail)
        await asyncio.sleep(20 * RETRY_MAX_S)
        pauses = [after - before for before, after in pairwise(began_s)]
        assert len(began_s) > 20
        assert max(pauses) <= RETRY_MAX_S
        sound = True
        await asyncio.sleep(RETRY_MAX_S)
        began_s.clear()
        await asyncio.sleep(3 * RECOVERED_S)
        assert began_s[1] - began_s[0] <= RECOVERED_S + 2
        task.cancel()


@in_virtual_time
async def test_a_task_that_is_cancelled_ends() -> None:
    observer = Counted()

    async with Tasks(observer) as tasks:
        kept = tasks.keep_running("kept", lambda: asyncio.sleep(1000))
        once = tasks.run_once("once", lambda: asyncio.sleep(1000))
        await asyncio.sleep(1)
        kept.cancel()
        once.cancel()
    assert kept.cancelled()
    assert once.cancelled()
    assert observer.kinds == []


@in_virtual_time
async def test_a_task_whose_clean_up_fails_ends_when_it_is_cancelled() -> None:
    observer, runs = Counted(), 0

    async def fail_at_the_end() -> None:
        nonlocal runs
        runs += 1
        try:
            await asyncio.sleep(1000)
        finally:
            raise RuntimeError("broken")

    async with Tasks(observer) as tasks:
        task = tasks.keep_running("failing", fail_at_the_end)
        await asyncio.sleep(1)
        task.cancel()
    assert (observer.kinds, runs) == (["failing"], 1)


@pytest.mark.parametrize("failure", ["error", "cancellation"])
@in_virtual_time
async def test_work_that_is_done_once_fails_alone(failure: str, caplog: pytest.LogCaptureFixture) -> None:
    observer = Counted()

    async def fail() -> None:
        if failure == "cancellation":
            await cancelled_elsewhere()
        raise RuntimeError("broken")

    async with Tasks(observer) as tasks:
        other = tasks.keep_running("other", lambda: asyncio.sleep(1000))
        await tasks.run_once("failing", fail)
        assert not other.done()
    assert observer.kinds == ["failing"]
    assert caplog.records[-1].exc_info


def test_an_error_of_the_body_ends_the_tasks() -> None:
    kept: list[asyncio.Task[None]] = []

    @in_virtual_time
    async def supervise() -> None:
        async with Tasks() as tasks:
            kept.append(tasks.keep_running("kept", lambda: asyncio.sleep(1000)))
            raise RuntimeError("broken")

    with pytest.raises(ExceptionGroup):
        supervise()
    assert kept[0].cancelled()
