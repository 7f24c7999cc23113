"""Run unit tests as if the machine stalled now and then: `pytest -p tests.stalls --stalls 1 tests/unit/core`.

The clocks of event loops and of the server jump ahead at moments drawn from the given number and the test's name, as if
nothing had run meanwhile. Whatever a test awaits may then have timed out, and a test that depends on the speed of
something fails.
"""

import asyncio
import random
import time
from collections.abc import Generator

import pytest

from feedmux_server import clock

STALL_S = (0.3, 1.2, 5.0, 11.0)
"""These exceed most limits of the server and the client in turn."""

TOTAL_S = 25.0
"""At most this much in one test: less than a guard, which is 60 s or more, and less than the client's 30 s for an
opening."""

EVERY = 8
"""Turns of a loop from one stall to the next, on average."""


class _Stalls:
    """A clock that jumps ahead now and then, when an event loop begins a turn."""

    def __init__(self) -> None:
        self._draw, self._left_s, self._ahead_s = random.Random(0), 0.0, 0.0

    def begin(self, seed: str) -> None:
        self._draw, self._left_s = random.Random(seed), TOTAL_S

    def end(self) -> None:
        self._left_s = 0.0

    def turn(self) -> None:
        if self._left_s and self._draw.random() * EVERY < 1:
            stall_s = min(self._draw.choice(STALL_S), self._left_s)
            self._left_s -= stall_s
            self._ahead_s += stall_s

    def monotonic(self) -> float:
        return time.monotonic() + self._ahead_s

    def time(self) -> float:
        return time.time() + self._ahead_s


_stalls = _Stalls()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--stalls", type=int, default=1, metavar="N", help="other stalls for each number")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    _stalls.begin(f"{item.config.getoption('stalls')} {item.nodeid}")
    try:
        yield
    finally:
        _stalls.end()


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop() -> Generator[None]:
    run_once = asyncio.BaseEventLoop._run_once  # type: ignore[attr-defined]

    def run_once_late(loop: asyncio.BaseEventLoop) -> None:
        _stalls.turn()
        run_once(loop)

    with pytest.MonkeyPatch.context() as patch, clock.replaced(_stalls):
        patch.setattr(asyncio.BaseEventLoop, "time", lambda _: _stalls.monotonic())
        patch.setattr(asyncio.BaseEventLoop, "_run_once", run_once_late)
        yield
