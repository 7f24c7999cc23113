"""The state shared by the user's side and the network's side of a session.

The user's loop writes what was acked and taken. The connection writes what it publishes, and the thresholds at which it
wants to be woken; the side that crosses a threshold sets it to NEVER before it wakes the connection. So nothing is
locked, and an ack or a batch costs a comparison. A number that is read a moment too early only delays a message.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from feedmux.batches import Batch
from feedmux.errors import FeedmuxError
from feedmux.feeds import SnapshotStatus
from feedmux.notices import Notice, SnapshotComplete, topic
from feedmux.positions import NO_POSITION, FeedPosition

_log = logging.getLogger("feedmux")

NEVER = 1 << 62


@dataclass(frozen=True, slots=True)
class QueuedNotice:
    """A notice in its order among the batches."""

    notice: Notice


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of the session: no more events follow. `error` is None after a close."""

    error: FeedmuxError | None


Item = Batch | QueuedNotice | Ended

T = TypeVar("T")


def without_replaced(items: Iterable[T], notice: Notice) -> list[T]:
    """Return the items without the notices that a new one replaces."""
    told = topic(notice)
    return [item for item in items if told is None or not isinstance(item, QueuedNotice) or topic(item.notice) != told]


class UserSide:
    """What any session shares with its connection: how it ends."""

    __slots__ = ("broken", "closed", "closing", "ended_by", "put", "wake")

    def __init__(self, put: Callable[[Item], None]) -> None:
        self.put = put
        """Called by the connection: pass an item to the user, in order."""
        self.wake: Callable[[], None] = lambda: None
        """Called by the user, from any thread: wake the connection, because it has work, or `closing` was set."""
        self.closing = False
        """Set by the user: the session must end."""
        self.closed = False
        """The close is over: nothing more is sent."""
        self.ended_by: FeedmuxError | None = None
        """Set by the connection before `closing`: the error that ends the session, if its user did not close it."""
        self.broken: FeedmuxError | None = None
        """Set by the user: the error for a batch that does not hold what it announced; the session must end with it."""

    def tell(self, notice: Notice) -> None:
        """Called by the connection: pass a notice to the user, in order, instead of those that it replaces."""
        self.put(QueuedNotice(notice))

    def close_ended(self) -> None:
        """Accept no more acks, and log if the server has not confirmed those before."""
        self.closed = True
        self.warn_unconfirmed()

    def warn_unconfirmed(self) -> None:
        """Log, after the end, that the server has not confirmed all that was acked or settled. Once."""


class SessionBuffer(UserSide):
    """Shared state of one session object."""

    __slots__ = (
        "acked", "alarm", "committed", "completion", "confirmed", "copying", "drain", "epoch", "latest", "opened",
        "refill_bytes_at", "refill_events_at", "taken_bytes", "taken_events", "untaken", "withdrawn",
    )  # fmt: skip

    def __init__(self, put: Callable[[Item], None], drain: Callable[[], list[Item]]) -> None:
        super().__init__(put)
        self.drain = drain
        """Called by the connection: take back the items that the user has not taken."""

        self.acked = 0
        """Set by the user: the highest ordinal acked."""
        self.taken_events = 0
        self.taken_bytes = 0
        """Set by the user: totals of events and bytes taken."""
        self.untaken: Iterator[int] = iter(())
        """Set by the user: iterates over the events of the current batch that the user has not taken."""

        self.alarm = NEVER
        """Set by the connection: an ack of this ordinal or a higher one must wake the connection."""
        self.refill_events_at = NEVER
        self.refill_bytes_at = NEVER
        """Set by the connection: totals taken at which it can grant more credit."""
        self.opened: tuple[int, FeedPosition] = (0, NO_POSITION)
        """Set by the connection: where the session began, or was moved to, and the highest ordinal before that."""
        self.latest: tuple[int, FeedPosition] = (0, NO_POSITION)
        """Set by the connection: a position up to which everything has been received, and the highest ordinal before
        it."""
        self.withdrawn = 0
        """Set by the connection: the ordinal up to which the session delivers no more events, because it was moved."""
        self.copying: SnapshotStatus | None = None
        """Set by the connection when a stream was opened within a copy of existing documents; changed by the user's
        side at the notices of the copy, and cleared at its end."""
        self.completion: SnapshotComplete | None = None
        """Set by the connection, before a `latest` after it: the last end of a copy that came, also if it was withdrawn
        because another one follows. None where none follows it."""
        self.epoch = 0
        self.committed = b""
        """Set by the connection: the last confirmed position."""
        self.confirmed = 0
        """Set by the connection: the ordinal up to which the server has stored the acks; NEVER on inline feeds."""

    def tell(self, notice: Notice) -> None:
        if topic(notice) is not None:
            items = self.drain()
            since = next((i for i in range(len(items), 0, -1) if isinstance(items[i - 1], Batch)), 0)
            for item in items[:since] + without_replaced(items[since:], notice):
                self.put(item)
        super().tell(notice)

    def withdraw(self, received: int) -> list[Item]:
        """Called by the connection: take back the items and the rest of the current batch, because the session was
        moved after `received` events."""
        # Set first: a batch that is being taken now is in neither of the two below.
        self.withdrawn = received
        deque(self.untaken, maxlen=0)  # exhausts it at once, in one step of the interpreter
        return self.drain()

    def warn_unconfirmed(self) -> None:
        if self.acked > self.confirmed:
            self.confirmed = NEVER  # closing again has nothing to add
            _log.warning(
                "the session was closed before the server confirmed all acks: the next session may repeat their events"
            )
