"""Permits for reading history: a few at a time, tenant by tenant, and no permit is held forever."""

import asyncio

from feedmux_server.source.catchup_limiter import PERMIT_MAX_S, CatchupLimiter, Permit
from tests.virtual_time import in_virtual_time


async def waits(reads: CatchupLimiter, tenant: str, began: list[str]) -> Permit:
    permit = await reads.begin(tenant)
    began.append(tenant)
    return permit


async def settle() -> None:
    """Wait until every task that can run has run; much less than `PERMIT_MAX_S`."""
    await asyncio.sleep(0.001)


@in_virtual_time
async def test_tenants_take_turns_however_many_streams_one_has() -> None:
    reads, began = CatchupLimiter(1), list[str]()
    first = reads.try_begin()
    assert first is not None
    assert reads.try_begin() is None
    tasks = [asyncio.create_task(waits(reads, tenant, began)) for tenant in ("a", "a", "a", "b")]
    await settle()
    assert began == []
    first.end()
    first.end()  # ending a permit twice frees nothing more
    for expected in (["a"], ["a", "b"], ["a", "b", "a"], ["a", "b", "a", "a"]):
        await settle()
        assert began == expected
        next(task for task in tasks if task.done()).result().end()
        tasks = [task for task in tasks if not task.done()]
    assert reads.try_begin() is not None


@in_virtual_time
async def test_who_gives_up_waiting_passes_the_turn_on() -> None:
    reads, began = CatchupLimiter(1), list[str]()
    first = reads.try_begin()
    assert first is not None
    gone, late = (asyncio.create_task(waits(reads, "a", began)) for _ in range(2))
    await settle()
    first.end()
    gone.cancel()  # at the moment at which it gets the permit
    (await late).end()
    assert began == ["a"]
    assert reads.try_begin() is not None


@in_virtual_time
async def test_a_long_read_does_not_keep_its_turn() -> None:
    loop, reads = asyncio.get_running_loop(), CatchupLimiter(1)
    assert reads.try_begin() is not None  # and never ends this permit
    (await reads.begin("b")).end()
    assert loop.time() == PERMIT_MAX_S
    assert reads.try_begin() is not None
