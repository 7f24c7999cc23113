"""Forecasts when a position will leave the oplog, from how the oplog has moved so far.

There are two estimates, and the sooner one counts, because each misses what the other sees:

- by bytes: what is appended per second has to fill the free room and to overwrite what lies before the position.
  That notices a burst at once, and takes the oplog for evenly dense.
- by the oldest entry: how fast it has been moving towards the position. That is true whatever the density, and MongoDB
  cuts the oplog in large pieces, so it takes two of them to see it.

Fed by `jobs.oplog_monitor` with a check every few seconds; no clock here.
"""

import math
from collections import deque
from dataclasses import dataclass
from typing import Final

HEADROOM_MAX_S: Final = 30 * 86_400.0
"""The highest value that is reported: an idle deployment would give infinity."""
_FAST_S: Final = 60.0
_SLOW_S: Final = 3_600.0
_CUTS: Final = 8
"""Movements of the oldest entry that are remembered."""


@dataclass(frozen=True, slots=True)
class OplogState:
    """What a check found. Times are cluster times by the second."""

    oldest_s: int
    newest_s: int
    size_bytes: int | None = None
    size_max_bytes: int | None = None
    """None where the account may not ask."""
    is_whole: bool = False
    """It was never cut: nothing before its oldest entry has left it."""

    @property
    def window_s(self) -> int:
        return max(0, self.newest_s - self.oldest_s)


class OplogForecast:
    """The forecast of one source."""

    __slots__ = ("_cuts", "_fast_bytes_per_s", "_now_s", "_slow_bytes_per_s", "state")

    def __init__(self) -> None:
        self.state: OplogState | None = None
        self._now_s = 0.0
        self._fast_bytes_per_s: float | None = None
        self._slow_bytes_per_s: float | None = None
        self._cuts: deque[tuple[float, int]] = deque(maxlen=_CUTS)  # when it was seen, the oldest entry then

    def observe(self, state: OplogState, now_s: float) -> None:
        """Take the result of a check of the oplog at `now_s`, by any clock that does not jump."""
        before, passed_s = self.state, now_s - self._now_s
        if before is not None and passed_s > 0:
            self._see_growth(before, state, passed_s)
            if state.oldest_s > before.oldest_s:
                self._cuts.append((now_s, state.oldest_s))
        self.state, self._now_s = state, now_s

    def headroom_s(self, cluster_time_s: int) -> float:
        """Seconds until a position of this cluster time leaves the oplog: 0 if it has left, at most HEADROOM_MAX_S.

        Raises LookupError before the first check.
        """
        state = self.state
        if state is None:
            raise LookupError("the oplog was not checked yet")
        ahead_s = cluster_time_s - state.oldest_s
        if ahead_s < 0 and not state.is_whole:
            return 0.0
        ways = [each for each in (self._by_bytes(state, max(0, ahead_s)), self._by_cuts(ahead_s)) if each is not None]
        ways = ways or [float(ahead_s if ahead_s >= 0 else state.window_s)]
        return min(*ways, HEADROOM_MAX_S)

    @property
    def bytes_per_s(self) -> float | None:
        """What is appended to the oplog; None where that is not known."""
        if self._fast_bytes_per_s is None or self._slow_bytes_per_s is None:
            return None
        return max(self._fast_bytes_per_s, self._slow_bytes_per_s)

    def _see_growth(self, before: OplogState, state: OplogState, passed_s: float) -> None:
        if before.size_bytes is None or state.size_bytes is None:
            return
        grown = state.size_bytes - before.size_bytes
        if state.oldest_s > before.oldest_s or grown < 0:
            return  # it was cut meanwhile: appended and removed bytes cannot be told apart
        rate = grown / passed_s
        self._fast_bytes_per_s = _smoothed(self._fast_bytes_per_s, rate, passed_s, _FAST_S)
        self._slow_bytes_per_s = _smoothed(self._slow_bytes_per_s, rate, passed_s, _SLOW_S)

    def _by_bytes(self, state: OplogState, ahead_s: int) -> float | None:
        if state.size_bytes is None or state.size_max_bytes is None:
            return None
        density = state.size_bytes / max(1, state.window_s)
        room = max(0, state.size_max_bytes - state.size_bytes) + density * min(ahead_s, state.window_s)
        rate = self.bytes_per_s
        if rate is None:
            rate = density  # by the past that it holds, until it was seen to grow
        return room / rate if rate > 0 else HEADROOM_MAX_S

    def _by_cuts(self, ahead_s: int) -> float | None:
        if len(self._cuts) < 2:
            return None
        (last_s, last), (previous_s, previous), (first_s, first) = self._cuts[-1], self._cuts[-2], self._cuts[0]
        # While the next cut is overdue, the speed falls.
        recent = (last - previous) / max(last_s - previous_s, self._now_s - last_s)
        longer = (last - first) / max(last_s - first_s, self._now_s - last_s)
        return ahead_s / max(recent, longer)


def _smoothed(before: float | None, rate: float, passed_s: float, half_life_s: float) -> float:
    if before is None:
        return rate
    keep = math.pow(0.5, passed_s / half_life_s)
    return before * keep + rate * (1 - keep)
