"""Which errors a session survives, and how long it waits before it tries again. Pure: randomness is an argument."""

from collections.abc import Callable
from enum import Enum

from feedmux.errors import FeedmuxError, Fenced, ProtocolError, Unauthenticated

_TRANSPORT = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED"})
_TRANSPORT_WITHOUT_REASON = frozenset({"INTERNAL", "UNKNOWN", "CANCELLED", "ABORTED"})
"""The statuses of a broken stream from gRPC itself and from proxies, without a reason. The server always adds one."""


class Step(Enum):
    """What a session does about an error."""

    REOPEN = "reopen"
    """Reopen after the last acked event."""
    REOPEN_AT_STORED = "reopen at the stored position"
    """Reopen at the present stored position, and forget the unacked events."""
    RAISE = "raise"
    """End the session with the error: only the user can decide."""


_FENCED = {"SEEK": Step.REOPEN_AT_STORED, "UPDATE": Step.REOPEN, "LEASE": Step.REOPEN}


def next_step(error: FeedmuxError, *, has_other_credentials: bool = False) -> Step:
    """Return what a session does about the error that ended its stream.

    `has_other_credentials`: the stream was open, and the next stream will be opened with a new token.
    """
    if isinstance(error, Unauthenticated) and has_other_credentials:
        return Step.REOPEN
    if isinstance(error, ProtocolError):
        return Step.RAISE
    if isinstance(error, Fenced):
        return _FENCED.get(error.metadata.get("cause", ""), Step.RAISE)
    if error.status in _TRANSPORT or error.reason == "GRANTS_CHANGED":
        return Step.REOPEN
    if error.status in _TRANSPORT_WITHOUT_REASON and not error.reason:
        return Step.REOPEN
    if error.status == "RESOURCE_EXHAUSTED" and error.retry_after_s is not None:
        return Step.REOPEN
    return Step.RAISE


class Backoff:
    """Exponential backoff with full jitter: a delay is anywhere between 0 and a bound that doubles.

    `random` returns a number in [0, 1).
    """

    def __init__(self, first_s: float, most_s: float, random: Callable[[], float]) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self._random = random
        self._bound_s = first_s

    def next_s(self, at_least_s: float | None = None) -> float:
        """Return the seconds to wait now; never less than the server requested."""
        delay_s = (at_least_s or 0.0) + self._random() * self._bound_s
        self._bound_s = min(self._most_s, self._bound_s * 2)
        return delay_s

    def reset(self) -> None:
        """Begin with small delays again, because the connection is stable."""
        self._bound_s = self._first_s

    def lived(self, duration_s: float) -> None:
        """Record the end of a stream. A stream that lasted longer than the largest bound resets the delays."""
        if duration_s > self._most_s:
            self.reset()
