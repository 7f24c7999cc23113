"""An event of a group, as a member sees it: it is settled alone, in any order."""

from collections import deque
from typing import Protocol

from feedmux.batches import Batch, Event
from feedmux.outcomes import DONE, Outcome, failed, rejected


class Owner(Protocol):
    """The member that an event was delivered to."""

    def settle(self, event: "MemberEvent", outcome: Outcome) -> None:
        """Take note of what became of the event. Raises SessionClosed, RuntimeError."""


class Run:
    """Consecutive events of one key. The next one is handed out when the one before it is settled."""

    __slots__ = ("current", "waiting")

    def __init__(self) -> None:
        self.current: MemberEvent | None = None
        """The event that is handed out and not settled."""
        self.waiting: deque[MemberEvent] = deque()


class MemberEvent(Event):
    """One change event, which its member settles: by `ack`, `nack` or `reject`, once."""

    __slots__ = ("attempt", "delivery", "outcome", "owner", "run")

    def __init__(self, batch: Batch, index: int, attempt: int, owner: Owner, run: Run) -> None:
        super().__init__(batch, index)
        self.attempt = attempt
        """How often the event has been delivered, with this delivery."""
        self.owner = owner
        self.run = run
        self.delivery = 0
        """The delivery sequence in the present stream; 0 while it has none."""
        self.outcome: Outcome | None = None

    def ack(self) -> None:
        """Settle this event, and no other, as processed. Cheap: settled events are reported together.

        To settle an event again changes nothing. Raises SessionClosed if the member was closed, because then others get
        the event.
        """
        self.owner.settle(self, DONE)

    def nack(self, retry_after_s: float | None = None, reason: str = "") -> None:
        """Return this event as not processed: it is delivered again, to any member, and its key waits until then.

        `retry_after_s` is the least delay, by default one that grows with each attempt. `reason` is for people; 1,024
        bytes of it are kept. Raises as `ack` does.
        """
        self.owner.settle(self, failed(retry_after_s, reason))

    def reject(self, reason: str = "") -> None:
        """Settle this event as one that can never be processed: it becomes a dead letter. Raises as `ack` does."""
        self.owner.settle(self, rejected(reason))
