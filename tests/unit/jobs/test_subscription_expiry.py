"""Unused subscriptions are announced and then deleted; and not searched for without a limit."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from feedmux.v1 import subscriptions_pb2
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.jobs.subscription_expiry import sweep
from feedmux_server.rpc.subscriptions import Subscriptions
from feedmux_server.store.model import StoredSubscription
from feedmux_server.telemetry.audit import AuditEvent
from tests.unit.rpc.service_support import call, served
from tests.virtual_time import in_virtual_time

DAY_S = 24 * 3600.0


@in_virtual_time
async def test_that_of_another_deployment_with_the_same_keys_stays() -> None:
    async with served(limits={"unused_subscription_days": 0.02}) as there:
        await there.create("theirs")
        there.service.manager.sources["main"]._source_id = "another"
        await there.create("ours")
        task = asyncio.create_task(sweep(there.service))
        await asyncio.sleep(0.02 * DAY_S * 1.5)
        assert there.audit.events[-1] == (AuditEvent.SUBSCRIPTION_EXPIRED, "ours")
        page, _ = await there.service.store.list("default", page_size=9)
        assert [each.name for each in page] == ["theirs"]
        task.cancel()
        await asyncio.wait([task])


@in_virtual_time
async def test_that_of_a_source_that_is_gone_is_listed_and_expires() -> None:
    async with served(limits={"unused_subscription_days": 0.02}) as there:
        for name in ("unused", "unwanted"):
            await there.create(name)
        del there.service.manager.sources["main"]
        subscriptions = Subscriptions(there.service)
        data = await call(subscriptions.list_, subscriptions_pb2.ListSubscriptionsRequest())
        listed = subscriptions_pb2.ListSubscriptionsResponse.FromString(data).subscriptions
        assert [(each.name, each.HasField("expire_time")) for each in listed] == [("unused", True), ("unwanted", True)]
        await call(subscriptions.delete, subscriptions_pb2.DeleteSubscriptionRequest(name="unwanted"))
        # Another deployment with the same keys has a source of this name for some time, and no limit.
        async with served(state=there.redis) as other:
            tasks = [asyncio.create_task(sweep(each.service)) for each in (there, other)]
            await asyncio.sleep(0.016 * DAY_S)
            assert other.audit.events == []
            tasks[1].cancel()
        await asyncio.sleep(0.01 * DAY_S)
        assert (AuditEvent.SUBSCRIPTION_EXPIRED, "unused") not in there.audit.events
        await asyncio.sleep(0.013 * DAY_S)
        assert there.audit.events[-1] == (AuditEvent.SUBSCRIPTION_EXPIRED, "unused")
        tasks[0].cancel()
        await asyncio.wait(tasks)


@pytest.mark.parametrize("down", [True, False])
@in_virtual_time
async def test_an_unavailable_redis_is_asked_again(down: bool, caplog: pytest.LogCaptureFixture) -> None:
    async with served(limits={"unused_subscription_days": 0.02}) as there:
        there.redis.down = down
        task = asyncio.create_task(sweep(there.service))
        await asyncio.sleep(0.02 * DAY_S)
        assert not task.done()
        assert ("could not search for unused subscriptions" in caplog.text) == down
        task.cancel()
        await asyncio.wait([task])


@in_virtual_time
async def test_an_error_of_one_tenant_does_not_stop_the_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with served(limits={"unused_subscription_days": 0.02}) as there:
        every = there.service.store.every

        async def failing_every(tenant: str) -> AsyncIterator[StoredSubscription]:
            async for stored in every(tenant):
                yield stored
            if tenant == "a":
                raise FeedmuxError(ErrorReason.STATE_UNAVAILABLE, "the answer is too large")

        monkeypatch.setattr(there.service.store, "every", failing_every)
        monkeypatch.setattr(there.service.access, "grants", {"a": None, "default": None})
        await there.create("unused")
        task = asyncio.create_task(sweep(there.service))
        await asyncio.sleep(0.02 * DAY_S * 1.5)
        assert (AuditEvent.SUBSCRIPTION_EXPIRED, "unused") in there.audit.events
        assert "tenant=a: the answer is too large" in caplog.text
        task.cancel()
        await asyncio.wait([task])
