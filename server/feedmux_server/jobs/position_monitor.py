"""Checks the stored positions of all durable subscriptions: a disconnected consumer gets no notice, so metrics and a
line in the log warn the operator.

Every replica checks all of them, page by page, every `limits.position_check_interval_s`. If Redis does not answer for a
tenant, the last results of this tenant remain.
"""

import asyncio
import logging
from array import array
from dataclasses import dataclass, field

from feedmux_server.clock import monotonic_s
from feedmux_server.core.errors import FeedmuxError
from feedmux_server.core.limits.headroom_alert import HeadroomAlert
from feedmux_server.core.limits.oplog_forecast import OplogForecast
from feedmux_server.jobs.monitor_results import MonitorResults
from feedmux_server.rpc.convert import stored_content
from feedmux_server.rpc.service import Service
from feedmux_server.store.model import StoredSubscription

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Checked:
    """What the last check of a tenant found."""

    times: dict[str, "array[int]"] = field(default_factory=dict)
    """By source: the cluster times (seconds) of stored positions, the oldest first."""
    alarms: dict[str, HeadroomAlert] = field(default_factory=dict)
    """By subscription."""
    damaged: frozenset[str] = frozenset()
    unattended: int = 0
    """How many groups have no member."""


class PositionMonitor:
    """Fills `stored_times`, `damaged` and `unattended` of the results."""

    def __init__(self, service: Service, results: MonitorResults, every_s: float) -> None:
        self._service = service
        self._results = results
        self._every_s = every_s
        self._checked: dict[str, _Checked] = {}

    async def run(self) -> None:
        """Check again and again until cancelled."""
        while True:
            began_s = monotonic_s()
            await self._check()
            await asyncio.sleep(max(self._every_s - (monotonic_s() - began_s), self._every_s / 2))

    async def _check(self) -> None:
        tenants = tuple(self._service.access.grants)
        checked = {tenant: await self._check_tenant(tenant) for tenant in tenants}
        self._results.stored_times = {
            (source, tenant): times for tenant, each in checked.items() for source, times in each.times.items()
        }
        self._results.damaged = {tenant: len(each.damaged) for tenant, each in checked.items()}
        self._results.unattended = {tenant: each.unattended for tenant, each in checked.items()}
        self._checked = checked

    async def _check_tenant(self, tenant: str) -> "_Checked":
        """What the check found. If Redis does not answer for this tenant, its last results; the others are checked."""
        manager, last, names = self._service.manager, self._checked.get(tenant, _Checked()), list[str]()
        checked = _Checked()
        try:
            async for stored in self._service.store.every(tenant, names.append):
                content, second = stored_content(stored.definition), stored.cluster_time >> 32
                source = content.feed.source
                if source not in manager.sources:
                    continue
                checked.unattended += content.HasField("group") and not stored.active
                checked.times.setdefault(source, array("L")).append(second)
                alarm = last.alarms.get(stored.name) or HeadroomAlert(manager.limits.history_at_risk_s)
                checked.alarms[stored.name] = last.alarms[stored.name] = alarm
                _warn(self._results.forecasts[source], alarm, source, tenant, stored)
        except FeedmuxError as error:
            log.debug("cannot check stored positions now", extra={"tenant": tenant, "reason": error.reason.value})
            return last
        checked.times = {source: array("L", sorted(times)) for source, times in checked.times.items()}
        checked.damaged = frozenset(names)
        for name in checked.damaged - last.damaged:
            log.error(
                "Redis has lost or changed a part of a subscription: key %s (docs/redis.md)",
                self._service.store.key(tenant, name),
                extra={"tenant": tenant, "subscription": name},
            )
        return checked


def _warn(forecast: OplogForecast, alarm: HeadroomAlert, source: str, tenant: str, stored: StoredSubscription) -> None:
    if forecast.state is None:
        return
    headroom_s = forecast.headroom_s(stored.cluster_time >> 32)
    if alarm.falls_to(headroom_s):
        log.warning(
            "a subscription's stored position will leave the oplog" if headroom_s else "a position has left the oplog",
            extra={
                "tenant": tenant,
                "subscription": stored.name,
                "source": source,
                "seconds": round(headroom_s),
            },
        )
