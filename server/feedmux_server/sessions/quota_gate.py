"""What a tenant's quotas allow one session to receive now, and how much of them the session uses."""

import logging
from collections import deque

from feedmux_server.core.delivery.ack_tracker import ENTRIES_AT_ONCE
from feedmux_server.core.delivery.taken import Delivery
from feedmux_server.core.limits.account import Account
from feedmux_server.streams.wakeup import Wakeup

log = logging.getLogger(__name__)

_UNTIL_WOKEN_S = 60.0


class QuotaGate:
    """Stands between a session and its tenant's `Account`. End it with `close`."""

    __slots__ = ("_account", "_bytes", "_held", "_holds", "_signal")

    def __init__(self, account: Account, signal: Wakeup, *, holds: bool) -> None:
        """`holds`: the client acknowledges events, so sent events count as outstanding until then."""
        self._account = account
        self._signal = signal
        self._holds = holds
        self._bytes = 0
        """Outstanding."""
        self._held: deque[tuple[int, int]] = deque()  # last sequence, bytes

    def wait_s(self, now_s: float) -> float:
        """0 when the session may send now; else how long to wait, unless woken earlier."""
        account = self._account
        if self._holds and not account.outstanding.has_room:
            if account.outstanding.note_backlog():
                log.warning(
                    "the tenant's unacknowledged events retain too much memory outside the rings; the tenant receives"
                    " no more events until it acknowledges some",
                    extra={"tenant": account.tenant, "backlog_bytes": account.outstanding.backlog_bytes},
                )
            account.outstanding.when_room(self._signal.set)
            return _UNTIL_WOKEN_S
        return account.rates.delivery_wait_s(now_s)

    def throttled(self, waited_s: float) -> None:
        self._account.throttled_s += waited_s

    def sent(self, delivery: Delivery, now_s: float, *, paid: bool = False) -> None:
        """Count a delivery, as `Account.sent`."""
        self._account.sent(delivery.count, delivery.size, now_s, paid=paid)
        if self._holds:
            self._held.append((delivery.first_sequence + delivery.count - 1, delivery.size))
            self._bytes += delivery.size
            self._account.outstanding.hold(delivery.size, self._signal.set)

    def part_of_ack(self, sequence: int) -> int:
        """How far an ack up to `sequence` may go in one turn of the event loop."""
        if len(self._held) <= ENTRIES_AT_ONCE:
            return sequence
        return min(sequence, self._held[ENTRIES_AT_ONCE - 1][0])

    def acked(self, sequence: int) -> None:
        """Release the deliveries whose last event is acknowledged: they are no longer outstanding."""
        size = 0
        while self._held and self._held[0][0] <= sequence:
            size += self._held.popleft()[1]
        self._release(size)

    def close(self) -> None:
        """Release everything at the end of the session."""
        self._account.outstanding.waits_no_longer(self._signal.set)
        self._held.clear()
        self._release(self._bytes)

    def _release(self, size: int) -> None:
        self._bytes -= size
        if size:
            self._account.outstanding.release(size)


class MemberQuota(QuotaGate):
    """The same for a member of a group, which settles its events in any order."""

    __slots__ = ()

    def __init__(self, account: Account, signal: Wakeup) -> None:
        super().__init__(account, signal, holds=True)

    def wait_s(self, now_s: float) -> float:
        """As for every session, except that a full backlog does not hold up the events that are its cause: what the
        group has read is in the backlog already, and leaves it when members settle it."""
        outstanding = self._account.outstanding
        if not outstanding.within_quota:
            outstanding.when_within_quota(self._signal.set)
            return _UNTIL_WOKEN_S
        return self._account.rates.delivery_wait_s(now_s)

    def sent(self, delivery: Delivery, now_s: float, *, paid: bool = False) -> None:
        self._account.sent(delivery.count, delivery.size, now_s, paid=paid)
        self._bytes += delivery.size
        self._account.outstanding.hold(delivery.size, self._signal.set)

    def settled(self, size: int) -> None:
        """Release the bytes of events that are settled, or given to others."""
        self._release(size)
