"""What a session does next in each of its phases, and which requests come too late."""

from collections.abc import Callable

import pytest

from feedmux_server.core.delivery.session_state import TRANSITIONS, Phase, SessionState, SessionStep
from feedmux_server.core.errors import ErrorReason, FeedmuxError

FENCED = FeedmuxError(ErrorReason.FENCED, "fenced")
UNTIL_S = 100.0

REQUESTS: dict[Phase, Callable[[SessionState], object]] = {
    Phase.OPEN: lambda state: None,
    Phase.DRAINING: lambda state: state.drain(UNTIL_S, "reconnect"),
    Phase.CLOSING: lambda state: state.close(),
    Phase.FAILED: lambda state: state.fail(FENCED),
}


def in_phase(phase: Phase) -> SessionState:
    state = SessionState()
    REQUESTS[phase](state)
    assert state.phase is phase
    return state


LATE = {(Phase.CLOSING, Phase.DRAINING), (Phase.FAILED, Phase.DRAINING), (Phase.FAILED, Phase.CLOSING)}


@pytest.mark.parametrize("asked", [Phase.DRAINING, Phase.CLOSING, Phase.FAILED])
@pytest.mark.parametrize("phase", Phase)
def test_a_request_that_comes_too_late_changes_nothing(phase: Phase, asked: Phase) -> None:
    state = in_phase(phase)
    REQUESTS[asked](state)
    assert state.phase is (phase if (phase, asked) in LATE else asked)
    assert phase is asked or (asked in TRANSITIONS[phase]) != ((phase, asked) in LATE)


def test_a_drain_waits_for_acks_until_its_deadline() -> None:
    state = in_phase(Phase.DRAINING)
    assert state.step is None
    assert state.drain_step(UNTIL_S - 1, unacked=True) is SessionStep.WAIT
    assert state.drain_step(UNTIL_S - 1, unacked=False) is SessionStep.FLUSH
    assert state.drain_step(UNTIL_S, unacked=True) is SessionStep.FLUSH
    assert state.drain_left_s(UNTIL_S - 1) == 1.0
    assert in_phase(Phase.OPEN).drain_left_s(UNTIL_S) == float("inf")


def test_the_first_drain_and_the_first_error_stay() -> None:
    state = in_phase(Phase.DRAINING)
    assert not state.drain(UNTIL_S + 5, "again")
    assert state.drain_left_s(UNTIL_S) == 0.0
    assert state.fail(FENCED)
    assert not state.fail(FeedmuxError(ErrorReason.INTERNAL, "later"))
    assert state.error is FENCED


def test_a_session_ends_with_ok_only_if_its_client_has_closed_it() -> None:
    assert in_phase(Phase.CLOSING).end() is None
    draining = in_phase(Phase.DRAINING).end()
    assert draining is not None
    assert (draining.reason, draining.message) == (ErrorReason.DRAINING, "reconnect")
    state = in_phase(Phase.CLOSING)
    state.fail(FENCED)
    assert state.end() is FENCED
