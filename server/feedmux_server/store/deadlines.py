"""Deadlines, by Redis's own clock, after which Redis must not run a script any more.

If Redis was frozen or the network delayed a packet, Redis may run a command after its caller has given up and tried
again on another connection: then the first try runs last. A script that opens or moves a subscription would undo its
own second try. So these scripts get a deadline, and answer LATE after it.

LATE also shows that Redis now has another clock, after a failover or in another node of a cluster: the script is sent
once more. Neighbours: `store` sets the deadlines, `lua/` checks them.
"""

from feedmux_server.clock import monotonic_s


class Deadlines:
    """Deadlines for callers that wait for `timeout_s`."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_ms = timeout_s * 1000
        self._ahead_ms: float | None = None
        """How far Redis's clock is ahead of this process's clock. The true value is a little higher, because the answer
        took time to arrive."""

    def next_ms(self) -> int:
        """The deadline of a script sent now; 0, which is always in the past, while Redis's clock is not known."""
        return 0 if self._ahead_ms is None else int(monotonic_s() * 1000 + self._ahead_ms + self._timeout_ms)

    def saw(self, now_ms: int) -> None:
        """Note the time that Redis's clock showed a moment ago."""
        self._ahead_ms = now_ms - monotonic_s() * 1000
