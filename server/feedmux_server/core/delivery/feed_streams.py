"""Which stream of a key a subscriber reads, and when that changes.

`FeedStreams` moves subscribers between streams; the functions after it say which stream serves a position. What a
stream does next is in `stream_steps`. A session takes its events here (`FeedStreams.take`), so that what its stream has
done meanwhile is dealt with first: it may have evicted the next event, caught up with another stream, or ended.

Pure and synchronous, so that checking that a position is covered and attaching there is one step. `streams.key_streams`
gives it a `StreamPort` whose `start` spawns a pump. Invariants: a subscriber is attached to one stream or to none; an
attached subscriber gets every event after its position exactly once; a detached subscriber with credit is in
`_waiting`.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from feedmux_server.core.delivery.ack_tracker import check_sequence
from feedmux_server.core.delivery.replay_buffer import RingLimits
from feedmux_server.core.delivery.shared_stream import SharedStream, StreamState
from feedmux_server.core.delivery.stream_steps import OpenStreams
from feedmux_server.core.delivery.subscriber import Subscriber
from feedmux_server.core.delivery.taken import Delivery, Ended, NeedsRender, NeedsRoom
from feedmux_server.core.errors import ErrorReason, FeedmuxError, FragmentsChanged
from feedmux_server.core.limits.rings import Rings
from feedmux_server.core.limits.usage_meter import UsageMeter
from feedmux_server.core.positions.join_point import JoinPoint
from feedmux_server.core.positions.resume_token import Given, PlaceKey, ResumeToken
from feedmux_server.core.positions.timeline import Fork

PLACE_BOUND = frozenset(
    {
        ErrorReason.FEED_INVALIDATED,
        ErrorReason.HISTORY_LOST,
        ErrorReason.TIMELINE_FORKED,
        ErrorReason.RESUME_TOKEN_NOT_FOUND,
        ErrorReason.START_AFTER_REQUIRED,
        ErrorReason.IMAGE_UNAVAILABLE,
        ErrorReason.EVENT_TOO_LARGE,
        ErrorReason.PIPELINE_FAILED,
    }
)
"""Errors that concern one position in history; every other error concerns the feed at any position."""


class SubscriberState(StrEnum):
    LIVE = "live"
    """On the live stream: at its head, or within its ring."""
    CATCH_UP = "catch_up"
    """On a catch-up stream, or waiting for a stream to reach its position."""
    LAGGING = "lagging"
    """Out of every ring; only its position is retained."""
    UNACKNOWLEDGED = "unacknowledged"
    """On any stream or none: the client must acknowledge events before it gets more."""


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """Limits of the streams of one key."""

    ring: RingLimits = field(default_factory=RingLimits)
    read_ahead_bytes: int = 4 * 1024 * 1024
    """The pump continues to read while a subscriber with credit is nearer to the head than this. At most half the ring,
    or the fastest subscriber pushes the others out."""
    join_distance_s: int = 30
    """A subscriber waits for a stream that is behind its position by less than this (cluster time), instead of opening
    another one. More shares more reads after a mass reconnect, and makes a late starter wait longer."""


class StreamPort(Protocol):
    """What the streams of a key need from their surroundings."""

    def start(self, stream: SharedStream) -> None:
        """Start reading MongoDB for this stream, from its origin."""

    @property
    def known_time(self) -> int:
        """The newest cluster time that this process has seen from MongoDB."""

    def lost(self, place: ResumeToken) -> FeedmuxError | None:
        """The error for a position of a history that MongoDB no longer has."""

    def abandoned(self, stream: SharedStream) -> None:
        """Note that the stream has no subscriber any more."""


class CatchUpSlots(Protocol):
    """The slots for reading history, which all keys share: `slots.Slots`, which gives them by `FeedStreams.admit`."""

    def may_catch_up(self, tenant: str) -> bool:
        """Whether another catch-up stream is allowed now."""

    def waits(self, streams: "FeedStreams", subscriber: Subscriber) -> None:
        """Note that a subscriber waits for a slot, so that streams that no longer need theirs release it."""

    def waits_no_longer(self, subscriber: Subscriber) -> None: ...

    def changed(self, streams: "FeedStreams") -> None:
        """Note that a stream was opened or closed."""


class FeedStreams:
    """Assigns the subscribers of one key to its streams."""

    def __init__(
        self,
        limits: StreamLimits,
        port: StreamPort,
        slots: CatchUpSlots,
        ids: Iterator[int],
        usage_meter: UsageMeter | None = None,
        rings: Rings | None = None,
    ) -> None:
        """`ids` are the next ids of streams in the process."""
        self._ids = ids
        self._usage_meter = usage_meter or UsageMeter()
        self._rings = rings or Rings()
        self._limits = limits
        self._port = port
        self._slots = slots
        self.open = OpenStreams()
        self._waiting: dict[PlaceKey, dict[int, Subscriber]] = {}
        """Subscribers that wait for a slot, by position."""
        self.detached: dict[int, Subscriber] = {}
        """Subscribers on no stream: out of credit or waiting for a catch-up slot."""

    @property
    def subscriber_count(self) -> int:
        return len(self.detached) + sum(len(stream.subscribers) for stream in self.open)

    def stream_of(self, subscriber: Subscriber) -> SharedStream | None:
        """The stream that the subscriber reads."""
        if subscriber.ring is not None:
            for stream in self.open:
                if stream.ring is subscriber.ring:
                    return stream
        return None

    def state_of(self, subscriber: Subscriber) -> SubscriberState:
        if subscriber.awaits_acks:
            return SubscriberState.UNACKNOWLEDGED
        stream = self.stream_of(subscriber)
        if stream is None:
            return SubscriberState.LAGGING
        return SubscriberState.CATCH_UP if stream.gave_way or self.open.is_catch_up(stream) else SubscriberState.LIVE

    def has_read(self, subscriber: Subscriber, cluster_time: int) -> bool:
        """Whether every event at or before this time was taken or does not match the feed. If not, the stream reads on
        until that is known."""
        if subscriber.progress().cluster_time > cluster_time:
            return True
        stream = self.stream_of(subscriber)
        if stream is None:
            return False
        stream.awaited_time = max(stream.awaited_time, cluster_time)
        return subscriber.at_head and stream.complete_time >= cluster_time

    # What a session does.

    def take(self, subscriber: Subscriber) -> Delivery | NeedsRender | NeedsRoom | Ended | None:
        """Take what can be sent now; None when there is nothing, or no credit. The end of a feed needs no credit."""
        if subscriber.received is not None:
            self._check_received(subscriber, subscriber.received)
        if not subscriber.can_receive or subscriber.lost is not None:
            error = self.end_met(subscriber)
            return Ended(error) if error is not None else None
        while True:
            stream = self.stream_of(subscriber)
            if stream is not None and subscriber.seq < stream.ring.first_seq:
                self.leave(subscriber)  # the ring has evicted the next event, which another stream reads again
                stream = None
            stream = self.join(subscriber) if stream is None else self._hand_over(subscriber, stream)
            if stream is None:
                return Ended(subscriber.lost) if subscriber.lost is not None else None  # or it waits for a slot
            if subscriber.seq < stream.ring.next_seq:
                try:
                    taken = subscriber.cut(stream.ring)
                except FragmentsChanged:
                    self._rejoin_beside_event(subscriber)
                    continue
                if taken is None or isinstance(taken, Delivery):
                    stream.poke()  # the pump may rest because of what was passed over, or taken now
                if taken is not None:
                    return taken
            if not stream.ended:
                subscriber.advance()
                return None
            error = self.end_met(subscriber)
            if error is not None:
                return Ended(error)
            # The end concerns others, or the stream gave way: the subscriber continues on another stream.

    def _check_received(self, subscriber: Subscriber, received: ResumeToken) -> None:
        """Find out whether MongoDB has lost what earlier sessions have delivered after the stored position. No event is
        read before its stream has looked, so this is known before the first event of the present history."""
        if subscriber.at.place.is_after(received):
            subscriber.received = None
        elif subscriber.lost is None and (error := self._port.lost(received)) is not None:
            self.leave(subscriber)
            if subscriber.at.place.copied is not None:  # otherwise its copy would seem to be complete
                received = received.while_copying(subscriber.at.place.copied)
            subscriber.at, subscriber.received, subscriber.lost = JoinPoint(received), None, error

    def grant(self, subscriber: Subscriber, events: int, size: int, *, zero_allowed: bool = False) -> None:
        blocked = not subscriber.can_receive
        subscriber.credit.grant(events, size, zero_allowed=zero_allowed)
        if blocked:
            self.resume(subscriber)

    def ack(self, subscriber: Subscriber, sequence: int) -> bool:
        """Acknowledge the events up to `sequence`. Returns whether there is a new position to store."""
        acks = subscriber.acks
        if acks is None:
            check_sequence(sequence, subscriber.events_sent)
            return False
        blocked = not subscriber.can_receive
        moved = acks.ack(sequence)
        if blocked:
            self.resume(subscriber)
        return moved

    def end_met(self, subscriber: Subscriber) -> FeedmuxError | None:
        """Return the error that ended the stream, if it applies to this subscriber's position. A subscriber further
        ahead than a position-bound error joins another stream instead. One at the end of a stream that gave way leaves
        the stream; to continue, it joins again."""
        if subscriber.lost is not None:
            return subscriber.lost
        stream = self.stream_of(subscriber)
        if stream is None or not stream.ended or not subscriber.at_head:
            return None
        if stream.end_error is None:
            subscriber.advance()
            self.leave(subscriber)
            return None
        place = subscriber.at.place
        if isinstance(stream.end_error, FragmentsChanged):
            self._rejoin_beside_event(subscriber)
            return None
        if (
            stream.end_error.reason in PLACE_BOUND
            and place.is_after(stream.ring.newest)
            and not _is_lost_too(stream.end_error, place)
        ):
            self.rejoin(subscriber, subscriber.at)
            return None
        subscriber.advance()
        return stream.end_error

    def rejoin(self, subscriber: Subscriber, at: JoinPoint) -> None:
        """Continue at the position `at`, on any stream that covers it."""
        self.leave(subscriber)
        subscriber.at = at
        subscriber.lost = None
        self.join(subscriber)

    def _rejoin_beside_event(self, subscriber: Subscriber) -> None:
        """Continue after an event whose last fragment was sent; else at the start of the event, which comes again."""
        at, acks = subscriber.at, subscriber.acks
        if at.place.may_be_inside_event:
            place = at.place.after_event() if at.ends_event else at.place.event_start()
            if acks is not None and acks.place.is_same(at.place):
                acks.place = place  # where the session began: the event that comes again is to be stored
            at = JoinPoint(place)
        self.rejoin(subscriber, at)

    def remove(self, subscriber: Subscriber) -> bool:
        """Remove the subscriber at the end of its session. Returns whether its acks have more to release."""
        self.leave(subscriber)
        del self.detached[subscriber.id]
        return subscriber.acks is not None and subscriber.acks.release()

    # Which stream.

    def join(self, subscriber: Subscriber, *, has_slot: bool = False) -> SharedStream | None:
        """Attach to a stream that covers the position or soon will; else open a stream there, or wait for a slot.
        `has_slot`: it has waited, and now has one. No stream for a position that MongoDB has lost."""
        at = subscriber.at
        if subscriber.lost is None:
            subscriber.lost = self._port.lost(at.place)
        if subscriber.lost is not None:
            self.detached[subscriber.id] = subscriber
            return None
        stream = covering(self.open, at) or approaching(self.open, at, self._limits.join_distance_s)
        if stream is not None and at.native is not None:
            subscriber.at = JoinPoint(at.place, exact=True)  # exactly this token is in the ring, so MongoDB finds it
        if stream is None and not has_slot and self._must_wait(subscriber):
            stream = far_behind(self.open, at)
            if stream is None:
                self.detached[subscriber.id] = subscriber
                self._waiting.setdefault(at.place.key, {})[subscriber.id] = subscriber
                self._slots.waits(self, subscriber)
                return None
        if stream is None:
            origin, present = at, self._port.known_time + 1
            if at.native is None and at.place.copied is None and at.place.cluster_time > present:
                # Begin at the present, where others may join: streams that wait for different times, which MongoDB has
                # not reached, would need a cursor each.
                origin = JoinPoint(ResumeToken.high_water_mark(present))
            stream = SharedStream(
                next(self._ids),
                origin,
                self._limits.ring,
                self._limits.read_ahead_bytes,
                self._usage_meter,
                self._rings,
            )
            self.open.append(stream)
            self._slots.changed(self)
            self._port.start(stream)
        self._attach(subscriber, stream)
        return stream

    def _must_wait(self, subscriber: Subscriber) -> bool:
        """Whether a subscriber must wait for a slot, because it copies documents, or because the feed has a stream that
        it could join, or one of its tenant. Streams that other tenants have for themselves do not count."""
        tenant = subscriber.tenant
        beside = subscriber.at.place.copied is not None or any(
            not stream.ended and (stream.joinable or tenant in stream.account.tenants) for stream in self.open
        )
        return beside and not self._slots.may_catch_up(tenant)

    def leave(self, subscriber: Subscriber) -> None:
        """Detach the subscriber, which keeps its position and joins again when it has credit."""
        stream = self.stream_of(subscriber)
        if stream is not None:
            self._detach(subscriber, stream)
        self.detached[subscriber.id] = subscriber
        self._wait_no_longer(subscriber)

    def _hand_over(self, subscriber: Subscriber, here: SharedStream) -> SharedStream:
        """Move a subscriber from a catch-up stream to one ahead that safely covers its position, at the exact event.
        Returns the stream that it reads now."""
        if len(self.open) == 1 or not here.verified or here.copies:
            return here
        if here.end_error is not None and subscriber.at_head:
            return here  # report the end of this stream first: a stream after an invalidate does not continue it
        ahead = ahead_of(self.open, here, subscriber.at.place)
        if ahead is None:
            return here
        self._detach(subscriber, here)
        self._attach(subscriber, ahead)
        return ahead

    def resume(self, subscriber: Subscriber) -> None:
        """Continue if it may receive again: find a stream if there is none, else have the pump read on."""
        if not subscriber.can_receive:
            return
        stream = self.stream_of(subscriber)
        if stream is None:
            self.join(subscriber)
        else:
            stream.poke()
        subscriber.wake()

    # When a stream or a slot has changed.

    def close(self, stream: SharedStream) -> None:
        """Close a stream whose pump is done. Subscribers that have not reached its end join another stream."""
        self.open.remove(stream)
        self._slots.changed(self)
        for subscriber in list(stream.subscribers.values()):
            stream.detach(subscriber)
            self.detached[subscriber.id] = subscriber
            subscriber.wake()
        stream.ring.close()
        if self._waiting and not any(each.joinable for each in self.open):
            # The first of them needs no slot, unless it copies documents.
            for subscriber in [each for at_place in self._waiting.values() for each in at_place.values()]:
                if subscriber.at.place.copied is None:
                    self._wait_no_longer(subscriber)
                    subscriber.wake()

    def fork(self, fork: Fork, error: FeedmuxError) -> None:
        """Close all streams, because MongoDB may have lost what their rings have. A subscriber that is not past the
        common history continues on another stream."""
        for stream in list(self.open):
            if not stream.ended:
                stream.end(error)
            self.close(stream)
        for subscriber in list(self.detached.values()):
            if subscriber.lost is None and fork.may_have_lost(subscriber.at.place):
                self._wait_no_longer(subscriber)
                subscriber.lost = error
            subscriber.wake()

    def give_way(self, stream: SharedStream) -> None:
        """End a catch-up stream, so that another stream gets its slot. Its subscribers take what its ring still has,
        and then join again."""
        stream.give_way()
        for subscriber in list(stream.subscribers.values()):
            if subscriber.at_head:
                self.end_met(subscriber)
                subscriber.wake()

    def admit(self, subscriber: Subscriber) -> None:
        """Give a slot to a waiting subscriber. It joins at once, or its session could find the slot taken. All that
        wait at its position share its stream.

        This runs in the task of whoever had the slot. The session meets an error when it joins itself.
        """
        key, stream = subscriber.at.place.key, None
        self._wait_no_longer(subscriber)
        with suppress(FeedmuxError):
            stream = self.join(subscriber, has_slot=True)
        subscriber.wake()
        for other in list(self._waiting.get(key, {}).values()):
            with suppress(FeedmuxError):
                if stream is not None and covering((stream,), other.at) is not None:
                    self._attach(other, stream)
                    other.wake()

    def _attach(self, subscriber: Subscriber, stream: SharedStream) -> None:
        ring, place = stream.ring, subscriber.at.place
        seq, index = ring.locate(place) if ring.covers(place) else (ring.next_seq, 0)
        self.detached.pop(subscriber.id, None)
        self._wait_no_longer(subscriber)
        stream.attach(subscriber, seq, index)

    def _detach(self, subscriber: Subscriber, stream: SharedStream) -> None:
        stream.detach(subscriber)
        if not stream.subscribers:
            self._port.abandoned(stream)

    def _wait_no_longer(self, subscriber: Subscriber) -> None:
        key = subscriber.at.place.key
        waiting = self._waiting.get(key)
        if waiting is not None and waiting.pop(subscriber.id, None) is not None:
            if not waiting:
                del self._waiting[key]
            self._slots.waits_no_longer(subscriber)


def covering(streams: Iterable[SharedStream], at: JoinPoint) -> SharedStream | None:
    """The stream furthest ahead whose ring covers the position. None for a position within a copy of documents."""
    best: SharedStream | None = None
    if at.place.copied is not None:
        return None
    for stream in streams:
        if (
            stream.joinable
            and stream.ring.covers(at.place)
            and (at.native is None or _holds_token(stream, at))
            and (best is None or stream.ring.newest.is_after(best.ring.newest))
        ):
            best = stream
    return best


def approaching(streams: Iterable[SharedStream], at: JoinPoint, join_distance_s: int) -> SharedStream | None:
    """A stream that is a little behind the position, or that is not yet open and can begin further back."""
    if at.native is not None or at.place.from_invalidate or at.place.copied is not None:
        return None  # nothing else may judge the token; a stream that begins earlier would end at the invalidate
    for stream in sorted(streams, key=lambda each: each.ring.newest.cluster_time, reverse=True):
        if not stream.joinable:
            continue
        newest = stream.ring.newest
        if at.place.is_after(newest):
            if _distance_s(newest.cluster_time, at.place.cluster_time) <= join_distance_s:
                return stream
        elif (
            stream.state is StreamState.GATHERING
            and not newest.from_invalidate
            and newest.reaches(at.place)
            and _distance_s(at.place.cluster_time, newest.cluster_time) <= join_distance_s
        ):
            stream.lower_start(at)
            return stream
    return None


def far_behind(streams: Iterable[SharedStream], at: JoinPoint) -> SharedStream | None:
    """A stream that will reach the position, however far behind it is. Used if no other stream may be opened."""
    if at.native is not None or at.place.from_invalidate or at.place.copied is not None:
        return None  # as above
    behind = [s for s in streams if s.joinable and at.place.is_after(s.ring.newest)]
    return max(behind, key=lambda stream: stream.ring.newest.cluster_time, default=None)


def ahead_of(streams: Iterable[SharedStream], here: SharedStream, place: ResumeToken) -> SharedStream | None:
    """A stream ahead of `here` to which a subscriber at `place` may move: there it will not be evicted at once."""
    for ahead in streams:
        if (
            ahead is not here
            and ahead.joinable
            and is_ahead(ahead, here)
            and same_version(ahead, here)
            and ahead.ring.in_newer_half(place)
        ):
            return ahead
    return None


def _holds_token(stream: SharedStream, at: JoinPoint) -> bool:
    """Whether exactly this token is in the ring. Only then it is certain that MongoDB would find it."""
    ring = stream.ring
    if at.place.from_invalidate:
        return False
    if any(edge.raw == at.place.raw and edge.given is Given.BY_MONGODB for edge in (ring.newest, ring.oldest)):
        return True
    seq, index = ring.locate(at.place)
    if index == 0:
        seq -= 1
        return seq >= ring.first_seq and ring[seq].token(ring[seq].count - 1).raw == at.place.raw
    return ring[seq].token(index - 1).raw == at.place.raw


def _distance_s(earlier: int, later: int) -> int:
    return (later >> 32) - (earlier >> 32)


def is_ahead(one: SharedStream, other: SharedStream) -> bool:
    """Whether subscribers of `other` move to `one`. At equal positions they move to the older stream, so that two idle
    heads merge."""
    newest, theirs = one.ring.newest, other.ring.newest
    return newest.is_after(theirs) or (one.id < other.id and not theirs.is_after(newest))


def same_version(one: SharedStream, other: SharedStream) -> bool:
    """Streams of different token version are never merged: their events do not sort together."""
    return one.ring.newest.version == other.ring.newest.version


def _is_lost_too(error: FeedmuxError, place: ResumeToken) -> bool:
    """Return whether MongoDB would reject this position as it rejected another, so that subscribers at positions that
    have left the oplog do not ask MongoDB one after the other."""
    oldest = error.metadata.get("oldest_time") if error.reason is ErrorReason.HISTORY_LOST else None
    return oldest is not None and place.cluster_time >> 32 < datetime.fromisoformat(oldest).timestamp()
