"""One read of a feed for all members of a group: which member is woken, and what it takes. Pure.

A group has one ordinary subscriber, whose acknowledgements are a `KeyLedger`. It reads on while the members can take
more than is ready. A member is a `Subscriber` that reads no ring of its own: it takes runs from the ledger.

Only a member that found nothing and waits is woken: one that writes to a slow client would not notice. Whoever was
woken and does something else instead calls `pass_on`.
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from itertools import chain, islice
from typing import Final

from feedmux_server.core.delivery.ack_tracker import ENTRIES_AT_ONCE
from feedmux_server.core.delivery.credit import CreditWindow
from feedmux_server.core.delivery.feed_streams import FeedStreams
from feedmux_server.core.delivery.key_ledger import KeyLedger, Stored
from feedmux_server.core.delivery.key_runs import Hand, Runs
from feedmux_server.core.delivery.retry import Failure
from feedmux_server.core.delivery.shared_stream import SharedStream
from feedmux_server.core.delivery.subscriber import Subscriber
from feedmux_server.core.delivery.taken import Delivery, Ended, NeedsRender, NeedsRoom
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.positions.join_point import JoinPoint
from feedmux_server.core.positions.resume_token import ResumeToken

READ_BYTES: Final = 256 * 1024
"""Bytes of events that the group reads at once, about."""
_RESTORED_BYTES: Final = READ_BYTES // 4
"""The same while a new host looks for each event in what earlier ones, or the members, have settled: that takes three
times as long."""
PORTION_BYTES: Final = READ_BYTES // 8
"""Events are read in portions of so many bytes, whose keys take 4 ms at most, until their keys have taken long."""
FIELDS_MAX: Final = 2_000
"""The fields that the search for keys may have read until then: 2 to 4 ms of the event loop. Events of so many bytes
can have 80,000."""
_FIELDS_OF_EVENT: Final = 3
"""To read so many takes as long as to take and settle an event."""
_EAGER_PART: Final = 4
"""A member takes events at once when this part of its window is free, so that its messages are not small."""
_UNLIMITED: Final = 1 << 60


class GroupMember(Subscriber):
    """The part of one session in a group. Its credit is its window: a settled event gives its room back."""

    __slots__ = ("_reader", "eager_events", "hand", "takes_few", "wants")

    def __init__(
        self, member_id: int, reader: "GroupReader", hand: Hand, credit: CreditWindow, wake: Callable[[], None]
    ) -> None:
        """`credit` has the whole window."""
        super().__init__(member_id, reader.subscriber.tenant, reader.subscriber.at, credit, wake)
        self.hand = hand
        self.eager_events = max(1, credit.events // _EAGER_PART)
        self.takes_few = False
        """Whether it takes events however little of its window is free, the next time."""
        self.wants = 0
        """The events that it could be sent now, as `GroupReader` has counted them."""
        self._reader = reader

    @property
    def can_receive(self) -> bool:
        if self.hand.is_alone or (self._reader.draining is self and self.hand.outstanding):
            return False
        return self.credit.bytes > 0 and self.credit.events >= (1 if self.takes_few else self.eager_events)

    @property
    def waits_for_more(self) -> bool:
        """Whether it could take events, but too few."""
        return not self.takes_few and 0 < self.credit.events < self.eager_events

    @property
    def has_next(self) -> bool:
        return self.can_receive and self._reader.has_work

    @property
    def unacked(self) -> int:
        return self.hand.outstanding

    @property
    def safe_place(self) -> ResumeToken:
        return self._reader.subscriber.safe_place

    def progress(self) -> ResumeToken:
        place = self._reader.progress()
        self.at = JoinPoint(place, exact=True)
        return place

    def lag_events(self) -> int:
        return self._reader.subscriber.lag_events()


class GroupReader:
    """The read of one group, and its connected members."""

    __slots__ = (
        "_eager", "_free", "_full", "_idle", "_members", "_opening", "_streams", "draining", "ended", "ledger",
        "on_end", "read_events", "reads_on", "subscriber", "tells_end",
    )  # fmt: skip

    def __init__(self, streams: FeedStreams, subscriber: Subscriber, ledger: KeyLedger) -> None:
        """`subscriber` has joined `streams`, wakes by `wake`, and has no credit yet."""
        self.subscriber = subscriber
        self.ledger = ledger
        self.ended: Ended | None = None
        """The end of the feed, once everything before it was read."""
        self.tells_end = False
        """Whether members hear of that although events are left."""
        self.on_end: Callable[[], None] = lambda: None
        """Called when the end was read."""
        self._streams = streams
        self._members: dict[int, GroupMember] = {}
        self._idle: dict[GroupMember, None] = {}
        """Members that could take events, and found none. The one that has waited longest comes first."""
        self._free: dict[GroupMember, None] = {}
        """Those of `_idle` that have nothing in hand: each settle looks for them while an event must be alone."""
        self._full: dict[GroupMember, None] = {}
        """Members that wait for room in their windows, while the group reads on all the same."""
        self._opening: dict[GroupMember, None] = {}
        self.read_events = 0
        """How many were read since the session that took them has set this to 0."""
        self.reads_on = False
        """Whether the read stopped for others, and members that got nothing shall ask again soon."""
        self.draining: GroupMember | None = None
        """A member that gets nothing until it has nothing in hand, so that an event can be alone there."""
        self._eager = 0
        """The number of members that could take events."""
        subscriber.acks = ledger
        subscriber.credit.events = subscriber.credit.bytes = _UNLIMITED

    def __len__(self) -> int:
        return len(self._members)

    @property
    def members(self) -> list[GroupMember]:
        return list(self._members.values())

    @property
    def stream(self) -> SharedStream | None:
        return self._streams.stream_of(self.subscriber)

    @property
    def has_work(self) -> bool:
        """Whether a member that asks may get something."""
        return self.ledger.ready > 0 or self.ledger.alone > 0 or self.subscriber.has_next

    def join(self, member: GroupMember) -> None:
        """Add a member, whose session waits for the stream to open: see `opened`."""
        self._members[member.id] = member
        self._opening[member] = None
        self._look_at(member)
        was_blocked = not self.subscriber.can_receive
        self._count(member)
        if was_blocked:
            self._streams.resume(self.subscriber)

    def opened(self, member: GroupMember) -> None:
        self._opening.pop(member, None)

    def leave(self, member: GroupMember) -> None:
        """Remove a member. What it has in hand is for the caller to return."""
        del self._members[member.id]
        self._opening.pop(member, None)
        self._waits_no_longer(member)
        if self.draining is member:
            self.draining = None
        self.ledger.wanted -= member.wants
        self._eager -= member.wants > 0
        member.wants = 0

    def take(self, subscriber: Subscriber) -> Delivery | NeedsRender | NeedsRoom | Ended | None:
        """Take what a member can be sent now; None when there is nothing, or its window is full."""
        member = self._members[subscriber.id]
        self._waits_no_longer(member)
        if self.ended is None and not self.ledger.expects_claims:
            self._read()
        elif self.subscriber.lost is not None:  # since the end of the feed was read
            self.ended = Ended(self.subscriber.lost)
        if self.ended is not None and self.ended.error.reason is ErrorReason.TIMELINE_FORKED:
            return self.ended  # in the present history of MongoDB, the events that wait have not happened
        self._look_at(member)
        if self.ledger.gathers and not self._gathers_enough():
            self._waits(member)
            return None
        if self.ledger.alone and self.draining is None and member.hand.outstanding and not member.hand.again:
            self.draining = member
            self._count(member)
        if not member.can_receive:
            if self.ledger.restores:
                self._full[member] = None
            return None
        ledger, credit = self.ledger, member.credit
        was_blocked = not self.subscriber.can_receive
        events_max = min(credit.events, member.batch_events_max or ENTRIES_AT_ONCE, ENTRIES_AT_ONCE)
        taken = ledger.take(
            member.hand,
            events_max=events_max,
            credit_bytes=credit.bytes,
            payload_max=member.payload_max,
            event_max=member.event_max,
            # By events, a key with many of them would be taken by one member alone.
            runs_max=-(-ledger.ready // max(1, self._eager)),
        )
        if isinstance(taken, Runs):
            credit.spend(taken.count, taken.size)
            member.takes_few = False
            member.events_sent = member.hand.sequence
            self._count(member)
            self._drain_no_longer()
            if was_blocked:
                self._streams.resume(self.subscriber)
        elif taken is None:
            if self.ended is not None and (self.tells_end or not ledger.events):
                return self.ended
            self._waits(member)
        return taken

    def settle(
        self,
        member: GroupMember,
        ranges: Iterable[tuple[int, int]],
        failures: Iterable[Failure] = (),
        now_s: float = 0.0,
    ) -> int:
        """Settle a member's events by ranges of its sequences, and take back those that failed. Returns the bytes of
        those that the member had. Raises ACK_OUT_OF_RANGE."""
        was_blocked, ledger, hand, released = not self.subscriber.can_receive, self.ledger, member.hand, 0
        for count, size in chain(
            (ledger.settle(hand, first, last) for first, last in ranges),
            (ledger.fail(hand, failure, now_s) for failure in failures),
        ):
            member.credit.events += count
            member.credit.bytes += size
            released += size
        if member in self._idle:
            self._waits(member)
        self._count(member)
        self.changed(was_blocked=was_blocked)
        return released

    def take_few(self, member: GroupMember) -> None:
        """A part of a member's window has been free for a while: it takes that much, too."""
        if self._members.get(member.id) is member and member.waits_for_more:
            was_blocked = not self.subscriber.can_receive
            member.takes_few = True
            self._count(member)
            member.wake()
            self.changed(was_blocked=was_blocked)

    def retry(self, now_s: float) -> None:
        """Deliver the failed events again whose time has come."""
        was_blocked = not self.subscriber.can_receive
        if self.ledger.due(now_s):
            self.changed(was_blocked=was_blocked)

    def set_aside(self, events: Iterable[tuple[int, bool]]) -> None:
        """Settle events of `KeyLedger.to_set_aside`, which are stored elsewhere now: their numbers, and whether to pin
        the key."""
        was_blocked = not self.subscriber.can_receive
        for number, pin in events:
            self.ledger.set_aside(number, pin=pin)
        self.changed(was_blocked=was_blocked)

    def unpin(self, name: bytes) -> None:
        """No letters of a key are left."""
        was_blocked = not self.subscriber.can_receive
        self.ledger.unpin(name)
        self.changed(was_blocked=was_blocked)

    def replay(self, name: bytes, letters: Sequence[Stored], now_s: float, *, last: bool) -> None:
        """Deliver letters of a key again."""
        holder = self.ledger.replay(name, letters, now_s, last=last)
        for member in self._members.values() if holder is not None else ():
            if member.hand is holder:
                member.wake()
        self.changed(was_blocked=False)

    def deleted(self, numbers: Iterable[int]) -> None:
        """The letters of these events of `KeyLedger.replayed` are deleted."""
        was_blocked = not self.subscriber.can_receive
        self.ledger.deleted(numbers)
        self.changed(was_blocked=was_blocked)

    def changed(self, *, was_blocked: bool) -> None:
        """Continue after a change of the ledger. `was_blocked`: the group could not read on before it."""
        if self.ended is not None:
            if not self.ledger.events:
                self.wake_all()
        elif was_blocked:
            self._streams.resume(self.subscriber)
        self.pass_on()

    def pass_on(self) -> None:
        """Wake as many waiting members as there are keys for them."""
        idle, ledger = self._idle, self.ledger
        count = ledger.ready or int(self.subscriber.has_next)
        if ledger.alone:
            free = list(islice(self._free, ledger.alone))
            for member in free:
                self._waits_no_longer(member)
                member.wake()
            if not free and self.draining is None:
                count = max(count, 1)
        while idle and count:
            member = next(iter(idle))
            self._waits_no_longer(member)
            member.wake()
            count -= 1

    def _waits(self, member: GroupMember) -> None:
        self._idle[member] = None
        if not member.hand.outstanding:
            self._free[member] = None

    def _waits_no_longer(self, member: GroupMember) -> None:
        self._idle.pop(member, None)
        self._free.pop(member, None)
        self._full.pop(member, None)

    def busy(self, member: GroupMember) -> None:
        """Note that a member does something else than to wait for events, and wake another for it."""
        self._waits_no_longer(member)
        self.pass_on()

    def wake(self) -> None:
        """The state of the stream has changed, or there are events: one member looks for all. Sessions that open wait
        for the state, not for events."""
        for opening in self._opening:
            opening.wake()
        waiting = self._idle or (self._full if self.ledger.restores else None)
        if waiting:
            member = next(iter(waiting))
            self._waits_no_longer(member)
            member.wake()

    def wake_all(self) -> None:
        self._idle.clear()
        self._free.clear()
        for member in self._members.values():
            member.wake()

    def rejoin(self, at: JoinPoint) -> None:
        """Continue after the end of the feed."""
        self.ended, self.tells_end = None, False
        self._streams.rejoin(self.subscriber, at)
        self.wake_all()

    def tell_end(self) -> bool:
        """Tell the members of the end, also if events are left that only wait. Returns whether that is so."""
        if self.ended is None or not self.ledger.only_rests:
            return False
        self.tells_end = True
        self.wake_all()
        return True

    def progress(self) -> ResumeToken:
        """The position up to which everything is settled; the newest if that is all that was read."""
        if self.subscriber.lost is None:  # otherwise its position may be that of an earlier host, and was not read
            self.ledger.progress(self.subscriber.progress())
        return self.ledger.settled_place()

    def _read(self) -> None:
        """Read until the members have enough, or there is no more, or as much as fits into one turn of the event
        loop."""
        subscriber, self.reads_on, left, size = self.subscriber, False, ENTRIES_AT_ONCE, 0
        fields_read = self.ledger.fields_read
        fields_before = fields_read.count
        bytes_max = _RESTORED_BYTES if self.ledger.restores or self.ledger.gathers else READ_BYTES
        subscriber.payload_max = PORTION_BYTES
        while True:
            subscriber.batch_events_max = left
            fields = fields_read.count
            taken = self._streams.take(subscriber)
            if isinstance(taken, Ended):
                self.ended = Ended(_for_group(taken.error, subscriber.at.place))
                self.on_end()
            if isinstance(taken, Delivery):
                self.read_events += taken.count + (fields_read.count - fields) // _FIELDS_OF_EVENT
            if not (isinstance(taken, Delivery) and subscriber.can_receive):
                if taken is None and self.ledger.restores:
                    self.progress()  # where no event is left, what was settled ahead is passed, too
                return
            left, size = left - taken.count, size + taken.size
            costly = fields_read.count - fields_before > FIELDS_MAX
            if left <= 0 or size > bytes_max - PORTION_BYTES or costly:
                self.reads_on = True
                return

    def _gathers_enough(self) -> bool:
        """End the gather when everything that members hold was read. While there is no memory to read more, it waits:
        the caller of `end_gather` has a limit."""
        ledger = self.ledger
        if ledger.expects_claims or (ledger.awaits_held and self.ended is None):
            return False
        self.end_gather()
        return not ledger.gathers

    def end_gather(self) -> None:
        """Deliver now."""
        self._deliver_after(self.ledger.end_gather)

    def go_on(self) -> None:
        """Continue what did not fit into one turn of the event loop (`KeyLedger.on_more`)."""
        was_blocked = not self.subscriber.can_receive
        self._deliver_after(self.ledger.go_on)
        self.changed(was_blocked=was_blocked)

    def _deliver_after(self, step: Callable[[], None]) -> None:
        gathered = self.ledger.gathers
        step()
        if gathered and not self.ledger.gathers:
            self.wake_all()

    def _drain_no_longer(self) -> None:
        """Let the draining member take events again, once no event must be alone: another one had nothing in hand."""
        member = self.draining
        if member is not None and not self.ledger.alone:
            self.draining = None
            self._count(member)
            member.wake()

    def _look_at(self, member: GroupMember) -> None:
        """Let monitors find the member at the stream that the group reads."""
        subscriber = self.subscriber
        member.ring, member.seq, member.index = subscriber.ring, subscriber.seq, subscriber.index
        member.at = JoinPoint(self.ledger.place, exact=True)

    def _count(self, member: GroupMember) -> None:
        wants = member.credit.events if member.can_receive else 0
        self.ledger.wanted += wants - member.wants
        self._eager += (wants > 0) - (member.wants > 0)
        member.wants = wants


def _for_group(error: FeedmuxError, place: ResumeToken) -> FeedmuxError:
    """The error of the feed, with what helps a group: no group may have `$changeStreamSplitLargeEvent`."""
    if error.reason is not ErrorReason.EVENT_TOO_LARGE:
        return error
    time = datetime.fromtimestamp(place.cluster_time >> 32, UTC).isoformat().replace("+00:00", "Z")
    return FeedmuxError(
        error.reason,
        "an event is larger than the 16 MB that MongoDB can send, and holds up the group. Let the pipeline remove large"
        f" fields ($unset, $project), or seek the group to a time after the event, which is not before {time}",
        error.metadata,
    )
