"""Each script's rows on a real Redis: created, opened, committed, moved, deleted, restored, listed."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio
from redis.asyncio import Redis

from feedmux_embedded import RedisServer
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.store.model import (
    CommitRequest,
    CommitStatus,
    FenceCause,
    RestoreRequest,
    StoredPlace,
)
from feedmux_server.store.store import SubscriptionStore
from tests.integration.servers import until
from tests.integration.state_support import STATE_SERVERS, commit, create, place, place_of, state_server


@pytest_asyncio.fixture(scope="module", params=STATE_SERVERS)
async def redis_server(request: pytest.FixtureRequest) -> AsyncIterator[RedisServer]:
    """An empty server of each kind."""
    async with RedisServer(persistence=False, binary=state_server(request.param)) as server:
        yield server


def key(tenant: str, name: str = "s") -> str:
    return f"feedmux:1:{{{tenant}/{name}}}"


async def refused(reason: ErrorReason, call: object) -> FeedmuxError:
    with pytest.raises(FeedmuxError) as caught:
        await call  # type: ignore[misc]
    assert caught.value.reason is reason
    return caught.value


async def test_created_is_what_is_got(store: SubscriptionStore, tenant: str) -> None:
    created = await create(store, tenant, "s", at=5)
    assert created == await store.get(tenant, "s")
    assert created.name == "s"
    assert created.definition == b"a\x00\xff"
    assert created.etag == "etag-a"
    assert place_of(created) == place(5)
    assert (created.owner, created.active, created.seek_epoch) == ("", False, 0)
    assert created.create_ms == created.update_ms > 1_600_000_000_000


async def test_same_content_again_changes_nothing_other_content_exists(store: SubscriptionStore, tenant: str) -> None:
    first = await create(store, tenant, "s", at=5)
    assert await create(store, tenant, "s", at=9) == first
    await refused(ErrorReason.SUBSCRIPTION_EXISTS, create(store, tenant, "s", content="b"))
    assert await store.get(tenant, "s") == first


async def test_a_client_without_instance_id_is_nobody_in_particular(store: SubscriptionStore, tenant: str) -> None:
    await create(store, tenant, "s")
    await store.leases.open(tenant, "s", instance_id="")
    await refused(ErrorReason.SUBSCRIPTION_BUSY, store.leases.open(tenant, "s", instance_id=""))


async def test_order_is_bytewise_and_a_prefix_comes_first(store: SubscriptionStore, tenant: str) -> None:
    # Cluster times next to each other that are the same double.
    time = (1_700_000_000 << 32) | 1
    steps = [(time, b""), (time, b"\x00"), (time, b"Z"), (time, b"a"), (time, b"a\x00"), (time, b"\xff")]
    steps += [(time + 1, b""), (time + 1, b"Z"), (time + 2, b""), ((2**32 - 1 << 32) | 7, b"")]
    await store.create(tenant, "s", definition=b"", etag="e", position=b"p", cluster_time=time - 1, order=b"\xff")
    _, lease = await store.leases.open(tenant, "s", instance_id="one")
    for i, (cluster_time, order) in enumerate(steps):
        for cluster, key_, expected in ((cluster_time, order, i), *((c, o, i) for c, o in steps[:i])):
            name = b"%d" % steps.index((cluster, key_))
            [outcome] = await store.leases.commit_many([CommitRequest(lease, StoredPlace(name, cluster, key_), 0)])
            assert outcome.position == b"%d" % expected


async def test_update_keeps_the_place_and_fences(store: SubscriptionStore, tenant: str) -> None:
    await create(store, tenant, "s", at=4)
    _, lease = await store.leases.open(tenant, "s", instance_id="one")
    await commit(store, lease, 6)
    mismatch = store.update(tenant, "s", definition=b"new", etag="e2", expected_etag="other")
    await refused(ErrorReason.ETAG_MISMATCH, mismatch)
    assert (await commit(store, lease, 6)).status is CommitStatus.OK
    updated = await store.update(tenant, "s", definition=b"new", etag="e2", expected_etag="etag-a")
    assert (updated.definition, updated.etag, place_of(updated)) == (b"new", "e2", place(6))
    assert (updated.active, updated.seek_epoch) == (False, 0)
    assert updated.epoch > lease.epoch
    assert (await commit(store, lease, 7)).cause is FenceCause.UPDATE
    # The answer was lost and the client tries again: nothing more happens.
    again = await store.update(tenant, "s", definition=b"new", etag="e2", expected_etag="etag-a")
    assert again.epoch == updated.epoch


async def test_seek_moves_backwards_and_fences(store: SubscriptionStore, tenant: str) -> None:
    await create(store, tenant, "s", at=4)
    _, lease = await store.leases.open(tenant, "s", instance_id="one")
    await commit(store, lease, 9)
    to = place(1)
    moved = await store.seek(tenant, "s", position=to.position, cluster_time=to.cluster_time, order=to.order)
    assert place_of(moved) == to
    assert moved.seek_epoch == moved.epoch > lease.epoch
    assert (await commit(store, lease, 10)).cause is FenceCause.SEEK
    stored, lease = await store.leases.open(tenant, "s", instance_id="one")
    assert stored.epoch > stored.seek_epoch == moved.epoch > stored.commit_epoch > 0
    assert (await commit(store, lease, 2)).position == place(2).position


async def test_deleted_is_not_found_and_fences_and_may_be_created_again(
    store: SubscriptionStore, redis: Redis, tenant: str
) -> None:
    await create(store, tenant, "s", at=4)
    stored, lease = await store.leases.open(tenant, "s", instance_id="one")
    await refused(ErrorReason.ETAG_MISMATCH, store.delete(tenant, "s", expected_etag="other"))
    await store.delete(tenant, "s", expected_etag="etag-a")
    for call in (
        store.get(tenant, "s"),
        store.leases.open(tenant, "s", instance_id="one"),
        store.delete(tenant, "s"),
        store.update(tenant, "s", definition=b"", etag="e"),
    ):
        await refused(ErrorReason.SUBSCRIPTION_NOT_FOUND, call)
    assert (await store.list(tenant, page_size=10))[0] == []
    assert (await commit(store, lease, 5)).cause is FenceCause.DELETE
    await store.leases.restore_many([RestoreRequest(lease, stored)])
    await refused(ErrorReason.SUBSCRIPTION_NOT_FOUND, store.get(tenant, "s"))
    await store.leases.release(lease)
    assert 0 < await redis.pttl(key(tenant)) <= 24 * 3600 * 1000

    again = await create(store, tenant, "s", at=1, content="b")
    assert again.epoch == again.seek_epoch > lease.epoch
    assert await redis.pttl(key(tenant)) == -1
    assert (await commit(store, lease, 5)).cause is FenceCause.DELETE
    assert place_of(await store.get(tenant, "s")) == place(1)


async def test_an_older_place_renews_the_lease_all_the_same(
    store: SubscriptionStore, redis: Redis, tenant: str
) -> None:
    await create(store, tenant, "s", at=4)
    _, lease = await store.leases.open(tenant, "s", instance_id="one")
    for number in (3, None, 9):
        await redis.hset(key(tenant), "lease_until_ms", 1)
        assert (await commit(store, lease, number)).status is CommitStatus.OK
        assert (await store.get(tenant, "s")).active


@pytest.mark.parametrize("by", ["delete", "expire"])
async def test_a_tombstone_holds_its_epoch_and_nothing_else(
    store: SubscriptionStore, redis: Redis, tenant: str, by: str
) -> None:
    await create(store, tenant, "s")
    stored, _ = await store.leases.open(tenant, "s", instance_id="one")
    await redis.hset(key(tenant), "epoch", stored.epoch + 10**9)  # above Redis's clock
    await redis.hset(key(tenant), "lease_until_ms", 0)
    if by == "delete":
        await store.delete(tenant, "s")
    else:
        await until(lambda: store.expire(tenant, "s", 0.0))
    epoch = str(stored.epoch + 10**9 + 1).encode()
    assert await redis.hgetall(key(tenant)) == {b"deleted": b"1", b"epoch": epoch}
    assert 0 < await redis.pttl(key(tenant)) <= 24 * 3600 * 1000
    assert not await store.expire(tenant, "s", 0.0), "there is nothing any more"
    assert (await create(store, tenant, "s")).epoch > int(epoch)


@pytest.mark.parametrize("used", ["update_ms", "used_ms", "lease_until_ms"])
async def test_each_use_keeps_a_subscription_from_expiring(
    store: SubscriptionStore, redis: Redis, tenant: str, used: str
) -> None:
    now_ms = (await create(store, tenant, "s")).create_ms
    old: dict[Any, Any] = dict.fromkeys(("update_ms", "used_ms", "lease_until_ms"), 1)
    await redis.hset(key(tenant), mapping={**old, used: now_ms})
    assert not await store.expire(tenant, "s", 60.0)
    await redis.hset(key(tenant), mapping=old)
    assert await store.expire(tenant, "s", 60.0)


async def test_a_released_session_has_lost_its_lease_and_a_lapsed_one_is_not_taken_over(
    store: SubscriptionStore, redis: Redis, tenant: str
) -> None:
    await create(store, tenant, "s")
    _, lease = await store.leases.open(tenant, "s", instance_id="one")
    await store.leases.release(replace(lease, epoch=lease.epoch - 1))
    await store.leases.release(replace(lease, nonce="other"))
    assert (await store.get(tenant, "s")).active
    await store.leases.release(lease)
    assert (await commit(store, lease, 5)).cause is FenceCause.LEASE
    assert int(await redis.hget(key(tenant), "used_ms") or 0) > 1_600_000_000_000
    _, second = await store.leases.open(tenant, "s", instance_id="two")
    await redis.hset(key(tenant), "lease_until_ms", 1)
    _, third = await store.leases.open(tenant, "s", instance_id="three")
    _, fourth = await store.leases.open(tenant, "s", instance_id="four", takeover=True)
    _, again = await store.leases.open(tenant, "s", instance_id="four", takeover=True)
    assert [each.taken_over for each in (second, third, fourth, again)] == [False, False, True, False]


async def test_restore_brings_back_what_was_lost(store: SubscriptionStore, redis: Redis, tenant: str) -> None:
    await create(store, tenant, "s", at=4)
    stored, lease = await store.leases.open(tenant, "s", instance_id="one")
    await redis.delete(key(tenant), f"feedmux:1:names:{{{tenant}}}")
    await store.leases.restore_many([RestoreRequest(lease, stored)])
    found = await store.get(tenant, "s")
    # What it brings back counts as its own.
    assert found.commit_epoch == lease.epoch
    assert replace(found, used_ms=stored.used_ms, commit_epoch=0) == stored
    assert (await store.list(tenant, page_size=10))[0] == [found]
    assert (await commit(store, lease, 5)).status is CommitStatus.OK
    _, later = await store.leases.open(tenant, "s", instance_id="one")
    assert later.epoch > lease.epoch


async def test_how_far_a_subscription_was_delivered_is_stored_with_its_lease(
    store: SubscriptionStore, tenant: str
) -> None:
    newest = (1 << 64) - 1
    await create(store, tenant, "s")
    _, lease = await store.leases.open(tenant, "s", instance_id="one")
    for at in (None, place(4)):
        await store.leases.commit_many([CommitRequest(lease, at, newest)])
        assert (await store.get(tenant, "s")).delivered_time == newest
    stored, newer = await store.leases.open(tenant, "s", instance_id="one")
    await store.leases.release(lease, 7)
    await store.leases.release(newer)
    assert (await store.get(tenant, "s")).delivered_time == stored.delivered_time == newest
    _, last = await store.leases.open(tenant, "s", instance_id="one")
    await store.leases.release(last, 9)
    assert (await store.get(tenant, "s")).delivered_time == 9
    at = place(1)
    sought = await store.seek(tenant, "s", position=at.position, cluster_time=at.cluster_time, order=at.order)
    assert sought.delivered_time == 0


NEEDED = ("definition", "etag", "position", "cluster_time", "order")


@pytest.mark.parametrize("field", NEEDED)
async def test_a_damaged_subscription_is_left_as_it_is_and_hides_no_other(
    store: SubscriptionStore, redis: Redis, tenant: str, field: str
) -> None:
    for name in "abc":
        await create(store, tenant, name)
    await redis.hdel(key(tenant, "b"), field)
    before = await redis.hgetall(key(tenant, "b"))
    for call in (store.get(tenant, "b"), store.leases.open(tenant, "b", instance_id="i")):
        error = await refused(ErrorReason.STATE_UNAVAILABLE, call)
        assert error.metadata == {"redis_error": "DAMAGED"}
    assert not await store.expire(tenant, "b", 0.0)
    assert await redis.hgetall(key(tenant, "b")) == before
    damaged: list[str] = []
    page, _ = await store.list(tenant, page_size=9, on_damaged=damaged.append)
    assert ([each.name for each in page], damaged) == (["a", "c"], ["b"])
    await store.delete(tenant, "b")
    assert place_of(await create(store, tenant, "b")) == place(0)


@pytest.mark.parametrize("field", [*NEEDED, "epoch"])
async def test_its_owner_completes_a_damaged_subscription(
    store: SubscriptionStore, redis: Redis, tenant: str, field: str
) -> None:
    await create(store, tenant, "s", at=1)
    stored, lease = await store.leases.open(tenant, "s", instance_id="i")
    await redis.hdel(key(tenant), field)
    assert (await commit(store, lease, 2)).status is CommitStatus.MISSING
    await store.leases.restore_many([RestoreRequest(lease, stored)])
    assert (await commit(store, lease, 2)).position == place(2).position
    again = await store.get(tenant, "s")
    assert (again.definition, place_of(again), again.epoch) == (stored.definition, place(2), lease.epoch)


async def test_a_newer_owner_is_not_overwritten_where_it_is_damaged(
    store: SubscriptionStore, redis: Redis, tenant: str
) -> None:
    await create(store, tenant, "s", at=1)
    stored, lease = await store.leases.open(tenant, "s", instance_id="i")
    await store.leases.open(tenant, "s", instance_id="other", takeover=True)
    await redis.hdel(key(tenant), "order")
    before = await redis.hgetall(key(tenant))
    assert (await commit(store, lease, 2)).status is CommitStatus.FENCED
    await store.leases.restore_many([RestoreRequest(lease, stored)])
    assert await redis.hgetall(key(tenant)) == before
