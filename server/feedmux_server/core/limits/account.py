"""What each tenant uses, against its quotas.

One `Account` for each tenant of the process, shared by its sessions and calls. Nothing here waits: `rpc` rejects calls
with the errors raised here, and sessions ask how long to wait before they take events.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import fields
from typing import Final

from feedmux_server.core.limits.open_feeds import OpenFeeds
from feedmux_server.core.limits.outstanding import Backlog, Outstanding
from feedmux_server.core.limits.quota import UNLIMITED, Quotas, exceeded
from feedmux_server.core.limits.rates import Rates

LOOKS_PER_S: Final = 20
"""How often the groups of a tenant look for letters to replay, all together."""


class LookTurns:
    """When the groups of a tenant look for letters to replay, which takes three commands of MongoDB: one after the
    other. A group takes one turn at a time, and ends it when it looks or closes."""

    def __init__(self) -> None:
        self.taken = 0
        self._last_s = 0.0

    def take(self, now_s: float) -> float:
        """Return when it is the turn of a group that is to look now."""
        # Turns of groups that have closed are free again.
        last_s = min(self._last_s, now_s + self.taken / LOOKS_PER_S)
        self._last_s = max(now_s, last_s + 1 / LOOKS_PER_S)
        self.taken += 1
        return self._last_s

    def end(self) -> None:
        self.taken -= 1


class Account:
    """The use of one tenant."""

    def __init__(self, tenant: str, quotas: Quotas, now_s: float, backlog: Backlog | None = None) -> None:
        self.tenant = tenant
        self.quotas = quotas
        self.rates = Rates(quotas, now_s)
        self.feeds = OpenFeeds(quotas.shared_streams)
        self.outstanding = Outstanding(quotas.outstanding_bytes, backlog or Backlog())
        self.sessions = 0
        self.calls = 0
        self.retained_bytes = 0
        """What plans have read, and readers have not."""
        self.events_sent = 0
        self.bytes_sent = 0
        self.redelivered = 0
        """Deliveries in groups that failed, or were lost with their member."""
        self.throttled_s = 0.0
        """How long sessions and plans have waited for a rate, or sessions for acks, all together."""
        self.looks = LookTurns()

    def apply(self, quotas: Quotas, now_s: float) -> None:
        """Apply other limits from now on. What is open stays open, even above a lower limit."""
        self.quotas = quotas
        self.rates = Rates(quotas, now_s)
        self.feeds.most = quotas.shared_streams
        self.outstanding.bound(quotas.outstanding_bytes)

    def open_session(self) -> None:
        """Raises QUOTA_EXCEEDED. Undone by `close_session`."""
        if self.sessions >= self.quotas.sessions:
            raise exceeded("sessions", self.quotas.sessions)
        self.sessions += 1

    def close_session(self) -> None:
        self.sessions -= 1

    def open_call(self) -> None:
        """Raises QUOTA_EXCEEDED. Undone by `close_call`."""
        if self.calls >= self.quotas.calls:
            raise exceeded("calls", self.quotas.calls)
        self.calls += 1

    def close_call(self) -> None:
        self.calls -= 1

    def check_pipeline(self, size: int) -> None:
        """Raises QUOTA_EXCEEDED for a pipeline of more bytes than allowed."""
        if size > self.quotas.pipeline_bytes:
            raise exceeded("pipeline_bytes", self.quotas.pipeline_bytes, retry_after_s=None)

    def check_subscriptions(self, existing: int) -> None:
        """Raises QUOTA_EXCEEDED when no further one may be created."""
        if existing >= self.quotas.subscriptions:
            raise exceeded("subscriptions", self.quotas.subscriptions)

    def sent(self, events: int, size: int, now_s: float, *, paid: bool = False) -> None:
        """Count a delivery. `paid`: the plan that read these events has charged the rates."""
        self.events_sent += events
        self.bytes_sent += size
        if not paid:
            self.rates.deliver(events, size, now_s)

    @property
    def retains_too_much(self) -> bool:
        """Whether what plans have read exceeds the quota."""
        return self.retained_bytes > self.quotas.retained_bytes

    def usage(
        self, subscriptions: int | None, catch_up_streams: int, subscription_bytes: int | None = None
    ) -> dict[str, tuple[int, int | None]]:
        """Each quota's limit, and what is used of it; None for rates and sizes."""
        used = {
            "subscriptions": subscriptions,
            "subscription_bytes": subscription_bytes,
            "sessions": self.sessions,
            "calls": self.calls,
            "shared_streams": len(self.feeds),
            "catch_up_streams": catch_up_streams,
            "outstanding_bytes": self.outstanding.bytes,
            "retained_bytes": self.retained_bytes,
        }
        limits = ((each.name, getattr(self.quotas, each.name)) for each in fields(Quotas))
        return {name: (limit, used.get(name)) for name, limit in limits if limit != UNLIMITED}


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
        return min((self.of(tenant).rates.read_wait_s(now_s) for tenant in tenants), default=0.0)

    def read(self, tenants: Collection[str], times: int = 1) -> None:
        """A stream of these tenants is read; each pays an equal part."""
        now_s = self.clock()
        for tenant in tenants:
            self.of(tenant).rates.read(times / len(tenants), now_s)

    def refresh(self) -> None:
        """The tenants file has changed."""
        for tenant, account in self._accounts.items():
            quotas = self._quotas_of(tenant)
            if quotas != account.quotas:
                account.apply(quotas, self.clock())

    def __iter__(self) -> Iterator[Account]:
        return iter(self._accounts.values())
