"""One Subscribe or Watch call: decides what is sent next. `rpc` encodes and writes the outputs.

A session stands between the `Subscriber` (credit, position, acks) and the wire. It owns the heartbeat, the policies on
invalidate and lost history, and the path of acks into commits. One task calls `next_output`; other tasks on the same
loop call `grant`, `ack`, `drain` and the methods of `SessionCommits`, which only set state and wake that task.
"""

import asyncio
import logging
from collections import deque
from dataclasses import dataclass

from feedmux_server.clock import monotonic_s, wall_s
from feedmux_server.core.delivery.copy_progress import CopyProgress, CopyState, CopyStatus, completed_status, status_at
from feedmux_server.core.delivery.feed_streams import FeedStreams, SubscriberState
from feedmux_server.core.delivery.session_state import Phase, SessionState, SessionStep
from feedmux_server.core.delivery.shared_stream import StreamState
from feedmux_server.core.delivery.subscriber import Subscriber
from feedmux_server.core.delivery.taken import Delivery, Ended
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.feeds.stream_key import StreamKey
from feedmux_server.core.limits.headroom_alert import HeadroomAlert
from feedmux_server.core.positions.join_point import JoinPoint
from feedmux_server.core.positions.position import PositionEncoder
from feedmux_server.core.positions.resume_token import Copied, Given, ResumeToken, beginning_of_copy, generation_before
from feedmux_server.sessions.outputs import (
    CopyMark,
    DegradedMark,
    DrainingMark,
    GapMark,
    HistoryAtRiskMark,
    Output,
    ProgressMark,
    UnacknowledgedMark,
)
from feedmux_server.sessions.quota_gate import QuotaGate
from feedmux_server.sessions.send_gate import NeedsTurn, SendGate, Wait
from feedmux_server.sessions.session_commits import Attach, SessionCommits
from feedmux_server.streams.in_turns import wait_in_turns
from feedmux_server.streams.manager import StreamManager
from feedmux_server.streams.wakeup import Wakeup
from feedmux_server.telemetry import metrics

log = logging.getLogger(__name__)

CONTINUE_PAUSE_S = 0.05
LOSS_PAUSE_S = 1.0
"""Before a feed continues after lost history, so that gaps that follow one another are no tight loop."""
RESTARTS_MAX = 3
"""So often in a row a session begins a copy again because the oplog has lost its position."""
HALF_CLOSED_S = 60.0
"""How long a session still sends after the client has ended its messages without Close."""
ENDED_FEED_S = 30.0
"""How long a client may acknowledge events of a feed that has ended, before its session ends with the feed's error."""
SHUTTING_DOWN = "the server is shutting down; reconnect"
AGED = "the session has reached its age (limits.connection_age_s of the server); reconnect"
_SENDS_NOTHING = Wait()


@dataclass(frozen=True, slots=True)
class SessionPolicy:
    heartbeat_s: float = 10.0
    continue_on_invalidate: bool = False
    earliest_on_history_lost: bool = False
    snapshot_on_history_lost: bool = False
    from_earliest: bool = False
    """The session began at the oldest entry of the oplog; before its first event, it may restart at a newer oldest
    entry."""
    batch_events_max: int = 0
    """The most events in one message, if the feed sets a limit; 0: as many as fit."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What a call reads: of which feed, from where on, and how it is sent."""

    key: StreamKey
    tenant: str
    at: JoinPoint
    positions: PositionEncoder
    policy: SessionPolicy
    payload_max: int
    wire_format: str


class Session:
    """Takes events from its subscriber when they may be sent, and puts marks between them. Made by `begin`."""

    def __init__(
        self,
        manager: StreamManager,
        key: StreamKey,
        positions: PositionEncoder,
        policy: SessionPolicy,
        subscriber: Subscriber,
        gate: SendGate,
        signal: Wakeup,
        attach: Attach | None,
        subscription: str = "",
    ) -> None:
        """`signal` is the one wake-up of the session's task: `subscriber` and `gate` set it too."""
        self._manager = manager
        self._key = key
        self._policy = policy
        self._signal = signal
        self.subscriber = subscriber
        self.streams: FeedStreams = manager.streams_of(key).streams
        """Where the session takes its events."""
        self.gate = gate
        """What decides whether the session may send."""
        self.closed = False
        self._marks: deque[Output] = deque()
        self._state = SessionState()
        self.commits = SessionCommits(attach, positions, self._state, self._marks, signal)
        self._last_sent_s = monotonic_s()
        """When the last output was returned: a heartbeat is due one interval later."""
        self._source_unavailable = False
        self._subscription = subscription
        self._silent = False
        """Whether the client was notified that delivery waits for its acknowledgements."""
        self._silence_logged = False
        self._history = HeadroomAlert(manager.limits.history_at_risk_s)
        self._observer = manager.observer.session(subscriber.tenant)
        self._until: tuple[int, float] | None = None
        """The client sends no more: close after the events up to this cluster time, and at this time at the latest."""
        self.copy: CopyProgress | None = None
        """The copy of existing documents; None outside a copy."""
        self._restarts = 0
        """Copies that were begun here because history was lost, since the last one that was completed."""
        self._follow_copy(subscriber.at.place)

    @staticmethod
    def begin(
        manager: StreamManager,
        reading: Reading,
        attach: Attach | None = None,
        subscription: str = "",
        received: ResumeToken | None = None,
    ) -> "Session":
        """Begin to read; earlier sessions have delivered events up to `received`. With `attach` the client acknowledges
        events, and the positions are stored. End the session with `close`."""
        key, tenant, policy = reading.key, reading.tenant, reading.policy
        signal, durable = Wakeup(), attach is not None
        quota = QuotaGate(manager.accounts.of(tenant), signal, holds=durable)
        gate = SendGate(manager, tenant, reading.payload_max, quota, signal)
        subscriber = manager.subscriber(
            key,
            tenant,
            reading.at,
            signal.set,
            durable=durable,
            payload_max=reading.payload_max,
            wire_format=reading.wire_format,
            batch_events_max=policy.batch_events_max,
        )
        subscriber.received = received
        return Session(manager, key, reading.positions, policy, subscriber, gate, signal, attach, subscription)

    @property
    def source(self) -> str:
        return self._key.spec.scope.source

    @property
    def _namespace(self) -> str:
        return self._key.spec.scope.namespace

    @property
    def state(self) -> SubscriberState:
        return self.streams.state_of(self.subscriber)

    @property
    def copy_status(self) -> CopyStatus | None:
        """How far the copy of existing documents is; None outside a copy."""
        if self.copy is None:
            return None
        stream = self.streams.stream_of(self.subscriber)
        if stream is not None and stream.documents_estimated:
            self.copy.documents_estimated = stream.documents_estimated
        begun = status_at(self.subscriber.at.place, self._namespace)
        namespace = self._namespace if begun is None else begun.namespace
        return self.copy.status(namespace, monotonic_s(), running=begun is not None)

    @property
    def copy_state(self) -> CopyState | None:
        """What a copy of existing documents does; None outside a copy."""
        if self.copy is None:
            return None
        can_take = self.subscriber.can_receive and not self.gate.outbox.unsent
        return self.copy.state(monotonic_s(), client_can_take=can_take)

    @property
    def end_error(self) -> FeedmuxError | None:
        """The error that ends the session, once that is decided."""
        return self._state.error

    def _follow_copy(self, place: ResumeToken) -> None:
        begun = status_at(place, self._namespace)
        self.copy = CopyProgress(begun, monotonic_s()) if begun is not None else None

    def repeat_end_of_copy(self, completed: Copied) -> None:
        """An earlier session has completed a copy, and its client may not have noticed."""
        self.commits.copy_completed(completed, 0)
        self.notice(CopyMark(completed_status(completed, self._namespace)))

    async def opened(self) -> None:
        """Wait until MongoDB has accepted the feed, for one heartbeat interval at most. Raises MongoDB's rejection."""
        deadline_s = monotonic_s() + self._policy.heartbeat_s
        while (left_s := deadline_s - monotonic_s()) > 0:
            stream = self.streams.stream_of(self.subscriber)
            if stream is None and self.subscriber.lost is None:
                return
            if stream is not None and stream.opened:
                return
            if stream is None or stream.end_error is not None:
                error = self.streams.end_met(self.subscriber)
                if error is None:
                    continue
                if self._continues_after_loss(error):
                    return
                raise error
            if stream.unavailable or stream.state is StreamState.RECOVERING:
                return
            await self._signal.wait(left_s)

    def close(self) -> None:
        """Leave the feed. May be called again."""
        if not self.closed:
            self.closed = True
            self._manager.release(self._key, self.subscriber)
            self.gate.close()

    # Actions of the client and of other tasks. None of these methods awaits.

    def grant(self, events: int, size: int, *, zero_allowed: bool = False) -> None:
        self.streams.grant(self.subscriber, events, size, zero_allowed=zero_allowed)

    def part_of_ack(self, sequence: int) -> int:
        """How far an ack up to `sequence` may go in one turn of the event loop."""
        acks = self.subscriber.acks
        if acks is None or not 0 <= sequence <= self.subscriber.events_sent:
            return sequence  # it is rejected as a whole
        return self.gate.quota.part_of_ack(acks.part_of_ack(sequence))

    def ack(self, sequence: int) -> None:
        if self.streams.ack(self.subscriber, sequence):
            self.commits.submit(self.subscriber.acks)
        self._silent = self._silent and self.subscriber.awaits_acks
        self.gate.quota.acked(sequence)
        self._observer.acked(sequence)
        if self._state.phase is Phase.DRAINING:
            self._signal.set()

    def written(self, delivery: Delivery) -> None:
        """Note that HTTP/2 has taken the message of a delivery."""
        self.gate.outbox.written()
        stream = self.streams.stream_of(self.subscriber)
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
            self._manager.observer.count(metrics.AT_RISK_NOTICES, 1, self.subscriber.tenant)

    def ask_close(self) -> None:
        """Close at the client's request: flush its acks, then end the stream with OK."""
        self._state.close()
        self._signal.set()

    async def half_closed(self) -> None:
        """The client has ended its messages. Without Close, it still gets what there is now, as far as its credit
        goes."""
        if self._state.phase is Phase.OPEN:
            try:
                present_time = await self._manager.source(self.source).clock.operation_time()
            except FeedmuxError:
                present_time = 0
            self._until = present_time, monotonic_s() + HALF_CLOSED_S
            self.subscriber.wants_progress = True
            self._signal.set()
        else:
            self.ask_close()

    def fail(self, error: FeedmuxError) -> None:
        """End the session with `error` as soon as possible."""
        if self._state.fail(error):
            self._signal.set()

    def drain(self, deadline_s: float, why: str = SHUTTING_DOWN) -> None:
        """Ask the client to reconnect, and end the session `deadline_s` from now at the latest."""
        if self._state.drain(monotonic_s() + deadline_s, why):
            self.gate.sends_no_more()
            self._marks.append(DrainingMark(deadline_s, self.subscriber.at.place))
        self._signal.set()

    def notice(self, mark: Output) -> None:
        self._marks.append(mark)
        self._signal.set()

    async def next_output(self) -> Output | None:
        """Return the next output to send; None when the client has closed. Raises FeedmuxError at the end of the
        stream."""
        has_turn = False
        while True:
            if self._marks:
                # Before further events: a mark may name the position between them and what was sent.
                self._last_sent_s = monotonic_s()
                return self._marks.popleft()
            # A client that has ended its messages acknowledges nothing more, so a drain need not wait for it.
            can_ack = self._until is None and self.subscriber.unacked > 0
            step = self._state.step or self._state.drain_step(monotonic_s(), unacked=can_ack)
            if step is SessionStep.FAIL and self._state.error is not None:
                raise self._state.error
            if step is SessionStep.FLUSH:
                await self.commits.flush()
                if self._marks:
                    continue  # Committed, which the client gets before the end
                error = self._state.end()
                if error is None:
                    return None
                raise error
            if self._until is not None and step is SessionStep.SEND and self._has_sent_until(*self._until):
                output = self._heartbeat()
                self.ask_close()
                return output
            taken: Delivery | Ended | NeedsTurn | Wait = _SENDS_NOTHING
            if step is SessionStep.SEND:
                taken = self._take(has_turn=has_turn)
            has_turn = isinstance(taken, NeedsTurn)
            if isinstance(taken, Delivery) and self.commits.handle is not None:
                # With it the next session finds out whether MongoDB has lost what this one delivered.
                self.commits.handle.delivered(taken.end.last_time)
            if self.copy is not None and self._copy_ended(self.copy, taken):
                continue
            if isinstance(taken, Delivery):
                self._last_sent_s = monotonic_s()
                return taken
            if isinstance(taken, Ended):
                await self._meet_end(taken.error)
            elif isinstance(taken, Wait):
                now_s = monotonic_s()
                left_s = self._last_sent_s + self._policy.heartbeat_s - now_s
                if left_s <= 0:
                    return self._heartbeat()
                drain_left_s = max(0.01, self._state.drain_left_s(now_s))
                close_left_s = drain_left_s if self._until is None else max(0.01, self._until[1] - now_s)
                await self._signal.wait(min(left_s, taken.most_s, drain_left_s, close_left_s))
                if taken.throttled:
                    self.gate.quota.throttled(monotonic_s() - now_s)
            else:
                await self.gate.turn()  # then look again: the state may have changed meanwhile

    def _has_sent_until(self, cluster_time: int, end_s: float) -> bool:
        """Whether the client has what there was until this time, or can get no more of it."""
        subscriber = self.subscriber
        if not subscriber.can_receive or monotonic_s() >= end_s:
            return True
        return self.copy is None and self.streams.has_read(subscriber, cluster_time)

    def _copy_ended(self, copy: CopyProgress, taken: object) -> bool:
        """Whether the last document was taken before this; then announce that, before what was taken now. Else say at
        times how far the copy is, after what was taken."""
        place = self.subscriber.at.place
        is_due = place.copied is None
        if not is_due and isinstance(taken, Delivery) and taken.are_documents:
            is_due = copy.sent(place, taken.size, monotonic_s())
        if is_due and (status := self.copy_status) is not None:
            self._marks.append(CopyMark(status))
        if place.copied is not None:
            return False
        self.copy, self._restarts = None, 0
        sent = self.subscriber.events_sent
        if isinstance(taken, Delivery):
            self._marks.append(taken)
            sent = taken.first_sequence - 1
        self.commits.copy_completed(Copied(documents=copy.documents, generation=copy.generation), sent)
        return True

    def _take(self, *, has_turn: bool) -> Delivery | Ended | NeedsTurn | Wait:
        return self.gate.take(self.streams, self.subscriber, has_turn=has_turn)

    def _heartbeat(self) -> Output:
        self._last_sent_s = monotonic_s()
        subscriber = self.subscriber
        place = subscriber.progress()
        if subscriber.acks is not None and subscriber.acks.progress(place):
            self.commits.submit(subscriber.acks)
        stream = self.streams.stream_of(subscriber)
        unavailable = stream is not None and stream.unavailable
        if unavailable != self._source_unavailable:
            self._source_unavailable = unavailable
            self._marks.append(ProgressMark(place))
            return DegradedMark("source", unavailable)
        if subscriber.awaits_acks and not self._silent:
            self._silent = True
            self._marks.append(ProgressMark(place))
            return self._awaits_acks(subscriber)
        return ProgressMark(place)

    def _awaits_acks(self, subscriber: Subscriber) -> UnacknowledgedMark:
        events = subscriber.acks.outstanding if subscriber.acks is not None else 0
        if not self._silence_logged:
            self._silence_logged = True
            log.warning(
                "a client has not acknowledged %d events (limits.unacked_events), and gets no more until it does",
                events,
                extra={"tenant": subscriber.tenant, "subscription": self._subscription},
            )
        return UnacknowledgedMark(events)

    async def _meet_end(self, error: FeedmuxError) -> None:
        """Handle the end of the feed at this position: continue if the policy says so, else flush the acks and end."""
        subscriber = self.subscriber
        if error.reason is ErrorReason.FEED_INVALIDATED and self._policy.continue_on_invalidate:
            # If the pipeline hides the invalidate event, the position may stay the same: avoid a tight loop.
            await asyncio.sleep(CONTINUE_PAUSE_S)
            place = subscriber.at.place
            self.streams.rejoin(subscriber, JoinPoint(place, exact=place.given is Given.BY_MONGODB))
            return
        if self._continues_after_loss(error):
            await asyncio.sleep(LOSS_PAUSE_S)
            place = await self._place_after_loss(error)
            if place is subscriber.at.place:
                self.streams.rejoin(subscriber, subscriber.at)
                return
            reached, subscriber.received = subscriber.received or subscriber.at.place, None
            self.notice(GapMark(subscriber.at.place, place, error.reason.value))
            self.streams.rejoin(subscriber, JoinPoint(place))
            if self._policy.snapshot_on_history_lost:
                self._copy_begun_again(place, error)
            copies_again = self._policy.snapshot_on_history_lost
            if (error.reason is ErrorReason.TIMELINE_FORKED or copies_again) and subscriber.acks is not None:
                # The stored position would otherwise remain in the lost history, which may be later than this place.
                # Where it is not, the client's last ack tells by itself whether it is of what comes now.
                moves_back = error.reason is ErrorReason.TIMELINE_FORKED or not place.is_after(reached)
                await wait_in_turns(subscriber.acks.release)
                subscriber.acks.move_back(place)
                self.commits.submit(subscriber.acks, moves_back=moves_back)
                if copies_again:
                    await self._store_beginning_of_copy()
            return
        if self._restarts >= RESTARTS_MAX and error.reason is ErrorReason.HISTORY_LOST:
            error = FeedmuxError(
                error.reason,
                f"the oplog has lost the position of a copy {RESTARTS_MAX + 1} times in a row before the copy was"
                " complete; use a larger oplog, or a client that reads faster, and open the subscription again",
                error.metadata,
            )
        # The last position is after the event that ended the feed, even if the pipeline hides the invalidate event.
        await self._end_with(error)

    async def _place_after_loss(self, error: FeedmuxError) -> ResumeToken:
        source = self._manager.source(self.source)
        if self._policy.snapshot_on_history_lost:
            begin = beginning_of_copy(await source.clock.operation_time(), wall_s())
            return begin.with_generation_after(generation_before(self.subscriber.at.place))
        at, oldest_time = self.subscriber.at.place, await source.oplog.oldest_time()
        if error.reason is ErrorReason.HISTORY_LOST and oldest_time <= at.cluster_time:
            return at  # the primary has the position: nothing is lost, and what was delivered does not come again
        oldest = ResumeToken.high_water_mark(oldest_time)
        return oldest if at.copied is None else oldest.while_copying(at.copied)

    def _copy_begun_again(self, place: ResumeToken, error: FeedmuxError) -> None:
        self._restarts += 1
        tenant, cause = self.subscriber.tenant, error.reason.value
        self._manager.observer.count(metrics.SNAPSHOT_RESTARTS, 1, self.source, tenant, cause)
        self.commits.copy_begins()
        self._follow_copy(place)
        if (status := self.copy_status) is not None:
            self.notice(CopyMark(status))
        log.warning(
            "a subscription has lost its history (%s): its existing documents are copied again",
            error.reason.value,
            extra={"tenant": self.subscriber.tenant, "subscription": self._subscription},
        )

    async def _end_with(self, error: FeedmuxError) -> None:
        """End the session after its last position, with its acks flushed."""
        self.gate.sends_no_more()
        if error.reason is not ErrorReason.TIMELINE_FORKED:  # MongoDB no longer has that position
            self.notice(self._heartbeat())
        lost = error.reason in (ErrorReason.HISTORY_LOST, ErrorReason.TIMELINE_FORKED)
        if self.subscriber.unacked and self._until is None and not lost:
            # A client cannot acknowledge after the error. The next session would read the same events, and end with the
            # same error, before its client can acknowledge them.
            self._state.end_acked(monotonic_s() + ENDED_FEED_S, error)
            return
        await self.commits.flush()
        self.fail(error)

    async def _store_beginning_of_copy(self) -> None:
        """Store it before the first document, or end the session: the token of a change that a client acknowledges does
        not name the copy, so after a reconnect at an older stored position the rest of the copy would not come."""
        try:
            await self.commits.flush(must_store=True)
        except FeedmuxError as error:
            self.fail(error)

    def _continues_after_loss(self, error: FeedmuxError) -> bool:
        """Whether the policy has the feed continue elsewhere."""
        policy = self._policy
        if policy.snapshot_on_history_lost:
            wanted = self._restarts < RESTARTS_MAX
        else:
            wanted = policy.earliest_on_history_lost or (policy.from_earliest and not self.subscriber.events_sent)
        return wanted and error.reason in (ErrorReason.HISTORY_LOST, ErrorReason.TIMELINE_FORKED)
