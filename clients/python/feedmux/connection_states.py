"""The states of a session's connection, and one table that says which event leads from one state to another.

The clients in all languages have the same table. `python -m tests.reference.connection` writes the diagram in
docs/protocol.md and the test vectors of the other clients from this one. Pure.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple


class State(Enum):
    """What the connection does now. The values are the names in the diagram."""

    OPENING = "Opening"
    """The first stream is being opened."""
    RETRYING = "Retrying"
    """Waits before the next attempt to open the first stream."""
    OPEN = "Open"
    WAITING = "Waiting"
    """Waits before the next attempt to reopen."""
    REOPENING = "Reopening"
    """Another stream is being opened."""
    LAST_OPENING = "LastOpening"
    """Closed without a stream: one more stream is being opened, only to send the acks."""
    CLOSING = "Closing"
    """Closed with an open stream: the server stores the acks and ends the stream."""
    ENDED = "Ended"


class Event(Enum):
    """What happens to the connection. The values are the words in the diagram."""

    OPENED = "Opened"
    MESSAGE = "message"
    LOST = "lost"
    """The stream ended with an error that passes, or without an error, or was silent for too long."""
    MOVED = "moved"
    """The stream ended because the stored position was moved (seek)."""
    FAILED = "failed"
    """The stream ended with any other error, or the server broke the protocol."""
    TIME_OVER = "time over"
    """The time to open, or to reopen, is over."""
    BACKOFF_OVER = "backoff over"
    CLOSE = "close"
    """Closed by the user. The server has confirmed all acks."""
    CLOSE_WITH_ACKS = "close with acks"
    """Closed by the user, and the server may not have some acks."""
    ABANDON = "abandoned"
    """The time to close is over, or the user dropped the session."""


class Action(Enum):
    """What the client does about the event, apart from the change of its state."""

    NONE = "none"
    """The next stream resumes after the last ack."""
    FORGET = "forget"
    """Forget the unacked events: the next stream begins at the stored position."""
    RAISE = "raise"
    """End the session with the error."""


class Transition(NamedTuple):
    """The next state, and what to do."""

    state: State
    action: Action = Action.NONE


class IllegalTransition(RuntimeError):
    """The event cannot happen in the state: a defect of the client."""


_S, _E = State, Event
_END: Final = Transition(_S.ENDED)
_RAISE: Final = Transition(_S.ENDED, Action.RAISE)

TABLE: Final[Mapping[tuple[State, Event], Transition]] = {
    (_S.OPENING, _E.OPENED): Transition(_S.OPEN),
    (_S.OPENING, _E.LOST): Transition(_S.RETRYING),
    (_S.OPENING, _E.MOVED): Transition(_S.RETRYING, Action.FORGET),
    (_S.OPENING, _E.FAILED): _RAISE,
    (_S.OPENING, _E.TIME_OVER): _RAISE,
    (_S.OPENING, _E.CLOSE): _END,
    (_S.OPENING, _E.ABANDON): _END,
    (_S.RETRYING, _E.BACKOFF_OVER): Transition(_S.OPENING),
    (_S.RETRYING, _E.TIME_OVER): _RAISE,
    (_S.RETRYING, _E.CLOSE): _END,
    (_S.RETRYING, _E.CLOSE_WITH_ACKS): _END,
    (_S.RETRYING, _E.ABANDON): _END,
    (_S.OPEN, _E.MESSAGE): Transition(_S.OPEN),
    (_S.OPEN, _E.LOST): Transition(_S.WAITING),
    (_S.OPEN, _E.MOVED): Transition(_S.WAITING, Action.FORGET),
    (_S.OPEN, _E.FAILED): _RAISE,
    (_S.OPEN, _E.TIME_OVER): _RAISE,  # The timer of the attempt fired just before Opened.
    (_S.OPEN, _E.CLOSE): Transition(_S.CLOSING),
    (_S.OPEN, _E.CLOSE_WITH_ACKS): Transition(_S.CLOSING),
    (_S.OPEN, _E.ABANDON): _END,
    (_S.WAITING, _E.BACKOFF_OVER): Transition(_S.REOPENING),
    (_S.WAITING, _E.TIME_OVER): _RAISE,
    (_S.WAITING, _E.CLOSE): _END,
    (_S.WAITING, _E.CLOSE_WITH_ACKS): Transition(_S.LAST_OPENING),
    (_S.WAITING, _E.ABANDON): _END,
    (_S.REOPENING, _E.OPENED): Transition(_S.OPEN),
    (_S.REOPENING, _E.LOST): Transition(_S.WAITING),
    (_S.REOPENING, _E.MOVED): Transition(_S.WAITING, Action.FORGET),
    (_S.REOPENING, _E.FAILED): _RAISE,
    (_S.REOPENING, _E.TIME_OVER): _RAISE,
    (_S.REOPENING, _E.CLOSE): _END,
    (_S.REOPENING, _E.CLOSE_WITH_ACKS): Transition(_S.LAST_OPENING),
    (_S.REOPENING, _E.ABANDON): _END,
    (_S.LAST_OPENING, _E.OPENED): Transition(_S.CLOSING),
    (_S.LAST_OPENING, _E.LOST): _END,
    (_S.LAST_OPENING, _E.MOVED): _END,
    (_S.LAST_OPENING, _E.FAILED): _END,
    (_S.LAST_OPENING, _E.TIME_OVER): _END,
    (_S.LAST_OPENING, _E.BACKOFF_OVER): Transition(_S.LAST_OPENING),  # Closed during the backoff.
    (_S.LAST_OPENING, _E.CLOSE): _END,
    (_S.LAST_OPENING, _E.CLOSE_WITH_ACKS): Transition(_S.LAST_OPENING),
    (_S.LAST_OPENING, _E.ABANDON): _END,
    (_S.CLOSING, _E.MESSAGE): Transition(_S.CLOSING),
    (_S.CLOSING, _E.LOST): _END,
    (_S.CLOSING, _E.MOVED): _END,
    (_S.CLOSING, _E.FAILED): _END,
    (_S.CLOSING, _E.TIME_OVER): _END,
    (_S.CLOSING, _E.CLOSE): Transition(_S.CLOSING),
    (_S.CLOSING, _E.CLOSE_WITH_ACKS): Transition(_S.CLOSING),
    (_S.CLOSING, _E.ABANDON): _END,
    (_S.ENDED, _E.CLOSE): _END,
    (_S.ENDED, _E.CLOSE_WITH_ACKS): _END,
    (_S.ENDED, _E.ABANDON): _END,
}
"""Any other pair is illegal. A message from the server that is illegal in a state breaks the protocol."""

FIRST_OPENING: Final = frozenset({_S.OPENING, _S.RETRYING})
"""The session has never been open."""
CONNECTING: Final = frozenset({_S.OPENING, _S.REOPENING, _S.LAST_OPENING})
"""A stream has been requested, and the server has not sent Opened."""
WITH_STREAM: Final = frozenset({_S.OPEN, _S.CLOSING})
"""The server has sent Opened."""


def transition(state: State, event: Event) -> Transition:
    """Return what the event leads to. Raises IllegalTransition."""
    try:
        return TABLE[state, event]
    except KeyError:
        raise IllegalTransition(f"{event.name} in the state {state.name}") from None
