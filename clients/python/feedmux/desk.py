"""Where the user's side and the network's side of a session meet.

The user's loop writes what was acked and taken; the runner writes what it publishes and the thresholds at which it
wants to be woken, and whoever crosses one sets it to NEVER before waking. So nothing is locked, and an ack or a batch
costs a comparison. A number that is read a moment too early only delays a message.
"""

from collections.abc import Callable
from dataclasses import dataclass

from feedmux.batches import Batch
from feedmux.errors import FeedmuxError
from feedmux.notices import Notice
from feedmux.places import NOWHERE, Place

NEVER = 1 << 62


@dataclass(frozen=True, slots=True)
class Said:
    """A notice at its place among the batches."""

    notice: Notice


@dataclass(frozen=True, slots=True)
class Ended:
    """Nothing comes any more. `error` is None after a close."""

    error: FeedmuxError | None


Item = Batch | Said | Ended


class Desk:
    """Shared state of one session object."""

    __slots__ = (
        "acked",
        "alarm",
        "broken",
        "closing",
        "committed",
        "drain",
        "ended_by",
        "epoch",
        "latest",
        "opened",
        "put",
        "refill_bytes_at",
        "refill_events_at",
        "taken_bytes",
        "taken_events",
        "wake",
    )

    def __init__(self, put: Callable[[Item], None], drain: Callable[[], list[Item]], wake: Callable[[], None]) -> None:
        self.put = put
        """Runner to user: hand over, in order."""
        self.drain = drain
        """Runner: take back what nobody has taken."""
        self.wake = wake
        """User to runner, from any thread: something reached a threshold, or `closing` was set."""

        self.acked = 0
        """User: the highest ordinal acked."""
        self.taken_events = 0
        self.taken_bytes = 0
        """User: totals handed out."""
        self.closing = False
        """User: the session shall end."""
        self.ended_by: FeedmuxError | None = None
        """Runner, before it sets `closing`: it ends for this, and not because its user closed it."""
        self.broken: FeedmuxError | None = None
        """User: a batch turned out not to hold what it announced; the session shall end with this."""

        self.alarm = NEVER
        """Runner: an ack of this ordinal or a higher one shall wake it."""
        self.refill_events_at = NEVER
        self.refill_bytes_at = NEVER
        """Runner: totals taken at which it can grant more credit."""
        self.opened = NOWHERE
        self.latest: tuple[int, Place] = (0, NOWHERE)
        """Runner: a place up to which everything has been received, and the highest ordinal before it."""
        self.epoch = 0
        self.committed = b""
        """Runner: the last confirmed position."""
