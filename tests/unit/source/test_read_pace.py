"""How long a read waits or computes, and when it needs a turn."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from feedmux_server.clock import monotonic_s
from feedmux_server.source.catchup_limiter import PERMIT_MAX_S, CatchupLimiter, Permit
from feedmux_server.source.read_limits import ReadLimits
from feedmux_server.source.read_pace import BACKLOG_BYTES, HISTORY_AWAIT_MS, HISTORY_S, IDLE_S, ReadPace
from feedmux_server.source.read_watch import OPENS_ARE_SLOWER, Read
from tests.tables import over
from tests.virtual_time import in_virtual_time

NOW = 1_000 << 32
USUAL_MS = 1_000


def make_pace(
    *, cursors: int = 1, is_watched: bool = False, is_awaited: bool = False, is_mongos: bool = False
) -> ReadPace:
    source: Any = SimpleNamespace(cursors=cursors, clock=SimpleNamespace(known_time=NOW, is_mongos=is_mongos))
    limits = ReadLimits(max_await_ms=USUAL_MS, idle_reads_per_s=100.0)
    return ReadPace(source, limits, lambda: is_watched, lambda: is_awaited)


@in_virtual_time
@pytest.mark.parametrize(
    ("size", "exhausted", "late_s", "needed"),
    [
        (BACKLOG_BYTES, False, 0, True),
        (BACKLOG_BYTES, True, 0, False),
        (BACKLOG_BYTES - 1, False, 0, False),
        (1, False, HISTORY_S, False),
        (1, False, HISTORY_S + 1, True),
        (0, False, HISTORY_S + 1, False),
    ],
    ids=["backlog", "invalidated", "small batch", "recent", "history", "at MongoDB's end"],
)
async def test_what_needs_a_permit(size: int, exhausted: bool, late_s: int, needed: bool) -> None:
    pace = make_pace()
    pace.saw(size, exhausted=exhausted)
    assert pace.needs_permit(NOW - (late_s << 32)) is needed


@in_virtual_time
async def test_the_end_of_the_oplog_does_not_count_for_long() -> None:
    pace, old = make_pace(), NOW - (60 << 32)
    assert pace.needs_permit(old), "the first batch"
    pace.saw(0, exhausted=False)
    await asyncio.sleep(HISTORY_S - 0.1)
    assert not pace.needs_permit(old)
    await asyncio.sleep(0.2)
    assert pace.needs_permit(old)


@over(
    ("cursors", "is_watched", "size", "wait_ms"),
    [
        (1, False, 0, USUAL_MS),
        (300, False, 0, 3_000),
        (1_000_000, False, 0, IDLE_S * 1000),
        (300, True, 0, USUAL_MS),
        (300, False, 1, USUAL_MS),
    ],
)
def test_idle_reads_share_a_rate(cursors: int, is_watched: bool, size: int, wait_ms: float) -> None:
    pace = make_pace(cursors=cursors, is_watched=is_watched)
    pace.saw(size, exhausted=False)
    assert pace.wait_ms == wait_ms


@over(("is_mongos", "wait_ms"), [(False, HISTORY_AWAIT_MS), (True, USUAL_MS)])
def test_a_plan_learns_soon_that_nothing_follows(is_mongos: bool, wait_ms: int) -> None:
    pace = make_pace(is_awaited=True, is_mongos=is_mongos)
    pace.saw(1, exhausted=False)
    assert pace.wait_ms == wait_ms
    pace.saw(0, exhausted=False)
    assert pace.wait_ms == USUAL_MS, "it is not asked again and again"


@over(("is_mongos", "wait_ms"), [(False, HISTORY_AWAIT_MS), (True, USUAL_MS)])
def test_a_read_of_history_leaves_its_turn_soon(is_mongos: bool, wait_ms: int) -> None:
    assert make_pace(is_mongos=is_mongos).history_wait_ms == wait_ms


SESSION, EVENT_S = b"s" * 16, 5.0


def operation(yields: int, **more: Any) -> dict[str, Any]:
    return {"opid": 1, "active": True, "numYields": yields, "lsid": {"id": SESSION}, "cursor": {"cursorId": 7}} | more


def read(*, opening: bool = False) -> Read:
    made = Read(EVENT_S)
    made.open_in(SESSION)
    if not opening:
        made.cursor_id = 7
        made.begin(1.0)
    return made


@pytest.mark.parametrize(
    ("yields", "stuck"),
    [([3, 3], False), ([3, 3, 3], True), ([3, 4, 5], False), ([3, 3, 4], False)],
)
@in_virtual_time
async def test_a_read_is_stuck_when_its_yields_stand_still(yields: list[int], stuck: bool) -> None:
    made = read()
    found = [made.stuck([operation(each)], number * EVENT_S / 2) for number, each in enumerate(yields)]
    assert [each is not None for each in found] == [False] * (len(yields) - 1) + [stuck]


@pytest.mark.parametrize(
    ("yields", "worked_s"),
    [([], 0.5), ([3], 1.5), ([3, 3, 3], 3.5), ([3, 4, 5, 6], 2.0), ([3, 3, 3, 4, 5, 6], 4.0), ([3, 4, 5, 5, 5], 3.5)],
)
@in_virtual_time
async def test_how_long_a_read_may_have_worked_without_a_yield(yields: list[int], worked_s: float) -> None:
    await asyncio.sleep(1.0)
    made = read()
    for each in yields:
        await asyncio.sleep(1.0)
        made.stuck([operation(each)], monotonic_s())
    await asyncio.sleep(0.5)
    made.end()
    assert (made.took_s, made.worked_s) == (len(yields) + 0.5, worked_s)


@pytest.mark.parametrize(
    "other",
    [
        {"active": False},
        {"waitingForLock": True},
        {"lsid": {"id": b"o" * 16}},
        {"cursor": {"cursorId": 8}},
    ],
)
@in_virtual_time
async def test_operations_that_say_nothing_about_it(other: dict[str, Any]) -> None:
    made = read()
    assert [made.stuck([operation(3, **other)], at_s) for at_s in (0.0, 100.0)] == [None, None]


@in_virtual_time
async def test_an_aggregate_may_take_longer() -> None:
    made = read(opening=True)
    opening = operation(0, command={"aggregate": "c"})
    times = (0.0, EVENT_S * OPENS_ARE_SLOWER - 1, EVENT_S * OPENS_ARE_SLOWER)
    assert [made.stuck([opening], at_s) is not None for at_s in times] == [False, False, True]
    assert made.stuck([operation(0)], 1_000.0) is None, "the last read of an earlier cursor of the session"


@in_virtual_time
async def test_a_new_read_has_its_own_time_and_a_stopped_one_ends() -> None:
    made = read()
    made.stuck([operation(3)], 0.0)
    made.end()
    made.begin(1.0)
    assert made.stuck([operation(3)], 100.0) is None
    made.stop()
    with pytest.raises(TimeoutError):
        async with made.scope():
            await asyncio.sleep(0.01)


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
