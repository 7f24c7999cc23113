"""One Subscribe call of a member of a group: a session that takes its events from the group's read.

Marks, heartbeats, quotas, drains and errors are those of any session.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from feedmux_server.clock import monotonic_s
from feedmux_server.core.delivery.ack_tracker import ENTRIES_AT_ONCE
from feedmux_server.core.delivery.group_reader import GroupMember, GroupReader
from feedmux_server.core.delivery.retry import Failure
from feedmux_server.core.delivery.session_state import Phase
from feedmux_server.core.delivery.shared_stream import StreamState
from feedmux_server.core.delivery.taken import Delivery, Ended
from feedmux_server.core.errors import FeedmuxError
from feedmux_server.core.feeds.stream_key import StreamKey
from feedmux_server.core.positions.position import PositionEncoder
from feedmux_server.sessions.outputs import Output
from feedmux_server.sessions.quota_gate import MemberQuota
from feedmux_server.sessions.send_gate import NeedsTurn, SendGate, Wait
from feedmux_server.sessions.session import Session, SessionPolicy
from feedmux_server.sessions.session_commits import Commits
from feedmux_server.streams.manager import StreamManager
from feedmux_server.streams.wakeup import Wakeup

_READS_ON_S: Final = 0.001
"""How long a member waits between two portions of what an earlier host of the group has read and settled."""
_FEW_S: Final = 0.1
"""How long a member with a small part of its window free waits for more of it."""


@dataclass(frozen=True, slots=True)
class Membership:
    """What a session has of its group, until it leaves it."""

    reader: GroupReader
    member: GroupMember
    settled: Callable[[], None]
    """The group's position may have moved, or events may have failed."""
    met_end: Callable[[FeedmuxError], None]
    """The feed has ended, and everything before the end is settled, or only waits."""
    left: Callable[["MemberSession"], None]
    """The session has ended."""


class MemberSession(Session):
    """The session of a member. Made by `Group.join`."""

    def __init__(
        self,
        manager: StreamManager,
        key: StreamKey,
        positions: PositionEncoder,
        policy: SessionPolicy,
        membership: Membership,
        payload_max: int,
        signal: Wakeup,
        commits: Commits,
    ) -> None:
        """`signal` wakes `membership.member` too. `commits` stores what the whole group has settled."""
        member = membership.member
        self._membership: Membership | None = membership
        self._quota = MemberQuota(manager.accounts.of(member.tenant), signal)
        gate = SendGate(manager, member.tenant, payload_max, self._quota, signal)
        super().__init__(manager, key, positions, policy, member, gate, signal, lambda _: commits)
        self._few_timer: asyncio.TimerHandle | None = None
        self.gives_back = False
        """The client has asked to close: others get its events at once."""
        self.has_letters = False
        """Whether the client may reject events: there is a collection for dead letters."""

    async def opened(self) -> None:
        """Wait until MongoDB has accepted the feed, for one heartbeat interval at most. A rejection ends the session
        later."""
        deadline_s = monotonic_s() + self._policy.heartbeat_s
        while (membership := self._membership) is not None and (left_s := deadline_s - monotonic_s()) > 0:
            stream = membership.reader.stream
            waits = stream is not None and not (stream.opened or stream.ended or stream.unavailable)
            if not waits or stream is None or stream.state is StreamState.RECOVERING or self.end_error is not None:
                break
            await self._signal.wait(left_s)
        if membership is not None:
            membership.reader.opened(membership.member)

    def parts_of_settle(self, ranges: Iterable[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
        """The ranges in parts, each for one turn of the event loop. Settle each before the next one is asked for."""
        part, room = list[tuple[int, int]](), ENTRIES_AT_ONCE
        for first, last in ranges:
            stop = first - 1
            while stop < last and self._membership is not None:
                begin = stop + 1
                stop, count = self._membership.member.hand.part_of_settle(begin, last, room)
                part.append((begin, stop))
                room -= max(1, count)
                if room <= 0:
                    yield part
                    part, room = [], ENTRIES_AT_ONCE
        if part:
            yield part

    def settle(self, ranges: Iterable[tuple[int, int]], failures: Iterable[Failure] = ()) -> None:
        """Settle events by ranges of delivery sequences, and return those that failed. Raises ACK_OUT_OF_RANGE."""
        membership = self._membership
        if membership is None:
            return  # another session of the instance has taken its events
        member = membership.member
        self._quota.settled(membership.reader.settle(member, ranges, failures, monotonic_s()))
        membership.settled()
        self._observer.acked(member.hand.acked)
        if member.can_receive or self._state.phase is Phase.DRAINING:
            self._signal.set()
        self._plan_few(member)

    def _plan_few(self, member: GroupMember) -> None:
        """Fill what is free of the member's window soon, if that is too little to be filled at once."""
        if member.waits_for_more and self._few_timer is None:
            self._few_timer = asyncio.get_running_loop().call_later(_FEW_S, self._take_few)

    def _take_few(self) -> None:
        self._few_timer = None
        if self._membership is not None:
            self._membership.reader.take_few(self._membership.member)

    async def half_closed(self) -> None:
        """Close: the member can settle nothing any more."""
        self.ask_close()

    def leave_group(self) -> None:
        """Be a member no more: the group has ended, or another session of the instance has taken over."""
        self._membership = None

    def close(self) -> None:
        membership, self._membership = self._membership, None
        if membership is not None:
            membership.left(self)
        self.gate.close()

    async def next_output(self) -> Output | None:
        output = await super().next_output()
        if self._membership is not None:
            self._membership.reader.busy(self._membership.member)
        return output

    def _heartbeat(self) -> Output:
        output = super()._heartbeat()
        if self._membership is not None:
            self._membership.settled()  # the position of an idle feed moves, too
        return output

    def _take(self, *, has_turn: bool) -> Delivery | Ended | NeedsTurn | Wait:
        membership = self._membership
        if membership is None:
            return Wait()
        reader = membership.reader
        taken = self.gate.take(reader, membership.member, has_turn=has_turn)
        if reader.read_events:
            self.gate.turns.spend(0, reader.read_events)
            reader.read_events = 0
        self._plan_few(membership.member)  # the ready events may have filled a part of it
        if isinstance(taken, Wait) and taken.throttled:
            membership.reader.pass_on()
        elif isinstance(taken, Wait) and membership.reader.reads_on:
            return Wait(_READS_ON_S)
        return taken

    async def _meet_end(self, error: FeedmuxError) -> None:
        """The group decides, once for all members, whether it continues."""
        if self._membership is not None:
            self._membership.met_end(error)
        await self._signal.wait(self._policy.heartbeat_s)
