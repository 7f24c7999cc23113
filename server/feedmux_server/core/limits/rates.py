"""The rates of one tenant: token buckets for its deliveries, messages, calls and reads."""

from typing import Final

from feedmux_server.core.limits.quota import Quotas, exceeded

_BURST_S: Final = 1.0
_REQUEST_BURST_S: Final = 5.0
_MESSAGE_BURST_S: Final = 2.0
_REQUEST_WAIT_MAX_S: Final = 1.0


class TokenBucket:
    """Fills at a rate. One `take` may overdraw it, and later ones wait for the debt, so no amount is too large."""

    __slots__ = ("_at_s", "_balance", "_burst", "_rate_per_s")

    def __init__(self, rate_per_s: float, burst_s: float, now_s: float) -> None:
        self._rate_per_s = rate_per_s
        self._burst = rate_per_s * burst_s
        self._balance = self._burst
        self._at_s = now_s

    def wait_s(self, now_s: float) -> float:
        """Until something may be taken; 0 for now."""
        self._refill(now_s)
        return 0.0 if self._balance > 0 else -self._balance / self._rate_per_s + 1e-3

    def take(self, amount: float, now_s: float) -> None:
        self._refill(now_s)
        self._balance -= amount

    def _refill(self, now_s: float) -> None:
        self._balance = min(self._burst, self._balance + (now_s - self._at_s) * self._rate_per_s)
        self._at_s = now_s


class Rates:
    """The buckets of one tenant. `now_s` is the time of one clock for all tenants."""

    def __init__(self, quotas: Quotas, now_s: float) -> None:
        self._quotas = quotas
        self._events = TokenBucket(quotas.events_per_s, _BURST_S, now_s)
        self._bytes = TokenBucket(quotas.bytes_per_s, _BURST_S, now_s)
        self._messages = TokenBucket(quotas.messages_per_s, _MESSAGE_BURST_S, now_s)
        self._messages_sent = TokenBucket(quotas.messages_per_s, _MESSAGE_BURST_S, now_s)
        self._requests = TokenBucket(quotas.requests_per_s, _REQUEST_BURST_S, now_s)
        self._reads = TokenBucket(quotas.reads_per_s, _BURST_S, now_s)

    def request(self, now_s: float) -> float:
        """Return how long the call must wait before it is served, in seconds: callers in a loop are slowed down rather
        than rejected again and again. Raises QUOTA_EXCEEDED when calls come so fast that it would wait longer than
        that."""
        wait_s = self._requests.wait_s(now_s)
        if wait_s > _REQUEST_WAIT_MAX_S:
            raise exceeded("requests_per_s", self._quotas.requests_per_s, retry_after_s=wait_s)
        self._requests.take(1, now_s)
        return wait_s

    def charge(self, requests: float, now_s: float) -> None:
        """Charge the extra cost of a call as further calls; the next calls wait for it."""
        self._requests.take(requests, now_s)

    def message(self, now_s: float, count: int = 1) -> float:
        """Take a message of a session; return how long to wait before the next message is read. A large one counts as
        `count` messages."""
        self._messages.take(count, now_s)
        return self._messages.wait_s(now_s)

    def read_wait_s(self, now_s: float) -> float:
        """Return how long to wait before MongoDB is asked again for one of the tenant's feeds; 0 for now."""
        return self._reads.wait_s(now_s)

    def read(self, part: float, now_s: float) -> None:
        """Take a read of one of the tenant's feeds. `part` is below 1 where other tenants share the stream."""
        self._reads.take(part, now_s)

    def delivery_wait_s(self, now_s: float) -> float:
        """Return how long to wait before anything more is delivered; 0 for now."""
        return max(self._events.wait_s(now_s), self._bytes.wait_s(now_s), self._messages_sent.wait_s(now_s))

    def deliver(self, events: int, size: int, now_s: float) -> None:
        """Take a delivery, which is one message. Each message costs the event loop some 50 us, however small it is.
        While a session waits, events gather for its next message."""
        self._events.take(events, now_s)
        self._bytes.take(size, now_s)
        self._messages_sent.take(1, now_s)
