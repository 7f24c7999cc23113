"""A subscriber: an index into a shared ring, a window of credit, and what it has not acknowledged.

A subscriber holds no queue. Its session calls `take` whenever it can send; `take` returns the events after the index,
as far as credit, the bound on unacknowledged events and the message size allow. Up the data path: `FeedStreams`, which
finds a stream, and the `SharedStream` that the subscriber is attached to; down: `sessions.session`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Literal

from feedmux_server.core.delivery.ack_tracker import AckTracker, check_sequence
from feedmux_server.core.delivery.credit import CreditWindow
from feedmux_server.core.delivery.replay_buffer import ReplayBuffer
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.events.chunk import Chunk, View
from feedmux_server.core.positions.resume_token import ResumeToken

if TYPE_CHECKING:
    from feedmux_server.core.delivery.feed_streams import FeedStreams
    from feedmux_server.core.delivery.shared_stream import SharedStream

BSON = "bson"
_UNLIMITED = 1 << 62

PLACE_BOUND = frozenset(
    {
        ErrorReason.FEED_INVALIDATED,
        ErrorReason.HISTORY_LOST,
        ErrorReason.RESUME_TOKEN_NOT_FOUND,
        ErrorReason.START_AFTER_REQUIRED,
        ErrorReason.IMAGE_UNAVAILABLE,
        ErrorReason.EVENT_TOO_LARGE,
        ErrorReason.PIPELINE_FAILED,
    }
)
"""Errors that concern one position in history; every other error concerns the feed at any position."""

NativeStart = Literal["resume_after", "start_after"]


@dataclass(frozen=True, slots=True)
class JoinPoint:
    """The position where a subscriber wants to continue, and how to ask MongoDB for it."""

    place: ResumeToken
    exact: bool = False
    """The token came from exactly this stream key, so that resumeAfter accepts it."""
    native: NativeStart | None = None
    """Set for a token that the client gave: MongoDB's verdict on it is final."""


class SubscriberState(StrEnum):
    LIVE = "live"
    """On the live stream: at its head, or within its ring."""
    CATCH_UP = "catch_up"
    """On a catch-up stream, or waiting for a stream to reach its position."""
    LAGGING = "lagging"
    """Out of every ring; only its position is retained."""


@dataclass(slots=True)
class Delivery:
    """Consecutive events of one stream, ready to be framed."""

    first_sequence: int
    count: int
    parts: tuple[bytes, ...]
    """The events' bytes in the session's format, as a message contains them. Empty after a message has taken them:
    their ring may have evicted them."""
    size: int
    """The events' own bytes, which credit and quotas count: BSON documents, or JSON texts in UTF-8."""
    wire_size: int
    """The bytes of `parts`. With JSON each text has its field's tag and length before it."""
    end: ResumeToken
    """The position after the last event."""
    read_time_s: float


@dataclass(frozen=True, slots=True)
class NeedsRender:
    """The next chunk is not rendered in the session's format yet."""

    chunk: Chunk
    ring: ReplayBuffer


@dataclass(frozen=True, slots=True)
class NeedsRoom:
    """The next event is larger than `Subscriber.event_max` allows now."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The feed has ended, by an invalidate (error FEED_INVALIDATED) or another error of MongoDB."""

    error: FeedmuxError


def _is_lost_too(error: FeedmuxError, place: ResumeToken) -> bool:
    """Return whether MongoDB would reject this position as it rejected another, so that subscribers at positions that
    have left the oplog do not ask MongoDB one after the other."""
    oldest = error.metadata.get("oldest_time") if error.reason is ErrorReason.HISTORY_LOST else None
    return oldest is not None and place.cluster_time >> 32 < datetime.fromisoformat(oldest).timestamp()


class Subscriber:
    """One live session's position in a feed."""

    __slots__ = (
        "acks", "at", "batch_events_max", "credit", "event_max", "events_sent", "format", "id", "index", "payload_max",
        "seq", "stream", "streams", "tenant", "wake", "wants_progress",
    )  # fmt: skip

    def __init__(
        self,
        subscriber_id: int,
        tenant: str,
        streams: "FeedStreams",
        at: JoinPoint,
        credit: CreditWindow,
        wake: Callable[[], None],
        *,
        acks: AckTracker | None = None,
        payload_max: int = 1024 * 1024,
        wire_format: str = BSON,
        batch_events_max: int = 0,
        wants_progress: bool = False,
    ) -> None:
        self.id = subscriber_id
        self.tenant = tenant
        self.streams = streams
        self.at = at
        """The position after the last event taken (or known to be passed)."""
        self.credit = credit
        self.acks = acks
        self.wake = wake
        self.payload_max = payload_max
        """Maximum bytes of one delivery of several events."""
        self.event_max = _UNLIMITED
        """Maximum bytes of an event that is delivered alone: a larger event waits."""
        self.batch_events_max = batch_events_max
        """Maximum events of one delivery; 0: as many as fit."""
        self.format = wire_format
        self.wants_progress = wants_progress
        """Whether to wake the subscriber also when the stream has read further without an event."""
        self.stream: SharedStream | None = None
        self.seq = 0
        self.index = 0
        self.events_sent = 0

    @property
    def can_receive(self) -> bool:
        """Whether an event could be sent now."""
        return self.credit.open and (self.acks is None or self.acks.room > 0)

    @property
    def at_head(self) -> bool:
        return self.stream is not None and self.seq >= self.stream.ring.next_seq

    @property
    def has_next(self) -> bool:
        """Whether there is an event after the index that could be sent now."""
        return self.stream is not None and self.seq < self.stream.ring.next_seq and self.can_receive

    def grant(self, events: int, size: int, *, zero_allowed: bool = False) -> None:
        blocked = not self.credit.open
        self.credit.grant(events, size, zero_allowed=zero_allowed)
        if blocked:
            self.resume()

    def ack(self, sequence: int) -> bool:
        """Pass an ack to `AckTracker.ack`. Returns whether there is a new position to store."""
        if self.acks is None:
            check_sequence(sequence, self.events_sent)
            return False
        blocked = self.acks.room <= 0
        moved = self.acks.ack(sequence)
        if blocked:
            self.resume()
        return moved

    def resume(self) -> None:
        """Continue when more may be taken than before: find a stream if there is none, and notify the pump."""
        if self.can_receive:
            if self.stream is None:
                self.streams.join(self)
            else:
                self.stream.poke()
        self.wake()

    def take(self) -> Delivery | NeedsRender | NeedsRoom | Ended | None:
        """Take what can be sent now; None when there is nothing, or no credit. The end of a feed needs no credit."""
        if not self.can_receive:
            error = self.end_met()
            return Ended(error) if error is not None else None
        self._settle()
        stream = self.stream
        if stream is None:
            return None
        ring = stream.ring
        if self.seq < ring.next_seq:
            taken = self._cut(ring)
            if taken is not None:
                return taken
            stream.poke()  # all events were skipped: the pump may rest because of them
        if stream.end_error is not None:
            error = self.end_met()
            return Ended(error) if error is not None else self.take()
        self._advance(ring)
        return None

    def progress(self) -> ResumeToken:
        """Return the position up to which everything was delivered, for a heartbeat."""
        if self.can_receive and self.stream is not None and self.at_head:
            self._advance(self.stream.ring)
        return self.at.place

    @property
    def safe_place(self) -> ResumeToken:
        """Where the next session would resume if this one ended now: after the events that the client has acknowledged,
        or, if it has acknowledged all, at the newest position."""
        if self.acks is not None and self.acks.outstanding:
            return self.acks.place
        if self.stream is not None and self.at_head and self.can_receive:
            newest = self.stream.ring.newest
            return newest if newest.is_after(self.at.place) else self.at.place
        return self.at.place

    def lag_events(self) -> int:
        return self.stream.ring.events_behind(self.seq, self.index) if self.stream is not None else 0

    def _advance(self, ring: ReplayBuffer) -> None:
        """Move to the ring's newest position. Called at the head, after everything before it was taken.

        This also applies after a client's token that MongoDB has not checked yet; MongoDB checks it at the first event.
        By the driver specification, a postBatchResumeToken replaces the token, so that it does not leave the oplog
        while the feed is idle.
        """
        if ring.newest.is_after(self.at.place):
            self.at = JoinPoint(ring.newest, exact=True)

    def _settle(self) -> None:
        """Attach to the right stream: leave one whose ring has evicted the next event, or one that has caught up."""
        if self.stream is not None and self.seq < self.stream.ring.first_seq:
            self.streams.leave(self)
        if self.stream is None:
            self.streams.join(self)
        else:
            self.streams.hand_over(self)

    def end_met(self) -> FeedmuxError | None:
        """Return the error that ended the stream, if it applies to this subscriber's position. A subscriber further
        ahead than a position-bound error joins another stream instead."""
        stream = self.stream
        if stream is None or stream.end_error is None or not self.at_head:
            return None
        if (
            stream.end_error.reason in PLACE_BOUND
            and self.at.place.is_after(stream.ring.newest)
            and not _is_lost_too(stream.end_error, self.at.place)
        ):
            self.rejoin(self.at)
            return None
        if stream.ring.newest.is_after(self.at.place):
            self.at = JoinPoint(stream.ring.newest, exact=True)
        return stream.end_error

    def rejoin(self, at: JoinPoint) -> None:
        """Continue at the position `at`, on any stream that covers it."""
        self.streams.leave(self)
        self.at = at
        self.streams.join(self)

    def _view(self, chunk: Chunk) -> View | None:
        return chunk.bson if self.format == BSON else chunk.rendered.get(self.format)

    def _cut(self, ring: ReplayBuffer) -> Delivery | NeedsRender | NeedsRoom | None:
        """Events from the index on, over as many chunks as fit into one message."""
        events_left = self.credit.events if self.acks is None else min(self.credit.events, self.acks.room)
        if self.batch_events_max:
            events_left = min(events_left, self.batch_events_max)
        credit_left, room = self.credit.bytes, self.payload_max
        first_sequence = self.events_sent + 1
        parts: list[bytes] = []
        count = size = wire_size = 0
        read_time_s = 0.0
        while self.seq < ring.next_seq and events_left > count and credit_left > size:
            chunk = ring[self.seq]
            self._skip_passed(chunk)
            if self.index == chunk.count:
                self.seq, self.index = self.seq + 1, 0
                continue
            view = self._view(chunk)
            if view is None:
                if parts:
                    break
                return NeedsRender(chunk, ring)
            first = self.index
            stop = min(
                view.stop_within(first, room - wire_size),
                view.stop_with_credit(first, credit_left - size),
                first + events_left - count,
            )
            if parts and stop < chunk.count:
                break  # whole chunks only: their bytes are shared, a part would be a copy
            if stop <= first:
                stop = first + 1  # larger than a message: the session sends fragments
                if view.offsets[stop] - view.offsets[first] > self.event_max:
                    return NeedsRoom()
            part = view.cut(first, stop)
            if not parts:
                read_time_s = chunk.read_time_s
            parts.append(part)
            count += stop - first
            size += view.event_bytes[stop] - view.event_bytes[first]
            wire_size += len(part)
            if self.acks is not None:
                self.acks.record(chunk, first, stop)
            self.at = JoinPoint(chunk.place_after(stop - 1), exact=True)
            self.index = stop
            if stop < chunk.count:
                break
            self.seq, self.index = self.seq + 1, 0
        if not parts:
            return None
        self.credit.spend(count, size)
        self.events_sent += count
        if self.stream is not None:
            self.stream.poke()
        return Delivery(first_sequence, count, tuple(parts), size, wire_size, self.at.place, read_time_s)

    def _skip_passed(self, chunk: Chunk) -> None:
        """Skip events at or before the position, on a stream that was behind the position when joined."""
        if self.index == 0 and self.at.place.is_after(chunk.start):
            self.index = chunk.first_after(self.at.place)
