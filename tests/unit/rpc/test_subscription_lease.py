"""A call that ends early, by its client or by an error, leaves no lease."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from feedmux.v1 import change_feed_pb2 as wire
from feedmux.v1 import subscriptions_pb2
from feedmux_server.core.errors import ErrorReason
from feedmux_server.rpc.lease_releases import LeaseReleases
from feedmux_server.rpc.service import Service
from feedmux_server.rpc.subscription_lease import committing, open_lease, released_on_error
from feedmux_server.rpc.subscriptions import Subscriptions
from feedmux_server.sessions.session_commits import SessionCommits
from feedmux_server.store.model import Lease, StoredSubscription
from tests.unit.rpc.service_support import Served, Stream, call, rejected, served
from tests.virtual_time import in_virtual_time

LEASE = Lease("team", "orders", 1, "nonce", "one")


class SlowStore:
    """The leases of a store that answers when the test says so."""

    def __init__(self) -> None:
        self.answer = asyncio.get_running_loop().create_future()
        self.released: list[object] = []

    async def open(self, tenant: str, name: str, **_: object) -> tuple[str, str]:
        await self.answer
        return f"{tenant}/{name}", "lease"

    async def release(self, lease: object) -> None:
        await self.answer
        self.released.append(lease)


def service_with(store: SlowStore) -> tuple[Service, list[asyncio.Task[object]]]:
    """A service, and the tasks that a call leaves to it."""
    spawned: list[asyncio.Task[object]] = []

    def spawn(work: Callable[[], Awaitable[object]], kind: str) -> asyncio.Task[object]:
        async def run() -> object:
            return await work()

        spawned.append(asyncio.create_task(run(), name=kind))
        return spawned[-1]

    made = SimpleNamespace(store=SimpleNamespace(leases=store), spawn=spawn, releases=LeaseReleases())
    return cast(Service, made), spawned


def opening(store: SlowStore) -> tuple[asyncio.Task[object], list[asyncio.Task[object]]]:
    """A call that opens a subscription, and the tasks that it leaves to the service."""
    service, spawned = service_with(store)
    return asyncio.create_task(open_lease(service, "team", "orders", instance_id="one")), spawned


async def until_idle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_the_call_lasts_until_redis_has_answered_and_its_lease_is_released() -> None:
    """So an opening that nobody waits for still counts against the quotas."""
    store = SlowStore()
    call, _ = opening(store)
    await until_idle()
    call.cancel()
    await until_idle()
    assert not call.done()
    store.answer.set_result(None)
    await asyncio.wait([call])
    assert call.cancelled()
    assert store.released == ["lease"]


async def test_a_client_that_leaves_and_opens_again_waits_for_the_release() -> None:
    store = SlowStore()
    service, _ = service_with(store)
    first = asyncio.create_task(open_lease(service, "team", "orders", instance_id="one"))
    await until_idle()
    first.cancel()
    await until_idle()
    released_before: list[object] = []

    async def open_again(tenant: str, name: str, **_: object) -> tuple[str, str]:
        released_before.extend(store.released)
        return f"{tenant}/{name}", "new lease"

    store.open = open_again  # type: ignore[method-assign]
    other: object = await open_lease(service, "team", "other", instance_id="two")
    assert other == ("team/other", "new lease"), "only the same subscription waits"
    second = asyncio.create_task(open_lease(service, "team", "orders", instance_id="two"))
    await until_idle()
    store.answer.set_result(None)
    await second
    assert released_before == ["lease"]
    assert len(service.releases) == 0


async def test_a_cancelled_call_ends_at_once_and_its_lease_is_released() -> None:
    store = SlowStore()
    service, spawned = service_with(store)

    async def call() -> None:
        async with released_on_error(service, LEASE):
            await asyncio.get_running_loop().create_future()

    task = asyncio.create_task(call())
    await until_idle()
    task.cancel()
    await until_idle()
    assert task.cancelled()
    store.answer.set_result(None)
    await asyncio.wait(spawned)
    assert store.released == [LEASE]


async def test_a_call_that_succeeds_or_has_no_lease_releases_nothing() -> None:
    store = SlowStore()
    service, spawned = service_with(store)
    async with released_on_error(service, LEASE):
        pass
    with pytest.raises(KeyError):
        async with released_on_error(service, None):
            raise KeyError
    assert (spawned, store.released) == ([], [])


@pytest.mark.parametrize("attached", [False, True])
async def test_a_call_that_ends_stores_its_acks_before_its_lease_is_released(*, attached: bool) -> None:
    """Its session releases the lease, when the last acks are stored; without a session, the call does."""
    store, handle = SlowStore(), SlowStore()
    service, _ = service_with(store)
    for each in (store, handle):
        each.answer.set_result(None)
    detaches = SimpleNamespace(detach=lambda: handle.release("stored"))
    cast(Any, service).committer = SimpleNamespace(attach=lambda *_: detaches)
    async with committing(service, LEASE, cast(StoredSubscription, object())) as attach:
        if attached and attach is not None:
            attach(cast(SessionCommits, None))
    assert (handle.released, store.released) == ((["stored"], []) if attached else ([], [LEASE]))


def epoch(there: Served) -> bytes:
    stored: bytes = there.redis.run(("HGET", "feedmux:1:{default/orders}", "epoch"))
    return stored


@pytest.mark.parametrize("group", [None, subscriptions_pb2.Group()])
@in_virtual_time
async def test_a_subscription_of_another_deployment_of_mongodb_is_refused_and_not_disturbed(
    group: subscriptions_pb2.Group | None,
) -> None:
    async with served() as there:
        await there.create("orders", group=group)
        join = group is not None
        there.service.manager.sources["main"]._source_id = "another"
        credit = {"credit": wire.Credit(events=1, bytes=1 << 20)}
        for more in ({}, {"instance_id": "one"}, {"instance_id": "two", "takeover": True}):
            before = epoch(there)
            stream = Stream(there, subscription="orders", join=join, **credit, **({} if join else more))
            error = await stream.error()
            assert (error.reason, "redis.key_prefix" in error.message) == (ErrorReason.POSITION_FOREIGN, True)
            assert epoch(there) == before or not (join or "takeover" in more), "a session would have ended"
        exists = await rejected(there.create("orders", group=group))
        assert (exists.reason, "redis.key_prefix" in exists.message) == (ErrorReason.SUBSCRIPTION_EXISTS, True)
        await there.seek("orders", latest={})
        stream = Stream(there, subscription="orders", join=join, **credit)
        await stream.opened()
        stream.half_close()
        await asyncio.wait([stream.task])


@in_virtual_time
async def test_a_lost_subscription_is_told_from_a_deleted_one_and_from_one_that_never_was() -> None:
    async with served() as there:
        position = (await there.create("orders")).position
        acked = {"last_acked": wire.LastAcked(position=position, epoch=1)}

        async def cause(**more: object) -> str:
            error = await Stream(there, subscription="orders", **more).error()
            assert error.reason is ErrorReason.SUBSCRIPTION_NOT_FOUND
            return error.metadata.get("cause", "")

        there.redis.lose_everything()
        for instance in ({}, {"instance_id": "one"}):
            assert [await cause(**instance), await cause(**instance, **acked)] == ["", "LOST"]
        await there.create("orders")
        await there.service.store.delete("default", "orders")
        for instance in ({}, {"instance_id": "one"}):
            assert [await cause(**instance), await cause(**instance, **acked)] == ["DELETED", "DELETED"]


@pytest.mark.parametrize("then", ["create", "delete", "reconnect"])
@in_virtual_time
async def test_a_lost_subscription_that_is_open_here_is_restored_before_anybody_misses_it(then: str) -> None:
    async with served() as there:
        made = await there.create("s")
        stream = Stream(there, subscription="s", instance_id="one")
        await stream.opened()
        there.mongo.insert("db", "a", 0)
        there.redis.lose_everything()
        match then:
            case "create":
                assert (await there.create("s")).position == made.position
                assert not stream.task.done()
            case "delete":
                request = subscriptions_pb2.DeleteSubscriptionRequest(name="s", allow_missing=True)
                await call(Subscriptions(there.service).delete, request)
        stream.task.cancel()
        await asyncio.wait([stream.task])
        again = Stream(there, subscription="s", instance_id="one")
        if then == "delete":
            assert (await again.error()).metadata == {"cause": "DELETED"}
        else:
            await again.opened()
            again.half_close()
            await asyncio.wait([again.task])
            assert (await there.service.store.get("default", "s")).position == made.position
