"""The clocks of the server's code, and the place where a simulation puts its own.

`tests/checks/test_order.py` refuses other clocks where the code can be simulated: not in threads and commands.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Clock(Protocol):
    """What the module `time` offers and the server uses."""

    def monotonic(self) -> float: ...

    def time(self) -> float: ...


_clock: Clock = time


def monotonic_s() -> float:
    """For lengths of time: no step of the system's clock moves it."""
    return _clock.monotonic()


def wall_s() -> float:
    """Seconds since 1970."""
    return _clock.time()


@contextmanager
def replaced(clock: Clock) -> Iterator[None]:
    """All code of the server in this process goes by `clock` meanwhile."""
    global _clock
    before, _clock = _clock, clock
    try:
        yield
    finally:
        _clock = before
