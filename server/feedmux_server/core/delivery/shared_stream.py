"""One upstream read shared by its subscribers, as a state machine without I/O.

The pump (`streams.pump`) reads MongoDB and calls `append`, `advance` and `end`; subscribers take from `ring`. The
pump never waits for a subscriber. Invariant: the ring is filled by the pump alone, and a stream that has ended is
left by everyone who has read its ring to the end.
"""

from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Final

from feedmux_server.core.delivery.replay_buffer import ReplayBuffer, RingLimits
from feedmux_server.core.delivery.subscriber import JoinPoint, Subscriber
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.events.chunk import Chunk
from feedmux_server.core.limits.rings import Rings
from feedmux_server.core.limits.usage_meter import StreamAccount, UsageMeter
from feedmux_server.core.positions.resume_token import ResumeToken


class StreamState(StrEnum):
    GATHERING = "gathering"
    """Registered, and not yet asked MongoDB: the start may still move back for those who join."""
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
    """Reads one StreamKey from one position on."""

    __slots__ = (
        "_batches", "account", "at_present", "batches_read", "demand_changed", "end_error", "events_read",
        "id", "left_by", "opened", "origin", "read_ahead_bytes", "resumes", "ring", "state", "subscribers", "trace",
        "unavailable", "unwanted", "watching",
    )  # fmt: skip

    def __init__(
        self,
        stream_id: int,
        origin: JoinPoint,
        limits: RingLimits,
        read_ahead_bytes: int,
        ledger: UsageMeter | None = None,
        rings: Rings | None = None,
    ) -> None:
        self.id = stream_id
        self.origin = origin
        """Where reading begins."""
        self.ring = ReplayBuffer(origin.place, limits, rings)
        self.ring.has_takers = self._has_takers
        self.read_ahead_bytes = read_ahead_bytes
        self.subscribers: dict[int, Subscriber] = {}
        self.watching: dict[int, Subscriber] = {}
        """The subscribers that want to know how far the stream has read."""
        self.state = StreamState.GATHERING
        self.opened = False
        """MongoDB has accepted the aggregate once."""
        self.at_present = False
        """MongoDB had nothing more at the last read: reading on costs no history."""
        self.unavailable = False
        """MongoDB has failed, and has not answered since."""
        self.end_error: FeedmuxError | None = None
        self.demand_changed: Callable[[], None] = _nothing
        """Called when the pump should check `wants_more` and `subscribers` again."""
        self.account = StreamAccount(ledger or UsageMeter())
        self.events_read = 0
        self.batches_read = 0
        self._batches = 0, 0
        """The first chunks of the last two batches that had any."""
        self.resumes = 0
        self.left_by = ""
        """The tenant whose subscriber was the last to leave: until the stream closes, its cursor is that tenant's."""
        self.unwanted = False
        """The stream is to close as soon as nobody reads it, and not to wait for those who reconnect."""
        self.trace: object = None
        """Names the work of opening it, for those who look into it; see `telemetry.observer`."""

    @property
    def joinable(self) -> bool:
        """Others may join. Not a native start that MongoDB has not judged yet: its refusal is for that client only."""
        return self.end_error is None and (self.origin.native is None or self.events_read > 0)

    @property
    def invalidated(self) -> bool:
        return self.end_error is not None and self.end_error.reason is ErrorReason.FEED_INVALIDATED

    def move_to(self, state: StreamState) -> None:
        if state not in TRANSITIONS[self.state]:
            raise RuntimeError(f"a stream cannot go from {self.state} to {state}")
        self.state = state
        if state is not StreamState.READING:
            self.at_present = False

    def lower_start(self, origin: JoinPoint) -> None:
        """Begin further back, for a subscriber that joined while the stream gathers subscribers."""
        if self.state is not StreamState.GATHERING:
            raise RuntimeError("the start is fixed once MongoDB was asked")
        self.origin = origin
        self.ring.restart_at(origin.place)

    def attach(self, subscriber: Subscriber, seq: int, index: int) -> None:
        subscriber.stream, subscriber.seq, subscriber.index = self, seq, index
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
        subscriber.stream = None
        self.left_by = subscriber.tenant
        self.demand_changed()

    def close_early(self) -> None:
        """Ends the wait for those who reconnect."""
        self.unwanted = True
        self.demand_changed()

    @property
    def holds_cursor_for(self) -> str:
        """The tenant that left the stream last, while it keeps a cursor that nobody reads; else empty."""
        return self.left_by if not self.subscribers and self.state in _WITH_CURSOR else ""

    def poke(self) -> None:
        self.demand_changed()

    def wants_more(self) -> bool:
        """Whether some subscriber near the head can take more. Those far behind live on the ring first."""
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

    def append(self, chunks: Iterable[Chunk], post_batch: ResumeToken | None) -> None:
        """One batch from MongoDB: its chunks (none, if it was empty) and its postBatchResumeToken."""
        self.batches_read += 1
        first_seq = self.ring.next_seq
        for chunk in chunks:
            self.ring.append(chunk)
            self.events_read += chunk.count
        self.at_present = self.ring.next_seq == first_seq
        if not self.at_present:
            self._batches = self._batches[1], first_seq
        if self.ring.is_full:
            self.ring.trim(self._untaken_from(first_seq))
        if post_batch is not None:
            self.ring.advance(post_batch)
        for subscriber in self.watching.values():
            subscriber.wake()

    def _untaken_from(self, first_seq: int) -> int:
        """What the ring keeps: the batch from `first_seq` on, and of the one before what somebody has yet to take.

        A reader may bring both at once, and a session wait for a rendering or its tenant's turn. Without what it waits
        for it would look for another stream, and meet the same there.
        """
        before = self._batches[0]
        waiting = (each.seq for each in self.subscribers.values() if each.seq >= before)
        return min(waiting, default=first_seq)

    def _has_takers(self) -> bool:
        before, oldest = self._batches[0], self.ring.first_seq
        return len(self.ring) > 0 and any(
            before <= each.seq <= oldest and each.can_receive for each in self.subscribers.values()
        )

    def wake_takers(self) -> int:
        """Wakes those who can take, and says how many they are; the others look when they get credit."""
        takers = [subscriber for subscriber in self.subscribers.values() if subscriber.can_receive]
        for subscriber in takers:
            subscriber.wake()
        return len(takers)

    def wake_all(self) -> None:
        """Wakes everyone: the state of the stream is news also to those without credit."""
        for subscriber in self.subscribers.values():
            subscriber.wake()

    def end(self, error: FeedmuxError) -> None:
        """Nothing more will come. Subscribers read the ring to its end and meet the error there."""
        self.end_error = error
        self.move_to(StreamState.ENDED)
        self.wake_all()


def _nothing() -> None:
    """No pump is listening."""
