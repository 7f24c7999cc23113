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
    """`apply` breaks the client; the scenario `caught_by` fails with a message like `saying`."""

    apply: Callable[[], None]
    caught_by: str
    saying: str


def _repeat_after_reconnect() -> None:
    begin = DeliveryTracker.begin

    def forgetful(self: DeliveryTracker, *arguments: Any) -> None:
        begin(self, *arguments)
        self._repeats.clear()

    DeliveryTracker.begin = forgetful  # type: ignore[method-assign, assignment]


def _ack_with_old_sequences() -> None:
    DeliveryTracker.acked_sequence = lambda self, acked: acked  # type: ignore[method-assign]


def _never_refill() -> None:
    CreditWindow._due = lambda self, *_: None  # type: ignore[method-assign]


def _refill_unasked() -> None:
    CreditWindow.refill = lambda self, *_: Grant(1000, 1 << 30)  # type: ignore[method-assign]


def _count_no_credit() -> None:
    CreditWindow.receive = lambda self, *_: None  # type: ignore[method-assign]


def _retry_everything() -> None:
    _decide(lambda *_, **__: Step.REOPEN)


def _retry_nothing() -> None:
    _decide(lambda *_, **__: Step.RAISE)


def _decide(how: Callable[..., Step]) -> None:
    recovery.next_step = how
    stream_keeper.next_step = how  # type: ignore[attr-defined]


def _hurry() -> None:
    recovery.Backoff.next_s = lambda self, at_least_s=None: 0.0  # type: ignore[method-assign]


def _never_watch() -> None:
    Connection._watch = lambda *_: None  # type: ignore[method-assign]


def _hear_no_heartbeats() -> None:
    silence_detector.SilenceDetector.heard = lambda self: None  # type: ignore[method-assign]


def _keep_fragments() -> None:
    Reader.reset = lambda self: None  # type: ignore[method-assign]


def _close_without_acks() -> None:
    outgoing = Connection._outgoing

    def without(self: Connection) -> list[bytes]:
        closing = self._buffer.closing
        return [message for message in outgoing(self) if not closing or message == requests.CLOSE]

    Connection._outgoing = without  # type: ignore[method-assign]


def _forget_the_reason() -> None:
    status.make_error = lambda code, message, *_: make_error(code, message)  # type: ignore[attr-defined]


def _say_nothing() -> None:
    Connection._rewind = lambda self, rewound: self._forget_received()  # type: ignore[method-assign]


def _copy_tokens_as_text() -> None:
    batches.json_event_id = lambda text: bson.encode(json.loads(text)["_id"])  # type: ignore[attr-defined]


def _count_characters() -> None:
    batches._utf8_len = len  # type: ignore[assignment]


def _stay_on_the_channel() -> None:
    transport._Channel.leave = lambda self: None  # type: ignore[method-assign]


def _tell_less_than_was_acked() -> None:
    acked_position = DeliveryTracker.acked_position
    DeliveryTracker.acked_position = lambda self, acked: acked_position(self, max(0, acked - 1))  # type: ignore[method-assign]


def _take_over_again() -> None:
    open_request = Connection._open_request

    def again(self: Connection) -> bytes:
        message = change_feed_pb2.SubscribeRequest.FromString(open_request(self))
        message.open.takeover = self._opening.takeover
        return message.SerializeToString()

    Connection._open_request = again  # type: ignore[method-assign]


MUTANTS = {
    "hands out again after a reconnect": Mutant(
        _repeat_after_reconnect, "reconnecting-acks-are-mapped-to-the-new-session", "events are"
    ),
    "acks with the old session's sequences": Mutant(
        _ack_with_old_sequences, "reconnecting-acks-are-mapped-to-the-new-session", "acked"
    ),
    "grants nothing more": Mutant(_never_refill, "credit-a-window-of-events", "not enough"),
    "grants what was not taken": Mutant(_refill_unasked, "credit-a-window-of-events", "granted"),
    "takes more than it granted": Mutant(_count_no_credit, "protocol_violations-credit-exceeded", "step"),
    "retries everything": Mutant(_retry_everything, "errors-final-while-open", "not error"),
    "retries nothing": Mutant(_retry_nothing, "errors-retried-while-open", "not enough"),
    "does not wait as long as it is told": Mutant(_hurry, "reconnecting-not-before-the-server-says", "only .* s after"),
    "waits endlessly for a silent server": Mutant(_never_watch, "reconnecting-a-silent-server", "not enough"),
    "leaves a server that sends heartbeats": Mutant(
        _hear_no_heartbeats, "reconnecting-heartbeats-hold-a-session", "only .* s after the last heartbeat"
    ),
    "hammers a server that is not there": Mutant(
        _hurry, "reconnecting-an-absent-server-is-not-hammered", "15 calls in"
    ),
    "hammers a server that ends its sessions": Mutant(
        _hurry, "reconnecting-a-flapping-server-is-not-hammered", "15 calls in"
    ),
    "puts fragments of two streams together": Mutant(_keep_fragments, "fragments-cut-between-fragments", "not enough"),
    "closes without its acks": Mutant(_close_without_acks, "basics-close-flushes-acks", "events are"),
    "forgets the reason": Mutant(_forget_the_reason, "errors-final-while-opening", "type is|reason is"),
    "gives tokens back as they stand in the text": Mutant(
        _copy_tokens_as_text, "tokens-numbers-of-every-type", "not the resume token"
    ),
    "counts characters instead of bytes": Mutant(_count_characters, "credit-large-texts", "not enough"),
    "opens again on a silent connection": Mutant(
        _stay_on_the_channel, "reconnecting-a-stream-in-order-stays", "1 connections|not enough"
    ),
    "keeps a rewind to itself": Mutant(_say_nothing, "notices-rewound-without-a-notice", "rewound|not enough"),
    "tells less than was acked": Mutant(
        _tell_less_than_was_acked, "reconnecting-acks-are-mapped-to-the-new-session", "last_acked is"
    ),
    "takes over again": Mutant(
        _take_over_again, "reconnecting-the-route-and-the-takeover", "takeover is True, not False"
    ),
}

if __name__ == "__main__":
    MUTANTS[sys.argv[1]].apply()
    asyncio.run(python_runner.run())
