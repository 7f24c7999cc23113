"""What the user's side of a session acknowledges, and when it wakes the connection."""

import threading
from typing import Any

import pytest
from bson.codec_options import CodecOptions

from feedmux.batches import BsonBatch, Event
from feedmux.errors import Unavailable
from feedmux.feeds import SnapshotStatus
from feedmux.notices import Degraded, Disconnected, Draining, Gap, Notice, SnapshotComplete, SnapshotProgress
from feedmux.positions import NO_POSITION, FeedPosition
from feedmux.session_base import SessionBase
from feedmux.session_buffer import NEVER, Item, QueuedNotice, SessionBuffer
from tests.unit.client.scripted_server import event, token


class Recorded:
    """A session without a connection, which counts how often it is woken."""

    def __init__(self) -> None:
        self.woken = 0
        self.buffer = SessionBuffer(lambda _: None, list)
        self.buffer.wake = self._wake
        self.session = SessionBase(self.buffer, None)
        self._sequence = 1

    def take(self, *numbers: int, whole: bool = False) -> BsonBatch:
        """The next batch, which the user takes."""
        made = BsonBatch(
            memoryview(b"".join(map(event, numbers))),
            len(numbers),
            FeedPosition(b"P%d" % numbers[-1]),
            0,
            CodecOptions(),
        )
        made.first_sequence = self._sequence
        self._sequence += len(numbers)
        self.session._take(made)
        if whole:
            self.session._rest([])
        return made

    def event(self) -> Event:
        """The next event, which the user takes."""
        batch, untaken = self.session._current
        taken = self.session._last = Event(batch, next(untaken))
        return taken

    def _wake(self) -> None:
        self.woken += 1


def test_an_ack_counts_up_to_what_it_names_and_never_goes_back() -> None:
    recorded = Recorded()
    session, buffer = recorded.session, recorded.buffer
    session.ack()
    assert buffer.acked == 0
    one, two = recorded.take(1, 2)
    session.ack(two)
    session.ack(one)
    assert buffer.acked == 2
    batch = recorded.take(3, 4, 5, whole=True)
    session.ack()
    assert buffer.acked == 5
    session.ack(batch)
    recorded.take(6)
    for wrong in (5, None):
        with pytest.raises(TypeError, match="an event or a batch, not"):
            session.ack(wrong)  # type: ignore[arg-type]
    assert buffer.acked == 5
    with pytest.raises(ValueError, match="belongs to another session"):
        Recorded().session.ack(one)


def test_it_wakes_the_connection_once_for_each_threshold() -> None:
    recorded = Recorded()
    recorded.buffer.alarm, recorded.buffer.refill_events_at = 3, 4
    events = list(recorded.take(1, 2, 3))
    recorded.session.ack(events[1])
    assert recorded.woken == 0
    recorded.session.ack(events[2])
    assert (recorded.woken, recorded.buffer.alarm) == (1, NEVER)
    recorded.take(4)
    assert (recorded.woken, recorded.buffer.refill_events_at) == (2, NEVER)
    recorded.session.ack()
    recorded.take(5)
    assert recorded.woken == 2


def test_the_position_is_that_of_the_last_batch_that_was_taken_whole() -> None:
    recorded = Recorded()
    session = recorded.session
    recorded.buffer.opened = 0, FeedPosition(b"P0")
    recorded.take(1, 2)
    assert session.position == b"P0"
    for _ in range(2):
        recorded.event()
    assert session.position == b"P2"
    recorded.take(3, 4)
    assert session.position == b"P2"
    # A position without events counts once everything before it has been delivered.
    recorded.buffer.latest = 4, FeedPosition(b"P9")
    assert session.position == b"P2"
    recorded.take(5, whole=True)
    assert session.position == b"P5"


def test_what_is_withdrawn_is_not_delivered_and_holds_up_no_position() -> None:
    recorded = Recorded()
    session, buffer = recorded.session, recorded.buffer
    buffer.opened = 0, FeedPosition(b"P0")
    recorded.take(1, 2, 3)
    recorded.event()
    buffer.withdraw(6)
    assert (list(session._current[1]), session._rest([]), session.position) == ([], None, b"P0")
    buffer.opened = buffer.latest = 6, FeedPosition(b"P10")
    assert (session.position, session.resume_token) == (b"P10", None)
    # A batch that was on its way to the user when the others were withdrawn.
    recorded.take(4, 5, 6)
    assert (list(session._current[1]), session._rest([]), session.position) == ([], None, b"P10")
    recorded.take(11, 12)
    recorded.event()
    assert (session.position, session.resume_token) == (b"P10", token(11))


def test_no_position_is_after_the_end_of_a_copy_that_was_not_handed_out() -> None:
    recorded = Recorded()
    session, buffer = recorded.session, recorded.buffer
    buffer.opened = 0, FeedPosition(b"P0")
    recorded.take(1, 2, whole=True)
    # Of a copy that began in the session and has no documents: what says that it is under way waits, too.
    begins, end = SnapshotProgress(SnapshotStatus(True, 0, generation=7)), SnapshotComplete(documents=0, generation=7)
    buffer.completion = end
    buffer.latest = 2, FeedPosition(b"P9")
    assert (session.copying, session.position) == (None, b"P2")
    session._say(begins)
    assert session.position == b"P2"
    buffer.completion = again = SnapshotComplete(documents=0, generation=7)
    session._say(end)
    assert session.position == b"P2"
    session._say(again)
    assert (session.copying, session.position) == (None, b"P9")


def test_acks_of_several_threads_never_go_back() -> None:
    class Slow(SessionBuffer):
        """Lets another thread ack between a look at what is acked and the change of it."""

        __slots__ = ()

        def __setattr__(self, name: str, value: Any) -> None:
            if name == "acked" and value == 1:
                higher.start()
                higher.join(0.1)  # With the lock it can only end later.
            super().__setattr__(name, value)

    buffer = Slow(lambda _: None, list)
    session_base = SessionBase(buffer, None)
    whole = BsonBatch(memoryview(event(1) + event(2)), 2, NO_POSITION, 0, CodecOptions())
    whole.first_sequence = 1
    whole._owner = buffer
    one, two = whole
    higher = threading.Thread(target=session_base.ack, args=(two,), daemon=True)
    session_base.ack(one)
    higher.join()
    assert buffer.acked == 2


def test_notices_of_an_outage_that_nobody_reads_do_not_pile_up() -> None:
    items = list[Item]()

    def drain() -> list[Item]:
        drained = items.copy()
        items.clear()
        return drained

    buffer = SessionBuffer(items.append, drain)
    first, last = (Disconnected(Unavailable(text, status="UNAVAILABLE"), 1.0) for text in ("first", "last"))
    batch, gap = Recorded().take(1), Gap((2, 1), (1, 1), "TIMELINE_FORKED")
    buffer.tell(first)
    buffer.put(batch)
    for _ in range(100):
        told: list[Notice] = [first, Degraded("source", True), gap, Degraded("source", False), Draining(1.0, b"")]
        for each in (*told, last):
            buffer.tell(each)
    shown = [item.notice if isinstance(item, QueuedNotice) else item for item in items]
    assert [each for each in shown if each is not gap] == [first, batch, *told[1:2], *told[3:], last]
    assert shown.count(gap) == 100
