"""Slots that become free are offered until nobody takes one."""

import asyncio
from typing import cast

from feedmux_server.core.delivery.slots import Slots
from feedmux_server.streams.slot_turns import SlotTurns


class Takers:
    """Slots that `count` subscribers take, one at each offer."""

    def __init__(self, count: int) -> None:
        self.left = count
        self.offers = 0
        self.refused = asyncio.Event()

    def admit(self) -> bool:
        self.offers += 1
        if not self.left:
            self.refused.set()
            return False
        self.left -= 1
        return True


async def test_who_was_woken_may_be_gone_so_the_next_gets_a_turn() -> None:
    takers = Takers(2)
    SlotTurns(cast(Slots, takers)).slot_free()
    assert takers.offers == 1, "the first gets its turn at once"
    async with asyncio.timeout(60):
        await takers.refused.wait()
    assert (takers.offers, takers.left) == (3, 0)


async def test_many_free_slots_have_one_timer_and_none_after_the_stop() -> None:
    takers = Takers(100)
    turns = SlotTurns(cast(Slots, takers))
    for _ in range(10):
        turns.slot_free()
    assert takers.offers == 1
    turns.stop()
    assert turns._timer is not None
    assert turns._timer.cancelled()
