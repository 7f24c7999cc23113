"""The way of one session's acks to the committer, and of the committer's answers to the client."""

from collections import deque
from collections.abc import Callable
from typing import Protocol

from feedmux_server.core.delivery.session_state import Phase, SessionState
from feedmux_server.core.delivery.subscriber import Acks
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.positions.position import PositionEncoder
from feedmux_server.core.positions.stored_order import order_bytes
from feedmux_server.sessions.outputs import CommittedMark, DegradedMark, Output

FLUSH_TIMEOUT_S = 5.0


class Commits(Protocol):
    """Where acknowledged positions are committed: a `store.handle.CommitHandle`."""

    def submit(
        self, position: bytes, cluster_time: int, order: bytes, delivery_sequence: int, *, moves_back: bool = False
    ) -> None: ...

    async def flush(self, timeout_s: float) -> None: ...


class SessionCommits:
    """Listens to the committer; without a `handle`, acks are accepted and not stored."""

    __slots__ = ("_marks", "_positions", "_state", "_wake", "handle")

    def __init__(
        self, positions: PositionEncoder, state: SessionState, marks: deque[Output], wake: Callable[[], None]
    ) -> None:
        """`marks` are what the session sends next."""
        self.handle: Commits | None = None
        self._positions = positions
        self._state = state
        self._marks = marks
        self._wake = wake

    def submit(self, acks: Acks | None, *, moves_back: bool = False) -> None:
        """Have the position that the acks allow to store committed; with `moves_back`, also an earlier one than the
        stored one."""
        if acks is not None and self.handle is not None:
            place = acks.place
            position, order = self._positions.encode(place), order_bytes(place)
            self.handle.submit(position, place.cluster_time, order, acks.acked, moves_back=moves_back)

    async def flush(self) -> None:
        """Make the acks durable before the end. A flush that the client asked for with Close must not fail silently."""
        if self.handle is None:
            return
        try:
            await self.handle.flush(FLUSH_TIMEOUT_S)
        except FeedmuxError:
            if self._state.phase is Phase.CLOSING:
                raise

    # What the committer calls; none of these methods awaits.

    def committed(self, delivery_sequence: int, position: bytes) -> None:
        mark = CommittedMark(delivery_sequence, position)
        if self._marks and isinstance(self._marks[-1], CommittedMark):
            self._marks[-1] = mark  # so a client that does not read does not accumulate marks
        else:
            self._marks.append(mark)
            self._wake()

    def fenced(self, cause: str) -> None:
        if self._state.fail(FeedmuxError(ErrorReason.FENCED, "the session lost its subscription", {"cause": cause})):
            self._wake()

    def state_available(self, available: bool) -> None:
        self._marks.append(DegradedMark("state", not available))
        self._wake()
