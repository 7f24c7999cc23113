"""A subscriber: an index into a shared ring, a window of credit, and what it has not acknowledged.

A subscriber holds no queue, and knows no stream: `FeedStreams` decides which ring it reads, and when it reads another.
`cut` returns the events after the index, as far as credit, the bound on unacknowledged events and the message size
allow.
"""

from collections.abc import Callable
from typing import Final, Protocol

from feedmux_server.core.delivery.copy_range import is_of_one_step
from feedmux_server.core.delivery.credit import CreditWindow
from feedmux_server.core.delivery.replay_buffer import ReplayBuffer
from feedmux_server.core.delivery.taken import BSON, Delivery, NeedsRender, NeedsRoom
from feedmux_server.core.errors import FeedmuxError, FragmentsChanged
from feedmux_server.core.events.chunk import Chunk
from feedmux_server.core.positions.join_point import JoinPoint
from feedmux_server.core.positions.resume_token import ResumeToken

_UNLIMITED = 1 << 62
CHUNKS_MAX: Final = 300
"""Limit of chunks in one message: 2 ms of the event loop. A slow feed has chunks of one event, so a message of 1 MiB
could have 3,000."""


class Acks(Protocol):
    """What a subscriber's client has not acknowledged: an `AckTracker`, or the `KeyLedger` of a group."""

    place: ResumeToken

    @property
    def acked(self) -> int: ...

    @property
    def outstanding(self) -> int: ...

    @property
    def room(self) -> int: ...

    def record(self, chunk: Chunk, first: int, stop: int) -> None: ...

    def part_of_ack(self, sequence: int) -> int: ...

    def ack(self, sequence: int) -> bool: ...

    def move_back(self, place: ResumeToken) -> None: ...

    def progress(self, place: ResumeToken) -> bool: ...

    def release(self) -> bool: ...


class Subscriber:
    """One live session's position in a feed."""

    __slots__ = (
        "acks", "at", "batch_events_max", "credit", "event_max", "events_sent", "format", "id", "index", "lost",
        "payload_max", "received", "ring", "seq", "tenant", "wake", "wants_progress",
    )  # fmt: skip

    def __init__(
        self,
        subscriber_id: int,
        tenant: str,
        at: JoinPoint,
        credit: CreditWindow,
        wake: Callable[[], None],
        *,
        acks: Acks | None = None,
        payload_max: int = 1024 * 1024,
        wire_format: str = BSON,
        batch_events_max: int = 0,
        wants_progress: bool = False,
    ) -> None:
        self.id = subscriber_id
        self.tenant = tenant
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
        self.ring: ReplayBuffer | None = None
        """The ring that it reads, if it reads one; `seq` and `index` point to the next event there."""
        self.lost: FeedmuxError | None = None
        """Set once MongoDB no longer has the history of the position: the subscriber reads no stream then."""
        self.received: ResumeToken | None = None
        """The position that earlier sessions have reached, until this one has reached it too."""
        self.seq = 0
        self.index = 0
        self.events_sent = 0

    @property
    def can_receive(self) -> bool:
        """Whether an event could be sent now."""
        return self.credit.open and (self.acks is None or self.acks.room > 0)

    @property
    def awaits_acks(self) -> bool:
        """Whether the client must acknowledge events before it gets more."""
        return self.acks is not None and self.acks.room <= 0

    @property
    def at_head(self) -> bool:
        return self.ring is not None and self.seq >= self.ring.next_seq

    @property
    def has_next(self) -> bool:
        """Whether there is an event after the index that could be sent now."""
        return self.ring is not None and self.seq < self.ring.next_seq and self.can_receive

    def advance(self) -> None:
        """Move to the ring's newest position. Call this at the head, after everything before it was taken.

        This also applies after a client's token that MongoDB has not checked yet; MongoDB checks it at the first event.
        By the driver specification, a postBatchResumeToken replaces the token, so that it does not leave the oplog
        while the feed is idle.
        """
        if self.ring is not None and self.ring.newest.is_further(self.at.place):
            self.at = JoinPoint(self.ring.newest, exact=True)

    def progress(self) -> ResumeToken:
        """Return the position up to which everything was delivered, for a heartbeat."""
        if self.can_receive and self.at_head:
            self.advance()
        return self.at.place

    @property
    def unacked(self) -> int:
        """The events that its client has not acknowledged."""
        return self.acks.outstanding if self.acks is not None else 0

    @property
    def safe_place(self) -> ResumeToken:
        """Where the next session would resume if this one ended now: after the events that the client has acknowledged,
        or, if it has acknowledged all, at the newest position."""
        if self.acks is not None and self.acks.outstanding:
            return self.acks.place
        if self.ring is not None and self.at_head and self.can_receive:
            newest = self.ring.newest
            return newest if newest.is_after(self.at.place) else self.at.place
        return self.at.place

    def _has_other_fragments(self, ring: ReplayBuffer) -> bool:
        """Whether the ring, which another session may have had read, has other fragments of the event in which this one
        is."""
        seq = self.seq if self.index else self.seq - 1
        if seq < ring.first_seq:
            return False
        chunk = ring[seq]
        return chunk.ends_without((self.index or chunk.count) - 1, self.at.place)

    def lag_events(self) -> int:
        return self.ring.events_behind(self.seq, self.index) if self.ring is not None else 0

    def cut(self, ring: ReplayBuffer) -> Delivery | NeedsRender | NeedsRoom | None:
        """Take the events from the index on, over as many chunks as fit into one message; None if there are only events
        that were passed before. Raises FragmentsChanged."""
        events_left = self.credit.events if self.acks is None else min(self.credit.events, self.acks.room)
        if self.batch_events_max:
            events_left = min(events_left, self.batch_events_max)
        credit_left, room = self.credit.bytes, self.payload_max
        first_sequence = self.events_sent + 1
        parts: list[bytes] = []
        count = size = wire_size = 0
        read_time_s, are_documents = 0.0, False
        while self.seq < ring.next_seq and events_left > count and credit_left > size:
            chunk = ring[self.seq]
            if self.index == 0 and self.at.place.is_after(chunk.start):
                # The stream was behind the position when it was joined, and has now read events at or before that.
                self.index = chunk.first_after(self.at.place)
            if not parts and self._has_other_fragments(ring):
                raise FragmentsChanged
            if self.index == chunk.count:
                self.seq, self.index = self.seq + 1, 0
                continue
            rendition = chunk.bson if self.format == BSON else chunk.rendered.get(self.format)
            if parts and (
                chunk.are_documents is not are_documents
                or not is_of_one_step(self.at.place, chunk.start, documents=are_documents)
            ):
                break
            if rendition is None:
                if parts:
                    break
                return NeedsRender(chunk, ring)
            first = self.index
            stop = min(
                rendition.stop_within(first, room - wire_size),
                rendition.stop_with_credit(first, credit_left - size),
                first + events_left - count,
            )
            if parts and stop < chunk.count:
                break  # whole chunks only: their bytes are shared, a part would be a copy
            if stop <= first:
                stop = first + 1  # larger than a message: the session sends fragments
                if rendition.offsets[stop] - rendition.offsets[first] > self.event_max:
                    return NeedsRoom()
            part = rendition.cut(first, stop)
            if not parts:
                read_time_s, are_documents = chunk.read_time_s, chunk.are_documents
            parts.append(part)
            count += stop - first
            size += rendition.event_bytes[stop] - rendition.event_bytes[first]
            wire_size += len(part)
            if self.acks is not None:
                self.acks.record(chunk, first, stop)
            self.at = JoinPoint(chunk.place_after(stop - 1), exact=True, ends_event=chunk.ends_event(stop - 1))
            self.index = stop
            if stop < chunk.count:
                break
            self.seq, self.index = self.seq + 1, 0
            if chunk.ends_delivery or len(parts) == CHUNKS_MAX:
                break
        if not parts:
            return None
        self.credit.spend(count, size)
        self.events_sent += count
        end = self.at.place
        return Delivery(first_sequence, count, tuple(parts), size, wire_size, end, read_time_s, are_documents)
