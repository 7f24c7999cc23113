"""Operator.ListTenants, EndSubscriber and Drain. ListSharedStreams has its own module."""

import asyncio
from collections import Counter, defaultdict

from feedmux.v1 import operator_pb2 as wire
from feedmux_server.clock import wall_s
from feedmux_server.core.delivery.shared_stream import SharedStream
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.limits.usage_meter import TenantUse
from feedmux_server.rpc import convert
from feedmux_server.rpc.service import Service
from feedmux_server.rpc.status import Context
from feedmux_server.telemetry.audit import AuditEvent

TENANTS_AT_ONCE = 20
STREAMS_AT_ONCE = 256


class Operator:
    """One method for each RPC: request bytes in, response bytes out."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._since_s = wall_s()

    async def list_tenants(self, data: bytes, context: Context) -> bytes:
        service = self._service
        request = convert.parse(wire.ListTenantsRequest, data)
        usage, registry = service.manager.usage, service.admission.auth.registry
        streams = [stream for each in service.manager.keyed() for stream in each.streams.open]
        streams_of: defaultdict[str, list[SharedStream]] = defaultdict(list)
        for number, stream in enumerate(streams):
            if number % STREAMS_AT_ONCE == 0:
                await asyncio.sleep(0)  # deliveries do not wait for thousands of streams
            stream.account.settle(stream.events_read, stream.ring.cum_bytes)
            for tenant in +stream.account.tenants:
                streams_of[tenant].append(stream)
        configured = set(registry.tenants) if registry is not None else set()
        names = sorted(configured | set(usage.uses))
        if request.tenant:
            names = [name for name in names if name == request.tenant]
        counts = await service.store.names.count(names) if names else {}
        sizes = await service.store.sizes.sums(names) if names else {}
        open_sessions = Counter(live.tenant for live in service.sessions)
        catch_up = service.manager.slots.used()
        everything = sum(use.upstream_bytes for use in usage.uses.values())
        response = wire.ListTenantsResponse()
        response.since.FromMilliseconds(int(self._since_s * 1000))
        for number, name in enumerate(names):
            if number % TENANTS_AT_ONCE == 0:
                await asyncio.sleep(0)  # deliveries do not wait for thousands of tenants
            use, account = usage.uses.get(name) or TenantUse(), service.manager.accounts.of(name)
            mine = streams_of[name]
            response.tenants.append(
                wire.TenantUsage(
                    tenant=name,
                    open_sessions=open_sessions[name],
                    subscriptions=counts[name],
                    shared_streams=len(mine),
                    exclusive_streams=sum(len(+stream.account.tenants) == 1 for stream in mine),
                    events_sent=account.events_sent,
                    bytes_sent=account.bytes_sent,
                    upstream_events=use.upstream_events,
                    upstream_bytes=use.upstream_bytes,
                    upstream_share=use.upstream_bytes / everything if everything else 0.0,
                    configured=name in configured,
                    quotas=[
                        wire.QuotaUse(quota=quota, limit=limit, used=used)
                        for quota, (limit, used) in account.usage(counts[name], catch_up[name], sizes[name]).items()
                    ],
                    throttled=convert.duration(account.throttled_s),
                )
            )
        return response.SerializeToString()

    async def end_subscriber(self, data: bytes, context: Context) -> bytes:
        service = self._service
        request = convert.parse(wire.EndSubscriberRequest, data)
        if not request.subscriber_id:
            raise FeedmuxError(ErrorReason.MESSAGE_INVALID, "subscriber_id is required", field="subscriber_id")
        for live in service.sessions:
            if str(live.session.subscriber.id) == request.subscriber_id:
                live.end(FeedmuxError(ErrorReason.ENDED_BY_OPERATOR, "an operator ended the session"))
                ended = f"session of tenant {live.tenant}"
                service.audit.did(
                    AuditEvent.OPERATOR, "EndSubscriber", context, subscription=live.subscription, reason=ended
                )
                return wire.EndSubscriberResponse(
                    tenant=live.tenant, subscription=live.subscription
                ).SerializeToString()
        raise FeedmuxError(ErrorReason.SUBSCRIBER_NOT_FOUND, "no session has this id; ListSharedStreams lists them")

    async def drain(self, data: bytes, context: Context) -> bytes:
        service = self._service
        convert.parse(wire.DrainRequest, data)
        service.audit.did(AuditEvent.OPERATOR, "Drain", context)
        response = wire.DrainResponse(sessions=len(service.sessions), deadline=convert.duration(service.limits.drain_s))
        service.stop.set()
        return response.SerializeToString()
