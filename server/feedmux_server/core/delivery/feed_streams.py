"""Manages all SharedStreams of one StreamKey: which subscriber joins which stream, and when streams open and close.

Pure and synchronous, so that checking that a position is covered and attaching there is one step. `streams.manager`
gives it a `StreamPort` whose `start` spawns a pump. Invariants: a subscriber is attached to one stream or to none; an
attached subscriber gets every event after its position exactly once; a detached subscriber with credit is in
`_waiting`.
"""

from dataclasses import dataclass, field
from typing import Protocol

from feedmux_server.core.delivery.replay_buffer import RingLimits
from feedmux_server.core.delivery.shared_stream import SharedStream
from feedmux_server.core.delivery.stream_set import StreamSet, is_ahead, same_version
from feedmux_server.core.delivery.subscriber import JoinPoint, Subscriber, SubscriberState
from feedmux_server.core.limits.rings import Rings
from feedmux_server.core.limits.usage_meter import UsageMeter
from feedmux_server.core.positions.resume_token import ResumeToken


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

    def may_catch_up(self, tenant: str) -> bool:
        """Whether another catch-up stream is allowed now."""

    @property
    def known_time(self) -> int:
        """The newest cluster time that this process has seen from MongoDB."""

    def waits(self, subscriber: Subscriber) -> None:
        """Note that a subscriber waits for a slot, so that streams that no longer need theirs release it."""

    def waits_no_longer(self, subscriber: Subscriber) -> None: ...

    def streams_changed(self) -> None:
        """Note that a stream was opened or closed."""

    def left(self, stream: SharedStream) -> None:
        """Note that the stream has no subscriber any more."""

    def next_stream_id(self) -> int: ...


class FeedStreams:
    """Assigns the subscribers of one key to its streams."""

    def __init__(
        self, limits: StreamLimits, port: StreamPort, usage_meter: UsageMeter | None = None, rings: Rings | None = None
    ) -> None:
        self._usage_meter = usage_meter or UsageMeter()
        self._rings = rings or Rings()
        self._limits = limits
        self._port = port
        self.streams = StreamSet(limits.join_distance_s)
        self._waiting: dict[int, Subscriber] = {}
        self.detached: dict[int, Subscriber] = {}
        """Subscribers on no stream: out of credit or waiting for a catch-up slot."""

    @property
    def subscriber_count(self) -> int:
        return len(self.detached) + sum(len(stream.subscribers) for stream in self.streams)

    def state_of(self, subscriber: Subscriber) -> SubscriberState:
        stream = subscriber.stream
        if stream is None:
            return SubscriberState.LAGGING
        return SubscriberState.CATCH_UP if self.streams.is_catch_up(stream) else SubscriberState.LIVE

    def join(self, subscriber: Subscriber) -> None:
        """Attach to a stream that covers the position or soon will; else open a stream there, or wait for a slot."""
        at = subscriber.at
        stream = self.streams.covering(at) or (None if at.native else self.streams.approaching(at))
        if stream is not None and at.native is not None:
            subscriber.at = JoinPoint(at.place, exact=True)  # exactly this token is in the ring, so MongoDB finds it
        if stream is None and self._must_wait(subscriber):
            stream = None if at.native or at.place.from_invalidate else self.streams.behind(at)
            if stream is None:
                self.detached[subscriber.id] = self._waiting[subscriber.id] = subscriber
                self._port.waits(subscriber)
                return
        if stream is None:
            stream = SharedStream(
                self._port.next_stream_id(),
                self._origin(at),
                self._limits.ring,
                self._limits.read_ahead_bytes,
                self._usage_meter,
                self._rings,
            )
            self.streams.add(stream)
            self._port.streams_changed()
            self._attach(subscriber, stream)
            self._port.start(stream)
        else:
            self._attach(subscriber, stream)

    def leave(self, subscriber: Subscriber) -> None:
        """Detach the subscriber, which keeps its position and joins again when it has credit."""
        if subscriber.stream is not None:
            self._detach(subscriber, subscriber.stream)
        self.detached[subscriber.id] = subscriber
        self._wait_no_longer(subscriber)

    def remove(self, subscriber: Subscriber) -> None:
        """Remove the subscriber at the end of its session."""
        self.leave(subscriber)
        del self.detached[subscriber.id]
        if subscriber.acks is not None:
            subscriber.acks.release()

    def hand_over(self, subscriber: Subscriber) -> None:
        """Move a subscriber from a catch-up stream to one ahead that safely covers its position, at the exact event."""
        here = subscriber.stream
        if len(self.streams) == 1 or here is None or not self._verified(here):
            return
        if here.end_error is not None and subscriber.at_head:
            return  # report the end of this stream first: a stream after an invalidate does not continue it
        place = subscriber.at.place
        for ahead in self.streams:
            if (
                ahead is not here
                and ahead.joinable
                and is_ahead(ahead, here)
                and same_version(ahead, here)
                and ahead.ring.in_newer_half(place)
            ):
                self._detach(subscriber, here)
                self._attach(subscriber, ahead)
                return

    def close(self, stream: SharedStream) -> None:
        """Close a stream whose pump is done. Subscribers that have not reached its end join another stream."""
        self.streams.remove(stream)
        self._port.streams_changed()
        for subscriber in list(stream.subscribers.values()):
            stream.detach(subscriber)
            self.detached[subscriber.id] = subscriber
            subscriber.wake()
        stream.ring.close()
        self.admit_waiting()

    def admit_waiting(self) -> None:
        """Let waiting subscribers try to join again, because a stream may now be near enough."""
        for subscriber in list(self._waiting.values()):
            self.admit(subscriber)

    def admit(self, subscriber: Subscriber) -> None:
        """Let one waiting subscriber try to join again."""
        self._wait_no_longer(subscriber)
        subscriber.wake()

    def _must_wait(self, subscriber: Subscriber) -> bool:
        """Whether the subscriber must wait for a slot, because the feed has a stream that it could join, or one of its
        tenant. Streams that other tenants have for themselves do not count."""
        tenant = subscriber.tenant
        beside = any(
            stream.end_error is None and (stream.joinable or tenant in stream.account.tenants)
            for stream in self.streams
        )
        return beside and not self._port.may_catch_up(tenant)

    def _origin(self, at: JoinPoint) -> JoinPoint:
        """Where a stream begins for this position. For a position that MongoDB has not reached, the stream begins at
        the present, where others may join: streams that wait for different times would need a cursor each."""
        present = self._port.known_time + 1
        if at.native is not None or at.place.cluster_time <= present:
            return at
        return JoinPoint(ResumeToken.high_water_mark(present))

    def _attach(self, subscriber: Subscriber, stream: SharedStream) -> None:
        self.detached.pop(subscriber.id, None)
        self._wait_no_longer(subscriber)
        ring, place = stream.ring, subscriber.at.place
        seq, index = ring.locate(place) if ring.covers(place) else (ring.next_seq, 0)
        stream.attach(subscriber, seq, index)

    def _detach(self, subscriber: Subscriber, stream: SharedStream) -> None:
        stream.detach(subscriber)
        if not stream.subscribers:
            self._port.left(stream)

    def _wait_no_longer(self, subscriber: Subscriber) -> None:
        if self._waiting.pop(subscriber.id, None) is not None:
            self._port.waits_no_longer(subscriber)

    def _verified(self, stream: SharedStream) -> bool:
        """Whether MongoDB has accepted the start of the stream: it checks a client's token at the first event."""
        return stream.origin.native is None or stream.events_read > 0
