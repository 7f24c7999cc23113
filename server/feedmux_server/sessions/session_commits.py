"""The way of one session's acks to the committer, and of the committer's answers to the client."""

from collections import deque
from collections.abc import Callable
from typing import Protocol

from feedmux_server.core.delivery.session_state import Phase, SessionState
from feedmux_server.core.delivery.subscriber import Acks
from feedmux_server.core.errors import FeedmuxError, fenced_error
from feedmux_server.core.positions.position import PositionEncoder
from feedmux_server.core.positions.resume_token import Copied, ResumeToken
from feedmux_server.core.positions.stored_order import order_bytes
from feedmux_server.sessions.outputs import CommittedMark, DegradedMark, Output
from feedmux_server.streams.wakeup import Wakeup

FLUSH_TIMEOUT_S = 5.0


class Commits(Protocol):
    """Where acknowledged positions are committed: a `store.handle.CommitHandle`."""

    def submit(
        self, position: bytes, cluster_time: int, order: bytes, delivery_sequence: int, *, moves_back: bool = False
    ) -> None: ...

    def delivered(self, cluster_time: int) -> None: ...

    async def flush(self, timeout_s: float) -> None: ...


Attach = Callable[["SessionCommits"], Commits]
"""Attaches a session to what stores its positions: `Committer.attach`, with the lease of the subscription."""


class SessionCommits:
    """Listens to the committer; without a `handle`, acks are accepted and not stored."""

    __slots__ = ("_completed", "_marks", "_positions", "_signal", "_state", "handle")

    def __init__(
        self,
        attach: Attach | None,
        positions: PositionEncoder,
        state: SessionState,
        marks: deque[Output],
        signal: Wakeup,
    ) -> None:
        """`marks` are what the session sends next, and `signal` wakes it."""
        self._completed: tuple[Copied, int] | None = None
        """The copy whose end the client may not have noticed, and the last sequence before that end."""
        self._positions = positions
        self._state = state
        self._marks = marks
        self._signal = signal
        self.handle: Commits | None = attach(self) if attach is not None else None

    def submit(self, acks: Acks | None, *, moves_back: bool = False) -> None:
        """Have the position that the acks allow to store committed; with `moves_back`, also an earlier one than the
        stored one."""
        if acks is None or self.handle is None:
            return
        if moves_back and self._completed is not None:
            self._completed = self._completed[0], acks.acked  # what was sent counts as acknowledged
        place = acks.place
        position = self._encoded(place, acks.acked)
        self.handle.submit(position, place.cluster_time, order_bytes(place), acks.acked, moves_back=moves_back)

    def begin_at(self, place: ResumeToken) -> None:
        """Have the position stored at which the session begins, because its client knows a newer one than the store. A
        position inside a split event is not stored, and none beside an event of another feed: the client may come once
        more with a token of that feed, which the stored position has to show."""
        if self.handle is not None and not place.may_be_inside_event and (place.digest or place.is_of_mongodb):
            self.handle.submit(self._encoded(place, 0), place.cluster_time, order_bytes(place), 0)

    def _encoded(self, place: ResumeToken, acked: int) -> bytes:
        if self._completed is not None and place.copied is None:
            completed, sequence = self._completed
            if acked <= sequence:
                # The client may not have noticed yet that the copy is complete.
                return self._positions.encode_completed(place, completed)
            self._completed = None
        return self._positions.encode(place)

    def copy_completed(self, completed: Copied, sequence: int) -> None:
        """The copy is complete; `sequence` is the last one before its end. An ack of a later event shows that the
        client has noticed that. Until then the stored position says it, so that the next session can say it again."""
        self._completed = completed, sequence

    def copy_begins(self) -> None:
        self._completed = None

    async def flush(self, *, must_store: bool = False) -> None:
        """Make the acks durable before the end. A flush that the client asked for with Close must not fail silently,
        nor one that `must_store`."""
        if self.handle is None:
            return
        try:
            await self.handle.flush(FLUSH_TIMEOUT_S)
        except FeedmuxError:
            if must_store or self._state.phase is Phase.CLOSING:
                raise

    # What the committer calls; none of these methods awaits.

    def committed(self, delivery_sequence: int, position: bytes) -> None:
        mark = CommittedMark(delivery_sequence, position)
        if self._marks and isinstance(self._marks[-1], CommittedMark):
            self._marks[-1] = mark  # so a client that does not read does not accumulate marks
        else:
            self._marks.append(mark)
            self._signal.set()

    def fenced(self, cause: str) -> None:
        if self._state.fail(fenced_error(cause)):
            self._signal.set()

    def state_available(self, available: bool) -> None:
        mark, other = DegradedMark("state", not available), DegradedMark("state", available)
        if other in self._marks:
            self._marks.remove(other)  # so a client that does not read does not accumulate marks
        else:
            self._marks.append(mark)
            self._signal.set()
