"""Groups: subscriptions whose sessions share the events. One `Group` for each that this process hosts.

The group has what an ordinary session of a subscription has: the lease, the position, the commits. Its members come and
go; it ends when the last one has left, and then the lease is released. A member that loses its connection keeps what it
has in hand for `reconnect_s`, so that its worker, which may be working, is not overtaken.
"""

import asyncio
import random
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol
from weakref import WeakValueDictionary

from feedmux_server.clock import monotonic_s
from feedmux_server.core.delivery.credit import CreditWindow
from feedmux_server.core.delivery.group_reader import GroupMember, GroupReader
from feedmux_server.core.delivery.key_ledger import KeyLedger
from feedmux_server.core.delivery.key_runs import Hand
from feedmux_server.core.delivery.retry import RetryPolicy
from feedmux_server.core.delivery.taken import BSON
from feedmux_server.core.errors import ErrorReason, FeedmuxError, fenced_error
from feedmux_server.core.feeds.feed import FeedSpec, Scope, route_of
from feedmux_server.core.feeds.stream_key import StreamKey
from feedmux_server.core.positions.ahead import Ahead
from feedmux_server.core.positions.join_point import JoinPoint
from feedmux_server.core.positions.position import PositionEncoder, inspect_position
from feedmux_server.core.positions.resume_token import Given, ResumeToken
from feedmux_server.core.positions.stored_order import group_order
from feedmux_server.sessions.dead_letters import LetterWriter
from feedmux_server.sessions.member_session import MemberSession, Membership
from feedmux_server.sessions.outputs import GapMark, ProgressMark
from feedmux_server.sessions.replays import HostedGroup
from feedmux_server.sessions.session import CONTINUE_PAUSE_S, ENDED_FEED_S, LOSS_PAUSE_S, SessionPolicy
from feedmux_server.sessions.session_commits import FLUSH_TIMEOUT_S, Commits
from feedmux_server.source.dead_letters import DeadLetters
from feedmux_server.streams.manager import StreamManager
from feedmux_server.streams.wakeup import Wakeup

GATHER_S: Final = 2.5
"""How long a host waits for the members of one that was lost: they try each 1.0 to 1.2 s, and the first try may lead to
another server. It waits longer for those that it knows of, and no longer when all of them have come."""
GATHER_LEAST_S: Final = 1.0
"""It waits so long in any case: a member that had just joined the lost host may not be counted."""
_GATHER_MOST_S: Final = 10.0
"""And no longer than this, or `reconnect_s`."""
_MEET_S: Final = 1.0
"""How long it then reads, at most, before it delivers, to meet the events that they hold. Some never come: a member may
hold what others have settled."""
_FORGET_S: Final = 60.0
"""How long it then compares events with what members have: to look for one costs a microsecond."""
COMMIT_S: Final = 0.25
"""How long the group gathers what is settled before it makes a position of it, which costs up to a millisecond."""
ELSEWHERE_RETRY_S: Final = 1.0
HOST_PREFIX: Final = "group-host-"
"""The beginning of the instance ids by which servers hold the leases of groups. A client may see such an id as the
owner of its subscription, and send it."""


@dataclass(frozen=True, slots=True)
class GroupDefinition:
    """What a group reads, and how."""

    tenant: str
    name: str
    feed: FeedSpec
    key: StreamKey
    epoch: int
    policy: SessionPolicy
    reconnect_s: float
    retry: RetryPolicy
    quarantine: bool = False
    """The later events of the key of a dead letter become dead letters, too."""
    follows_lost: bool = False
    """The host before this one has not released its lease: its members still have what it gave them."""
    seek_epoch: int = 0
    """What members have from hosts up to this epoch is void."""
    members: int = 0
    """How many members the host before this one had; 0 if it is not known."""


@dataclass(frozen=True, slots=True)
class Had:
    """What a member has from an earlier host, by `claims.claim_of`."""

    held: Sequence[int] = ()
    settled: Sequence[int] = ()
    epoch: int = 0
    """Of its last session."""


NOTHING: Final = Had()


@dataclass(slots=True, eq=False)
class _Seat:
    """A member, with a connection or without."""

    hand: Hand
    session: MemberSession | None = None
    member: GroupMember | None = None
    expiry: asyncio.TimerHandle | None = None
    """When its events go to others; None while it has a connection."""
    is_back: bool = False
    """It was a member of an earlier host."""


class GroupCommits(Commits, Protocol):
    """Where the positions of a group are committed, with the number of its members."""

    def has_members(self, count: int) -> None: ...


class Group:
    """Listens to the committer, as an ordinary session's `SessionCommits` does."""

    def __init__(
        self,
        manager: StreamManager,
        definition: GroupDefinition,
        at: JoinPoint,
        positions: PositionEncoder,
        ahead: Ahead | None = None,
        letters: DeadLetters | None = None,
        quarantined: Iterable[bytes] = (),
    ) -> None:
        """Join the streams of the feed at `at`; `ahead` is what was settled after that, and `quarantined` are the keys
        whose events are dead letters. Raises QUOTA_EXCEEDED. End it with `close`."""
        self.definition = definition
        self.ended = False
        self.released: asyncio.Task[None] | None = None
        """Releases the lease of a group that has ended."""
        self.on_end: Callable[[bool], asyncio.Task[None] | None] = lambda recovers: None
        """Called once, at the end, with whether the next host must gather what members have. Returns the release of the
        lease."""
        self.draining: Callable[[], bool] = lambda: False
        tenant, key = definition.tenant, definition.key
        self._manager = manager
        self._account = manager.accounts.of(tenant)
        self._leaves_work = False
        """Whether a member has something in hand that leaves because the server drains."""
        self._seats: dict[object, _Seat] = {}
        """By instance id; a member without one has a key of its own."""
        self._timer: asyncio.TimerHandle | None = None
        self._retry_timer: asyncio.TimerHandle | None = None
        """The one timer of all keys that wait for another try."""
        self._empty_timer: asyncio.TimerHandle | None = None
        """Ends a group without members whose dead letters are not written in time."""
        self._end_timer: asyncio.TimerHandle | None = None
        """Tells of the end of the feed while events wait for another try."""
        self._retry_due_s: float | None = None
        self._failures = 0
        """How many failed deliveries the tenant's account has counted."""
        self._ending: asyncio.Task[None] | None = None
        self._account.feeds.open(key)
        self.ledger = KeyLedger(
            at.place,
            manager.limits.unacked_events_max,
            self._account.outstanding.retain,
            self._may_grow,
            definition.retry,
            random.random,
            ahead,
            quarantined,
        )
        self.ledger.on_more = self._plan_to_go_on
        self._goes_on = False
        """Whether `_go_on` is called soon."""
        streams = manager.streams_of(key).streams
        self._gather_timer: asyncio.TimerHandle | None = None
        self._expected = self._back = 0
        """While it gathers: the members of the host before, and how many of them have come."""
        self._began_s = asyncio.get_running_loop().time()
        if definition.follows_lost:
            self.ledger.gather()
            self._expected = definition.members
            most_s = min(definition.reconnect_s, _GATHER_MOST_S) if self._expected else 0.0
            self._gather_until(max(GATHER_S, most_s))
        subscriber = manager.subscriber(key, tenant, at, self._wake, durable=False, payload_max=0, wire_format=BSON)
        self.reader = GroupReader(streams, subscriber, self.ledger)
        self.reader.on_end = self._plan_end
        self._positions = positions
        self._committed = self.ledger.place, self.ledger.changes
        self._commits: GroupCommits | None = None
        self._letters: LetterWriter | None = None
        if letters is not None:
            self._letters = LetterWriter(
                HostedGroup(tenant, definition.name, key.digest, definition.epoch),
                self.reader,
                self._settled,
                letters,
                manager.observer,
                self._account.looks,
                self._has_lost,
                quarantine=definition.quarantine,
            )
            self._letters.begin(manager.tasks)

    def store_with(self, commits: GroupCommits) -> None:
        self._commits = commits

    def _store_members(self) -> None:
        if self._commits is not None and not self.ended:
            self._commits.has_members(max(len(self._seats), self._expected))

    def _wake(self) -> None:
        self.reader.wake()

    def _has_lost(self, time: int) -> bool:
        """Whether MongoDB has lost the event of this cluster time by a restore."""
        source = self._manager.source(self.definition.key.spec.scope.source)
        return any(fork.has_lost_event(time) for fork in source.timeline.forks)

    def _may_grow(self) -> bool:
        outstanding = self._account.outstanding
        if outstanding.backlog_fits:
            return True
        outstanding.when_room(self._wake)
        return False

    def _gather_until(self, after_s: float) -> None:
        if self._gather_timer is not None:
            self._gather_timer.cancel()
        self._gather_timer = asyncio.get_running_loop().call_at(self._began_s + after_s, self._gathered)

    def _gathered(self) -> None:
        self._expected = 0
        self._store_members()
        self.ledger.gathered()
        if self._letters is not None and self.ledger.awaits_held:
            # What is not met in the feed by then may be letters, which take memory, too.
            asyncio.get_running_loop().call_later(_MEET_S / 2, self._letters.find_held)
        self._gather_timer = asyncio.get_running_loop().call_later(_MEET_S, self._deliver)
        self.reader.wake_all()

    def _deliver(self) -> None:
        self.reader.end_gather()
        self._gather_timer = asyncio.get_running_loop().call_later(_FORGET_S, self._forget)

    def _forget(self) -> None:
        if self.ledger.restores:
            self._gather_timer = asyncio.get_running_loop().call_later(_FORGET_S, self._forget)
        else:
            self.ledger.forget_claims()

    def _plan_to_go_on(self) -> None:
        if not self._goes_on:
            self._goes_on = True
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        self._goes_on = False
        if not self.ended:
            self.reader.go_on()

    # Members.

    def join(
        self,
        policy: SessionPolicy,
        instance_id: str,
        window: CreditWindow,
        payload_max: int,
        had: Had = NOTHING,
    ) -> MemberSession:
        """Begin the session of a member. An earlier session of the same instance ends, and its events are sent to this
        one. `had` is what the member has from a host that was lost."""
        instance: object = instance_id or object()
        seat = self._seats.get(instance)
        if seat is None:
            seat = self._seats[instance] = _Seat(Hand(instance_id))
        if seat.session is not None:
            self._disconnect(seat)
            error = FeedmuxError(ErrorReason.FENCED, "the instance has joined again", {"cause": "LEASE"})
            before, seat.session = seat.session, None
            before.leave_group()
            before.fail(error)
        if seat.expiry is not None:
            seat.expiry.cancel()
            seat.expiry = None
        signal = Wakeup()
        member = GroupMember(self._manager.next_id(), self.reader, seat.hand, window, signal.set)
        member.batch_events_max = self.definition.policy.batch_events_max

        if self.definition.seek_epoch < had.epoch < self.definition.epoch:
            self.ledger.claim(seat.hand, had.held, had.settled, had.epoch)
            self._is_back(seat)
        membership = Membership(self.reader, member, self._settled, self._met_end, partial(self._leave, instance))
        session = MemberSession(
            self._manager, self.definition.key, self._positions, policy, membership, payload_max, signal, self
        )
        session.has_letters = self._letters is not None
        seat.session, seat.member = session, member
        self.reader.join(member)
        self._store_members()
        return session

    def _is_back(self, seat: _Seat) -> None:
        self._back += not seat.is_back
        seat.is_back = True
        if self._expected and self._back >= self._expected:
            self._gather_until(GATHER_LEAST_S)  # or at once

    @property
    def connected(self) -> int:
        return len(self.reader)

    @property
    def _sessions(self) -> list[MemberSession]:
        return [seat.session for seat in self._seats.values() if seat.session is not None]

    def _disconnect(self, seat: _Seat) -> None:
        assert seat.member is not None
        self.reader.leave(seat.member)
        seat.member = None
        self.ledger.disconnect(seat.hand)

    def _leave(self, instance: object, session: MemberSession) -> None:
        seat = self._seats[instance]
        if seat.session is not session:
            return
        was_blocked = not self.reader.subscriber.can_receive
        self._disconnect(seat)
        seat.session = None
        if (
            session.gives_back
            or not self.ledger.holds(seat.hand)
            or self.definition.reconnect_s == 0
            or self.draining()
        ):
            self._vacate(instance, lost=not session.gives_back)
        else:
            seat.expiry = asyncio.get_running_loop().call_later(
                self.definition.reconnect_s, self._expired, instance, seat
            )
        if not self.ended:
            self.reader.changed(was_blocked=was_blocked)
            self._plan_retry()

    def _expired(self, instance: object, seat: _Seat) -> None:
        if self._seats.get(instance) is seat:
            self._vacate(instance, lost=True)

    def _vacate(self, instance: object, *, lost: bool) -> None:
        """Give what a member without a connection has in hand to the others."""
        seat = self._seats.pop(instance)
        self._store_members()
        if seat.expiry is not None:
            seat.expiry.cancel()
        self._leaves_work |= lost and self.draining() and self.ledger.holds(seat.hand)
        self._give_back(seat.hand, lost=lost)
        if not self._seats and self._has_unwritten and not self.draining():
            # What has failed with its last member becomes a dead letter first: it may end each member that comes. So
            # may a letter that is delivered again, whose failures no position has. And one that is settled is deleted.
            if self._empty_timer is not None:
                self._empty_timer.cancel()
            self._empty_timer = asyncio.get_running_loop().call_later(FLUSH_TIMEOUT_S, self._close_empty)
        else:
            self._close_empty()

    @property
    def _has_unwritten(self) -> bool:
        return self.ledger.failed_aside > 0 or bool(self.ledger.failed_letters or self.ledger.replayed)

    def _close_empty(self) -> None:
        if not self._seats:
            self.close()

    def _give_back(self, hand: Hand, *, lost: bool) -> None:
        if self.ended:
            return
        was_blocked = not self.reader.subscriber.can_receive
        if self.ledger.give_back(hand, lost=lost):
            asyncio.get_running_loop().call_soon(lambda: self._give_back(hand, lost=lost))
        self.reader.changed(was_blocked=was_blocked)
        self._plan_retry()

    def vacate_unconnected(self) -> None:
        """Wait for no member any more that has no connection, nor for letters without members: the server drains."""
        for instance, seat in list(self._seats.items()):
            if seat.session is None and not self.ended:
                self._vacate(instance, lost=True)
        self._close_empty()

    # Failed events.

    @property
    def letters_waiting(self) -> int:
        """The number of keys that are held because dead letters are not written."""
        return 0 if self._letters is None else self._letters.waiting

    def _plan_retry(self) -> None:
        """Set the timer to when the first of the keys that wait may be tried again, count what has failed, and let what
        is delivered no more be written."""
        if self._letters is not None:
            self._letters.look()
        retries = self.ledger.retries
        self._account.redelivered += retries.count - self._failures
        self._failures, due_s = retries.count, retries.due_s
        if due_s == self._retry_due_s:
            return
        if self._retry_timer is not None:
            self._retry_timer.cancel()
            self._retry_timer = None
        self._retry_due_s = due_s
        if due_s is not None:
            self._retry_timer = asyncio.get_running_loop().call_later(max(0.0, due_s - monotonic_s()), self._retry)

    def _retry(self) -> None:
        self._retry_timer = self._retry_due_s = None
        self.reader.retry(monotonic_s())
        self._plan_retry()

    # Commits.

    def submit(
        self, position: bytes, cluster_time: int, order: bytes, delivery_sequence: int, *, moves_back: bool = False
    ) -> None:
        raise RuntimeError("a member's position is that of its group")

    def delivered(self, cluster_time: int) -> None:
        if self._commits is not None:
            # The position of a member's delivery is that of the group: before what is delivered.
            self._commits.delivered(self.ledger.read_to.last_time)

    async def flush(self, timeout_s: float) -> None:
        """Store what is settled. Raises FENCED, STATE_UNAVAILABLE."""
        self._commit()
        if self._commits is not None:
            await self._commits.flush(timeout_s)

    def _settled(self) -> None:
        if self.ended:
            return
        self._plan_retry()
        if self._empty_timer is not None and not self._has_unwritten:
            self._close_empty()
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(COMMIT_S, self._commit)

    def _commit(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        ledger = self.ledger
        if self.ended or self._commits is None:
            return
        state = ledger.settled_place(), ledger.changes
        if state != self._committed:
            self._committed = state
            place, changes = state
            position = self._positions.encode_ahead(place, ledger.ahead)
            order = group_order(place, self.definition.epoch, changes)
            # While it restores, what is settled may come again if the server is lost.
            self._commits.submit(position, place.cluster_time, order, 0 if ledger.restores else ledger.acked)

    def committed(self, delivery_sequence: int, position: bytes) -> None:
        told = [
            seat for seat in self._seats.values() if seat.session is not None and seat.hand.stored(delivery_sequence)
        ]
        if told:
            position = self._positions.encode(inspect_position(position).token)  # without what is settled ahead
        for seat in told:
            if seat.session is not None:
                seat.session.commits.committed(seat.hand.committed, position)

    def fenced(self, cause: str) -> None:
        if cause in ("SEEK", "UPDATE", "DELETE"):
            self.end(fenced_error(cause))
        else:
            self.end(elsewhere(self.definition.feed.scope, ""))

    def state_available(self, available: bool) -> None:
        for session in self._sessions:
            session.commits.state_available(available)

    # The end.

    def _plan_end(self) -> None:
        if self._end_timer is None:
            self._end_timer = asyncio.get_running_loop().call_later(ENDED_FEED_S, self._tell_end)

    def _tell_end(self) -> None:
        self._end_timer = None
        if not self.ended and self.reader.ended is not None and not self.reader.tell_end():
            self._plan_end()

    def _met_end(self, error: FeedmuxError) -> None:
        """The feed has ended, and everything before the end is settled, or waits longer than members wait for that."""
        if self._ending is None and not self.ended:
            self._ending = self._manager.tasks.run_once("group-end", lambda: self._meet_end(error))

    async def _meet_end(self, error: FeedmuxError) -> None:
        """Continue if the policy says so, else store the last position and end. The policies are those of a session."""
        policy, subscriber = self.definition.policy, self.reader.subscriber
        try:
            if error.reason is ErrorReason.FEED_INVALIDATED and policy.continue_on_invalidate:
                await asyncio.sleep(CONTINUE_PAUSE_S)
                place = subscriber.at.place
                at = JoinPoint(place, exact=place.given is Given.BY_MONGODB)
            elif error.reason is ErrorReason.HISTORY_LOST and policy.earliest_on_history_lost:
                source = self._manager.source(self.definition.key.spec.scope.source)
                await asyncio.sleep(LOSS_PAUSE_S)
                oldest_time, at = await source.oplog.oldest_time(), subscriber.at
                if oldest_time > at.place.cluster_time:  # otherwise the primary has the position
                    at = JoinPoint(ResumeToken.high_water_mark(oldest_time))
                    for session in self._sessions:
                        session.notice(GapMark(subscriber.at.place, at.place, error.reason.value))
            else:
                place = self.reader.progress()
                if error.reason is not ErrorReason.TIMELINE_FORKED:  # MongoDB may no longer have that position
                    for session in self._sessions:
                        session.notice(ProgressMark(place))
                await self.flush(FLUSH_TIMEOUT_S)
                self.end(error)
                return
            if not self.ended:
                self.reader.rejoin(at)
        except FeedmuxError as failure:
            self.end(error if failure.reason is ErrorReason.STATE_UNAVAILABLE else failure)
        finally:
            self._ending = None

    def end(self, error: FeedmuxError) -> None:
        """End the group and the sessions of its members with `error`."""
        sessions = self._sessions
        self.close()
        for session in sessions:
            session.fail(error)

    def close(self) -> None:
        """Leave the feed and release the lease. What members have in hand is not settled."""
        if self.ended:
            return
        self._commit()
        self.ended, recovers = True, self._leaves_work or self.ledger.recovers
        for timer in (self._retry_timer, self._gather_timer, self._empty_timer, self._end_timer):
            if timer is not None:
                timer.cancel()
        if self._letters is not None:
            self._letters.close()
        for seat in self._seats.values():
            if seat.session is not None:
                seat.session.leave_group()
            if seat.expiry is not None:
                seat.expiry.cancel()
        self._seats.clear()
        key = self.definition.key
        self._account.outstanding.waits_no_longer(self._wake)
        self._account.feeds.close(key)
        self._manager.release(key, self.reader.subscriber)
        self.released = self.on_end(recovers)


class Groups:
    """The groups that this process hosts."""

    def __init__(self) -> None:
        self.host = HOST_PREFIX + secrets.token_hex(8)
        """The instance that holds the leases of the groups."""
        self.draining = False
        self._groups: dict[tuple[str, str], Group] = {}
        self._locks: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[Group]:
        return iter(list(self._groups.values()))

    def lock(self, tenant: str, name: str) -> asyncio.Lock:
        """Hold it to open a group: one of the members that join at one time opens it for all."""
        lock = self._locks.get((tenant, name))
        if lock is None:
            lock = self._locks[tenant, name] = asyncio.Lock()
        return lock

    def get(self, tenant: str, name: str) -> Group | None:
        return self._groups.get((tenant, name))

    def add(self, group: Group, release: Callable[[bool], asyncio.Task[None]]) -> None:
        """Host a group. `release` is its `on_end`."""
        place = group.definition.tenant, group.definition.name
        self._groups[place] = group

        def ended(recovers: bool) -> asyncio.Task[None]:
            if self._groups.get(place) is group:
                del self._groups[place]
            return release(recovers)

        group.on_end = ended
        group.draining = lambda: self.draining

    def drain(self) -> None:
        """Wait for no member that has no connection: its next one goes to another server."""
        self.draining = True
        for group in self:
            group.vacate_unconnected()


def elsewhere(scope: Scope, host: str) -> FeedmuxError:
    """The error for a member whose group another server hosts."""
    return FeedmuxError(
        ErrorReason.GROUP_ELSEWHERE,
        "another server of this deployment hosts the group: join again over a new connection, with the metadata"
        " x-feedmux-route",
        {"route": route_of(scope), "host": host},
        retry_after_s=ELSEWHERE_RETRY_S,
    )
