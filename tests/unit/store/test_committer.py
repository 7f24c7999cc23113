"""What sessions cost Redis: the commands that Redis receives, in virtual time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from feedmux_server.core.errors import FeedmuxError
from feedmux_server.store.committer import Committer
from feedmux_server.store.handle import CommitHandle
from tests.integration.state_support import Recorder, running, submit
from tests.sim.redis import SimRedis
from tests.unit.store.store_support import LEASE_S, redis_and_store
from tests.virtual_time import in_virtual_time

INTERVAL_S = 0.5


@asynccontextmanager
async def sessions(count: int) -> AsyncIterator[tuple[SimRedis, list[CommitHandle]]]:
    """Run `count` sessions, whose acks are stored every `INTERVAL_S`."""
    redis, store = redis_and_store()
    committer = Committer(store.leases, interval_s=INTERVAL_S)
    handles = []
    for number in range(count):
        name = f"s{number}"
        await store.create("t", name, definition=b"d", etag="e", position=b"p", cluster_time=0, order=b"")
        stored, lease = await store.leases.open("t", name, instance_id="me")
        handles.append(committer.attach(lease, stored, Recorder()))
    async with running(committer):
        yield redis, handles


@pytest.mark.parametrize("acks_per_s", [10, 1_000])
@in_virtual_time
async def test_a_session_costs_one_command_an_interval_however_much_it_acks(acks_per_s: int) -> None:
    async with sessions(3) as (redis, handles):
        before = redis.commands
        for number in range(1, 4 * acks_per_s + 1):
            for handle in handles:
                submit(handle, number)
            await asyncio.sleep(1 / acks_per_s)
        assert 0 < redis.commands - before <= len(handles) * (4 / INTERVAL_S + 1)


@in_virtual_time
async def test_a_session_that_acks_nothing_costs_its_lease_alone() -> None:
    async with sessions(3) as (redis, handles):
        before = redis.commands
        await asyncio.sleep(10 * LEASE_S)
        assert 0 < redis.commands - before <= len(handles) * 30


@in_virtual_time
async def test_a_flush_waits_with_pauses_when_another_of_its_handle_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The members of a group flush one handle."""
    async with sessions(1) as (redis, [handle]):
        submit(handle, 1)
        redis.down = True
        flushes = [asyncio.create_task(handle.flush(5.0)) for _ in range(2)]
        await asyncio.sleep(1.0)
        passes = 0

        def clock() -> float:
            nonlocal passes
            passes += 1
            assert passes < 1_000, "the event loop hangs"
            return asyncio.get_running_loop().time()

        monkeypatch.setattr(handle._committer, "_clock", clock)
        flushes[0].cancel()
        with pytest.raises(FeedmuxError, match="Redis did not store"):
            await flushes[1]
