"""Deletes subscriptions that nobody has used for `limits.unused_subscription_days`, and logs this before and after.

One replica at a time searches, for the configured tenants. Redis decides by its own clock, in one step with the
deletion, so a subscription opened at that moment stays. A replica deletes only a subscription that it has itself
announced in an earlier search, even if no replica was running when the announcement was due.
"""

import asyncio
import logging

from feedmux_server.clock import wall_s
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.rpc.convert import stored_content, stored_scope
from feedmux_server.rpc.service import Service
from feedmux_server.store.model import DAY_S, StoredSubscription
from feedmux_server.telemetry.audit import AuditEvent

log = logging.getLogger(__name__)

_EVERY_MOST_S = 3_600.0
_ANNOUNCE_S = 600.0
"""How often a deployment says at least which sources it has."""
_NOTICE_MOST_S = 7 * DAY_S


async def sweep(service: Service) -> None:
    """Search again and again until cancelled; the server owns this task. If subscriptions never expire, only tell other
    deployments with the same keys which sources this one has."""
    unused_s = service.limits.unused_days * DAY_S
    every_s = min(_EVERY_MOST_S, unused_s / 10)
    announced: dict[tuple[str, str], int] = {}
    while True:
        await asyncio.sleep(min(every_s, _ANNOUNCE_S) or _ANNOUNCE_S)
        try:
            for source in tuple(service.manager.sources):
                await service.store.announce_source(source)
            if not unused_s or not await service.store.claim_sweep(every_s * 0.9):
                continue
        except FeedmuxError as error:
            if unused_s:
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
        if at_ms is None:
            continue
        left_s = at_ms / 1000 - wall_s()
        if left_s > min(_NOTICE_MOST_S, unused_s / 10) or await _may_be_foreign(service, tenant, stored, unused_s):
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


async def _may_be_foreign(service: Service, tenant: str, stored: StoredSubscription, unused_s: float) -> bool:
    """Whether the subscription may be that of another deployment of feedmux with the same keys. If none has had its
    source for long enough, it is not: nothing else would ever delete it."""
    try:
        service.check_origin(stored, tenant)
    except FeedmuxError as error:
        if error.reason is not ErrorReason.SOURCE_NOT_FOUND:
            return True
        source = stored_scope(stored_content(stored.definition).feed).source
        return await service.store.unannounced_s(source) < max(unused_s, 2 * _ANNOUNCE_S)
    return False
