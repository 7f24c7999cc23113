"""A feed without MongoDB: numbered events, streams that are filled by hand, subscribers that count their wake-ups."""

import itertools
from dataclasses import dataclass, field, replace
from typing import Any

import bson

from feedmux_server.core.delivery.ack_tracker import AckTracker
from feedmux_server.core.delivery.credit import CreditLimits, CreditWindow
from feedmux_server.core.delivery.feed_streams import CatchUpSlots, FeedStreams, StreamLimits
from feedmux_server.core.delivery.replay_buffer import RingLimits
from feedmux_server.core.delivery.shared_stream import SharedStream, StreamState
from feedmux_server.core.delivery.subscriber import Subscriber
from feedmux_server.core.delivery.taken import BSON, Delivery, Ended, NeedsRender, NeedsRoom
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.events.chunk import cut_batch
from feedmux_server.core.positions.join_point import JoinPoint
from feedmux_server.core.positions.resume_token import ResumeToken
from feedmux_server.core.positions.timeline import Fork
from tests.sim.events import BEGIN, event, event_token

EVENT_BYTES = len(event(1, event_token(BEGIN + 1, key=1)).data)


def token(n: int) -> ResumeToken:
    """The position after event `n`; events are counted from 1."""
    return event_token(BEGIN + 10 * n, key=1)


def mark(n: int) -> ResumeToken:
    """The position after event `n` and before the next event, like a postBatchResumeToken."""
    return ResumeToken.high_water_mark(BEGIN + 10 * n + 5)


def behind(n: int) -> JoinPoint:
    return JoinPoint(mark(n), exact=True)


def error(reason: ErrorReason = ErrorReason.INTERNAL) -> FeedmuxError:
    return FeedmuxError(reason, "a fault")


@dataclass(slots=True)
class Port:
    """Records the streams that were started. It stands for the slots too: `slot_free` says whether another catch-up
    stream is allowed."""

    started: list[SharedStream] = field(default_factory=list)
    slot_free: bool = True
    known_time: int = 1 << 64
    waiting: set[int] = field(default_factory=set)
    forks: list[Fork] = field(default_factory=list)

    def start(self, stream: SharedStream) -> None:
        self.started.append(stream)

    def may_catch_up(self, tenant: str) -> bool:
        return self.slot_free

    def lost(self, place: ResumeToken) -> FeedmuxError | None:
        return next((fork.error("main") for fork in self.forks if fork.has_lost(place)), None)

    def waits(self, _: FeedStreams, subscriber: Subscriber) -> None:
        self.waiting.add(subscriber.id)

    def waits_no_longer(self, subscriber: Subscriber) -> None:
        self.waiting.remove(subscriber.id)

    def changed(self, streams: FeedStreams) -> None:
        """Do nothing: there are no other feeds."""

    def abandoned(self, stream: SharedStream) -> None:
        """Do nothing: there are no other feeds."""


class Feed:
    """The streams of one key."""

    def __init__(
        self,
        *,
        events_max: int = 1000,
        read_ahead_bytes: int = 10**6,
        join_distance_s: int = 0,
        slots: CatchUpSlots | None = None,
    ) -> None:
        self.port = Port()
        limits = StreamLimits(RingLimits(events_max=events_max), read_ahead_bytes, join_distance_s)
        self.streams = FeedStreams(limits, self.port, slots or self.port, itertools.count(1))
        self.woken: list[int] = []
        self._last_id = 0

    @classmethod
    def followed(cls, at: JoinPoint, **options: Any) -> tuple["Feed", Subscriber]:
        """A feed with one subscriber."""
        feed = cls()
        return feed, feed.subscriber(at, **options)

    def subscriber(
        self,
        at: JoinPoint,
        *,
        events: int = 1000,
        size: int = 10**6,
        acks_max: int = 0,
        payload_max: int = 10**6,
        wire_format: str = BSON,
        tenant: str = "tenant",
    ) -> Subscriber:
        """Add a subscriber; it has credit unless `events` is 0."""
        self._last_id += 1
        number = self._last_id
        subscriber = Subscriber(
            number,
            tenant,
            at,
            CreditWindow(CreditLimits()),
            lambda: self.woken.append(number),
            acks=AckTracker(at.place, acks_max) if acks_max else None,
            payload_max=payload_max,
            wire_format=wire_format,
        )
        self.streams.join(subscriber)
        if events:
            self.grant(subscriber, events, size)
        self.woken.clear()
        return subscriber

    def stream_of(self, subscriber: Subscriber) -> SharedStream:
        stream = self.streams.stream_of(subscriber)
        assert stream is not None
        return stream

    def take(self, subscriber: Subscriber) -> Delivery | NeedsRender | NeedsRoom | Ended | None:
        return self.streams.take(subscriber)

    def grant(self, subscriber: Subscriber, events: int, size: int) -> None:
        self.streams.grant(subscriber, events, size)

    def ack(self, subscriber: Subscriber, sequence: int) -> bool:
        return self.streams.ack(subscriber, sequence)


def opened(stream: SharedStream) -> SharedStream:
    if stream.state is StreamState.GATHERING:
        stream.move_to(StreamState.OPENING)
        stream.opened = True
        stream.move_to(StreamState.READING)
    return stream


def fill(stream: SharedStream, first: int, last: int, *, chunk_events: int = 1000, marked: bool = True) -> None:
    """Append one batch with events `first` to `last`, cut into chunks."""
    opened(stream)
    for begin in range(first, last + 1, chunk_events):
        stop = min(begin + chunk_events, last + 1)
        data = b"".join(event(n, token(n)).data for n in range(begin, stop))
        end = mark(last) if marked and stop > last else None
        stream.append(cut_batch(data, stream.ring.newest, end, 1.5, bytes_max=10**9), end)


def numbers(delivery: object) -> list[int]:
    """The numbers of the events in a BSON delivery."""
    assert isinstance(delivery, Delivery), delivery
    data = b"".join(delivery.parts)
    found: list[int] = [document["n"] for document in bson.decode_all(data)]
    assert len(found) == delivery.count
    assert len(data) == delivery.size
    return found


def native(n: int) -> JoinPoint:
    return replace(JoinPoint(token(n)), native="resume_after")
