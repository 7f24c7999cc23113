"""What a tenant may use, and what it uses: limits on counts reject calls, limits on rates slow them down.

One `Account` for each tenant of the process, shared by its sessions and calls. Limits are for each replica. Nothing
here waits: `rpc` rejects calls with the errors raised here, and the session asks `wait_s` before it takes events.
"""

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator
from dataclasses import dataclass, fields
from typing import Final

from feedmux_server.core.errors import ErrorReason, FeedmuxError

UNLIMITED: Final = 1 << 62
_BURST_S: Final = 1.0
_REQUEST_BURST_S: Final = 5.0
_MESSAGE_BURST_S: Final = 2.0
_REQUEST_WAIT_MAX_S: Final = 1.0
_RETRY_AFTER_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Quotas:
    """Limits of one tenant, which the options of the tenants file describe (`QuotaSection` in
    `config/tenants_file.py`). The defaults are for a tenant without limits: the only one, without authentication."""

    subscriptions: int = UNLIMITED
    subscription_bytes: int = UNLIMITED
    streams: int = UNLIMITED
    shared_streams: int = UNLIMITED
    catch_up_streams: int = UNLIMITED
    events_per_s: int = UNLIMITED
    bytes_per_s: int = UNLIMITED
    outstanding_bytes: int = UNLIMITED
    retained_bytes: int = UNLIMITED
    pipeline_bytes: int = UNLIMITED
    requests_per_s: int = UNLIMITED
    messages_per_s: int = UNLIMITED
    reads_per_s: int = UNLIMITED
    calls: int = UNLIMITED


UNLIMITED_QUOTAS: Final = Quotas()


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


class Backlog:
    """What all tenants' unacknowledged events retain outside the rings: chunks that the rings have evicted."""

    def __init__(self) -> None:
        self.bytes = 0
        self.bytes_max = UNLIMITED
        """Above it, tenants with more than an equal share of it are sent nothing more until they acknowledge."""
        self.accounts: dict[Account, None] = {}
        """The accounts that have a part of the backlog."""

    @property
    def share(self) -> float:
        return self.bytes_max / max(1, len(self.accounts))


class Account:
    """The use of one tenant."""

    def __init__(self, tenant: str, quotas: Quotas, now_s: float, backlog: Backlog | None = None) -> None:
        self.tenant = tenant
        self.backlog_bytes = 0
        self._backlog = backlog or Backlog()
        self._backlog_noted = False
        self.streams = 0
        self.calls = 0
        self.feeds: Counter[Hashable] = Counter()
        self.outstanding_bytes = 0
        self.retained_bytes = 0
        self.events_sent = 0
        self.bytes_sent = 0
        self.throttled_s = 0.0
        """How long sessions have waited for a rate or for acks, all together."""
        self._waiting: dict[Callable[[], None], None] = {}
        self._spares: dict[Hashable, Callable[[], None]] = {}
        """How to close each feed that is open only in case it is used again, the oldest first."""
        self.apply(quotas, now_s)

    def apply(self, quotas: Quotas, now_s: float) -> None:
        """Apply other limits from now on. What is open stays open, even above a lower limit."""
        self.quotas = quotas
        self._events = TokenBucket(quotas.events_per_s, _BURST_S, now_s)
        self._bytes = TokenBucket(quotas.bytes_per_s, _BURST_S, now_s)
        self._messages = TokenBucket(quotas.messages_per_s, _MESSAGE_BURST_S, now_s)
        self._requests = TokenBucket(quotas.requests_per_s, _REQUEST_BURST_S, now_s)
        self._reads = TokenBucket(quotas.reads_per_s, _BURST_S, now_s)
        self._wake()

    def request(self, now_s: float) -> float:
        """How long the call is to wait before it is served, in seconds: callers in a loop are slowed down rather than
        refused again and again. Raises QUOTA_EXCEEDED when calls come so fast that it would wait longer than that."""
        wait_s = self._requests.wait_s(now_s)
        if wait_s > _REQUEST_WAIT_MAX_S:
            raise exceeded("requests_per_s", self.quotas.requests_per_s, retry_after_s=wait_s)
        self._requests.take(1, now_s)
        return wait_s

    def message(self, now_s: float) -> float:
        """Takes a message of a session; how long to wait before the next one is read."""
        self._messages.take(1, now_s)
        return self._messages.wait_s(now_s)

    def charge(self, requests: float, now_s: float) -> None:
        """Charge the extra cost of a call as further calls; the next calls wait for it."""
        self._requests.take(requests, now_s)

    def read_wait_s(self, now_s: float) -> float:
        """How long to wait before MongoDB is asked again for one of its feeds: 0 for now."""
        return self._reads.wait_s(now_s)

    def read(self, part: float, now_s: float) -> None:
        """MongoDB has answered one of its cursors. `part` is below 1 where other tenants share the stream."""
        self._reads.take(part, now_s)

    def open_stream(self) -> None:
        """Raises QUOTA_EXCEEDED. To be undone by `close_stream`."""
        if self.streams >= self.quotas.streams:
            raise exceeded("streams", self.quotas.streams)
        self.streams += 1

    def close_stream(self) -> None:
        self.streams -= 1

    def open_feed(self, feed: Hashable) -> None:
        """A stream reads this feed. Raises QUOTA_EXCEEDED. To be undone by `close_feed`."""
        if self._lacks_feed(feed):
            raise exceeded("shared_streams", self.quotas.shared_streams)
        self.feeds[feed] += 1

    def close_feed(self, feed: Hashable) -> None:
        self.feeds[feed] -= 1
        if not self.feeds[feed]:
            del self.feeds[feed]

    def open_call(self) -> None:
        """Raises QUOTA_EXCEEDED. To be undone by `close_call`."""
        if self.calls >= self.quotas.calls:
            raise exceeded("calls", self.quotas.calls)
        self.calls += 1

    def close_call(self) -> None:
        self.calls -= 1

    def spare(self, feed: Hashable, give_up: Callable[[], None]) -> None:
        """Note that an open `feed` serves nobody now. `give_up` closes it if another feed needs the room."""
        self._spares[feed] = give_up

    def unspare(self, feed: Hashable) -> None:
        """The feed is in use again, or closed."""
        self._spares.pop(feed, None)

    def give_up_spares(self, feed: Hashable) -> None:
        """Closes spare feeds, the oldest first, until `feed` may be opened."""
        for other, give_up in list(self._spares.items()):
            if not self._lacks_feed(feed):
                return
            if self.feeds[other] == 1:
                self.unspare(other)
                give_up()

    def _lacks_feed(self, feed: Hashable) -> bool:
        return feed not in self.feeds and len(self.feeds) >= self.quotas.shared_streams

    def check_pipeline(self, size: int) -> None:
        """Raises QUOTA_EXCEEDED for a pipeline of more bytes than allowed."""
        if size > self.quotas.pipeline_bytes:
            raise exceeded("pipeline_bytes", self.quotas.pipeline_bytes, retry_after_s=None)

    def check_subscriptions(self, existing: int) -> None:
        """Raises QUOTA_EXCEEDED when no further one may be created."""
        if existing >= self.quotas.subscriptions:
            raise exceeded("subscriptions", self.quotas.subscriptions)

    def wait_s(self, now_s: float) -> float:
        """How long to wait before anything more is delivered: 0 for now, by the rates."""
        return max(self._events.wait_s(now_s), self._bytes.wait_s(now_s))

    def sent(self, events: int, size: int, now_s: float) -> None:
        self.events_sent += events
        self.bytes_sent += size
        self._events.take(events, now_s)
        self._bytes.take(size, now_s)

    def usage(
        self, subscriptions: int | None, catch_up_streams: int, subscription_bytes: int | None = None
    ) -> dict[str, tuple[int, int | None]]:
        """Each quota's limit, and what is used of it; None for rates and sizes."""
        used = {
            "subscriptions": subscriptions,
            "subscription_bytes": subscription_bytes,
            "streams": self.streams,
            "calls": self.calls,
            "shared_streams": len(self.feeds),
            "catch_up_streams": catch_up_streams,
            "outstanding_bytes": self.outstanding_bytes,
            "retained_bytes": self.retained_bytes,
        }
        limits = ((each.name, getattr(self.quotas, each.name)) for each in fields(Quotas))
        return {name: (limit, used.get(name)) for name, limit in limits if limit != UNLIMITED}

    @property
    def has_room(self) -> bool:
        """Whether more may be outstanding. Like credit, one delivery may overdraw it."""
        return self.outstanding_bytes < self.quotas.outstanding_bytes and self.backlog_fits

    @property
    def backlog_fits(self) -> bool:
        """Whether what its unacknowledged events retain outside the rings is within its quota and its share."""
        if self.backlog_bytes >= self.quotas.outstanding_bytes:
            return False
        return self._backlog.bytes < self._backlog.bytes_max or self.backlog_bytes < self._backlog.share

    def note_backlog(self) -> bool:
        """True once each time the backlog reaches its bound."""
        if self._backlog_noted or self.backlog_fits:
            return False
        self._backlog_noted = True
        return True

    def retain(self, size: int) -> None:
        """Unacknowledged events of this tenant retain `size` more bytes outside the rings (fewer, when negative)."""
        backlog = self._backlog
        was_full = backlog.bytes >= backlog.bytes_max
        self.backlog_bytes += size
        backlog.bytes += size
        if size > 0:
            backlog.accounts[self] = None
            return
        if not self.backlog_bytes:
            backlog.accounts.pop(self, None)
        if self.backlog_fits:
            self._backlog_noted = False
        for account in [self, *backlog.accounts] if was_full else (self,):
            account.wake_if_room()

    def wake_if_room(self) -> None:
        if self._waiting and self.has_room:
            self._wake()

    def hold(self, size: int) -> None:
        """Count bytes delivered to a durable subscription and not yet acknowledged."""
        self.outstanding_bytes += size

    def release(self, size: int) -> None:
        """Undo `hold`: the bytes are acknowledged, or the session is over."""
        self.outstanding_bytes -= size
        self.wake_if_room()

    @property
    def retains_too_much(self) -> bool:
        """Whether what plans have read exceeds the quota."""
        return self.retained_bytes > self.quotas.retained_bytes

    def when_room(self, wake: Callable[[], None]) -> None:
        """Calls `wake` once, as soon as there may be room."""
        self._waiting[wake] = None

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for wake in waiting:
            wake()


class Accounts:
    """The accounts of the process, by tenant. They live as long as the process: there is one per tenant."""

    def __init__(self, quotas_of: Callable[[str], Quotas], clock: Callable[[], float]) -> None:
        """`quotas_of` says what a tenant may use now; `clock` is that of all rates, in seconds."""
        self._quotas_of = quotas_of
        self.clock = clock
        self._accounts: dict[str, Account] = {}
        self.backlog = Backlog()

    def of(self, tenant: str) -> Account:
        account = self._accounts.get(tenant)
        if account is None:
            account = Account(tenant, self._quotas_of(tenant), self.clock(), self.backlog)
            self._accounts[tenant] = account
        return account

    def read_wait_s(self, tenants: Collection[str]) -> float:
        """How long a stream of these tenants waits before its next read: as long as none of them may read."""
        now_s = self.clock()
        return min((self.of(tenant).read_wait_s(now_s) for tenant in tenants), default=0.0)

    def read(self, tenants: Collection[str]) -> None:
        """A stream of these tenants is read once; each pays an equal part."""
        now_s = self.clock()
        for tenant in tenants:
            self.of(tenant).read(1 / len(tenants), now_s)

    def refresh(self) -> None:
        """The tenants file has changed."""
        for tenant, account in self._accounts.items():
            quotas = self._quotas_of(tenant)
            if quotas != account.quotas:
                account.apply(quotas, self.clock())

    def __iter__(self) -> Iterator[Account]:
        return iter(self._accounts.values())


def exceeded(quota: str, limit: int, *, retry_after_s: float | None = _RETRY_AFTER_S) -> FeedmuxError:
    """Make the error for an exceeded quota, with what a client needs to wait or to ask for more."""
    return FeedmuxError(
        ErrorReason.QUOTA_EXCEEDED,
        f"the tenant's quota {quota} is {limit}: use less, wait and try again, or ask the operator for a higher quota",
        {"quota": quota, "limit": str(limit)},
        retry_after_s=retry_after_s,
    )
