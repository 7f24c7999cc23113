"""A command that reaches Redis after its caller gave up has no effect if it would undo a later change."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import pytest

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.store.model import CommitRequest, CommitStatus, StoredPlace
from feedmux_server.store.store import SubscriptionStore
from tests.sim.loop import SimLoop
from tests.sim.redis import SimRedis, SimRedisClient
from tests.virtual_time import in_virtual_time

LATE_S = 8.0
"""Longer than a caller waits."""

Change = Callable[[SubscriptionStore], Awaitable[object]]

CHANGES: dict[str, Change] = {
    "create": lambda store: store.create(
        "t", "other", definition=b"d", etag="e", position=b"p", cluster_time=1, order=b""
    ),
    "open": lambda store: store.leases.open("t", "s", instance_id="one", takeover=True),
    "update": lambda store: store.update("t", "s", definition=b"new", etag="new"),
    "seek": lambda store: store.seek("t", "s", position=b"sought", cluster_time=1, order=b""),
    "delete": lambda store: store.delete("t", "s"),
}


async def made() -> tuple[SimRedis, SubscriptionStore]:
    """A Redis with the subscription `s`; a command takes two milliseconds each way."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    rng = Random()
    rng.uniform = lambda a, b: b  # type: ignore[method-assign]
    redis = SimRedis(loop, rng)
    store = SubscriptionStore(SimRedisClient(redis), lease_s=15.0)  # type: ignore[arg-type]
    await store.create("t", "s", definition=b"d", etag="e", position=b"p", cluster_time=5, order=b"")
    return redis, store


async def given_up(redis: SimRedis, call: Awaitable[object]) -> None:
    """Make the call reach Redis only after its caller has given up."""
    redis.slow_s = LATE_S
    with pytest.raises(FeedmuxError) as caught:
        await call
    redis.slow_s = 0.0
    assert caught.value.reason is ErrorReason.STATE_UNAVAILABLE


@pytest.mark.parametrize("name", CHANGES)
@in_virtual_time
async def test_a_late_change_is_not_made(name: str) -> None:
    redis, store = await made()
    before = redis.hash_of(b"feedmux:1:{t/s}").copy()
    await given_up(redis, CHANGES[name](store))
    ran = redis.commands
    await asyncio.sleep(LATE_S)
    assert redis.commands > ran  # it has arrived
    assert redis.hash_of(b"feedmux:1:{t/s}") == before
    assert not redis.hash_of(b"feedmux:1:{t/other}")
    await CHANGES[name](store)


@in_virtual_time
async def test_a_late_open_does_not_end_the_session_that_was_opened_after_it() -> None:
    redis, store = await made()
    await given_up(redis, store.leases.open("t", "s", instance_id="one"))
    _, lease = await store.leases.open("t", "s", instance_id="one")
    await asyncio.sleep(LATE_S)
    [outcome] = await store.leases.commit_many([CommitRequest(lease, StoredPlace(b"q", 6, b""))])
    assert outcome.status is CommitStatus.OK


@pytest.mark.parametrize("ahead_s", [-3600.0, 3600.0])
@in_virtual_time
async def test_the_clock_of_another_redis_is_learned(ahead_s: float) -> None:
    """The clock may change after a failover, for example."""
    redis, store = await made()
    redis.ahead_s = ahead_s
    _, lease = await store.leases.open("t", "s", instance_id="one")
    await given_up(redis, store.seek("t", "s", position=b"sought", cluster_time=1, order=b""))
    await asyncio.sleep(LATE_S)
    [outcome] = await store.leases.commit_many([CommitRequest(lease, StoredPlace(b"q", 6, b""))])
    assert outcome.status is CommitStatus.OK
