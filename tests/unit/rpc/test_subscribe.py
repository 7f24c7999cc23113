"""A client that leaves while its subscription is opened."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import cast

from feedmux.v1 import change_feed_pb2 as wire
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.rpc.service import Service
from feedmux_server.rpc.subscribe import Subscribe


class SlowStore:
    """The leases of a store whose `open` is answered by the test."""

    def __init__(self) -> None:
        self.answer = asyncio.get_running_loop().create_future()
        self.released: list[str] = []

    async def open(self, tenant: str, name: str, **_: object) -> tuple[str, str]:
        await self.answer
        return f"{tenant}/{name}", "lease"

    async def release(self, lease: str) -> None:
        self.released.append(lease)


def opening(store: SlowStore) -> tuple[asyncio.Task[object], list[asyncio.Task[object]]]:
    """A call that opens a subscription, and the tasks that it leaves to the service."""
    spawned: list[asyncio.Task[object]] = []

    def spawn(work: Callable[[], Awaitable[object]], kind: str) -> asyncio.Task[object]:
        async def run() -> object:
            return await work()

        spawned.append(asyncio.create_task(run(), name=kind))
        return spawned[-1]

    call = Subscribe(cast(Service, SimpleNamespace(store=SimpleNamespace(leases=store), spawn=spawn)))
    return asyncio.create_task(call._durable(wire.Open(subscription="orders"), "team")), spawned


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


async def test_an_opening_that_redis_rejects_leaves_no_work() -> None:
    store = SlowStore()
    call, spawned = opening(store)
    store.answer.set_exception(FeedmuxError(ErrorReason.SUBSCRIPTION_BUSY, "busy"))
    await asyncio.wait([call])
    assert isinstance(call.exception(), FeedmuxError)
    assert (spawned, store.released) == ([], [])
