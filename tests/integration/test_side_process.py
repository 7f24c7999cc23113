"""A side process: every request gets its own answer or SideProcessFailed, whatever dies, freezes or is cancelled."""

import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from feedmux_server.fanout.side_process import SideProcess, SideProcessFailed
from tests.integration import side_echo

ECHO = side_echo.__name__
SHORT_S = 0.5


@pytest_asyncio.fixture
async def process() -> AsyncIterator[SideProcess]:
    process = SideProcess(ECHO, 20.0)
    yield process
    await process.close()


async def gone(pid: int) -> None:
    async with asyncio.timeout(10):
        while True:
            try:
                os.kill(pid, 0)
            except ProcessLookupError:
                return
            await asyncio.sleep(0.01)


async def test_answers_of_every_size(process: SideProcess) -> None:
    for request in (b"", b"a", b"b" * 3_000_000, os.urandom(100_000)):
        assert await process.ask(request) == request
    assert await process.ask(b"many:20000000") == b"x" * 20_000_000


async def test_one_that_was_killed_between_requests_is_replaced(process: SideProcess) -> None:
    for number in range(3):
        assert await process.ask(b"%d" % number) == b"%d" % number
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)


async def test_a_request_over_which_it_dies_fails_and_the_next_one_is_answered(process: SideProcess) -> None:
    with pytest.raises(SideProcessFailed):
        await process.ask(b"die:")
    assert await process.ask(b"next") == b"next"


async def test_a_frozen_process_is_killed_and_asked_once_more(tmp_path: Path) -> None:
    process = SideProcess(ECHO, SHORT_S)
    request = b"freeze-once:" + bytes(tmp_path / "frozen")
    assert await process.ask(request) == request
    await process.close()


async def test_one_that_freezes_twice_fails_in_bounded_time() -> None:
    process = SideProcess(ECHO, lambda size: SHORT_S + size / 1e9)
    assert await process.ask(b"up") == b"up"
    first = process.pid
    assert first is not None
    with pytest.raises(SideProcessFailed):
        await process.ask(b"freeze:")
    await gone(first)
    assert await process.ask(b"next") == b"next"
    await process.close()


async def test_it_closes_at_once_while_frozen_or_starting() -> None:
    for request in (b"freeze:", b"up"):
        process = SideProcess(ECHO, 60.0)
        asking = asyncio.create_task(process.ask(request))
        if request == b"freeze:":
            while process.pid is None:
                await asyncio.sleep(0.01)
        else:
            await asyncio.sleep(0)
        pid = process.pid
        began_s = time.monotonic()
        await process.close()
        assert time.monotonic() - began_s < 1
        with pytest.raises(SideProcessFailed):
            await asking
        if pid is not None:
            await gone(pid)
        with pytest.raises(SideProcessFailed):
            await process.ask(b"late")


async def test_a_cancelled_request_leaves_nothing_for_the_next_one(process: SideProcess) -> None:
    await process.ask(b"up")
    pid = process.pid
    chance = random.Random(7)
    for number in range(200):
        cancelled = asyncio.create_task(process.ask(b"cancelled %d" % number + b"x" * chance.choice((0, 300_000))))
        for _ in range(chance.randrange(8)):
            await asyncio.sleep(0)
        cancelled.cancel()
        wanted = b"wanted %d" % number
        assert await process.ask(wanted) == wanted
        assert cancelled.done()
    assert process.pid == pid, "cancelling costs no process"


async def test_callers_cancelled_with_a_kill_in_between(process: SideProcess) -> None:
    chance = random.Random(11)
    for number in range(40):
        cancelled = asyncio.create_task(process.ask(b"slow:0.01"))
        await asyncio.sleep(chance.random() * 0.02)
        if process.pid is not None and chance.random() < 0.3:
            os.kill(process.pid, chance.choice((signal.SIGKILL, signal.SIGTERM)))
        cancelled.cancel()
        wanted = b"wanted %d" % number
        assert await process.ask(wanted) == wanted
