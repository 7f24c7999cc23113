"""The clocks that the server's code uses, and the means for a simulation to replace them.

`tests/checks/test_order.py` rejects other clocks in code that can be simulated, which excludes threads and commands.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Clock(Protocol):
    """The functions of module `time` that the server uses."""

    def monotonic(self) -> float: ...

    def time(self) -> float: ...


_clock: Clock = time


def monotonic_s() -> float:
    """Return a time for measuring durations: adjustments of the system's clock do not affect it."""
    return _clock.monotonic()


def wall_s() -> float:
    """Seconds since 1970."""
    return _clock.time()


@contextmanager
def replaced(clock: Clock) -> Iterator[None]:
    """Make all code of the server in this process use `clock` meanwhile."""
    global _clock
    before, _clock = _clock, clock
    try:
        yield
    finally:
        _clock = before
