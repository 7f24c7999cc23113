"""Python clients with one defect each, to check that the scenarios detect it. `python -m …mutants NAME` runs one."""

import asyncio
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import bson

from feedmux import batches, recovery, requests, silence_detector, status, stream_keeper, transport
from feedmux.connection import Connection
from feedmux.delivery_tracker import DeliveryTracker
from feedmux.errors import make_error
from feedmux.recovery import Step
from feedmux.responses import Reader
from feedmux.v1 import change_feed_pb2
from feedmux.window import CreditWindow, Grant
from tests.conformance.clients import python_runner


@dataclass(frozen=True, slots=True)
class Mutant:
    """`new` in the place of `name` breaks the client; the scenario `caught_by` fails with a message like `saying`."""

    of: Any
    name: str
    new: Callable[..., Any]
    caught_by: str
    saying: str

    def apply(self) -> None:
        setattr(self.of, self.name, self.new)


_begin, _outgoing, _open_request = DeliveryTracker.begin, Connection._outgoing, Connection._open_request
_acked_position = DeliveryTracker.acked_position


def _repeat(self: DeliveryTracker, *arguments: Any) -> None:
    _begin(self, *arguments)
    self._repeats.clear()


def _without_acks(self: Connection) -> list[bytes]:
    closing = self._buffer.closing
    return [message for message in _outgoing(self) if not closing or message == requests.CLOSE]


def _taking_over(self: Connection) -> bytes:
    message = change_feed_pb2.SubscribeRequest.FromString(_open_request(self))
    message.open.takeover = self._opening.takeover
    return message.SerializeToString()


def _at_once(self: recovery.Backoff, at_least_s: float | None = None) -> float:
    return 0.0


_OTHER_SESSION = "reconnecting-acks-are-mapped-to-the-new-session"

MUTANTS = {
    "hands out again after a reconnect": Mutant(DeliveryTracker, "begin", _repeat, _OTHER_SESSION, "events are"),
    "acks with the old session's sequences": Mutant(
        DeliveryTracker, "acked_sequence", lambda self, acked: acked, _OTHER_SESSION, "acked"
    ),
    "grants nothing more": Mutant(
        CreditWindow, "_due", lambda self, *_: None, "credit-a-window-of-events", "not enough"
    ),
    "grants what was not taken": Mutant(
        CreditWindow, "refill", lambda self, *_: Grant(1000, 1 << 30), "credit-a-window-of-events", "granted"
    ),
    "takes more than it granted": Mutant(
        CreditWindow, "receive", lambda self, *_: None, "protocol_violations-credit-exceeded", "step"
    ),
    "retries everything": Mutant(
        stream_keeper, "next_step", lambda *_, **__: Step.REOPEN, "errors-final-while-open", "not error"
    ),
    "retries nothing": Mutant(
        stream_keeper, "next_step", lambda *_, **__: Step.RAISE, "errors-retried-while-open", "not enough"
    ),
    "does not wait as long as it is told": Mutant(
        recovery.Backoff, "next_s", _at_once, "reconnecting-not-before-the-server-says", "only .* s after"
    ),
    "waits endlessly for a silent server": Mutant(
        Connection, "_watch", lambda *_: None, "reconnecting-a-silent-server", "not enough"
    ),
    "leaves a server that sends heartbeats": Mutant(
        silence_detector.SilenceDetector,
        "heard",
        lambda self: None,
        "reconnecting-heartbeats-hold-a-session",
        "only .* s after the last heartbeat",
    ),
    "hammers a server that is not there": Mutant(
        recovery.Backoff, "next_s", _at_once, "reconnecting-an-absent-server-is-not-hammered", "15 calls in"
    ),
    "hammers a server that ends its sessions": Mutant(
        recovery.Backoff, "next_s", _at_once, "reconnecting-a-flapping-server-is-not-hammered", "15 calls in"
    ),
    "puts fragments of two streams together": Mutant(
        Reader, "reset", lambda self: None, "fragments-cut-between-fragments", "not enough"
    ),
    "closes without its acks": Mutant(
        Connection, "_outgoing", _without_acks, "basics-close-flushes-acks", "events are"
    ),
    "forgets the reason": Mutant(
        status,
        "make_error",
        lambda code, message, *_: make_error(code, message),
        "errors-final-while-opening",
        "type is|reason is",
    ),
    "gives tokens back as they stand in the text": Mutant(
        batches,
        "json_event_id",
        lambda text: bson.encode(json.loads(text)["_id"]),
        "tokens-numbers-of-every-type",
        "not the resume token",
    ),
    "counts characters instead of bytes": Mutant(batches, "_utf8_len", len, "credit-large-texts", "not enough"),
    "opens again on a silent connection": Mutant(
        transport._Channel,
        "leave",
        lambda self: None,
        "reconnecting-a-stream-in-order-stays",
        "1 connections|not enough",
    ),
    "keeps a rewind to itself": Mutant(
        Connection,
        "_rewind",
        lambda self, rewound: self._forget_received(),
        "notices-rewound-without-a-notice",
        "rewound|not enough",
    ),
    "tells less than was acked": Mutant(
        DeliveryTracker,
        "acked_position",
        lambda self, acked: _acked_position(self, max(0, acked - 1)),
        _OTHER_SESSION,
        "last_acked is",
    ),
    "takes over again": Mutant(
        Connection,
        "_open_request",
        _taking_over,
        "reconnecting-the-route-and-the-takeover",
        "takeover is True, not False",
    ),
}

if __name__ == "__main__":
    MUTANTS[sys.argv[1]].apply()
    asyncio.run(python_runner.run())
