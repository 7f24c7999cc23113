"""Measures how long a server has been silent, counting only time in which this process could have received a message.

Pure: time is an argument.
"""

INTERVALS_MAX = 3
_TICKS_PER_INTERVAL = 10


class SilenceDetector:
    """The silence of one stream. Its owner calls `tick` every `tick_s` seconds and `heard` at every message.

    A late tick, because the event loop was blocked or the process stopped, counts as two at most: messages that arrived
    meanwhile have not been read yet.
    """

    def __init__(self, interval_s: float, now_s: float) -> None:
        self._interval_s = interval_s
        self._ticked_s = now_s
        self._silent_s = 0.0
        self._heard = False

    @property
    def tick_s(self) -> float:
        """Seconds between two ticks."""
        return self._interval_s / _TICKS_PER_INTERVAL

    @property
    def most_s(self) -> float:
        """The silence in seconds that is too long."""
        return INTERVALS_MAX * self._interval_s

    def heard(self) -> None:
        """Record a message: silence counts from the next tick."""
        self._heard = True

    def allow(self, interval_s: float) -> None:
        """Set the interval at which the server sends at least one message. The next tick is due in the new `tick_s`."""
        self._interval_s = interval_s
        self._heard = True

    def tick(self, now_s: float) -> bool:
        """Return whether the server has been silent for three intervals."""
        passed_s = min(now_s - self._ticked_s, 2 * self.tick_s)
        self._silent_s = 0.0 if self._heard else self._silent_s + passed_s
        self._ticked_s, self._heard = now_s, False
        return self._silent_s >= self.most_s
