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
    """The meter of one process. A tenant stays in it: there are at most as many as the tenants file ever had."""

    def __init__(self) -> None:
        self.uses: dict[str, TenantUse] = {}

    def of(self, tenant: str) -> TenantUse:
        found = self.uses.get(tenant)
        if found is None:
            found = self.uses[tenant] = TenantUse()
        return found

    def charge(self, tenants: Counter[str], events: int, size: int) -> None:
        """Charge `tenants` equal parts of what was read for all of them: the same read would serve each alone."""
        for tenant in tenants:
            use = self.of(tenant)
            use.upstream_events += events / len(tenants)
            use.upstream_bytes += size / len(tenants)


class StreamAccount:
    """Divides what one stream reads among the tenants of its subscribers."""

    __slots__ = ("_charged_bytes", "_charged_events", "_usage_meter", "tenants")

    def __init__(self, usage_meter: UsageMeter) -> None:
        self._usage_meter = usage_meter
        self._charged_events = 0
        self._charged_bytes = 0
        self.tenants: Counter[str] = Counter()

    def enter(self, tenant: str, events: int, size: int) -> None:
        """Note that a subscriber of `tenant` joins the stream, which has read `events` and `size` bytes so far."""
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
        self._usage_meter.charge(self.tenants, events - self._charged_events, size - self._charged_bytes)
        self._charged_events, self._charged_bytes = events, size
