"""Checks the stored positions of all durable subscriptions: a disconnected consumer gets no notice, so metrics and a
line in the log warn the operator.

Every replica checks all of them, page by page, every `limits.position_check_interval_s`. While Redis is unavailable,
the last results remain.
"""

import asyncio
import logging
from array import array
from collections import Counter

from feedmux_server.clock import monotonic_s
from feedmux_server.core.errors import FeedmuxError
from feedmux_server.core.limits.headroom_alert import HeadroomAlert
from feedmux_server.core.limits.oplog_forecast import OplogForecast
from feedmux_server.jobs.monitor_results import MonitorResults
from feedmux_server.rpc.convert import source_of
from feedmux_server.rpc.service import Service
from feedmux_server.store.model import StoredSubscription

log = logging.getLogger(__name__)


class PositionMonitor:
    """Fills `stored_times` and `damaged` of the results."""

    def __init__(self, service: Service, results: MonitorResults, every_s: float) -> None:
        self._service = service
        self._results = results
        self._every_s = every_s
        self._alarms: dict[tuple[str, str], HeadroomAlert] = {}
        self._damaged: set[tuple[str, str]] = set()

    async def run(self) -> None:
        """Check again and again until cancelled."""
        while True:
            began_s = monotonic_s()
            try:
                await self._check()
            except FeedmuxError as error:
                log.debug("cannot check stored positions now", extra={"reason": error.reason.value})
            await asyncio.sleep(max(self._every_s - (monotonic_s() - began_s), self._every_s / 2))

    async def _check(self) -> None:
        manager = self._service.manager
        places: dict[tuple[str, str], array[int]] = {}
        alarms: dict[tuple[str, str], HeadroomAlert] = {}
        damaged: set[tuple[str, str]] = set()
        tenants = tuple(self._service.access.grants)
        for tenant in tenants:
            names: list[str] = []
            async for stored in self._service.store.every(tenant, names.append):
                source, second = source_of(stored.definition), stored.cluster_time >> 32
                if source not in manager.sources:
                    continue
                places.setdefault((source, tenant), array("L")).append(second)
                alarm = self._alarms.get((tenant, stored.name)) or HeadroomAlert(manager.limits.history_at_risk_s)
                alarms[tenant, stored.name] = alarm
                _warn(self._results.forecasts[source], alarm, source, tenant, stored)
            damaged.update((tenant, name) for name in names)
        self._results.stored_times = {key: array("L", sorted(found)) for key, found in places.items()}
        self._alarms = alarms
        for tenant, name in damaged - self._damaged:
            log.error(
                "Redis has lost a part of a subscription (docs/redis.md)",
                extra={"tenant": tenant, "subscription": name},
            )
        self._damaged = damaged
        found = Counter(tenant for tenant, _ in damaged)
        self._results.damaged = {tenant: found[tenant] for tenant in tenants}


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
