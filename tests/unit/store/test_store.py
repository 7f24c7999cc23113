"""The store's own decisions: pages, what a create repeats, which answer is which error."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.positions.position_keys import PositionKeys
from feedmux_server.store.model import CommitRequest, CommitStatus, StoredPlace
from feedmux_server.store.signing_keys import SigningKeys
from feedmux_server.store.store import SubscriptionStore
from feedmux_server.store.timelines import StoredTimelines
from tests.integration.state_support import create, place, place_of
from tests.sim.redis import SimRedisClient
from tests.unit.store.store_support import key, redis_and_store
from tests.virtual_time import in_virtual_time


@in_virtual_time
async def test_tenants_do_not_see_each_other() -> None:
    _, store = redis_and_store()
    await create(store, "t", "s")
    with pytest.raises(FeedmuxError) as caught:
        await store.get("tx", "s")
    assert caught.value.reason is ErrorReason.SUBSCRIPTION_NOT_FOUND
    assert (await store.list("tx", page_size=10))[0] == []


@in_virtual_time
async def test_pages_by_name() -> None:
    _, store = redis_and_store()
    names = sorted(f"{prefix}{i}" for prefix in ("a", "a.", "B", "b-", "z_") for i in range(5))
    for name in random.Random(1).sample(names, len(names)):
        await create(store, "t", name)
    for page_size in (1, 7, 24, 25, 26, 1000):
        seen: list[str] = []
        after, pages = "", 0
        while True:
            page, after = await store.list("t", page_size=page_size, after=after)
            assert len(page) <= page_size
            seen += [subscription.name for subscription in page]
            pages += 1
            if not after:
                break
        assert seen == names
        assert pages == -(-len(names) // page_size)


@in_virtual_time
async def test_a_page_holds_so_many_bytes_and_at_least_one_subscription() -> None:
    _, store = redis_and_store()
    for name in "abc":
        await create(store, "t", name, content="x" * 1000)
    for bytes_max, sizes in ((1, [1, 1, 1]), (4_000, [2, 1]), (10_000, [3])):
        found, after = list[int](), ""
        while True:
            page, after = await store.list("t", page_size=10, after=after, bytes_max=bytes_max)
            found.append(len(page))
            if not after:
                break
        assert found == sizes


@in_virtual_time
async def test_every_subscription_comes_once_and_corrects_its_counted_size() -> None:
    redis, store = redis_and_store()
    names = [f"s{number:03}" for number in range(250)]
    for name in names:
        await create(store, "t", name)
    redis.run(("HDEL", key("s100"), "order"))
    damaged: list[str] = []
    found = [each async for each in store.every("t", damaged.append)]
    assert [each.name for each in found] + damaged == [name for name in names if name != "s100"] + ["s100"]
    assert await store.sizes.sums(["t", "nobody"]) == {"t": sum(len(each.definition) for each in found), "nobody": 0}


@in_virtual_time
async def test_one_replica_searches_at_a_time() -> None:
    redis, store = redis_and_store()
    assert [await store.claim_sweep(60.0) for _ in range(2)] == [True, False]
    await asyncio.sleep(60.1)
    assert [await store.claim_sweep(60.0) for _ in range(2)] == [True, False]
    for lasting in (redis.run(("GET", "feedmux:1:sweep")), b"1", b"soon"):
        redis.run(("SET", "feedmux:1:sweep", lasting))  # without an expiry, as after a copy of Redis's data
        await asyncio.sleep(120.1)
        assert [await store.claim_sweep(60.0) for _ in range(2)] == [True, False]


@pytest.mark.parametrize("lag_s", [0.002, 3600.0])
@in_virtual_time
async def test_a_change_that_no_replica_has_is_made_and_not_confirmed(lag_s: float) -> None:
    redis, store = redis_and_store()
    redis.replicas, redis.lag_s = 1, lag_s
    if lag_s < 1:
        assert place_of(await create(store, "t", "s")) == place(0)
        return
    for _ in range(2):
        with pytest.raises(FeedmuxError) as caught:
            await create(store, "t", "s")
        assert caught.value.metadata == {"redis_error": "NOT_REPLICATED"}
    assert place_of(await store.get("t", "s")) == place(0)
    with pytest.raises(FeedmuxError) as caught:
        await create(store, "t", "s", content="b")
    assert caught.value.reason is ErrorReason.SUBSCRIPTION_EXISTS, "a rejection needs no replica"


@in_virtual_time
async def test_a_change_that_a_failover_undoes_is_not_confirmed() -> None:
    redis, store = redis_and_store()
    await create(store, "t", "other")  # the first call learns Redis's time
    redis.replicas, redis.lag_s = 1, 0.5
    waiting = asyncio.create_task(create(store, "t", "s"))
    await asyncio.sleep(0.2)
    assert redis.hash_of(key().encode())
    redis.fail_over()
    with pytest.raises(FeedmuxError) as caught:
        await waiting
    assert caught.value.reason is ErrorReason.STATE_UNAVAILABLE
    await asyncio.sleep(2.0)
    redis.fail_over()  # what the first primary sent to replicas is gone too
    await create(store, "t", "s", content="b")  # nothing is left of the first


@in_virtual_time
async def test_a_huge_order_of_an_older_version_is_not_read_whole() -> None:
    """Its beginning sorts before the whole, so the next commit at its time or later is stored."""
    redis, store = redis_and_store()
    await create(store, "t", "s")
    stored, lease = await store.leases.open("t", "s", instance_id="i")
    huge = b"\x80" + b"x" * (1 << 20)
    redis.run(("HSET", key(), "order", huge))
    for found in (await store.get("t", "s"), (await store.list("t", page_size=9))[0][0]):
        assert found.order == huge[:4096]
    later = StoredPlace(b"later", stored.cluster_time, huge[:1024] + b"\xff")
    [outcome] = await store.leases.commit_many([CommitRequest(lease, later)])
    assert (outcome.status, outcome.position) == (CommitStatus.OK, b"later")
    assert redis.hash_of(key().encode())[b"order"] == later.order


@in_virtual_time
async def test_a_position_moves_back_when_its_history_is_gone() -> None:
    """No client's last ack of the same session leads back to it, as after a seek."""
    _, store = redis_and_store()
    await create(store, "t", "s")
    stored, lease = await store.leases.open("t", "s", instance_id="i")
    earlier = StoredPlace(b"earlier", stored.cluster_time - 1, b"")
    [outcome] = await store.leases.commit_many([CommitRequest(lease, earlier)])
    assert outcome.position == stored.position
    [outcome] = await store.leases.commit_many([CommitRequest(lease, replace(earlier, moves_back=True))])
    assert (outcome.status, outcome.position) == (CommitStatus.OK, b"earlier")
    found = await store.get("t", "s")
    assert (found.cluster_time, found.seek_epoch) == (stored.cluster_time - 1, lease.epoch)


Call = Callable[[SubscriptionStore, Any], Awaitable[Any]]

OF_ANOTHER_TYPE: dict[str, tuple[Call, ...]] = {
    "feedmux:1:names:{t}": (
        lambda store, _: store.list("t", page_size=1),
        lambda store, _: create(store, "t", "s"),
        lambda store, _: store.names.remove("t", "s"),
        lambda store, _: store.names.has("t", "s"),
    ),
    "feedmux:1:sizes:{t}": (
        lambda store, _: store.sizes.drop("t", "s"),
        lambda store, _: store.names.remove("t", "s"),
    ),
    "feedmux:1:sweep": (lambda store, _: store.claim_sweep(1.0),),
    "feedmux:1:source:main": (lambda store, _: store.unannounced_s("main"),),
    "feedmux:position-keys": (lambda _, client: SigningKeys(client, PositionKeys()).refresh(),),
    "feedmux:1:timeline:one": (lambda _, client: StoredTimelines(client).read("one"),),
}
"""The calls that meet a key that is not what feedmux writes. Subscriptions themselves are damaged then; the key of the
layout prevents the start."""


@pytest.mark.parametrize("of", OF_ANOTHER_TYPE)
@in_virtual_time
async def test_a_key_of_another_type_is_named_with_the_next_step(of: str, caplog: pytest.LogCaptureFixture) -> None:
    redis, store = redis_and_store()
    client: Any = SimRedisClient(redis)
    is_plain = of.endswith((":sweep", ":source:main", ":position-keys", ":one"))
    redis.run(("HSET", of, "other", 1) if is_plain else ("SET", of, "other"))
    for call in OF_ANOTHER_TYPE[of]:
        with pytest.raises(FeedmuxError) as caught:
            await call(store, client)
        error = caught.value
        assert (error.reason, error.metadata["redis_error"]) == (ErrorReason.STATE_UNAVAILABLE, "WRONGTYPE")
        assert error.message.startswith(f"{of} in Redis holds something")
        assert "DEL" in error.message
        assert f"on {of}: WRONGTYPE" in caplog.text
    redis.run(("DEL", of))
    for call in OF_ANOTHER_TYPE[of]:
        await call(store, client)
