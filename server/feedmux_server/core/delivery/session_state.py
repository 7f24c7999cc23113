"""What a session does next: whether it sends events, waits for acks, flushes them, or ends with an error.

Pure; `sessions.session` carries it out. Requests that come too late change nothing: a session that has failed cannot be
closed, and its first error stays.
"""

from enum import StrEnum
from typing import Final

from feedmux_server.core.errors import ErrorReason, FeedmuxError

RECONNECT_S = 0.2
"""The retry delay for a drained client. Its connection is already closing; clients spread their reconnects."""


class Phase(StrEnum):
    OPEN = "open"
    DRAINING = "draining"
    """The client was asked to reconnect, or its feed has ended; it may still acknowledge what it has."""
    CLOSING = "closing"
    """The client has asked to close."""
    FAILED = "failed"


_P = Phase
TRANSITIONS: Final[dict[Phase, frozenset[Phase]]] = {
    _P.OPEN: frozenset({_P.DRAINING, _P.CLOSING, _P.FAILED}),
    _P.DRAINING: frozenset({_P.CLOSING, _P.FAILED}),
    _P.CLOSING: frozenset({_P.FAILED}),
    _P.FAILED: frozenset(),
}


class SessionStep(StrEnum):
    SEND = "send"
    """Send events, and heartbeats when there are none."""
    WAIT = "wait"
    """Send heartbeats, and wait for acks."""
    FLUSH = "flush"
    """Make the acks durable, and then end with `end`."""
    FAIL = "fail"
    """End with `error`."""


STEPS: Final[dict[Phase, SessionStep | None]] = {
    _P.OPEN: SessionStep.SEND,
    _P.DRAINING: None,
    _P.CLOSING: SessionStep.FLUSH,
    _P.FAILED: SessionStep.FAIL,
}
"""The step of each phase; None: see `SessionState.drain_step`."""


class SessionState:
    """The phase of one session."""

    __slots__ = ("_drain_until_s", "_drained_for", "error", "phase", "step")

    _drained_for: FeedmuxError

    def __init__(self) -> None:
        self.phase = Phase.OPEN
        self.step = STEPS[self.phase]
        self.error: FeedmuxError | None = None
        """The error that ends the session, once that is decided."""
        self._drain_until_s = 0.0

    def drain(self, until_s: float, why: str) -> bool:
        """End the session at `until_s` at the latest. Returns whether that changed the phase."""
        return self.end_acked(until_s, FeedmuxError(ErrorReason.DRAINING, why, retry_after_s=RECONNECT_S))

    def end_acked(self, until_s: float, error: FeedmuxError) -> bool:
        """End the session with `error` when the client has acknowledged what it has, and at `until_s` at the latest.
        Returns whether that changed the phase."""
        if not self._move_to(Phase.DRAINING):
            # The server may drain while a session waits for acks after the end of its feed.
            self._drain_until_s = min(self._drain_until_s, until_s)
            return False
        self._drain_until_s, self._drained_for = until_s, error
        return True

    def close(self) -> None:
        self._move_to(Phase.CLOSING)

    def fail(self, error: FeedmuxError) -> bool:
        """End the session with `error` as soon as possible. Returns whether that changed the phase."""
        if not self._move_to(Phase.FAILED):
            return False
        self.error = error
        return True

    def drain_step(self, now_s: float, *, unacked: bool) -> SessionStep:
        """What a session that drains does next. `unacked`: the client has events that it can still acknowledge."""
        return SessionStep.WAIT if unacked and now_s < self._drain_until_s else SessionStep.FLUSH

    def end(self) -> FeedmuxError | None:
        """How the session ends after its acks are flushed: None with OK, as the client has asked."""
        if self.phase is Phase.DRAINING:
            return self._drained_for
        return self.error

    def drain_left_s(self, now_s: float) -> float:
        """The seconds until the session must end; infinite unless it drains."""
        return self._drain_until_s - now_s if self.phase is Phase.DRAINING else float("inf")

    def _move_to(self, phase: Phase) -> bool:
        if phase not in TRANSITIONS[self.phase]:
            return False
        self.phase = phase
        self.step = STEPS[phase]
        return True
