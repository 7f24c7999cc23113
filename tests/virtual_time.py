"""Test rules about time: production code runs on a loop whose time jumps to the next timer.

    @in_virtual_time
    async def test_a_heartbeat_comes_every_ten_seconds() -> None: ...

The test must use no socket, thread or process. `asyncio.get_running_loop().time()` is the clock, and the server's code
uses it too.
"""

import asyncio
import functools
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

from feedmux_server import clock
from tests.sim.loop import SimLoop


class VirtualClock:
    """The server's clock, which shows the time of a loop."""

    def __init__(self, loop: SimLoop) -> None:
        self.monotonic = loop.time
        self.time = loop.wall_s


def in_virtual_time(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test with a fresh loop and a fixed order of tasks; fail it for exceptions that nobody retrieved."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        loop = SimLoop(Random(0))
        try:
            with clock.replaced(VirtualClock(loop)):
                loop.run_until_complete(test(*args, **kwargs))
                loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()
        assert not loop.failures

    return run


def sim_loop() -> SimLoop:
    """The loop of the test that runs."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    return loop
