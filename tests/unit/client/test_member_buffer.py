"""What a member's two sides tell each other."""

import threading

import bson
import pytest
from bson.codec_options import CodecOptions

from feedmux.batches import BsonBatch
from feedmux.errors import EndedByOperator, SessionClosed
from feedmux.member_buffer import MemberBuffer
from feedmux.member_event import MemberEvent
from feedmux.notices import Unacknowledged
from feedmux.outcomes import DONE
from feedmux.positions import NO_POSITION
from feedmux.session_buffer import Ended, QueuedNotice


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


def test_the_connection_is_woken_once_until_it_looks() -> None:
    buffer, wakes = buffer_of(3), list[int]()
    buffer.wake = lambda: wakes.append(1)
    for each in (taken(buffer), taken(buffer)):
        buffer.settle(each, DONE)
    assert len(wakes) == 1
    buffer.begin_work()
    buffer.settle(taken(buffer), DONE)
    assert len(wakes) == 2


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


def test_a_stopped_member_settles_and_hands_out_nothing() -> None:
    buffer = buffer_of(2)
    event = taken(buffer)
    buffer.stop()
    assert buffer.take() == Ended(None)
    assert buffer.settle_and_take(event, DONE) is None
    assert buffer.settlements.unsent == 1
