"""The stream's states, when its pump should read, and which subscribers it wakes."""

import pytest

from feedmux_server.core.delivery.replay_buffer import RingLimits
from feedmux_server.core.delivery.shared_stream import TRANSITIONS, SharedStream, StreamState
from feedmux_server.core.errors import ErrorReason
from tests.unit.core.delivery.streams_support import Feed, behind, error, fill, mark, native, numbers


@pytest.mark.parametrize("state", StreamState)
@pytest.mark.parametrize("to", StreamState)
def test_transitions(state: StreamState, to: StreamState) -> None:
    stream = SharedStream(1, behind(0), RingLimits(), 1)
    stream.state = state
    if to in TRANSITIONS[state]:
        stream.move_to(to)
        assert stream.state is to
    else:
        with pytest.raises(RuntimeError, match="cannot go from"):
            stream.move_to(to)


def test_the_start_moves_back_only_while_opens_are_gathered() -> None:
    stream = SharedStream(1, behind(5), RingLimits(), 1)
    stream.lower_start(behind(2))
    assert stream.origin == behind(2)
    assert (stream.ring.oldest, stream.ring.newest) == (mark(2), mark(2))
    stream.move_to(StreamState.OPENING)
    with pytest.raises(RuntimeError):
        stream.lower_start(behind(1))


def test_a_native_start_is_joinable_once_an_event_has_come() -> None:
    stream = SharedStream(1, native(5), RingLimits(), 1)
    joinable = [stream.joinable]
    fill(stream, 6, 6)
    joinable.append(stream.joinable)
    stream.end(error())
    joinable.append(stream.joinable)
    assert joinable == [False, True, False]


def test_reads_while_someone_near_the_head_can_take() -> None:
    feed = Feed(read_ahead_bytes=2000)
    fast, slow = feed.subscriber(behind(0)), feed.subscriber(behind(0), events=0)
    stream = feed.stream_of(fast)
    assert stream.wants_more()
    fill(stream, 1, 1)
    assert stream.wants_more(), "the unread events are fewer than the read-ahead"
    fill(stream, 2, 40, chunk_events=1)
    assert not stream.wants_more()
    feed.take(fast)
    assert stream.wants_more()
    usable = [stream.has_usable_credit]
    feed.streams.leave(fast)
    assert not stream.wants_more()
    assert [*usable, stream.has_usable_credit] == [True, False]
    feed.grant(slow, 1, 1)
    assert not stream.wants_more(), "this subscriber has the ring to read first"


def test_reads_no_further_than_the_ring_keeps_for_one_who_reads_slowly() -> None:
    """Otherwise the events that it has yet to take are dropped, and are read from MongoDB again."""
    feed = Feed(events_max=10)
    slow = feed.subscriber(behind(0), events=4)
    stream = feed.stream_of(slow)
    fill(stream, 1, 4)
    assert stream.wants_more()
    fill(stream, 5, 6)
    assert not stream.wants_more(), "half of the ring is to be taken first"
    assert numbers(feed.take(slow)) == [1, 2, 3, 4]
    feed.grant(slow, 4, 1 << 20)
    assert stream.wants_more()


def test_the_pump_is_told_of_credit_acks_and_comings() -> None:
    feed = Feed()
    first = feed.subscriber(behind(0), events=1, acks_max=1)
    stream = feed.stream_of(first)
    told: list[str] = []
    stream.demand_changed = lambda: told.append("")

    def was_told() -> bool:
        heard = bool(told)
        told.clear()
        return heard

    second = feed.subscriber(behind(0), events=0)
    assert was_told()
    feed.grant(second, 1, 1)
    assert was_told()
    fill(stream, 1, 2)
    assert not was_told()
    feed.take(first)
    assert was_told()
    feed.grant(first, 5, 1000)
    assert not was_told(), "the bound on unacked events stops it"
    feed.ack(first, 1)
    assert was_told()
    feed.streams.leave(second)
    assert was_told()


def test_the_end_wakes_everyone() -> None:
    feed = Feed()
    taker, poor = feed.subscriber(behind(0)), feed.subscriber(behind(0), events=0)
    stream = feed.stream_of(taker)
    stream.end(error(ErrorReason.FEED_INVALIDATED))
    assert feed.woken == [taker.id, poor.id]
    assert stream.state is StreamState.ENDED
    assert stream.invalidated


def test_a_batch_stays_while_somebody_is_yet_to_take_of_it() -> None:
    """Otherwise a subscriber whose events are being rendered would come back for them again and again."""
    feed = Feed(events_max=5)
    waits = feed.subscriber(behind(0))
    fill(feed.stream_of(waits), 1, 2)
    fill(feed.stream_of(waits), 3, 10)
    assert numbers(feed.take(waits)) == list(range(1, 11))


def test_a_batch_does_not_stay_for_those_who_were_late_before() -> None:
    feed = Feed(events_max=5)
    late, reads = feed.subscriber(behind(0)), feed.subscriber(behind(0))
    stream = feed.stream_of(late)
    for first in (1, 3, 11):
        fill(stream, first, first + 7 if first > 1 else 2)
        assert numbers(feed.take(reads))
    assert late.seq < stream.ring.first_seq


def test_a_batch_stays_for_one_whose_credit_is_used_up_meanwhile() -> None:
    """Its client grants more credit as soon as it has received what was sent."""
    feed = Feed(events_max=5)
    small = feed.subscriber(behind(0), events=1)
    reads = feed.subscriber(behind(0))
    stream = feed.stream_of(reads)
    fill(stream, 1, 2)
    assert numbers(feed.take(reads)) == [1, 2]
    assert numbers(feed.take(small)) == [1]
    fill(stream, 3, 10)
    feed.grant(small, 20, 1 << 20)
    assert numbers(feed.take(small)) == [2, *range(3, 11)]


def test_the_oldest_chunk_is_awaited_by_those_who_could_take_it() -> None:
    """Memory that others need comes first from rings in which no subscriber waits for an event."""
    feed = Feed()
    waits = feed.subscriber(behind(0))
    feed.subscriber(behind(0), events=0)
    stream = feed.stream_of(waits)
    awaited = list[bool]()
    fill(stream, 1, 2)
    awaited.append(stream.ring.unawaited() <= 0)
    fill(stream, 3, 10)
    awaited.append(stream.ring.unawaited() <= 0)
    fill(stream, 11, 12)
    awaited.append(stream.ring.unawaited() <= 0)
    assert awaited == [True, True, False], "one batch, two batches, and then the subscriber is late"
    stream.detach(waits)
    assert stream.ring.unawaited() > 0


def test_a_closed_ring_is_awaited_by_nobody() -> None:
    feed = Feed()
    stream = feed.stream_of(feed.subscriber(behind(0)))
    fill(stream, 1, 2)
    stream.ring.close()
    assert stream.ring.unawaited() > 0
