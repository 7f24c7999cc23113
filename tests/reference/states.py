"""The page of states, from the tables in the code: `python -m tests.reference.pages` writes it."""

from collections.abc import Mapping, Set
from enum import StrEnum
from typing import TypeVar

from feedmux_server.core.delivery import session_state, shared_stream
from feedmux_server.core.delivery.session_state import Phase
from feedmux_server.core.delivery.shared_stream import StreamState

S = TypeVar("S", bound=StrEnum)

_STREAM = {
    StreamState.GATHERING: "Subscribers join; the start may still move back. MongoDB has not been asked.",
    StreamState.OPENING: "MongoDB is asked for a cursor.",
    StreamState.READING: "The pump reads, because a subscriber can take more.",
    StreamState.PAUSED: "The cursor is open, but no subscriber can take more.",
    StreamState.IDLE: "The cursor is closed, and the position is retained.",
    StreamState.RECOVERING: "MongoDB has failed; the pump waits before the next attempt.",
    StreamState.ENDED: (
        "Nothing more is read, after an error or because another stream needs the slot. Subscribers read the ring to"
        " its end."
    ),
}
_SESSION = {
    Phase.OPEN: "Events are sent, and heartbeats when there are none.",
    Phase.DRAINING: (
        "The client was asked to reconnect. No more events are sent. The session ends when all events are"
        " acknowledged, or at its deadline."
    ),
    Phase.CLOSING: "The client has asked to close. The acks are made durable, and the stream ends with OK.",
    Phase.FAILED: "The stream ends with an error.",
}


def page(command: str) -> str:
    return "\n".join(
        (
            "# States",
            "",
            f"<!-- written by {command} -->",
            "",
            "The states of the server's streams and sessions, from the tables in its code. The states of a client's",
            "connection are in [the protocol](../protocol.md#a-session).",
            "",
            "## A shared stream",
            "",
            "One read of MongoDB for all subscribers of a feed: `core/delivery/shared_stream.py`.",
            "`core/delivery/stream_steps.py` decides when the state changes, and `streams/pump.py` carries it out.",
            "",
            *_diagram(shared_stream.TRANSITIONS, StreamState.GATHERING, {StreamState.ENDED}),
            "",
            *_table(StreamState, _STREAM),
            "",
            "## A session",
            "",
            "One Subscribe or Watch call: `core/delivery/session_state.py`, carried out by `sessions/session.py`.",
            "",
            *_diagram(session_state.TRANSITIONS, Phase.OPEN, {Phase.DRAINING, Phase.CLOSING, Phase.FAILED}),
            "",
            *_table(Phase, _SESSION),
            "",
        )
    )


def _diagram(table: Mapping[S, Set[S]], first: S, last: Set[S]) -> list[str]:
    arrows = [f"    {begin.value} --> {end.value}" for begin in table for end in type(begin) if end in table[begin]]
    end = [f"    {state.value} --> [*]" for state in type(first) if state in last]
    return ["```mermaid", "stateDiagram-v2", f"    [*] --> {first.value}", *arrows, *end, "```"]


def _table(states: type[S], texts: Mapping[S, str]) -> list[str]:
    return ["| state | meaning |", "|---|---|", *(f"| {state.value} | {texts[state]} |" for state in states)]
