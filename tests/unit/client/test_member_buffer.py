"""A member without its connection: its options, what its two sides tell each other, and what errors of handlers are."""

import pickle
import threading
from typing import Any

import bson
import pytest
from bson.codec_options import CodecOptions

import feedmux
from feedmux.batches import BsonBatch
from feedmux.errors import EndedByOperator, SessionClosed
from feedmux.member_base import check_run, member_options
from feedmux.member_buffer import MemberBuffer
from feedmux.member_event import MemberEvent
from feedmux.notices import Unacknowledged
from feedmux.outcomes import DONE, Failed, Reject, RetryAfter, failed, outcome_of, rejected
from feedmux.positions import NO_POSITION
from feedmux.session_buffer import Ended, QueuedNotice
from tests.tables import over


def buffer_of(events: int) -> MemberBuffer:
    buffer = MemberBuffer(64, lambda _: None, threading.Lock())
    raw = b"".join(bson.encode({"_id": {"n": number}}) for number in range(events))
    batch = BsonBatch(memoryview(raw), events, NO_POSITION, 0, CodecOptions())
    buffer.settlements.arrive(1, batch, [1] * events, [])
    return buffer


def taken(buffer: MemberBuffer) -> MemberEvent:
    event = buffer.take()
    assert isinstance(event, MemberEvent)
    return event


def test_the_connection_is_woken_once_until_it_looks_and_then_if_a_report_cannot_wait() -> None:
    buffer, wakes = buffer_of(4), list[int]()
    buffer.wake = lambda: wakes.append(1)
    for each in (taken(buffer), taken(buffer)):
        buffer.settle(each, DONE)
    assert len(wakes) == 1
    buffer.begin_work(reports_soon=True)
    buffer.settle(taken(buffer), DONE)
    assert len(wakes) == 1
    buffer.settle(taken(buffer), DONE)
    assert len(wakes) == 2, "nothing is left"


def test_the_connection_is_woken_later_if_a_signal_handler_has_raised_before_it_was() -> None:
    """Else a taker would wait for events that the server sends only after the report."""
    buffer, wakes = buffer_of(1), list[int]()

    def raises() -> None:
        raise KeyboardInterrupt

    buffer.wake = raises
    with pytest.raises(KeyboardInterrupt):
        buffer.settle(taken(buffer), DONE)
    buffer.wake = lambda: wakes.append(1)
    assert [buffer.take() for _ in range(2)] == [None, None]
    assert len(wakes) == 1


def test_notices_come_first_and_the_end_last() -> None:
    buffer, notice = buffer_of(1), QueuedNotice(Unacknowledged(1))
    buffer.put(notice)
    buffer.put(Ended(EndedByOperator("ended")))
    assert buffer.take() is notice
    event = taken(buffer)
    ended = buffer.take()
    assert isinstance(ended, Ended)
    assert buffer.take() is ended
    with pytest.raises(SessionClosed):
        buffer.settle(event, DONE)
    buffer.settle_quietly(event, DONE)


def test_notices_of_an_outage_that_nobody_reads_do_not_pile_up() -> None:
    buffer = MemberBuffer(64, lambda _: None, threading.Lock())
    for number in range(100):
        buffer.put(QueuedNotice(Unacknowledged(number)))
    buffer.put(Ended(None))
    assert [buffer.take() for _ in range(2)] == [QueuedNotice(Unacknowledged(99)), Ended(None)]


def test_a_stopped_member_settles_and_hands_out_nothing() -> None:
    buffer = buffer_of(2)
    event = taken(buffer)
    buffer.stop()
    assert buffer.take() == Ended(None)
    assert buffer.settle_and_take(event, DONE) is None
    assert buffer.settlements.unsent == 1


def test_a_member_has_defaults_of_its_own() -> None:
    options = member_options(feedmux.SessionOptions(window_events=7, heartbeat_s=3.0), {})
    assert (options.window_events, options.ack_interval_s, options.heartbeat_s) == (64, 0.02, 3.0)
    assert member_options(feedmux.SessionOptions(), {"window_events": 8}).window_events == 8
    with pytest.raises(ValueError, match="BSON"):
        member_options(feedmux.SessionOptions(), {"format": "extended_json_relaxed"})


@over(
    ("arguments", "error"),
    [
        (("f", 1, None), TypeError),
        ((print, 0, None), ValueError),
        ((print, 1.0, None), TypeError),
        ((print, 1, 0), ValueError),
    ],
)
def test_wrong_arguments(arguments: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        check_run(*arguments, asynchronous=True)


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


class Hostile(Exception):
    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError


class Careless(RetryAfter):
    def __init__(self) -> None:
        pass


class Declined(Reject):
    def __init__(self, outcome: str) -> None:
        super().__init__(outcome)
        self.outcome = self._outcome = outcome  # type: ignore[assignment]


class Busy(RetryAfter):
    outcome = "busy"


@over(
    ("error", "outcome"),
    [
        (ValueError("bad"), Failed(reason="ValueError: bad")),
        (ValueError(), Failed(reason="ValueError")),
        (Unprintable(), Failed(reason="Unprintable")),
        (ValueError("\ud800"), Failed(reason="ValueError: \\ud800")),
        (ValueError("é" * 2000), Failed(reason="ValueError: " + "é" * 506)),
        (RetryAfter(1.5, "later"), Failed(1.5, "later")),
        (pickle.loads(pickle.dumps(RetryAfter(1.5))), Failed(1.5)),
        (pickle.loads(pickle.dumps(RetryAfter(1.5, "later"))), Failed(1.5, "later")),
        (Hostile(), Failed()),
        (Careless(), Failed(reason="Careless")),
        (Reject("never"), Failed(reason="never", reject=True)),
        (Declined("no"), Failed(reason="Declined: no", reject=True)),
        (Busy(1.5), Failed(1.5)),
    ],
)
def test_errors(error: Exception, outcome: Failed) -> None:
    assert outcome_of(error) == outcome


@over(
    ("delay", "error"),
    [("1", TypeError), (True, TypeError), (-1, ValueError), (float("nan"), ValueError), (1e12, ValueError)],
)
def test_wrong_delays(delay: float, error: type[Exception]) -> None:
    with pytest.raises(error):
        failed(delay, "")
    with pytest.raises(TypeError):
        rejected(1)  # type: ignore[arg-type]
