"""The operator's calls: what tenants use, the end of a session, and the drain."""

from feedmux.v1 import operator_pb2 as wire
from feedmux_server.core.errors import ErrorReason
from feedmux_server.rpc.operator import Operator
from feedmux_server.telemetry.audit import AuditEvent
from tests.unit.rpc.service_support import call, refused, served
from tests.unit.rpc.test_watch import watching
from tests.virtual_time import in_virtual_time


@in_virtual_time
async def test_what_a_tenant_has_open_is_counted() -> None:
    async with served() as there:
        await there.create("s")
        there.mongo.insert("db", "a", 0)
        async with watching(there) as messages:
            await messages.opened()
            there.mongo.insert("db", "a", 0)
            await messages.events(1)
            request = wire.ListTenantsRequest()
            response = wire.ListTenantsResponse.FromString(await call(Operator(there.service).list_tenants, request))
            (tenant,) = response.tenants
            assert (tenant.tenant, tenant.open_sessions, tenant.subscriptions) == ("default", 1, 1)
            assert (tenant.shared_streams, tenant.exclusive_streams, tenant.events_sent) == (1, 1, 1)
            assert (tenant.upstream_events, tenant.upstream_share, tenant.configured) == (1.0, 1.0, False)
            request.tenant = "other"
            response = wire.ListTenantsResponse.FromString(await call(Operator(there.service).list_tenants, request))
            assert list(response.tenants) == []


@in_virtual_time
async def test_a_session_ends_by_its_id() -> None:
    async with served() as there:
        operator = Operator(there.service)
        assert (await refused(operator.end_subscriber, wire.EndSubscriberRequest())).field == "subscriber_id"
        unknown = wire.EndSubscriberRequest(subscriber_id="0")
        assert (await refused(operator.end_subscriber, unknown)).reason is ErrorReason.SUBSCRIBER_NOT_FOUND
        async with watching(there) as messages:
            await messages.opened()
            (live,) = there.service.sessions
            request = wire.EndSubscriberRequest(subscriber_id=str(live.session.subscriber.id))
            response = wire.EndSubscriberResponse.FromString(await call(operator.end_subscriber, request))
            assert response.tenant == "default"
            assert (await messages.end()).reason is ErrorReason.ENDED_BY_OPERATOR
        assert there.audit.events == [(AuditEvent.OPERATOR, "")]


@in_virtual_time
async def test_a_drain_is_asked_for_and_says_how_long_it_takes() -> None:
    async with served(limits={"drain_s": 7.0}) as there:
        response = wire.DrainResponse.FromString(await call(Operator(there.service).drain, wire.DrainRequest()))
        assert (response.sessions, response.deadline.seconds, there.service.stop.is_set()) == (0, 7, True)
        assert there.audit.events == [(AuditEvent.OPERATOR, "")]
