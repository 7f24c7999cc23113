"""The server's clock, and a replacement for it."""

import asyncio

from feedmux_server import clock
from tests.sim.loop import EPOCH_S
from tests.virtual_time import in_virtual_time


class Stopped:
    def monotonic(self) -> float:
        return 7.0

    def time(self) -> float:
        return 1_800_000_000.0


def test_another_clock_holds_for_as_long_as_it_is_in_place() -> None:
    default = clock.monotonic_s
    before = clock.monotonic_s()
    with clock.replaced(Stopped()):
        assert (clock.monotonic_s(), default(), clock.wall_s()) == (7.0, 7.0, 1_800_000_000.0)
    assert clock.monotonic_s() >= before


@in_virtual_time
async def test_in_virtual_time_the_server_s_clock_is_the_loop_s() -> None:
    await asyncio.sleep(3600)
    assert (clock.monotonic_s(), clock.wall_s()) == (3600, EPOCH_S + 3600)
