"""What a subscriber takes: message size, formats, ends, progress. The simulation shows credit and bounds."""

from itertools import accumulate

import pytest

from feedmux_server.core.delivery.subscriber import CHUNKS_MAX
from feedmux_server.core.delivery.taken import Delivery, Ended, NeedsRender
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.events.chunk import Rendition
from feedmux_server.core.positions.join_point import JoinPoint
from feedmux_server.core.positions.resume_token import Copied
from tests.tables import over
from tests.unit.core.delivery.streams_support import (
    EVENT_BYTES,
    Feed,
    behind,
    error,
    fill,
    mark,
    native,
    numbers,
    opened,
    token,
)


def test_a_whole_chunk_is_shared_not_copied() -> None:
    feed = Feed()
    one, other = feed.subscriber(behind(0)), feed.subscriber(behind(0))
    assert one.ring is other.ring
    fill(feed.stream_of(one), 1, 3)
    first, second = feed.take(one), feed.take(other)
    assert isinstance(first, Delivery)
    assert isinstance(second, Delivery)
    assert first.parts[0] is second.parts[0]


def test_a_message_is_not_overfilled() -> None:
    feed, subscriber = Feed.followed(behind(0), payload_max=2 * EVENT_BYTES)
    fill(feed.stream_of(subscriber), 1, 5)
    assert [numbers(feed.take(subscriber)) for _ in range(3)] == [[1, 2], [3, 4], [5]]


@over("count", [10, 100, 1_000])
def test_a_message_has_few_chunks(count: int) -> None:
    feed, subscriber = Feed.followed(behind(0), payload_max=1 << 20, events=2 * count, size=1 << 30)
    fill(feed.stream_of(subscriber), 1, count, chunk_events=1)
    taken = list[int]()
    while len(taken) < count:
        message = numbers(feed.take(subscriber))
        assert len(message) == min(CHUNKS_MAX, count - len(taken))
        taken += message
    assert taken == list(range(1, count + 1))


def test_an_event_larger_than_a_message_comes_alone() -> None:
    feed, subscriber = Feed.followed(behind(0), payload_max=EVENT_BYTES - 1)
    fill(feed.stream_of(subscriber), 1, 2)
    assert [numbers(feed.take(subscriber)) for _ in range(2)] == [[1], [2]]


def test_acks_without_a_tracker_go_nowhere() -> None:
    feed, subscriber = Feed.followed(behind(0))
    fill(feed.stream_of(subscriber), 1, 2)
    feed.take(subscriber)
    assert not feed.ack(subscriber, 2)
    with pytest.raises(FeedmuxError) as caught:
        feed.ack(subscriber, 3)
    assert caught.value.reason is ErrorReason.ACK_OUT_OF_RANGE


def test_another_format_is_asked_for_chunk_by_chunk() -> None:
    feed, subscriber = Feed.followed(behind(0), wire_format="text")
    ring = feed.stream_of(subscriber).ring
    fill(feed.stream_of(subscriber), 1, 4, chunk_events=2)
    wanted = feed.take(subscriber)
    assert wanted == NeedsRender(ring[0], ring)
    ring[0].rendered["text"] = Rendition(b"aabb", [0, 2, 4])
    taken = feed.take(subscriber)
    assert isinstance(taken, Delivery)
    assert taken.parts == (b"aabb",)
    assert taken.end == token(2)
    assert feed.take(subscriber) == NeedsRender(ring[1], ring)


def framed(texts: list[bytes]) -> Rendition:
    """JSON texts as they are in a message: four bytes before each."""
    ends = [0, *accumulate(map(len, texts))]
    return Rendition(b"".join(b"tag:" + text for text in texts), [end + 4 * n for n, end in enumerate(ends)], ends)


def test_credit_pays_for_events_and_not_for_their_framing() -> None:
    feed, subscriber = Feed.followed(behind(0), wire_format="text", size=6, payload_max=1000)
    fill(feed.stream_of(subscriber), 1, 4)
    feed.stream_of(subscriber).ring[0].rendered["text"] = framed([b"aa", b"bbb", b"cccc", b"d"])
    taken = feed.take(subscriber)
    assert isinstance(taken, Delivery)
    assert (taken.parts, taken.size, taken.wire_size) == ((b"tag:aatag:bbbtag:cccc",), 9, 21)
    assert subscriber.credit.bytes == 6 - 9
    feed.grant(subscriber, 1, 9)
    taken = feed.take(subscriber)
    assert isinstance(taken, Delivery)
    assert (taken.parts, taken.size, subscriber.credit.bytes) == ((b"tag:d",), 1, 5)


def test_a_message_is_filled_by_what_stands_in_it() -> None:
    feed, subscriber = Feed.followed(behind(0), wire_format="text", payload_max=13)
    fill(feed.stream_of(subscriber), 1, 4)
    feed.stream_of(subscriber).ring[0].rendered["text"] = framed([b"aa", b"bbb", b"c" * 20, b"d"])
    sizes = []
    while isinstance(taken := feed.take(subscriber), Delivery):
        sizes.append((taken.count, taken.size, taken.wire_size))
    assert sizes == [(2, 5, 13), (1, 20, 24), (1, 1, 5)]


def test_stepping_over_what_was_passed_wakes_a_pump_that_rests() -> None:
    """The model found this: a pump rested because of events that seemed to lie ahead, and nothing notified it."""
    feed = Feed(join_distance_s=30, read_ahead_bytes=1)
    first, waiting = feed.subscriber(behind(0), events=0), feed.subscriber(behind(9))
    stream = feed.stream_of(first)
    fill(stream, 1, 3)
    assert not stream.wants_more()
    told: list[bool] = []
    stream.demand_changed = lambda: told.append(stream.wants_more())
    assert feed.take(waiting) is None
    assert told[-1:] == [True]


@over("reason", [ErrorReason.HISTORY_LOST, ErrorReason.FEED_INVALIDATED])
def test_an_end_before_its_place_is_not_its_own(reason: ErrorReason) -> None:
    feed = Feed(join_distance_s=30)
    first, waiting = feed.subscriber(behind(0)), feed.subscriber(behind(5))
    dead = feed.stream_of(first)
    fill(dead, 1, 2)
    dead.end(error(reason))
    assert feed.take(waiting) is None
    assert waiting.ring is not dead.ring
    assert feed.stream_of(waiting).origin == behind(5)


def test_another_error_ends_everyone_on_the_stream_at_once() -> None:
    """The model found this: a subscriber that only had events to step over got the error at the next heartbeat."""
    feed = Feed(join_distance_s=30)
    first, waiting = feed.subscriber(behind(0)), feed.subscriber(behind(5))
    fill(feed.stream_of(first), 1, 2)
    feed.stream_of(first).end(error(ErrorReason.INTERNAL))
    assert isinstance(feed.take(waiting), Ended)


def test_who_rejoins_at_an_end_takes_at_once_what_is_there() -> None:
    feed = Feed(join_distance_s=30)
    first, waiting = feed.subscriber(behind(0)), feed.subscriber(behind(5))
    dead = feed.stream_of(first)
    fill(dead, 1, 2)
    dead.end(error(ErrorReason.HISTORY_LOST))
    ahead = feed.subscriber(behind(5))
    fill(feed.stream_of(ahead), 6, 7)
    assert numbers(feed.take(waiting)) == [6, 7]


def test_a_native_token_gives_way_to_a_newer_place() -> None:
    """MongoDB validates the token at the first event only; the position must not grow old meanwhile."""
    feed = Feed()
    feed.subscriber(behind(50))
    subscriber = feed.subscriber(native(3))
    fill(feed.stream_of(subscriber), 4, 3)
    feed.stream_of(subscriber).append([], mark(8))
    assert feed.take(subscriber) is None
    assert subscriber.progress() == mark(8)
    assert subscriber.at == JoinPoint(mark(8), exact=True)
    fill(feed.stream_of(subscriber), 9, 9)
    assert numbers(feed.take(subscriber)) == [9]
    assert subscriber.progress() == mark(9)
    assert subscriber.at.native is None


def test_within_a_copy_a_position_says_more_without_a_later_event() -> None:
    """The documents that are passed are at one time: where the stream gives way, the next one continues after them."""
    feed, subscriber = Feed.followed(JoinPoint(mark(3).while_copying(Copied(b"a", 5))))
    stream = opened(feed.stream_of(subscriber))
    further = mark(3).while_copying(Copied(b"a", 5, passed=b"b"))
    stream.append([], further)
    assert feed.take(subscriber) is None
    assert subscriber.at.place.copied == further.copied
    stream.append([], mark(2).while_copying(Copied(b"c", 5)))
    assert stream.ring.newest.copied == further.copied


def test_lag() -> None:
    feed, subscriber = Feed.followed(behind(0), events=2)
    assert subscriber.lag_events() == 0
    fill(feed.stream_of(subscriber), 1, 5, chunk_events=2)
    assert subscriber.lag_events() == 5
    feed.take(subscriber)
    assert subscriber.lag_events() == 3
    feed.streams.leave(subscriber)
    assert subscriber.lag_events() == 0


def test_bad_credit_is_refused_and_wakes_nobody() -> None:
    feed, subscriber = Feed.followed(behind(0))
    with pytest.raises(FeedmuxError):
        feed.grant(subscriber, 0, 5)
    assert feed.woken == []
