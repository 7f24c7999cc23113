"""Which errors a session survives, and how long it waits before it tries again. Pure: randomness is an argument."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from feedmux.connection_states import Event
from feedmux.errors import FeedmuxError, ProtocolError


class Step(Enum):
    """What a session does about an error."""

    REOPEN = "reopen"
    """Reopen after the last acked event."""
    REOPEN_AT_STORED = "reopen at the stored position"
    """Reopen at the present stored position, and forget the unacked events."""
    RAISE = "raise"
    """End the session with the error: only the user can decide."""


EVENTS: Final[Mapping[Step, Event]] = {
    Step.REOPEN: Event.LOST,
    Step.REOPEN_AT_STORED: Event.MOVED,
    Step.RAISE: Event.FAILED,
}
"""What the end of a stream is to the table of states, by the step that its error asks for."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A step, and the errors that it is for. A field that is None, empty or false matches anything."""

    step: Step
    statuses: frozenset[str] = frozenset()
    reason: str | None = None
    causes: frozenset[str] = frozenset()
    retry_info: bool = False
    """Only errors with RetryInfo."""
    new_token: bool = False
    """Only if the stream was open, and the next stream will be opened with a new token."""
    violation: bool = False
    """Only errors of the client itself: the server broke the protocol."""


RULES: Final = (
    Rule(Step.RAISE, violation=True),
    Rule(Step.REOPEN, frozenset({"UNAUTHENTICATED"}), new_token=True),
    Rule(Step.REOPEN_AT_STORED, reason="FENCED", causes=frozenset({"SEEK"})),
    Rule(Step.REOPEN, reason="FENCED", causes=frozenset({"UPDATE", "LEASE"})),
    Rule(Step.RAISE, reason="FENCED"),
    Rule(Step.REOPEN, reason="GRANTS_CHANGED"),
    Rule(Step.REOPEN, frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED"})),
    # gRPC itself and proxies use these for a broken stream. The server always adds a reason.
    Rule(Step.REOPEN, frozenset({"INTERNAL", "UNKNOWN", "CANCELLED", "ABORTED"}), reason=""),
    Rule(Step.REOPEN, frozenset({"RESOURCE_EXHAUSTED"}), retry_info=True),
    Rule(Step.RAISE),
)
"""The first rule that matches an error decides."""


def next_step(error: FeedmuxError, *, has_other_credentials: bool = False) -> Step:
    """Return what a session does about the error that ended its stream.

    `has_other_credentials`: the stream was open, and the next stream will be opened with a new token.
    """
    return next(rule.step for rule in RULES if _matches(rule, error, has_other_credentials))


def _matches(rule: Rule, error: FeedmuxError, new_token: bool) -> bool:
    return (
        (not rule.statuses or error.status in rule.statuses)
        and (rule.reason is None or error.reason == rule.reason)
        and (not rule.causes or error.metadata.get("cause") in rule.causes)
        and (not rule.retry_info or error.retry_after_s is not None)
        and (not rule.new_token or new_token)
        and (not rule.violation or isinstance(error, ProtocolError))
    )


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
