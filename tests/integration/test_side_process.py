"""A side process: every request gets its own answer or SideProcessFailed, whatever dies, freezes or is cancelled."""

import asyncio
import itertools
import os
import random
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from feedmux_server.workers import side_process
from feedmux_server.workers.side_process import SideProcess, SideProcessFailed
from tests.integration import side_echo

ECHO = side_echo.__name__
PATIENCE_S = 60.0
SHORT_S = 0.1
"""A limit for requests that a process never answers: nothing depends on how much a process does in so long."""


@pytest_asyncio.fixture
async def process() -> AsyncIterator[SideProcess]:
    process = SideProcess(ECHO, PATIENCE_S)
    yield process
    await process.close()


async def until(reached: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not reached():
            await asyncio.sleep(0.01)


async def gone(pid: int) -> None:
    def ended() -> bool:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        return False

    await until(ended)


async def stopped(pid: int) -> None:
    """Waits until the process stands still."""
    await until(lambda: os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT | os.WNOHANG))


async def test_answers_of_every_size(process: SideProcess) -> None:
    for request in (b"", b"a", b"b" * 3_000_000, os.urandom(100_000)):
        assert await process.ask(request) == (b"", request)
        assert await process.ask(request[:1], request[1:]) == (b"", request)


async def test_a_large_answer_is_not_copied_as_a_whole(process: SideProcess) -> None:
    """The event loop would wait: half a millisecond for each MB."""
    await process.ask(b"up")
    tracemalloc.start()
    try:
        _, data = await process.ask(b"many:20000000")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert data == b"x" * 20_000_000
    assert peak < 30_000_000


async def test_a_request_over_which_it_dies_fails_and_the_next_one_is_answered(process: SideProcess) -> None:
    with pytest.raises(SideProcessFailed):
        await process.ask(b"die:")
    assert (await process.ask(b"next"))[1] == b"next"


async def test_a_frozen_process_is_killed_and_asked_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_process, "_PERIODS_MAX", 1 << 30)
    limits = iter((PATIENCE_S, SHORT_S, PATIENCE_S))
    process = SideProcess(ECHO, lambda _: next(limits))
    assert (await process.ask(b"up"))[1] == b"up"
    frozen = process.pid
    assert frozen is not None
    os.kill(frozen, signal.SIGSTOP)
    await stopped(frozen)
    async with asyncio.timeout(PATIENCE_S):
        assert (await process.ask(b"again"))[1] == b"again"
    assert process.pid != frozen
    assert next(limits, None) is None
    await process.close()


async def test_a_process_that_waits_for_a_core_is_not_frozen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With a hundredth of a core it was killed over requests that it would have answered."""
    looks = 0

    def little(_: object) -> float:
        nonlocal looks
        looks += 1
        return looks * 1e-6

    monkeypatch.setattr(side_process, "_cpu_s", little)
    monkeypatch.setattr(side_process, "_PERIODS_MAX", 1 << 30)
    process = SideProcess(ECHO, SHORT_S)
    assert (await process.ask(b"up"))[1] == b"up"
    pid, done, begun = process.pid, tmp_path / "done", looks
    request = b"wait:" + bytes(done)
    asking = asyncio.create_task(process.ask(request))
    await until(lambda: asking.done() or looks >= begun + 5)
    assert not asking.done()
    done.touch()
    assert (await asking)[1] == request
    assert process.pid == pid
    await process.close()


@pytest.mark.parametrize(("step_s", "periods"), [(1e-6, 3), (2 * SHORT_S, 1 << 30)], ids=["too long", "too much"])
async def test_a_process_that_goes_on_for_too_long_is_replaced(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, step_s: float, periods: int
) -> None:
    limits = iter((PATIENCE_S, SHORT_S, SHORT_S, PATIENCE_S))
    process = SideProcess(ECHO, lambda _: next(limits))
    assert (await process.ask(b"up"))[1] == b"up"
    looks = itertools.count()
    monkeypatch.setattr(side_process, "_PERIODS_MAX", periods)
    monkeypatch.setattr(side_process, "_cpu_s", lambda _: next(looks) * step_s)
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(SideProcessFailed):
            await process.ask(b"wait:" + bytes(tmp_path / "never"))
    assert (await process.ask(b"next"))[1] == b"next"
    await process.close()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems give no other process's CPU time")
async def test_the_cpu_time_of_a_process() -> None:
    with subprocess.Popen((sys.executable, "-c", "while True: pass")) as busy:
        try:
            await until(lambda: side_process._cpu_s(busy) > 0.05)
            busy.send_signal(signal.SIGSTOP)
            await stopped(busy.pid)
            used_s = side_process._cpu_s(busy)
            assert side_process._cpu_s(busy) == used_s
        finally:
            busy.kill()
    assert side_process._cpu_s(busy) == 0.0


@pytest.mark.parametrize("state", ["frozen", "starting"])
async def test_it_closes_while_frozen_or_starting(monkeypatch: pytest.MonkeyPatch, state: str) -> None:
    """Closing waits for nothing: this process never answers, and never becomes ready."""
    spawn, spawned = side_process._spawn, list[int]()

    def watched(module: str, end: int) -> "subprocess.Popen[bytes]":
        process = spawn(module, end)
        spawned.append(process.pid)
        if state == "starting":
            os.kill(process.pid, signal.SIGSTOP)
        return process

    monkeypatch.setattr(side_process, "_spawn", watched)
    process = SideProcess(ECHO, 3600.0)
    asking = asyncio.create_task(process.ask(b"freeze:"))
    await until(lambda: spawned)
    await stopped(spawned[0])
    async with asyncio.timeout(PATIENCE_S):
        await process.close()
    with pytest.raises(SideProcessFailed):
        await asking
    await gone(spawned[0])
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
        assert (await process.ask(wanted))[1] == wanted
        assert cancelled.done()
    assert process.pid == pid, "cancelling costs no process"
