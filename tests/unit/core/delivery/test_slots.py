"""Slots for reading history: a fixed number, in turn by tenant, within quotas and fair shares."""

from dataclasses import dataclass

from feedmux_server.core.delivery.feed_streams import FeedStreams, StreamLimits
from feedmux_server.core.delivery.replay_buffer import RingLimits
from feedmux_server.core.delivery.slots import Slots
from feedmux_server.core.delivery.subscriber import Subscriber
from feedmux_server.core.limits.account import Accounts
from feedmux_server.core.limits.quota import Quotas
from tests.unit.core.delivery.streams_support import Feed, Port, behind, opened


@dataclass(slots=True)
class SlotsPort(Port):
    """A port like the manager's."""

    slots: Slots | None = None
    streams: FeedStreams | None = None

    def may_catch_up(self, tenant: str) -> bool:
        assert self.slots is not None
        return self.slots.may_catch_up(tenant)

    def waits(self, subscriber: Subscriber) -> None:
        assert self.slots is not None
        assert self.streams is not None
        self.slots.waits(self.streams, subscriber)

    def waits_no_longer(self, subscriber: Subscriber) -> None:
        assert self.slots is not None
        self.slots.waits_no_longer(subscriber)

    def streams_changed(self) -> None:
        if self.slots is not None and self.streams is not None:
            self.slots.changed(self.streams)


class Feeds:
    """Feeds with a live stream each, and `most` slots for further streams."""

    def __init__(self, most: int, count: int = 8, **quotas: int) -> None:
        self.slots = Slots(most, Accounts(lambda _: Quotas(**quotas), lambda: 0.0))
        self.feeds = [self._feed(number) for number in range(count)]

    def _feed(self, number: int) -> Feed:
        feed = Feed()
        feed._last_id = 100 * number  # ids are unique within a process
        port = SlotsPort(slots=self.slots)
        feed.port = port
        feed.streams = port.streams = FeedStreams(StreamLimits(RingLimits(), 10**6, 0), port)
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
    assert not feeds.slots.admit()
    for number in (0, 1):
        feed = feeds.feeds[number]
        feed.streams.close(feed.stream_of(waiting[number]))
    before = feeds.woken
    assert feeds.slots.admit()
    assert feeds.woken - before == 2
    assert [feed.take(each) for feed, each in zip(feeds.feeds[2:4], waiting[2:4], strict=True)] == [None, None]
    assert feeds.catch_up() == 2
    assert feeds.slots.wanted
    assert not feeds.slots.admit()


def test_tenants_take_turns() -> None:
    """One slot, which each subscriber releases at once: a tenant that waits in three feeds does not get it three
    times."""
    feeds = Feeds(0)
    order = ["a", "a", "a", "b", "c"]
    waiting = [feeds.late(number, tenant) for number, tenant in enumerate(order)]
    feeds.slots._most, served = 1, list[str]()
    for _ in order:
        assert feeds.slots.admit()
        (late,) = [each for feed, each in zip(feeds.feeds, waiting, strict=False) if each.id in feed.woken]
        feed = feeds.feeds[waiting.index(late)]
        assert feed.take(late) is None
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
    assert feeds.slots.admit()
    assert feeds.woken == 2


def test_who_is_gone_does_not_wait() -> None:
    feeds = Feeds(0)
    first, second = feeds.late(0, "t"), feeds.late(1, "t")
    feeds.feeds[0].streams.remove(first)
    feeds.slots._most = 1
    assert feeds.slots.admit()
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
