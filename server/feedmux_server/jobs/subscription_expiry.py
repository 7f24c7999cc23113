"""Deletes subscriptions that nobody has used for `limits.unused_subscription_days`, and logs this before and after.

One replica at a time searches, for the configured tenants. Redis decides by its own clock, in one step with the
deletion, so a subscription opened at that moment stays. A replica deletes only a subscription that it has itself
announced in an earlier search, even if no replica was running when the announcement was due.
"""

import asyncio
import logging

from feedmux_server.clock import wall_s
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.rpc.service import Service
from feedmux_server.store.model import DAY_S, StoredSubscription
from feedmux_server.telemetry.audit import AuditEvent

log = logging.getLogger(__name__)

_EVERY_MOST_S = 3_600.0
_NOTICE_MOST_S = 7 * DAY_S


async def sweep(service: Service) -> None:
    """Search again and again until cancelled; the server owns this task. Ends at once if subscriptions never expire."""
    unused_s = service.limits.unused_days * DAY_S
    if not unused_s:
        return
    every_s = min(_EVERY_MOST_S, unused_s / 10)
    announced: dict[tuple[str, str], int] = {}
    while True:
        await asyncio.sleep(every_s)
        try:
            if not await service.store.claim_sweep(every_s * 0.9):
                continue
        except FeedmuxError as error:
            log.warning("could not search for unused subscriptions: %s", error.message)
            continue
        for tenant in tuple(service.access.grants):
            try:
                await _sweep_tenant(service, tenant, unused_s, announced)
            except FeedmuxError as error:
                log.warning("could not search for unused subscriptions: tenant=%s: %s", tenant, error.message)


async def _sweep_tenant(service: Service, tenant: str, unused_s: float, announced: dict[tuple[str, str], int]) -> None:
    async for stored in service.store.every(tenant):
        at_ms, key = stored.expires_ms(service.limits.unused_days), (tenant, stored.name)
        if at_ms is None or _may_be_foreign(service, tenant, stored):
            continue
        left_s = at_ms / 1000 - wall_s()
        if left_s > min(_NOTICE_MOST_S, unused_s / 10):
            continue
        if announced.get(key) != at_ms:
            announced[key] = at_ms
            log.warning(
                "an unused subscription will be deleted in %.1f days: tenant=%s subscription=%s",
                max(0.0, left_s) / DAY_S,
                tenant,
                stored.name,
            )
            service.audit.log.record(AuditEvent.SUBSCRIPTION_EXPIRING, tenant=tenant, subscription=stored.name)
        elif left_s <= 0 and await service.store.expire(tenant, stored.name, unused_s):
            del announced[key]
            log.warning("deleted an unused subscription: tenant=%s subscription=%s", tenant, stored.name)
            service.audit.log.record(AuditEvent.SUBSCRIPTION_EXPIRED, tenant=tenant, subscription=stored.name)


def _may_be_foreign(service: Service, tenant: str, stored: StoredSubscription) -> bool:
    """Whether the subscription may be that of another deployment of feedmux with the same keys. That of a source that
    is no longer configured is not: nothing else would ever delete it."""
    try:
        service.check_origin(stored, tenant)
    except FeedmuxError as error:
        return error.reason is not ErrorReason.SOURCE_NOT_FOUND
    return False
