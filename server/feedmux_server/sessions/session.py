"""One Subscribe or Watch stream: decides what is sent next. `rpc` frames and writes the outputs.

A session stands between the `Subscriber` (credit, position, acks) and the wire. It owns the heartbeat, the policies on
invalidate and lost history, and the path of acks into commits. One task calls `next_output`; other tasks on the same
loop call `grant`, `ack`, `drain` and the commit listener's methods, which only set state and wake that task.
"""

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Protocol

from feedmux_server.clock import monotonic_s
from feedmux_server.core.delivery.shared_stream import StreamState
from feedmux_server.core.delivery.subscriber import Delivery, Ended, JoinPoint, NeedsRender, NeedsRoom, Subscriber
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.feeds.stream_key import StreamKey
from feedmux_server.core.limits.headroom_alert import HeadroomAlert
from feedmux_server.core.positions.position import PositionEncoder
from feedmux_server.core.positions.resume_token import Given, ResumeToken
from feedmux_server.core.positions.stored_order import order_bytes
from feedmux_server.sessions.outbox import Outbox
from feedmux_server.sessions.quota_gate import QuotaGate
from feedmux_server.streams.manager import StreamManager
from feedmux_server.streams.wakeup import Wakeup
from feedmux_server.telemetry.observer import NO_SESSION, SessionObserver
from feedmux_server.workers.rendering import Ticket

FLUSH_TIMEOUT_S = 5.0
RECONNECT_S = 0.2
"""The retry delay for a drained client. Its connection is already closing; clients spread their reconnects."""
CONTINUE_PAUSE_S = 0.05
SHUTTING_DOWN = "the server is shutting down; reconnect"
AGED = "the session has reached its age (limits.connection_age_s of the server); reconnect"
_NOT_HELD_S = float("inf")
_UNTIL_WOKEN_S = 60.0


@dataclass(frozen=True, slots=True)
class ProgressMark:
    """Everything up to `place` was delivered."""

    place: ResumeToken


@dataclass(frozen=True, slots=True)
class CommittedMark:
    sequence: int
    position: bytes


@dataclass(frozen=True, slots=True)
class DrainingMark:
    deadline_s: float
    place: ResumeToken


@dataclass(frozen=True, slots=True)
class DegradedMark:
    dependency: str
    away: bool


@dataclass(frozen=True, slots=True)
class RewoundMark:
    begins: ResumeToken
    reached: int
    """Cluster time that an earlier session had reached."""


@dataclass(frozen=True, slots=True)
class SkippedMark:
    acked: ResumeToken
    """How far this client had acknowledged."""
    begins: ResumeToken


@dataclass(frozen=True, slots=True)
class GapMark:
    begins: ResumeToken
    ends: ResumeToken
    reason: str


@dataclass(frozen=True, slots=True)
class HistoryAtRiskMark:
    """The session's position leaves the oplog in `remaining_s`."""

    remaining_s: float


class _NeedsTurn:
    """There is something to take, but the loop is crowded."""


Output = (
    Delivery
    | ProgressMark
    | CommittedMark
    | DrainingMark
    | DegradedMark
    | RewoundMark
    | SkippedMark
    | GapMark
    | HistoryAtRiskMark
)


class Commits(Protocol):
    """Where acknowledged positions are committed: a `store.handle.CommitHandle`."""

    def submit(self, position: bytes, cluster_time: int, order: bytes, delivery_sequence: int) -> None: ...

    async def flush(self, timeout_s: float) -> None: ...


@dataclass(frozen=True, slots=True)
class SessionPolicy:
    heartbeat_s: float = 10.0
    continue_on_invalidate: bool = False
    earliest_on_history_lost: bool = False
    from_earliest: bool = False
    """The session began at the oldest entry of the oplog; before its first event, it may restart at a newer oldest
    entry."""
    batch_events_max: int = 0
    """The most events in one message, if the feed sets a limit; 0: as many as fit."""


class Session:
    """See the module."""

    def __init__(
        self, manager: StreamManager, key: StreamKey, positions: PositionEncoder, policy: SessionPolicy
    ) -> None:
        self._manager = manager
        self._key = key
        self._positions = positions
        self._policy = policy
        self._signal = Wakeup()
        self._subscriber: Subscriber | None = None
        self._allowance: QuotaGate | None = None
        self._outbox: Outbox | None = None
        self._rendering: Ticket | None = None
        """The ticket the session waits for while the next chunk has no view in its format."""
        self._commits: Commits | None = None
        self._marks: deque[Output] = deque()
        self._end: FeedmuxError | None = None
        self._close_asked = False
        self._drain_deadline: float | None = None
        self._drained_for = ""
        self._heard_s = monotonic_s()
        self._source_away = False
        self._history = HeadroomAlert(manager.limits.history_at_risk_s)
        self._observer: SessionObserver = NO_SESSION

    @property
    def source(self) -> str:
        return self._key.spec.scope.source

    @property
    def subscriber(self) -> Subscriber:
        if self._subscriber is None:
            raise RuntimeError("the session has not begun")
        return self._subscriber

    @property
    def joined(self) -> bool:
        return self._subscriber is not None

    @property
    def end_error(self) -> FeedmuxError | None:
        """The error that ends the session, once that is decided."""
        return self._end

    def begin(
        self,
        tenant: str,
        at: JoinPoint,
        *,
        durable: bool,
        payload_max: int,
        wire_format: str,
        commits: Commits | None = None,
    ) -> None:
        """Join the feed. End the session with `close`."""
        self._commits = commits
        self._allowance = QuotaGate(self._manager.accounts.of(tenant), self._signal.set, holds=durable)
        self._outbox = Outbox(self._manager.memory.unsent, tenant, payload_max, self._signal.set)
        self._subscriber = self._manager.subscriber(
            self._key,
            tenant,
            at,
            self._signal.set,
            durable=durable,
            payload_max=payload_max,
            wire_format=wire_format,
            batch_events_max=self._policy.batch_events_max,
        )
        self._observer = self._manager.observer.session(tenant)

    async def opened(self) -> None:
        """Wait until MongoDB has accepted the feed, for one heartbeat interval at most. Raises MongoDB's rejection."""
        deadline_s = monotonic_s() + self._policy.heartbeat_s
        while (left_s := deadline_s - monotonic_s()) > 0:
            stream = self.subscriber.stream
            if stream is None or stream.opened:
                return
            if stream.end_error is not None:
                error = self.subscriber.end_met()
                if error is None:
                    continue
                if self._goes_on_at_oldest(error):
                    return
                raise error
            if stream.away or stream.state is StreamState.RECOVERING:
                return
            await self._signal.wait(left_s)

    def close(self) -> None:
        """Leave the feed."""
        self._withdraw()
        if self._subscriber is not None:
            self._manager.release(self._key, self._subscriber)
            self._subscriber = None
        if self._allowance is not None:
            self._allowance.close()
        if self._outbox is not None:
            self._outbox.close()

    # Actions of the client and of other tasks. None of these methods awaits.

    def grant(self, events: int, size: int, *, zero_allowed: bool = False) -> None:
        self.subscriber.grant(events, size, zero_allowed=zero_allowed)

    def ack(self, sequence: int) -> None:
        if self.subscriber.ack(sequence):
            self._submit()
        if self._allowance is not None:
            self._allowance.acked(sequence)
        self._observer.acked(sequence)
        if self._drain_deadline is not None:
            self._signal.set()

    def written(self, delivery: Delivery) -> None:
        """Note that HTTP/2 has taken a delivery."""
        if self._outbox is not None:
            self._outbox.written()
        stream = self._subscriber.stream if self._subscriber is not None else None
        self._observer.sent(
            delivery.first_sequence + delivery.count - 1,
            delivery.count,
            delivery.size,
            delivery.read_time_s,
            stream.trace if stream is not None else None,
        )

    def has_headroom(self, headroom_s: float) -> None:
        """Notify the client when the headroom falls below another threshold."""
        if self._history.falls_to(headroom_s):
            self.notice(HistoryAtRiskMark(headroom_s))
            self._manager.observer.history_notice(self.subscriber.tenant)

    def ask_close(self) -> None:
        """Close at the client's request: flush its acks, then end the stream with OK."""
        self._close_asked = True
        self._signal.set()

    def fail(self, error: FeedmuxError) -> None:
        """End the session with `error` as soon as possible."""
        if self._end is None:
            self._end = error
            self._signal.set()

    def drain(self, deadline_s: float, why: str = SHUTTING_DOWN) -> None:
        """Ask the client to reconnect, and end the session `deadline_s` from now at the latest."""
        if self._drain_deadline is None and self._subscriber is not None:
            self._drain_deadline = asyncio.get_running_loop().time() + deadline_s
            self._drained_for = why
            self._withdraw()
            self._marks.append(DrainingMark(deadline_s, self.subscriber.at.place))
            self._signal.set()

    def notice(self, mark: Output) -> None:
        self._marks.append(mark)
        self._signal.set()

    # Methods of the commit listener.

    def committed(self, delivery_sequence: int, position: bytes) -> None:
        mark = CommittedMark(delivery_sequence, position)
        if self._marks and isinstance(self._marks[-1], CommittedMark):
            self._marks[-1] = mark  # so a client that does not read does not accumulate marks
        else:
            self.notice(mark)

    def fenced(self, cause: str) -> None:
        self.fail(FeedmuxError(ErrorReason.FENCED, "the session lost its subscription", {"cause": cause}))

    def state_available(self, available: bool) -> None:
        self.notice(DegradedMark("state", not available))

    async def next_output(self) -> Output | None:
        """Return the next output to send; None when the client has closed. Raises FeedmuxError at the end of the
        stream."""
        has_turn = False
        while True:
            if self._marks:
                self._heard_s = monotonic_s()
                return self._marks.popleft()
            if self._end is not None:
                raise self._end
            if self._close_asked or self._drained():
                await self._flush()
                if self._marks:
                    continue
                if self._close_asked:
                    return None
                raise FeedmuxError(ErrorReason.DRAINING, self._drained_for, retry_after_s=RECONNECT_S)
            taken, held_s = self._take(has_turn=has_turn) if self._drain_deadline is None else (None, _NOT_HELD_S)
            has_turn = isinstance(taken, _NeedsTurn)
            if has_turn:
                await self._manager.turns.wait(self.subscriber.tenant)
                continue  # much may have happened meanwhile
            if isinstance(taken, Delivery):
                self._withdraw()
                self._heard_s = monotonic_s()
                return taken
            if isinstance(taken, NeedsRender):
                error = taken.chunk.render_error(self.subscriber.format)
                if error is not None:
                    await self._end_with(error)
                    continue
                self._request(taken)
            if isinstance(taken, Ended):
                self._withdraw()
                await self._meet_end(taken.error)
                continue
            left_s = self._heard_s + self._policy.heartbeat_s - monotonic_s()
            if left_s <= 0:
                return self._heartbeat()
            left_s = min(left_s, held_s)
            if self._drain_deadline is not None:
                left_s = min(left_s, max(0.01, self._drain_deadline - asyncio.get_running_loop().time()))
            await self._wait(left_s, held_back=held_s != _NOT_HELD_S)

    async def _wait(self, most_s: float, *, held_back: bool) -> None:
        began_s = monotonic_s()
        await self._signal.wait(most_s)
        if held_back and self._allowance is not None:
            self._allowance.held_back(monotonic_s() - began_s)

    def _take(self, *, has_turn: bool) -> tuple[Delivery | NeedsRender | Ended | _NeedsTurn | None, float]:
        """Take what comes next, and return with it how long the tenant's quotas throttle the session."""
        subscriber, allowance, outbox, turns = self.subscriber, self._allowance, self._outbox, self._manager.turns
        assert allowance is not None
        assert outbox is not None
        if subscriber.has_next:
            held_s = allowance.wait_s(monotonic_s())
            if held_s > 0:
                return None, held_s
            if turns.crowded and not has_turn:
                return _NeedsTurn(), _NOT_HELD_S
        subscriber.payload_max, subscriber.event_max = outbox.limits()
        taken = subscriber.take()
        if isinstance(taken, NeedsRoom):
            outbox.wait()
            return None, _UNTIL_WOKEN_S
        if isinstance(taken, Delivery):
            outbox.hold(outbox.cost(taken.wire_size))
            turns.spend(taken.size)
            allowance.sent(taken, monotonic_s())
        return taken, _NOT_HELD_S

    def _drained(self) -> bool:
        """Whether, while draining, the client has acknowledged everything sent to it, or the time is up."""
        if self._drain_deadline is None:
            return False
        acks = self.subscriber.acks
        return acks is None or not acks.outstanding or asyncio.get_running_loop().time() >= self._drain_deadline

    def _heartbeat(self) -> Output:
        self._heard_s = monotonic_s()
        subscriber = self.subscriber
        place = subscriber.progress()
        if subscriber.acks is not None and subscriber.acks.progress(place):
            self._submit()
        stream = subscriber.stream
        away = stream is not None and stream.away
        if away != self._source_away:
            self._source_away = away
            self._marks.append(ProgressMark(place))
            return DegradedMark("source", away)
        return ProgressMark(place)

    def _submit(self) -> None:
        acks = self.subscriber.acks
        if acks is not None and self._commits is not None:
            place = acks.place
            self._commits.submit(self._positions.encode(place), place.cluster_time, order_bytes(place), acks.acked)

    async def _flush(self) -> None:
        """Make the acks durable before the end. A flush that the client asked for with Close must not fail silently."""
        if self._commits is None:
            return
        try:
            await self._commits.flush(FLUSH_TIMEOUT_S)
        except FeedmuxError:
            if self._close_asked:
                raise

    async def _meet_end(self, error: FeedmuxError) -> None:
        """Handle the end of the feed at this position: continue if the policy says so, else flush the acks and end."""
        subscriber = self.subscriber
        if error.reason is ErrorReason.FEED_INVALIDATED and self._policy.continue_on_invalidate:
            # If the pipeline hides the invalidate event, the position may stay the same: avoid a tight loop.
            await asyncio.sleep(CONTINUE_PAUSE_S)
            place = subscriber.at.place
            subscriber.rejoin(JoinPoint(place, exact=place.given is Given.BY_MONGODB))
            return
        if self._goes_on_at_oldest(error):
            oldest = ResumeToken.high_water_mark(await self._manager.source(self._key.spec.scope.source).oldest_time())
            self.notice(GapMark(subscriber.at.place, oldest, error.reason.value))
            subscriber.rejoin(JoinPoint(oldest))
            return
        # The last position is after the event that ended the feed, even if the pipeline hides the invalidate event.
        await self._end_with(error)

    async def _end_with(self, error: FeedmuxError) -> None:
        """End the session after its last position, with its acks flushed."""
        self._withdraw()
        self.notice(self._heartbeat())
        await self._flush()
        self.fail(error)

    def _request(self, wanted: NeedsRender) -> None:
        """Wait for a rendering by the signal, as for events: heartbeats, notices and commits continue meanwhile."""
        if self._rendering is not None and self._rendering.waits_for(wanted.chunk):
            return
        self._withdraw()
        subscriber = self.subscriber
        self._rendering = self._manager.renderers.of(wanted.chunk).request(
            wanted.chunk, wanted.ring, subscriber.format, subscriber.tenant, self._signal.set
        )

    def _withdraw(self) -> None:
        ticket, self._rendering = self._rendering, None
        if ticket is not None:
            ticket.withdraw()

    def _goes_on_at_oldest(self, error: FeedmuxError) -> bool:
        policy = self._policy
        wanted = policy.earliest_on_history_lost or (policy.from_earliest and not self.subscriber.events_sent)
        return wanted and error.reason is ErrorReason.HISTORY_LOST
