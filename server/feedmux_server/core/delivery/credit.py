"""Credit: how many more events and bytes a subscriber may be sent.

The client grants credit and `Subscriber.cut` spends it. Grants add up; unused credit is limited to the server's
maximum, so that a client cannot make the server hold more for it. While byte credit is above zero, one event may
overdraw it, and the next grant pays the debt, so no event is too large for a window.
"""

from dataclasses import dataclass

from feedmux_server.core.errors import ErrorReason, FeedmuxError

EVENTS_GRANT_MAX = 2**31 - 1
BYTES_GRANT_MAX = 2**40


@dataclass(frozen=True, slots=True)
class CreditLimits:
    """Maximum unused credit of a session. More keeps a slow connection full, and costs memory there."""

    events_max: int = 1_000_000
    bytes_max: int = 64 * 1024 * 1024


class CreditWindow:
    """Unused credit of one session."""

    __slots__ = ("_limits", "bytes", "events")

    def __init__(self, limits: CreditLimits) -> None:
        self._limits = limits
        self.events = 0
        self.bytes = 0

    @property
    def open(self) -> bool:
        return self.events > 0 and self.bytes > 0

    def grant(self, events: int, size: int, *, zero_allowed: bool = False) -> None:
        """Add credit. Raises CREDIT_INVALID on negative, zero or overflowing increments."""
        least = 0 if zero_allowed else 1
        if not least <= events <= EVENTS_GRANT_MAX:
            raise FeedmuxError(
                ErrorReason.CREDIT_INVALID,
                f"credit.events must be {least} to {EVENTS_GRANT_MAX}",
                field="credit.events",
            )
        if not least <= size <= BYTES_GRANT_MAX:
            raise FeedmuxError(
                ErrorReason.CREDIT_INVALID, f"credit.bytes must be {least} to {BYTES_GRANT_MAX}", field="credit.bytes"
            )
        self.events = min(self.events + events, self._limits.events_max)
        self.bytes = min(self.bytes + size, self._limits.bytes_max)

    def spend(self, events: int, size: int) -> None:
        """Take credit for sent events. The caller sent no more than the window allowed."""
        if events > self.events or self.bytes <= 0:
            raise RuntimeError("spent more credit than there is")
        self.events -= events
        self.bytes -= size
