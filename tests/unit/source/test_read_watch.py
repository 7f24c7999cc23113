"""Which read computes for too long on one event: one that has not yielded, whatever it takes in all."""

import asyncio
from typing import Any

import pytest

from feedmux_server.source.read_watch import OPENS_ARE_SLOWER, Read
from tests.virtual_time import in_virtual_time

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
async def test_a_new_read_begins_anew_and_a_stopped_one_ends() -> None:
    made = read()
    made.stuck([operation(3)], 0.0)
    made.end()
    made.begin(1.0)
    assert made.stuck([operation(3)], 100.0) is None
    made.stop()
    with pytest.raises(TimeoutError):
        async with made.scope():
            await asyncio.sleep(0.01)
