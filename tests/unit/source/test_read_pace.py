"""How long a read waits for events, and when it needs a turn."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from feedmux_server.source.read_limits import ReadLimits
from feedmux_server.source.read_pace import BACKLOG_BYTES, HISTORY_AWAIT_MS, HISTORY_S, IDLE_S, ReadPace
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
