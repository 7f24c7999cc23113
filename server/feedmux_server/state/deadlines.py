"""Until when Redis may do what a caller waits for, by Redis's own clock.

A Redis that was frozen, or a packet that the network kept, brings commands to execution after their caller has given up
and tried again, on another connection: then the first try comes last. What opens or moves a subscription would undo its
own successor. So these scripts are given a deadline, and answer LATE after it.

Where Redis's clock is another one now, after a failover or in another node of a cluster, LATE says so: the script is
sent once more. Neighbours: `store` asks, `lua/` compares.
"""

from feedmux_server.clock import monotonic_s


class Deadlines:
    """For callers that wait for `timeout_s`."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_ms = timeout_s * 1000
        self._ahead_ms: float | None = None
        """Of Redis's clock before this process's: a little more in truth, for an answer has been on its way."""

    def next_ms(self) -> int:
        """For a script that is sent now. 0, which is always over, while Redis's clock is not known."""
        return 0 if self._ahead_ms is None else int(monotonic_s() * 1000 + self._ahead_ms + self._timeout_ms)

    def saw(self, now_ms: int) -> None:
        """What Redis's clock showed a moment ago."""
        self._ahead_ms = now_ms - monotonic_s() * 1000
