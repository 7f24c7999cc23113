"""Which stream a subscriber joins, when streams are opened and give way, and which subscribers wait for a slot."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from feedmux_server.core.delivery.feed_streams import SubscriberState
from feedmux_server.core.delivery.shared_stream import SharedStream, StreamState
from feedmux_server.core.delivery.subscriber import Subscriber
from feedmux_server.core.delivery.taken import Delivery, Ended, NeedsRender
from feedmux_server.core.errors import ErrorReason, FeedmuxError, FragmentsChanged
from feedmux_server.core.events.chunk import Rendition, cut_batch
from feedmux_server.core.positions.join_point import JoinPoint
from feedmux_server.core.positions.resume_token import Copied, ResumeToken
from tests.sim.events import BEGIN, event, event_token, without_reachable_id
from tests.tables import over
from tests.unit.core.delivery.streams_support import (
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


def invalidate(n: int) -> JoinPoint:
    """The position after the invalidate that follows event `n`."""
    return JoinPoint(event_token(BEGIN + 10 * n, invalidate=True), exact=True)


def test_joins_where_the_place_is_covered() -> None:
    feed = Feed()
    first = feed.subscriber(behind(0))
    fill(feed.stream_of(first), 1, 6, chunk_events=3)
    late = feed.subscriber(JoinPoint(token(4)))
    assert late.ring is first.ring
    assert numbers(feed.take(late)) == [5, 6]
    assert len(feed.port.started) == 1


def test_the_first_opens_and_one_further_back_opens_another() -> None:
    feed = Feed()
    live = feed.subscriber(behind(100))
    opened(feed.stream_of(live))
    late = feed.subscriber(behind(0))
    assert [stream.origin for stream in feed.port.started] == [behind(100), behind(0)]
    assert feed.streams.open.live() is feed.stream_of(live)
    assert feed.streams.open.is_catch_up(feed.stream_of(late))
    assert feed.streams.open.catch_up_count == 1
    assert feed.streams.state_of(live) is SubscriberState.LIVE
    assert feed.streams.state_of(late) is SubscriberState.CATCH_UP


def test_the_stream_furthest_ahead_is_taken() -> None:
    feed = Feed()
    old = feed.subscriber(behind(0))
    opened(feed.stream_of(old))
    new = feed.subscriber(behind(3))
    fill(feed.stream_of(old), 1, 5)
    fill(feed.stream_of(new), 4, 9)
    assert feed.subscriber(behind(4)).ring is new.ring


def test_waits_for_a_stream_within_the_join_distance() -> None:
    far = ResumeToken.high_water_mark(BEGIN + (31 << 32))
    near = ResumeToken.high_water_mark(BEGIN + (30 << 32))
    feed = Feed(join_distance_s=30)
    first = feed.subscriber(behind(0))
    opened(feed.stream_of(first))
    assert feed.subscriber(JoinPoint(near)).ring is first.ring
    assert feed.subscriber(JoinPoint(far)).ring is not first.ring


def test_starts_that_mongodb_has_not_reached_are_waited_for_on_one_stream() -> None:
    """A separate stream for each start would need a cursor for each, and all other streams of the feed would then count
    as catching up."""
    feed = Feed(join_distance_s=30)
    feed.port.known_time, feed.port.slot_free = BEGIN + 500, False
    waiting = [feed.subscriber(JoinPoint(token(n))) for n in range(100, 50, -1)]
    [stream] = feed.port.started
    assert {feed.stream_of(each) for each in waiting} == {stream}
    assert stream.origin == JoinPoint(ResumeToken.high_water_mark(BEGIN + 501))
    fill(stream, 51, 99)
    assert feed.subscriber(JoinPoint(mark(51))).ring is stream.ring
    assert feed.take(waiting[0]) is None, "its position is after all of them"
    assert numbers(feed.take(waiting[-1])) == list(range(52, 100))


def test_who_gives_a_slot_does_not_meet_the_errors_of_the_feed_that_gets_it() -> None:
    """It may be the task of another tenant's stream, which would end with the error."""
    feed = Feed()
    opened(feed.stream_of(feed.subscriber(behind(100))))
    feed.port.slot_free = False
    waiting = feed.subscriber(JoinPoint(token(1), exact=True))
    assert feed.port.waiting == {waiting.id}
    feed.port.slot_free = True
    stream = opened(feed.stream_of(feed.subscriber(behind(0))))
    data = event(1, token(1)).data + without_reachable_id(event(2, token(2)).data) + event(3, token(3)).data
    stream.append(cut_batch(data, mark(0), None, 0.0, bytes_max=10**6), None)
    feed.streams.admit(waiting)
    assert feed.woken == [waiting.id]
    with pytest.raises(FeedmuxError, match="_id"):
        feed.take(waiting)
    feed.streams.remove(waiting)


def test_a_native_start_without_events_leads_others_like_it_alone() -> None:
    feed = Feed()
    first, second = feed.subscriber(native(50)), feed.subscriber(native(60))
    assert feed.streams.open.live() is feed.stream_of(second)
    assert feed.streams.state_of(second) is SubscriberState.LIVE
    assert feed.streams.open.is_catch_up(feed.stream_of(first))
    live = feed.subscriber(behind(1))
    assert feed.streams.open.live() is feed.stream_of(live)
    assert feed.streams.open.is_catch_up(feed.stream_of(second))


def test_a_native_start_of_another_tenant_needs_no_slot_beside_it() -> None:
    feed = Feed()
    feed.port.slot_free = False
    own = [feed.subscriber(native(50)) for _ in range(3)]
    assert [each.ring is None for each in own] == [False, True, True]
    other = feed.subscriber(behind(1), tenant="other")
    assert feed.stream_of(other).origin == behind(1)
    assert feed.subscriber(native(50), tenant="other").ring is None


def test_a_native_start_that_nobody_reads_any_more_is_of_no_use() -> None:
    feed, subscriber = Feed.followed(native(50))
    stream = opened(feed.stream_of(subscriber))
    assert not feed.streams.open.is_superfluous(stream)
    feed.streams.remove(subscriber)
    assert feed.streams.open.is_superfluous(stream), "no subscriber can join it"
    fill(stream, 51, 52)
    assert not feed.streams.open.is_superfluous(stream)


def test_at_the_present_a_native_start_holds_no_slot() -> None:
    feed = Feed()
    opened(feed.stream_of(feed.subscriber(behind(100))))
    beside = feed.stream_of(feed.subscriber(native(60)))
    assert feed.streams.open.catch_up_count == 1
    opened(beside).append([], mark(100))
    assert feed.streams.open.catch_up_count == 0
    assert feed.streams.open.is_beside(beside), "until its first event, no subscriber joins it or is handed over"
    fill(beside, 61, 62)
    assert feed.streams.open.catch_up_count == 1, "there was more than the present to read"
    beside.append([], mark(100))
    beside.move_to(StreamState.PAUSED)
    assert feed.streams.open.catch_up_count == 1, "when it resumes reading, it reads history"


def test_a_refused_start_ends_those_who_gave_it() -> None:
    """Other subscribers shared the stream: they continue at their own positions, on one stream."""
    feed = Feed(join_distance_s=30)
    others = [feed.subscriber(behind(n)) for n in range(5, 9)]
    supplier = feed.subscriber(behind(2))
    refused = feed.stream_of(supplier)
    assert {feed.stream_of(other) for other in others} == {refused}
    refused.end(error(ErrorReason.HISTORY_LOST))
    assert isinstance(feed.take(supplier), Ended)
    assert [feed.take(other) for other in others] == [None] * len(others)
    streams = {feed.stream_of(other).id for other in others}
    assert streams == {feed.port.started[-1].id}
    assert len(feed.port.started) == 2
    assert feed.port.started[-1].origin == behind(5)


def test_places_that_are_lost_too_are_not_asked_one_after_the_other() -> None:
    feed = Feed(join_distance_s=3600)
    places = [JoinPoint(ResumeToken.high_water_mark(BEGIN + (n << 32)), exact=True) for n in range(1000)]
    subscribers = [feed.subscriber(place) for place in places]
    oldest = datetime.fromtimestamp((BEGIN >> 32) + 990, UTC).isoformat().replace("+00:00", "Z")
    lost = FeedmuxError(ErrorReason.HISTORY_LOST, "lost", {"oldest_time": oldest})
    feed.stream_of(subscribers[0]).end(lost)
    taken = [feed.take(subscriber) for subscriber in subscribers]
    assert all(isinstance(each, Ended) for each in taken[:990])
    assert taken[990:] == [None] * 10
    assert len(feed.port.started) == 2


def test_opens_are_gathered_at_the_earliest_place() -> None:
    feed = Feed(join_distance_s=30)
    later, earlier = feed.subscriber(behind(5)), feed.subscriber(behind(2))
    assert later.ring is earlier.ring
    assert feed.stream_of(later).origin == behind(2)
    fill(feed.stream_of(later), 3, 7)
    assert numbers(feed.take(later)) == [6, 7]
    assert numbers(feed.take(earlier)) == [3, 4, 5, 6, 7]


def test_a_native_token_opens_its_own_unless_it_is_in_the_ring() -> None:
    feed = Feed(join_distance_s=30)
    first = feed.subscriber(behind(0))
    fill(feed.stream_of(first), 1, 5, chunk_events=2, marked=False)
    for n in range(1, 6):
        joined = feed.subscriber(native(n))
        assert joined.ring is first.ring
        assert joined.at.native is None, "it is known to be one of MongoDB's tokens"
    stranger = JoinPoint(event_token(BEGIN + 20, 9), native="resume_after")
    assert feed.subscriber(stranger).ring is not first.ring
    assert feed.subscriber(replace(invalidate(3), native="start_after")).ring is not first.ring


def test_nobody_joins_a_native_start_before_mongodb_has_judged_it() -> None:
    feed = Feed(join_distance_s=30)
    own = feed.subscriber(native(3))
    opened(feed.stream_of(own))
    other = feed.subscriber(JoinPoint(token(3)))
    assert other.ring is not own.ring
    fill(feed.stream_of(own), 4, 4)
    assert feed.subscriber(behind(4)).ring is own.ring


def test_nobody_waits_before_an_invalidate_for_what_is_behind_it() -> None:
    """The model found this: the stream ended there, and reported the end to a subscriber that had already passed it."""
    feed = Feed(join_distance_s=30)
    first = feed.subscriber(behind(0))
    fill(feed.stream_of(first), 1, 2)
    assert feed.subscriber(invalidate(3)).ring is not first.ring
    feed.port.slot_free = False
    assert feed.subscriber(invalidate(4)).ring is None


def test_a_start_behind_an_invalidate_is_not_moved_back() -> None:
    feed = Feed(join_distance_s=30)
    behind_it = feed.subscriber(invalidate(3))
    before_it = feed.subscriber(behind(1))
    assert behind_it.ring is not before_it.ring
    assert feed.stream_of(behind_it).origin == invalidate(3)


@over(("version", "merges"), [(1, True), (2, False)])
def test_streams_of_different_token_version_never_merge(version: int, merges: bool) -> None:
    """The two streams could merge in every other respect: with one token version they do."""
    feed = Feed()
    behind_them = feed.subscriber(JoinPoint(ResumeToken.high_water_mark(BEGIN + 55, version), exact=True))
    here = opened(feed.stream_of(behind_them))
    ahead = feed.subscriber(behind(0))
    fill(feed.stream_of(ahead), 1, 8, chunk_events=1)
    assert feed.stream_of(ahead) is not here
    here.append([], ResumeToken.high_water_mark(BEGIN + 56, version))
    feed.take(behind_them)
    assert (behind_them.ring is ahead.ring) == merges
    assert (behind_them.ring is here.ring) != merges


def catching_up() -> tuple[Feed, SharedStream, Subscriber]:
    """A stream at event 100, and one whose subscriber has taken the events 1 and 2 of 5."""
    feed = Feed()
    fill(feed.stream_of(feed.subscriber(behind(99))), 100, 100)
    late = feed.subscriber(behind(0), events=2)
    stream = feed.stream_of(late)
    fill(stream, 1, 5, chunk_events=1)
    assert numbers(feed.take(late)) == [1, 2]
    return feed, stream, late


def test_one_that_can_take_nothing_does_not_wait_for_a_slot() -> None:
    feed, stream, late = catching_up()
    feed.port.slot_free = False
    feed.grant(late, 3, 10**6)
    assert numbers(feed.take(late)) == [3, 4, 5]
    feed.streams.give_way(stream)
    assert (late.ring, late.at, feed.take(late), feed.port.waiting) == (None, behind(5), None, set())
    feed.grant(late, 1, 10**6)
    assert feed.port.waiting == {late.id}


def test_the_subscribers_of_a_stream_that_gave_way_share_the_next_one() -> None:
    feed, stream, late = catching_up()
    other = feed.subscriber(behind(0))
    assert other.ring is stream.ring
    feed.port.slot_free = False
    feed.streams.give_way(stream)
    feed.grant(late, 100, 10**6)
    apart = feed.subscriber(behind(7))
    for each, count in ((late, 3), (other, 5)):
        assert len(numbers(feed.take(each))) == count
        assert feed.take(each) is None
    feed.streams.close(stream)
    assert feed.port.waiting == {late.id, other.id, apart.id}
    feed.woken.clear()
    feed.streams.admit(late)
    assert feed.woken == [late.id, other.id]
    assert other.ring is late.ring
    assert feed.port.waiting == {apart.id}


def test_a_stream_that_gave_way_before_it_opened_leaves_its_subscribers_where_they_were() -> None:
    feed = Feed()
    opened(feed.stream_of(feed.subscriber(behind(100))))
    late = feed.subscriber(native(3))
    stream = feed.stream_of(late)
    feed.streams.give_way(stream)
    assert (late.at, late.ring, feed.woken) == (native(3), None, [late.id])


def test_those_who_wait_need_no_slot_when_the_last_stream_they_could_join_is_closed() -> None:
    feed = Feed()
    live = opened(feed.stream_of(feed.subscriber(behind(100), events=0)))
    feed.port.slot_free = False
    waiting = [feed.subscriber(behind(n)) for n in (0, 1)]
    live.end(error())
    feed.woken.clear()
    feed.streams.close(live)
    assert not feed.port.waiting
    assert feed.woken == [1, *(each.id for each in waiting)]
    for each in waiting:
        feed.take(each)
    assert {feed.stream_of(each) for each in waiting} == {feed.port.started[-1]}


# What wakes the session and the pump.


def demands_of(stream: SharedStream) -> list[bool]:
    """Fills when the pump is asked to check again: whether there is a reason to read."""
    demands: list[bool] = []
    stream.demand_changed = lambda: demands.append(stream.wants_more())
    return demands


def full() -> tuple[Feed, Subscriber, list[bool]]:
    """A subscriber without credit and without room for another unacknowledged event."""
    feed, subscriber = Feed.followed(behind(0), events=2, acks_max=2)
    fill(feed.stream_of(subscriber), 1, 2)
    assert numbers(feed.take(subscriber)) == [1, 2]
    return feed, subscriber, demands_of(feed.stream_of(subscriber))


def test_an_ack_wakes_only_where_there_is_credit() -> None:
    feed, subscriber, demands = full()
    feed.ack(subscriber, 1)
    assert (feed.woken, demands) == ([], [])
    feed.grant(subscriber, 1, 1)
    assert (feed.woken, demands) == ([subscriber.id], [True])
    feed.grant(subscriber, 1, 1)
    feed.ack(subscriber, 2)
    assert (feed.woken, demands) == ([subscriber.id], [True]), "it could receive before"


def test_the_pump_checks_again_after_events_were_taken_and_not_after_each_look() -> None:
    """A pump that rests because its subscribers are far from the head has to hear that one has come nearer; but a read
    that waits for events must not be interrupted by sessions that find nothing."""
    feed = Feed(read_ahead_bytes=1)
    subscriber = feed.subscriber(behind(0), wire_format="text")
    stream = feed.stream_of(subscriber)
    fill(stream, 1, 2)
    assert not stream.wants_more()
    demands = demands_of(stream)
    assert isinstance(feed.take(subscriber), NeedsRender)
    assert demands == [], "nothing was taken"
    stream.ring[0].rendered["text"] = Rendition(b"aabb", [0, 2, 4])
    assert isinstance(feed.take(subscriber), Delivery)
    assert demands == [True]
    assert feed.take(subscriber) is None
    assert demands == [True], "it is at the head"


# Which stream serves a position.


def copying(n: int, documents: int = 0) -> JoinPoint:
    return JoinPoint(mark(n).while_copying(Copied(b"", documents)))


def test_a_copy_is_read_by_its_own_subscriber_alone() -> None:
    feed = Feed(join_distance_s=1000)
    live = feed.subscriber(behind(5))
    copier, other = feed.subscriber(copying(5)), feed.subscriber(copying(5))
    streams = [feed.stream_of(each) for each in (live, copier, other)]
    assert len({stream.id for stream in streams}) == 3
    assert [stream.copies for stream in streams] == [False, True, True]
    assert feed.stream_of(feed.subscriber(behind(5))) is streams[0]
    assert feed.streams.open.live() is streams[0]
    assert feed.streams.state_of(copier) is SubscriberState.CATCH_UP
    fill(streams[1], 6, 9)
    assert feed.streams.open.live() is streams[0], "however far ahead it is"
    assert feed.stream_of(live) is streams[0]


def test_a_copy_needs_a_slot_also_without_another_stream() -> None:
    feed = Feed()
    feed.port.slot_free = False
    copier = feed.subscriber(copying(5))
    assert (copier.ring, feed.port.waiting) == (None, {copier.id})
    other = feed.subscriber(behind(5))
    feed.streams.close(feed.stream_of(other))
    assert feed.port.waiting == {copier.id}, "only for others does the first stream need no slot"
    feed.streams.admit(copier)
    assert feed.stream_of(copier).copies
    assert feed.streams.open.catch_up_count == 1
    opened(feed.stream_of(copier)).append([], feed.stream_of(copier).ring.newest)
    assert feed.streams.open.catch_up_count == 1, "also if there was nothing to read for a moment"


def test_after_a_copy_its_subscriber_continues_on_the_live_stream() -> None:
    feed = Feed()
    live = feed.subscriber(behind(0))
    fill(feed.stream_of(live), 1, 5)
    copier = feed.subscriber(copying(2, 7))
    stream = opened(feed.stream_of(copier))
    stream.append([], stream.ring.newest.copy_complete())
    feed.streams.give_way(stream)
    assert numbers(feed.take(copier)) == [3, 4, 5]
    assert feed.stream_of(copier) is feed.stream_of(live)
    assert copier.at.place.copied is None


@over("is_behind", [False, True])
@over("of", [0, 1, 2])
@over("ends_event", [False, True])
def test_a_ring_with_other_fragments_of_the_event(is_behind: bool, of: int, ends_event: bool) -> None:
    """As another session had them read, when a lookup found another document."""
    feed, place = Feed(join_distance_s=10), event_token(BEGIN + 10, key=1, fragment=2)
    start = ResumeToken.high_water_mark(BEGIN, 2)
    theirs = feed.subscriber(JoinPoint(start, exact=True))
    parts = [event(n, event_token(BEGIN + 10, key=1, fragment=n), part=(n + 1, of)) for n in range(of)]
    parts = parts or [event(0, event_token(BEGIN + 10, key=1, version=2))]
    stream = opened(feed.stream_of(theirs))
    mine = feed.subscriber(JoinPoint(place, exact=True, ends_event=ends_event)) if is_behind else None
    data = b"".join(each.data for each in (*parts, event(9, event_token(BEGIN + 20, version=2))))
    for chunk in cut_batch(data, start, None, 0.0, bytes_max=1, split=True):
        stream.append([chunk], None)
    mine = mine or feed.subscriber(JoinPoint(place, exact=True, ends_event=ends_event))
    found: list[int] = []
    while (taken := feed.take(mine)) is not None:
        found += numbers(taken)
    assert found == ([] if ends_event else [each.number for each in parts]) + [9]


@over("ends_event", [False, True])
def test_an_event_whose_fragments_changed_comes_again_unless_it_was_passed(ends_event: bool) -> None:
    feed, part = Feed(), event_token(BEGIN + 10, key=1, fragment=0)
    mine = feed.subscriber(JoinPoint(part, exact=True, ends_event=ends_event), acks_max=10)
    other = feed.subscriber(JoinPoint(ResumeToken.high_water_mark(BEGIN + 99, 2)))
    old = opened(feed.stream_of(mine))
    old.end(FragmentsChanged())
    assert feed.take(mine) is None
    new = feed.stream_of(mine)
    assert new is not old
    place = part.after_event() if ends_event else part.event_start()
    assert (mine.at.place, new.origin.place, new.origin.exact) == (place, place, False)
    assert other.at.place.cluster_time == BEGIN + 99
    opened(new)
    data = event(1, event_token(BEGIN + 10, key=1, version=2)).data + event(2, event_token(BEGIN + 20, version=2)).data
    new.append(cut_batch(data, part.before_time(), None, 0.0, bytes_max=10**6, split=True), None)
    assert numbers(feed.take(mine)) == ([2] if ends_event else [1, 2])
    assert feed.ack(mine, 1)
