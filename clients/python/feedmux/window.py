"""The credit window of a session: how much the server may still send, and when to grant more.

Pure bookkeeping in totals over the life of the session object. Invariant: granted - taken never exceeds the window, so
the window bounds what waits in the client. `connection` owns a window; by its thresholds the user's side knows when to
wake the connection.
"""

from collections.abc import Callable
from dataclasses import dataclass

from feedmux.errors import ProtocolError


@dataclass(frozen=True, slots=True)
class Grant:
    """Permission to send more events and bytes."""

    events: int
    size_bytes: int


class CreditWindow:
    """Totals of what was granted, received and taken by the user's loop, in events and bytes."""

    def __init__(self, events_max: int, bytes_max: int) -> None:
        self._chosen = events_max, bytes_max
        self._events_max, self._bytes_max = self._chosen
        """What the user has chosen, or less, if the server of the present stream allows less."""
        self._granted_events = 0
        self._granted_bytes = 0
        self._received_events = 0
        self._received_bytes = 0
        self._discarded_events = 0
        self._discarded_bytes = 0

    def open(self, taken_events: int, taken_bytes: int) -> Grant:
        """Begin a new stream: earlier grants are void.

        Return the initial credit, less what still waits in the client.
        """
        self._events_max, self._bytes_max = self._chosen
        waiting_events = self._received_events - self._discarded_events - taken_events
        waiting_bytes = self._received_bytes - self._discarded_bytes - taken_bytes
        grant = Grant(max(0, self._events_max - waiting_events), max(0, self._bytes_max - waiting_bytes))
        if not grant.events or not grant.size_bytes:
            # One without the other brings nothing. A server that clamps it would leave nothing to grant after that.
            grant = Grant(0, 0)
        self._granted_events = self._received_events + grant.events
        self._granted_bytes = self._received_bytes + grant.size_bytes
        return grant

    def limit(self, events_max: int, bytes_max: int) -> None:
        """Set the server's limits.

        The server clamps unused credit to them, and so does this window. 0 means unknown.
        """
        if events_max:
            self._events_max = min(self._events_max, events_max)
            self._granted_events = min(self._granted_events, self._received_events + events_max)
        if bytes_max:
            self._bytes_max = min(self._bytes_max, bytes_max)
            self._granted_bytes = min(self._granted_bytes, self._received_bytes + bytes_max)

    def receive(self, events: int, size_bytes: int, last_bytes: Callable[[], int]) -> None:
        """Record arrived events. Raises ProtocolError if they exceed the credit; one event may overdraw the bytes.

        `last_bytes` returns the size of the last event, and is called only if bytes were overdrawn.
        """
        self._received_events += events
        self._received_bytes += size_bytes
        if self._received_events > self._granted_events:
            raise ProtocolError(f"{self._received_events - self._granted_events} events more than the credit granted")
        overdraft = self._received_bytes - self._granted_bytes
        if overdraft > 0 and overdraft >= last_bytes():
            raise ProtocolError(f"{overdraft} bytes more than the credit granted")

    def discard(self, events: int, size_bytes: int) -> None:
        """Record received events that the user will not take, because they are repeats."""
        self._discarded_events += events
        self._discarded_bytes += size_bytes

    def refill(self, taken_events: int, taken_bytes: int) -> Grant | None:
        """Return what to grant now: nothing until a quarter of the window in events or bytes has been taken."""
        grant = self._due(taken_events, taken_bytes)
        if grant is not None:
            self._granted_events += grant.events
            self._granted_bytes += grant.size_bytes
        return grant

    def is_due(self, taken_events: int, taken_bytes: int) -> bool:
        """Whether `refill` would grant something now."""
        return self._due(taken_events, taken_bytes) is not None

    def _due(self, taken_events: int, taken_bytes: int) -> Grant | None:
        events = self._events_max + taken_events + self._discarded_events - self._granted_events
        size_bytes = self._bytes_max + taken_bytes + self._discarded_bytes - self._granted_bytes
        if events < 1 or size_bytes < 1:
            return None
        if events * 4 < self._events_max and size_bytes * 4 < self._bytes_max:
            return None
        return Grant(events, size_bytes)

    @property
    def refill_events_at(self) -> int:
        """The total of events taken at which `refill` will grant more."""
        return self._granted_events - self._discarded_events - self._events_max + -(-self._events_max // 4)

    @property
    def refill_bytes_at(self) -> int:
        """The total of bytes taken at which `refill` will grant more."""
        return self._granted_bytes - self._discarded_bytes - self._bytes_max + -(-self._bytes_max // 4)
