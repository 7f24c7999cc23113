"""Slots for reading history: a fixed number, in turn by tenant, within quotas and fair shares."""

from collections import Counter

from feedmux_server.core.delivery.shared_stream import SharedStream, StreamState
from feedmux_server.core.delivery.slots import Slots
from feedmux_server.core.delivery.stream_steps import Step
from feedmux_server.core.delivery.subscriber import Subscriber
from feedmux_server.core.limits.account import Accounts
from feedmux_server.core.limits.quota import Quotas
from feedmux_server.core.positions.join_point import JoinPoint
from feedmux_server.core.positions.resume_token import Copied
from tests.unit.core.delivery.streams_support import Feed, behind, fill, mark, numbers, opened


class Feeds:
    """Feeds with a live stream each, and `most` slots for further streams."""

    def __init__(self, most: int, count: int = 8, **quotas: int) -> None:
        self.slots = Slots(most, Accounts(lambda _: Quotas(**quotas), lambda: 0.0))
        self.feeds = [self._feed(number) for number in range(count)]

    def _feed(self, number: int) -> Feed:
        feed = Feed(slots=self.slots)
        feed._last_id = 100 * number  # ids are unique within a process
        opened(feed.stream_of(feed.subscriber(behind(100), tenant="live")))
        return feed

    def late(self, number: int, tenant: str) -> Subscriber:
        return self.feeds[number].subscriber(behind(0), tenant=tenant)

    @property
    def woken(self) -> int:
        return sum(len(feed.woken) for feed in self.feeds)

    def catch_up(self) -> int:
        return sum(feed.streams.open.catch_up_count for feed in self.feeds)


def test_as_many_are_woken_as_there_are_slots() -> None:
    feeds = Feeds(2)
    waiting = [feeds.late(number, "t") for number in range(6)]
    assert [each.ring is None for each in waiting] == [False, False, True, True, True, True]
    for number in (0, 1):
        feed = feeds.feeds[number]
        feed.streams.close(feed.stream_of(waiting[number]))
    feeds.slots.admit()
    assert [each.ring is None for each in waiting[2:]] == [False, False, True, True]
    assert feeds.catch_up() == 2
    assert feeds.slots.wanted
    woken = feeds.woken
    feeds.slots.admit()
    assert feeds.woken == woken


def test_tenants_take_turns() -> None:
    """One slot, which each subscriber releases at once: a tenant that waits in three feeds does not get it three
    times."""
    feeds = Feeds(0)
    order = ["a", "a", "a", "b", "c"]
    waiting = [feeds.late(number, tenant) for number, tenant in enumerate(order)]
    feeds.slots._most, served = 1, list[str]()
    for _ in order:
        feeds.slots.admit()
        (late,) = [each for feed, each in zip(feeds.feeds, waiting, strict=False) if each.id in feed.woken]
        feed = feeds.feeds[waiting.index(late)]
        served.append(late.tenant)
        feed.streams.close(feed.stream_of(late))
        feed.streams.remove(late)
        feed.woken.clear()
    assert served == ["a", "b", "c", "a", "a"]


def test_a_tenant_has_no_more_than_its_quota() -> None:
    feeds = Feeds(0, catch_up_streams=2)
    for number in range(5):
        feeds.late(number, "t")
    feeds.slots._most = 8
    feeds.slots.admit()
    assert feeds.woken == 2


def test_who_is_gone_does_not_wait() -> None:
    feeds = Feeds(0)
    first, second = feeds.late(0, "t"), feeds.late(1, "t")
    feeds.feeds[0].streams.remove(first)
    feeds.slots._most = 1
    feeds.slots.admit()
    assert feeds.feeds[1].woken == [second.id]
    assert not feeds.slots.wanted


def test_feeds_with_one_stream_are_not_looked_at() -> None:
    feeds = Feeds(4)
    late = feeds.late(0, "t")
    assert list(feeds.slots._several) == [feeds.feeds[0].streams]
    stream = feeds.feeds[0].stream_of(late)
    assert feeds.slots.used() == {"t": 1}
    feeds.feeds[0].streams.close(stream)
    assert not feeds.slots._several
    assert not feeds.slots.used()


# How slots go round.


def stream_of(feeds: Feeds, number: int, late: Subscriber) -> SharedStream:
    return opened(feeds.feeds[number].stream_of(late))


def step(feeds: Feeds, number: int, stream: SharedStream, *, turn_over: bool = False) -> Step:
    return feeds.slots.next_step(feeds.feeds[number].streams, stream, turn_over=turn_over)


def rest(stream: SharedStream) -> None:
    """Its subscribers are so far from its newest event that it does not read, although all have credit."""
    fill(stream, 1, 5, chunk_events=1)
    stream.read_ahead_bytes = 1
    assert not stream.wants_more()


def give_way(feeds: Feeds, number: int, stream: SharedStream) -> None:
    feeds.slots.give_way(feeds.feeds[number].streams, stream)


def test_a_stream_that_rests_gives_way_as_soon_as_another_waits() -> None:
    feeds = Feeds(1)
    unread = feeds.late(0, "a")
    stream = stream_of(feeds, 0, unread)
    rest(stream)
    assert step(feeds, 0, stream) is Step.REST
    waiting = feeds.late(1, "b")
    assert step(feeds, 0, stream) is Step.GIVE_WAY
    give_way(feeds, 0, stream)
    assert waiting.ring is not None
    assert not feeds.slots.wanted
    assert numbers(feeds.feeds[0].take(unread)) == [1, 2, 3, 4, 5]
    assert feeds.feeds[0].take(unread) is None
    assert feeds.slots.wanted, "it reads, and waits like the others"


def test_a_stream_that_rests_is_poked_when_another_waits() -> None:
    feeds = Feeds(2)
    poked: list[int] = []
    for number in range(2):
        stream = stream_of(feeds, number, feeds.late(number, "a"))
        stream.demand_changed = lambda number=number: poked.append(number)  # type: ignore[misc]
    stream.move_to(StreamState.PAUSED)
    feeds.late(2, "b")
    assert set(poked) == {1}, "the other one reads, and takes its next step anyway"


def test_a_stream_that_reads_keeps_its_slot_for_a_turn() -> None:
    feeds = Feeds(1)
    reader = feeds.late(0, "a")
    stream = stream_of(feeds, 0, reader)
    assert step(feeds, 0, stream, turn_over=True) is Step.READ, "nobody waits"
    waiting = feeds.late(1, "b")
    assert step(feeds, 0, stream) is Step.READ
    assert step(feeds, 0, stream, turn_over=True) is Step.GIVE_WAY
    give_way(feeds, 0, stream)
    assert feeds.feeds[0].take(reader) is None
    assert (reader.ring, waiting.ring is not None) == (None, True), "who waited comes first"


def test_as_many_streams_give_way_as_others_wait() -> None:
    feeds = Feeds(3)
    streams = [stream_of(feeds, number, feeds.late(number, "a")) for number in range(3)]
    feeds.late(3, "b")
    steps = []
    for number, stream in enumerate(streams):
        steps.append(step(feeds, number, stream, turn_over=True))
        if steps[-1] is Step.GIVE_WAY:
            give_way(feeds, number, stream)
    assert steps == [Step.GIVE_WAY, Step.READ, Step.READ]


def test_no_stream_gives_way_to_one_that_its_own_quota_stops() -> None:
    feeds = Feeds(3, catch_up_streams=1)
    resting = stream_of(feeds, 0, feeds.late(0, "a"))
    rest(resting)
    own = stream_of(feeds, 1, feeds.late(1, "b"))
    feeds.late(2, "b")
    assert step(feeds, 0, resting, turn_over=True) is Step.REST
    assert step(feeds, 1, own, turn_over=True) is Step.GIVE_WAY, "within a tenant, its slots go round"


def test_a_stream_that_reads_gives_way_to_no_tenant_that_has_more() -> None:
    feeds = Feeds(3)
    of_a = [stream_of(feeds, number, feeds.late(number, "a")) for number in range(2)]
    of_b = stream_of(feeds, 2, feeds.late(2, "b"))
    feeds.late(3, "a")
    assert step(feeds, 2, of_b, turn_over=True) is Step.READ
    assert step(feeds, 0, of_a[0], turn_over=True) is Step.GIVE_WAY
    feeds.late(4, "b")
    assert step(feeds, 0, of_a[0], turn_over=True) is Step.GIVE_WAY
    rest(of_b)
    assert step(feeds, 2, of_b) is Step.GIVE_WAY


def test_a_live_stream_never_gives_way() -> None:
    feeds = Feeds(0)
    (live,) = feeds.feeds[0].streams.open
    feeds.late(1, "a")
    assert step(feeds, 0, live, turn_over=True) is Step.READ
    rest(live)
    assert step(feeds, 0, live, turn_over=True) is Step.REST


def test_a_newcomer_does_not_overtake_those_who_wait() -> None:
    feeds = Feeds(0)
    feeds.late(0, "a")
    feeds.slots._most = 1
    assert not feeds.slots.may_catch_up("b")
    assert feeds.slots.may_catch_up("a"), "its own turn"


def test_of_the_streams_that_gave_way_as_many_rings_remain_as_there_are_slots() -> None:
    feeds = Feeds(2)
    unread = [feeds.late(number, "a") for number in range(5)]
    for number, each in enumerate(unread):
        stream = stream_of(feeds, number, each)
        rest(stream)
        give_way(feeds, number, stream)
    assert [each.ring is not None for each in unread] == [False, False, False, True, True]
    assert [each.at for each in unread] == [behind(0)] * 5
    assert len(feeds.slots._several) == 2
    feeds.slots.closed(stream)
    assert len(feeds.slots._gave_way) == 1


def test_every_reader_of_history_gets_its_turns() -> None:
    """Two slots, and readers of three tenants that all read without a rest: nobody starves."""
    feeds = Feeds(2)
    tenants = ["a", "a", "a", "a", "b", "b", "c"]
    readers = [feeds.late(number, tenant) for number, tenant in enumerate(tenants)]
    turns, of_tenant = Counter[int](), Counter[str]()
    for _ in range(120):
        for number, each in enumerate(readers):
            if each.ring is not None:
                turns[number] += 1
                of_tenant[each.tenant] += 1
        for number in [number for number, each in enumerate(readers) if each.ring is not None]:
            stream = stream_of(feeds, number, readers[number])
            if step(feeds, number, stream, turn_over=True) is Step.GIVE_WAY:
                give_way(feeds, number, stream)
                feeds.feeds[number].streams.close(stream)
        for number, each in enumerate(readers):
            feeds.feeds[number].take(each)
        assert feeds.catch_up() == 2
    assert all(turns[number] >= 15 for number in range(7)), turns
    assert all(count >= 60 for count in of_tenant.values()), of_tenant


def test_a_stream_that_is_closed_before_its_pump_has_ended_is_not_closed_again() -> None:
    feeds = Feeds(1)
    for number in range(2):
        stream = stream_of(feeds, number, feeds.late(number, "a"))
        rest(stream)
        give_way(feeds, number, stream)
        feeds.feeds[number].streams.close(stream)
    assert list(feeds.slots._gave_way) == [stream]


def reads(subscriber: Subscriber) -> bool:
    return subscriber.ring is not None


def test_a_copy_uses_a_slot_also_as_the_only_stream_of_its_feed() -> None:
    feeds = Feeds(1, count=2, catch_up_streams=1)
    alone = Feed(slots=feeds.slots)
    alone._last_id = 1_000
    copier = alone.subscriber(JoinPoint(mark(5).while_copying(Copied())), tenant="a")
    assert alone.stream_of(copier).copies
    assert feeds.slots.used() == {"a": 1}
    late = feeds.late(0, "b")
    assert not reads(late)
    stream = opened(alone.stream_of(copier))
    assert feeds.slots.next_step(alone.streams, stream, turn_over=False) is Step.READ
    assert feeds.slots.next_step(alone.streams, stream, turn_over=True) is Step.GIVE_WAY
    feeds.slots.give_way(alone.streams, stream)
    assert reads(late)
    assert alone.take(copier) is None
    assert not reads(copier), "it waits for its turn"
    assert copier.at.place.copied == Copied()
