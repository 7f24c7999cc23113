"""The table of connection states."""

import pytest

from feedmux.connection_states import (
    CONNECTING,
    FIRST_OPENING,
    TABLE,
    WITH_STREAM,
    Action,
    Event,
    IllegalTransition,
    State,
    transition,
)

_S, _E = State, Event


def test_an_illegal_transition_raises() -> None:
    with pytest.raises(IllegalTransition, match="BACKOFF_OVER in the state OPEN"):
        transition(_S.OPEN, _E.BACKOFF_OVER)


def test_every_state_can_be_reached_and_abandoned() -> None:
    reached = {_S.OPENING}
    while more := {after.state for (state, _), after in TABLE.items() if state in reached} - reached:
        reached |= more
    assert reached == set(_S)
    assert {transition(state, _E.ABANDON) for state in _S} == {(_S.ENDED, Action.NONE)}


def test_an_ended_session_stays_so() -> None:
    assert {after.state for (state, _), after in TABLE.items() if state is _S.ENDED} == {_S.ENDED}


def test_only_a_session_that_is_not_closed_ends_with_an_error() -> None:
    raising = {state for (state, _), after in TABLE.items() if after.action is Action.RAISE}
    assert raising == set(_S) - {_S.LAST_OPENING, _S.CLOSING, _S.ENDED}


def test_messages_come_on_open_streams_and_opened_on_the_others() -> None:
    assert {state for state, event in TABLE if event is _E.MESSAGE} == WITH_STREAM
    assert {state for state, event in TABLE if event is _E.OPENED} == CONNECTING
    assert {transition(state, _E.OPENED).state for state in CONNECTING} == WITH_STREAM


def test_a_session_that_was_open_does_not_return_to_its_first_opening() -> None:
    for (state, _), after in TABLE.items():
        assert state in FIRST_OPENING or after.state not in FIRST_OPENING
