"""One upstream read shared by its subscribers, as a state machine without I/O.

The pump (`streams.pump`) reads MongoDB and calls `append`, `move_to` and `end`; subscribers take from `ring`. The pump
never waits for a subscriber. Invariant: only the pump adds to the ring. Subscribers read the ring of an ended stream to
its end and then leave the stream.
"""

from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Final

from feedmux_server.core.delivery.replay_buffer import NO_CHUNK, ReplayBuffer, RingLimits
from feedmux_server.core.delivery.subscriber import Subscriber
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.events.chunk import Chunk
from feedmux_server.core.limits.rings import Rings
from feedmux_server.core.limits.usage_meter import StreamAccount, UsageMeter
from feedmux_server.core.positions.join_point import JoinPoint
from feedmux_server.core.positions.resume_token import ResumeToken


class StreamState(StrEnum):
    GATHERING = "gathering"
    """Registered, without a request to MongoDB yet: the start may still move back for subscribers that join."""
    OPENING = "opening"
    READING = "reading"
    PAUSED = "paused"
    """The cursor is open, but no subscriber can take more."""
    IDLE = "idle"
    """The cursor is closed, and the position is retained."""
    RECOVERING = "recovering"
    """Waiting to try again after an error."""
    ENDED = "ended"


_S = StreamState
TRANSITIONS: Final[dict[StreamState, frozenset[StreamState]]] = {
    _S.GATHERING: frozenset({_S.OPENING, _S.ENDED}),
    _S.OPENING: frozenset({_S.READING, _S.RECOVERING, _S.ENDED}),
    _S.READING: frozenset({_S.PAUSED, _S.RECOVERING, _S.ENDED}),
    _S.PAUSED: frozenset({_S.READING, _S.IDLE, _S.ENDED}),
    _S.IDLE: frozenset({_S.OPENING, _S.ENDED}),
    _S.RECOVERING: frozenset({_S.OPENING, _S.IDLE, _S.ENDED}),
    _S.ENDED: frozenset(),
}
_WITH_CURSOR: Final = frozenset({_S.OPENING, _S.READING, _S.PAUSED})


class SharedStream:
    """One read of a StreamKey, from one position."""

    __slots__ = (
        "_batches", "account", "at_present", "awaited_time", "batches_read", "complete_time", "demand_changed",
        "documents_estimated", "end_error", "ended", "events_read", "id", "last_tenant", "opened", "origin",
        "read_ahead_bytes", "resumes", "ring", "state", "subscribers", "trace", "unavailable", "unwanted", "watching",
    )  # fmt: skip

    def __init__(
        self,
        stream_id: int,
        origin: JoinPoint,
        limits: RingLimits,
        read_ahead_bytes: int,
        usage_meter: UsageMeter | None = None,
        rings: Rings | None = None,
    ) -> None:
        self.id = stream_id
        self.origin = origin
        """Where reading begins."""
        self.ring = ReplayBuffer(origin.place, limits, rings)
        self.ring.first_awaited = self._first_awaited
        self.read_ahead_bytes = read_ahead_bytes
        self.subscribers: dict[int, Subscriber] = {}
        self.watching: dict[int, Subscriber] = {}
        """The subscribers that want to know how far the stream has read."""
        self.state = StreamState.GATHERING
        self.opened = False
        """MongoDB has accepted the aggregate once."""
        self.at_present = False
        """MongoDB had no more events at the last read: the next read needs no history."""
        self.complete_time = 0
        """The ring had every event at or before this cluster time."""
        self.awaited_time = 0
        """The newest `complete_time` for which a plan has waited."""
        self.unavailable = False
        """MongoDB has failed and has not answered since then."""
        self.ended = False
        self.end_error: FeedmuxError | None = None
        """Why it has ended; None if it gave way."""
        self.demand_changed: Callable[[], None] = lambda: None
        """Called when the pump should check `wants_more` and `subscribers` again."""
        self.account = StreamAccount(usage_meter or UsageMeter())
        self.events_read = 0
        self.batches_read = 0
        self.documents_estimated = 0
        """Of a copy: the documents of the collection; 0: not known."""
        self._batches = 0, 0
        """The sequence numbers of the first chunk in each of the last two batches that had chunks."""
        self.resumes = 0
        self.last_tenant = ""
        """The tenant of the last subscriber that left. The cursor counts for this tenant until the stream closes."""
        self.unwanted = False
        """The stream closes as soon as it has no subscriber, without a wait for reconnects."""
        self.trace: object = None
        """The trace of opening the stream; see `telemetry.observer`."""

    @property
    def joinable(self) -> bool:
        """Whether others may join. They may not join a start at a client's token that MongoDB has not checked yet: its
        rejection concerns only that client."""
        return not self.ended and self.verified and not self.copies

    @property
    def verified(self) -> bool:
        """Whether MongoDB has accepted the start of the stream: it checks a client's token at the first event."""
        return self.origin.native is None or self.events_read > 0

    @property
    def copies(self) -> bool:
        """Whether it reads existing documents, for its own subscribers only: each of them is at another one."""
        return self.origin.place.copied is not None

    @property
    def gave_way(self) -> bool:
        """Whether the stream has ended because it gave its slot to another one, or because its copy is complete."""
        return self.ended and self.end_error is None

    @property
    def invalidated(self) -> bool:
        return self.end_error is not None and self.end_error.reason is ErrorReason.FEED_INVALIDATED

    def move_to(self, state: StreamState) -> None:
        if state not in TRANSITIONS[self.state]:
            raise RuntimeError(f"a stream cannot go from {self.state} to {state}")
        self.state = state
        self.ended = state is StreamState.ENDED
        if state is not StreamState.READING:
            self.at_present = False

    def lower_start(self, origin: JoinPoint) -> None:
        """Begin further back, for a subscriber that joined while the stream gathers subscribers."""
        if self.state is not StreamState.GATHERING:
            raise RuntimeError("the start is fixed once MongoDB was asked")
        self.origin = origin
        self.ring.restart_at(origin.place)

    def attach(self, subscriber: Subscriber, seq: int, index: int) -> None:
        subscriber.ring, subscriber.seq, subscriber.index = self.ring, seq, index
        self.subscribers[subscriber.id] = subscriber
        if subscriber.wants_progress:
            self.watching[subscriber.id] = subscriber
        self.unwanted = False
        self.account.enter(subscriber.tenant, self.events_read, self.ring.cum_bytes)
        self.demand_changed()

    def detach(self, subscriber: Subscriber) -> None:
        del self.subscribers[subscriber.id]
        self.watching.pop(subscriber.id, None)
        self.account.leave(subscriber.tenant, self.events_read, self.ring.cum_bytes)
        subscriber.ring = None
        self.last_tenant = subscriber.tenant
        self.demand_changed()

    def close_early(self) -> None:
        """Stop waiting for subscribers that reconnect."""
        self.unwanted = True
        self.demand_changed()

    @property
    def holds_cursor_for(self) -> str:
        """The tenant that left the stream last, while it keeps a cursor that nobody reads; else empty."""
        return self.last_tenant if not self.subscribers and self.state in _WITH_CURSOR else ""

    def poke(self) -> None:
        """Have the pump check again whether to read, because a subscriber can take more."""
        self.demand_changed()

    def wants_more(self) -> bool:
        """Whether a subscriber near the head can take more. Subscribers far behind take from the ring first."""
        ring = self.ring
        for subscriber in self.subscribers.values():
            if subscriber.can_receive and (
                subscriber.seq >= ring.next_seq
                or (subscriber.seq >= ring.first_seq and ring.is_near_head(subscriber.seq, self.read_ahead_bytes))
            ):
                return True
        return False

    @property
    def has_usable_credit(self) -> bool:
        return any(subscriber.can_receive for subscriber in self.subscribers.values())

    def append(self, chunks: Iterable[Chunk], post_batch: ResumeToken | None, complete_time: int = 0) -> None:
        """Append one batch from MongoDB: its chunks (none if it was empty) and its postBatchResumeToken. After it, the
        ring had every event at or before `complete_time`."""
        self.batches_read += 1
        first_seq = self.ring.next_seq
        for chunk in chunks:
            self.ring.append(chunk)
            self.events_read += chunk.count
        is_empty = self.ring.next_seq == first_seq
        self.at_present = is_empty and not self.copies
        if not is_empty:
            self._batches = self._batches[1], first_seq
        if self.ring.is_full:
            self.ring.trim(self._untaken_from(first_seq))
        if post_batch is not None:
            self.ring.advance(post_batch)
        self.complete_time = max(self.complete_time, complete_time)
        for subscriber in self.watching.values():
            subscriber.wake()

    def _untaken_from(self, first_seq: int) -> int:
        """The first chunk that the ring must retain: of the batch that begins at `first_seq`, or of the batch before it
        if a subscriber has not taken that one.

        The pump may append both batches while a session waits for a rendering or for its tenant's turn. If the ring
        evicted these events, the session would have to join another stream.
        """
        before = self._batches[0]
        waiting = (each.seq for each in self.subscribers.values() if each.seq >= before)
        return min(waiting, default=first_seq)

    def _first_awaited(self) -> int:
        """The first chunk of the last two batches that a subscriber could take and has not taken."""
        before = self._batches[0]
        waiting = (each.seq for each in self.subscribers.values() if each.seq >= before and each.can_receive)
        return min(waiting, default=NO_CHUNK)

    def wake_takers(self) -> int:
        """Wake the subscribers that can take events, and return their number. The others check when they get credit."""
        takers = [subscriber for subscriber in self.subscribers.values() if subscriber.can_receive]
        for subscriber in takers:
            subscriber.wake()
        return len(takers)

    def wake_all(self) -> None:
        """Wake all subscribers: the state of the stream also concerns those without credit."""
        for subscriber in self.subscribers.values():
            subscriber.wake()

    def give_way(self) -> None:
        """End without an error. Subscribers read the ring to its end and then join another stream; what they have taken
        is of no use to others, who cannot join this stream."""
        self.move_to(StreamState.ENDED)
        ring = self.ring
        untaken = min((each.seq for each in self.subscribers.values() if each.seq >= ring.first_seq), default=0)
        ring.drop_to(untaken)

    def end(self, error: FeedmuxError) -> None:
        """End the stream. Subscribers read the ring to its end and get the error there."""
        self.end_error = error
        self.move_to(StreamState.ENDED)
        self.wake_all()
