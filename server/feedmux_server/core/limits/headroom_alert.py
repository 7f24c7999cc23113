"""Decides when to notify a session that its position is about to leave the oplog: once for each threshold, and again
only if the position was clearly safe in between."""

from collections.abc import Sequence
from typing import Final

REARM_FACTOR: Final = 1.5
"""A threshold is armed again once the headroom exceeds it by this factor, because a forecast fluctuates."""


class HeadroomAlert:
    """The alarm of one session. `thresholds_s` are sorted here, the largest first."""

    __slots__ = ("_passed", "_thresholds_s")

    def __init__(self, thresholds_s: Sequence[float]) -> None:
        self._thresholds_s = tuple(sorted(thresholds_s, reverse=True))
        self._passed = 0
        """How many thresholds the headroom is below."""

    def falls_to(self, headroom_s: float) -> bool:
        """Whether this is news: the headroom has fallen below a threshold that it was above."""
        passed = sum(headroom_s < each for each in self._thresholds_s)
        if passed > self._passed:
            self._passed = passed
            return True
        while self._passed and headroom_s > REARM_FACTOR * self._thresholds_s[self._passed - 1]:
            self._passed -= 1
        return False
