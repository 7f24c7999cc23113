"""Counts what was read from MongoDB for each tenant since the start. `quota` counts what was sent to the tenant.

Nothing here is touched for an event. What is read is charged when the tenants of a stream change, or when somebody
asks: until then the stream's own counters hold it.
"""

from collections import Counter
from dataclasses import dataclass


@dataclass(slots=True)
class TenantUse:
    upstream_events: float = 0.0
    upstream_bytes: float = 0.0


class UsageMeter:
    """The ledger of one process. A tenant stays in it: there are at most as many as the tenants file ever had."""

    def __init__(self) -> None:
        self.uses: dict[str, TenantUse] = {}

    def of(self, tenant: str) -> TenantUse:
        found = self.uses.get(tenant)
        if found is None:
            found = self.uses[tenant] = TenantUse()
        return found

    def charge(self, tenants: Counter[str], events: int, size: int) -> None:
        """What was read for `tenants` together: equal parts, for it would have been read for each of them alone."""
        for tenant in tenants:
            use = self.of(tenant)
            use.upstream_events += events / len(tenants)
            use.upstream_bytes += size / len(tenants)


class StreamAccount:
    """Who pays for what one stream reads."""

    __slots__ = ("_charged_bytes", "_charged_events", "_ledger", "tenants")

    def __init__(self, ledger: UsageMeter) -> None:
        self._ledger = ledger
        self._charged_events = 0
        self._charged_bytes = 0
        self.tenants: Counter[str] = Counter()

    def enter(self, tenant: str, events: int, size: int) -> None:
        """A subscriber of `tenant` joins a stream that has read so much."""
        if not self.tenants[tenant]:
            self.settle(events, size)
        self.tenants[tenant] += 1

    def leave(self, tenant: str, events: int, size: int) -> None:
        if self.tenants[tenant] == 1:
            self.settle(events, size)
            del self.tenants[tenant]
        else:
            self.tenants[tenant] -= 1

    def settle(self, events: int, size: int) -> None:
        """Charges what was read since the last time."""
        self._ledger.charge(self.tenants, events - self._charged_events, size - self._charged_bytes)
        self._charged_events, self._charged_bytes = events, size
