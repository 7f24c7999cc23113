"""What one session may be sent now by its tenant's quotas, and what it holds of them."""

import logging
from collections import deque
from collections.abc import Callable

from feedmux_server.core.quota import Account
from feedmux_server.core.subscriber import Delivery

log = logging.getLogger(__name__)

_UNTIL_WOKEN_S = 60.0


class Allowance:
    """Between a session and its tenant's `Account`. To be ended with `close`."""

    __slots__ = ("_account", "_held", "_holds", "_wake")

    def __init__(self, account: Account, wake: Callable[[], None], *, holds: bool) -> None:
        """`holds`: acknowledgements will come, so what was sent counts as outstanding until then."""
        self._account = account
        self._wake = wake
        self._holds = holds
        self._held: deque[tuple[int, int]] = deque()  # last sequence, bytes

    def wait_s(self, now_s: float) -> float:
        """0 when something may be sent now; else how long to wait, unless woken before."""
        account = self._account
        if self._holds and not account.has_room:
            if account.note_backlog():
                log.warning(
                    "the tenant's unacknowledged events retain too much memory outside the rings; the tenant receives"
                    " no more events until it acknowledges some",
                    extra={"tenant": account.tenant, "backlog_bytes": account.backlog_bytes},
                )
            account.when_room(self._wake)
            return _UNTIL_WOKEN_S
        return account.wait_s(now_s)

    def held_back(self, waited_s: float) -> None:
        self._account.held_back_s += waited_s

    def sent(self, delivery: Delivery, now_s: float) -> None:
        self._account.sent(delivery.count, delivery.size, now_s)
        if self._holds:
            self._held.append((delivery.first_sequence + delivery.count - 1, delivery.size))
            self._account.hold(delivery.size)

    def acked(self, sequence: int) -> None:
        """Deliveries that are acknowledged to their last event are no longer outstanding."""
        size = 0
        while self._held and self._held[0][0] <= sequence:
            size += self._held.popleft()[1]
        if size:
            self._account.release(size)

    def close(self) -> None:
        """The session is over."""
        if self._held:
            self.acked(self._held[-1][0])
