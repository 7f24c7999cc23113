"""Which members of a group are woken, and what that costs."""

from typing import Any, cast

import pytest

from feedmux_server.core.delivery.credit import CreditLimits, CreditWindow
from feedmux_server.core.delivery.feed_streams import FeedStreams
from feedmux_server.core.delivery.group_reader import FIELDS_MAX, PORTION_BYTES, READ_BYTES, GroupMember, GroupReader
from feedmux_server.core.delivery.key_ledger import KeyLedger
from feedmux_server.core.delivery.key_runs import Hand
from feedmux_server.core.delivery.retry import Failure
from feedmux_server.core.delivery.subscriber import Subscriber
from feedmux_server.core.delivery.taken import Delivery, Ended
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.events.event_keys import FieldsRead
from feedmux_server.core.positions.ahead import Ahead, mark_of
from feedmux_server.core.positions.join_point import JoinPoint
from feedmux_server.core.positions.resume_token import ResumeToken
from feedmux_server.core.positions.timeline import Fork
from tests.sim.events import BEGIN
from tests.tables import over
from tests.unit.core.delivery.group_events import START
from tests.unit.core.delivery.ledger_support import Group
from tests.unit.core.delivery.streams_support import Feed, behind, mark


class NoStreams:
    """The streams of a feed without further events, or with so many deliveries of a size, whose keys are found in so
    many fields."""

    def __init__(self, size: int = 0, count: int = 0, fields: int = 0) -> None:
        self.left = count
        self.room = 0
        """The most bytes that the last reader has asked for."""
        self._size = size
        self._fields = fields
        self.fields_read = FieldsRead()

    def take(self, subscriber: Subscriber) -> Delivery | None:
        self.room = subscriber.payload_max
        if not self.left:
            return None
        self.left -= 1
        self.fields_read.count += self._fields
        return Delivery(1, 10, (), self._size, self._size, START, 0.0)

    def resume(self, subscriber: Subscriber) -> None:
        return None


def window() -> CreditWindow:
    credit = CreditWindow(CreditLimits())
    credit.grant(10, 1 << 20)
    return credit


@over("count", [10, 100, 1_000])
def test_what_must_be_alone_finds_a_member_that_is_free_without_a_look_at_the_others(count: int) -> None:
    group, woken, looks = Group("lost", *range(count)), list[int](), 0
    subscriber = Subscriber(0, "default", JoinPoint(START), CreditWindow(CreditLimits()), lambda: None)
    reader = GroupReader(cast(FeedStreams, NoStreams()), subscriber, group.ledger)
    group.take(lost := Hand(), events_max=1)
    members = [
        GroupMember(number, reader, Hand(), window(), lambda number=number: woken.append(number))  # type: ignore[misc]
        for number in range(count)
    ]
    for member in members:
        reader.join(member)
    for member in members:
        taken = reader.take(member)
        assert isinstance(taken, Delivery)
        assert taken.count == 1
    for _ in range(2):
        group.ledger.give_back(lost, lost=True)
        if not group.ledger.alone:
            group.take(lost := Hand(), events_max=1)
    assert group.ledger.alone == 1
    for member in members:
        assert reader.take(member) is None
    assert reader.draining is members[0]
    with pytest.MonkeyPatch.context() as patched:

        def outstanding(hand: Hand) -> int:
            nonlocal looks
            looks += 1
            return len(hand._sequences) - hand._gone

        patched.setattr(Hand, "outstanding", property(outstanding))
        woken.clear()
        reader.busy(members[1])
        reader.settle(members[-1], [(1, 1)])
    assert woken == [count - 1]
    assert looks <= 20
    assert cast(Any, reader.take(members[-1])).count == 1


RESTORED = Group("a", ahead=Ahead(ResumeToken.high_water_mark(BEGIN + 100), {})).ledger


@over(
    "ledger, size, fields, reads",
    [
        (Group().ledger, 100, 0, 100),
        (Group().ledger, PORTION_BYTES, 0, 8),
        (Group().ledger, READ_BYTES, 0, 1),
        (Group().ledger, PORTION_BYTES, FIELDS_MAX // 2, 3),
        (Group().ledger, PORTION_BYTES, FIELDS_MAX * 2, 1),
        (RESTORED, PORTION_BYTES, 0, 2),
    ],
)
def test_a_turn_of_the_event_loop_reads_few_bytes(ledger: KeyLedger, size: int, fields: int, reads: int) -> None:
    """Events of a kilobyte can have hundreds of fields before their key, or in their key. A new host searches each of
    them three times."""
    streams = NoStreams(size, 1_000, fields)
    streams.fields_read = ledger.fields_read
    subscriber = Subscriber(0, "default", JoinPoint(START), CreditWindow(CreditLimits()), lambda: None)
    reader = GroupReader(cast(FeedStreams, streams), subscriber, ledger)
    member = GroupMember(0, reader, Hand(), window(), lambda: None)
    reader.join(member)
    assert reader.take(member) is None
    assert (1_000 - streams.left, reader.reads_on, streams.room) == (reads, True, PORTION_BYTES)
    # Other sessions wait for as long as for so many events.
    assert reader.read_events == reads * (10 + fields // 3)


def test_an_event_that_mongodb_cannot_send_ends_the_group_with_what_helps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    error, at = FeedmuxError(ErrorReason.EVENT_TOO_LARGE, "add a stage", {"code": "10334"}), 1_700_000_000 << 32 | 5
    streams, at_time = NoStreams(), JoinPoint(ResumeToken.high_water_mark(at))
    monkeypatch.setattr(streams, "take", lambda _: Ended(error))
    subscriber = Subscriber(0, "default", at_time, CreditWindow(CreditLimits()), lambda: None)
    reader = GroupReader(cast(FeedStreams, streams), subscriber, Group().ledger)
    member = GroupMember(0, reader, Hand(), window(), lambda: None)
    reader.join(member)
    taken = reader.take(member)
    assert isinstance(taken, Ended)
    assert (taken.error.reason, taken.error.metadata) == (error.reason, error.metadata)
    for words in ("16 MB", "$unset", "seek the group", "2023-11-14T22:13:20Z"):
        assert words in taken.error.message
    assert error.message == "add a stage", "other subscribers of the feed have it, too"


def alone_in(group: Group, streams: NoStreams) -> tuple[GroupReader, GroupMember, list[int]]:
    """The one member of a group, and its calls to wake."""
    subscriber, woken = (
        Subscriber(0, "default", JoinPoint(START), CreditWindow(CreditLimits()), lambda: None),
        list[int](),
    )
    reader = GroupReader(cast(FeedStreams, streams), subscriber, group.ledger)
    member = GroupMember(0, reader, Hand(), window(), lambda: woken.append(1))
    reader.join(member)
    return reader, member, woken


def test_the_end_of_the_feed_is_told_while_events_only_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    group, streams = Group("a"), NoStreams()
    reader, member, woken = alone_in(group, streams)
    assert isinstance(reader.take(member), Delivery)
    monkeypatch.setattr(streams, "take", lambda _: Ended(FeedmuxError(ErrorReason.PIPELINE_FAILED, "")))
    assert reader.take(member) is None
    assert not reader.tell_end(), "a member has an event"
    reader.settle(member, (), [Failure(1, retry_after_s=3_600.0)], 0.0)
    assert reader.take(member) is None
    assert reader.tell_end()
    assert woken
    assert isinstance(reader.take(member), Ended)
    reader.retry(3_600.0)
    assert isinstance(reader.take(member), Delivery), "whose time has come goes first"


def test_after_a_while_a_member_takes_little_too() -> None:
    reader, member, woken = alone_in(Group(*range(14)), NoStreams())
    assert cast(Any, reader.take(member)).count == 10
    reader.settle(member, [(1, 1)])
    assert reader.take(member) is None
    reader.take_few(member)
    assert woken
    assert cast(Any, reader.take(member)).count == 1
    reader.settle(member, [(2, 2)])
    assert reader.take(member) is None, "only once"
    reader.settle(member, [(3, 3)])
    assert cast(Any, reader.take(member)).count == 2


def test_members_with_full_windows_read_what_an_earlier_host_has_read() -> None:
    streams, woken = NoStreams(READ_BYTES // 4, 0), list[int]()
    ledger = Group("a", "b", ahead=Ahead(ResumeToken.high_water_mark(BEGIN + 100), {mark_of(b""): 1})).ledger
    subscriber = Subscriber(0, "default", JoinPoint(START), CreditWindow(CreditLimits()), lambda: None)
    reader = GroupReader(cast(FeedStreams, streams), subscriber, ledger)
    member = GroupMember(0, reader, Hand(), window(), lambda: woken.append(1))
    reader.join(member)
    reader.opened(member)
    member.credit.spend(10, 10)
    woken.clear()
    assert reader.take(member) is None
    reader.wake()
    reader.wake()
    assert woken == [1], "once, until it has looked"
    streams.left = 3
    assert reader.take(member) is None
    assert (streams.left, reader.reads_on) == (2, True)


def test_what_an_earlier_host_has_delivered_is_not_settled_if_a_restore_has_lost_it() -> None:
    feed, subscriber = Feed.followed(behind(1), events=0)
    ledger = KeyLedger(behind(1).place, 100)
    reader = GroupReader(feed.streams, subscriber, ledger)
    members = [GroupMember(number, reader, Hand(), window(), lambda: None) for number in range(2)]
    for member in members:
        reader.join(member)
    subscriber.received = mark(5)
    feed.port.forks.append(Fork(mark(4).cluster_time, mark(6).cluster_time))
    ended = reader.take(members[0])
    assert isinstance(ended, Ended)
    assert ended.error.reason is ErrorReason.TIMELINE_FORKED
    assert members[1].progress().cluster_time == mark(1).cluster_time  # by its heartbeat, before it ends, too
    assert ledger.settled_place().cluster_time == mark(1).cluster_time
