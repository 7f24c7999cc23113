"""Redis unavailable, frozen, restarted, emptied, full or wrongly set up: what waits is bounded and comes through."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import pytest

from feedmux_embedded import RedisServer
from feedmux_embedded.ports import free_ports
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.store.checks import check_eviction, check_redis, check_writable
from feedmux_server.store.committer import Committer
from feedmux_server.store.connection import COMMANDS_MAX, StartupError, connect
from feedmux_server.store.lease_store import LeaseStore
from feedmux_server.store.model import CommitOutcome, CommitRequest, StoredSubscription
from feedmux_server.store.store import SubscriptionStore
from tests.integration import servers
from tests.integration.balancer import balanced
from tests.integration.redis_topologies import SYNC_AT_ONCE, ask, has_all_of, is_in_step
from tests.integration.state_support import (
    STATE_SERVERS,
    Clock,
    Recorder,
    client,
    create,
    place,
    place_of,
    running,
    state_server,
    submit,
    until,
)
from tests.integration.wire import PATIENCE_S

RedisFactory = Callable[..., Awaitable[RedisServer]]


class Counting:
    """Counts the batches of a store's commits."""

    def __init__(self, leases: LeaseStore) -> None:
        self.under_way = self.under_way_most = self.requests_most = 0
        self._commit_many = leases.commit_many
        leases.commit_many = self.commit_many  # type: ignore[method-assign]

    async def commit_many(self, requests: Sequence[CommitRequest]) -> Sequence[CommitOutcome]:
        self.under_way += 1
        self.under_way_most = max(self.under_way_most, self.under_way)
        self.requests_most = max(self.requests_most, len(requests))
        try:
            return await self._commit_many(requests)
        finally:
            self.under_way -= 1


async def unavailable(call: Awaitable[object]) -> FeedmuxError:
    with pytest.raises(FeedmuxError) as caught:
        await call
    assert caught.value.reason is ErrorReason.STATE_UNAVAILABLE
    assert caught.value.retry_after_s
    return caught.value


async def listed(store: SubscriptionStore, count: int) -> Sequence[StoredSubscription]:
    """The subscriptions of tenant `t` once there are at least `count`."""
    async with asyncio.timeout(PATIENCE_S):
        while len(page := (await store.list("t", page_size=100))[0]) < count:
            await asyncio.sleep(0.02)
    return page


@pytest.fixture(params=STATE_SERVERS)
def redis_factory(request: pytest.FixtureRequest, redis_factory: RedisFactory) -> RedisFactory:
    """A server of each kind."""
    return partial(redis_factory, binary=state_server(request.param))


async def test_killed_and_restarted_commits_resume(redis_factory: RedisFactory) -> None:
    server = await redis_factory(persistence=True)
    async with client(server.url) as redis:
        store = SubscriptionStore(redis, lease_s=30.0)
        await create(store, "t", "s")
        async with running(Committer(store.leases, interval_s=0.01)) as committer:
            stored, lease = await store.leases.open("t", "s", instance_id="one")
            recorder = Recorder()
            handle = committer.attach(lease, stored, recorder)
            submit(handle, 5)
            await handle.flush(PATIENCE_S)
            await server.kill9()
            for number in range(6, 500):
                submit(handle, number)
            await until(lambda: recorder.available == [False])
            assert not committer.available
            error = await unavailable(store.get("t", "s"))
            assert error.metadata == {"redis_error": "CONNECTION"}
            await unavailable(handle.flush(0.2))
            await server.restart()
            await until(lambda: recorder.commits[-1] == (499, place(499).position))
            assert recorder.available == [False, True]
            assert recorder.causes == []
            after = await store.get("t", "s")
            assert (after.epoch, place_of(after)) == (lease.epoch, place(499))
            await handle.detach()


async def test_emptied_by_a_restart_without_persistence(redis_factory: RedisFactory) -> None:
    server = await redis_factory(persistence=False)
    async with client(server.url) as redis:
        store = SubscriptionStore(redis, lease_s=600.0)
        names = [f"s{i}" for i in range(20)]
        clock = Clock()
        async with running(Committer(store.leases, interval_s=0.01, clock=clock)) as committer:

            def renew() -> None:
                """The renewals of all become due; they are looked for when something wakes the committer."""
                clock.ahead_s += store.leases.rules.renew_after_s
                committer.recheck("t", names[0])

            recorders = {}
            for name in names:
                await create(store, "t", name, at=3)
                stored, lease = await store.leases.open("t", name, instance_id="one")
                recorders[name] = Recorder()
                committer.attach(lease, stored, recorders[name])
            await create(store, "t", "unowned")
            await redis.flushall()
            # Nobody acks: the renewals find the loss.
            renew()
            page = await listed(store, len(names))
            assert sorted(names) == [s.name for s in page]
            assert all(place_of(s) == place(3) and s.active for s in page)
            await server.kill9()
            await server.restart()
            renew()
            assert sorted(names) == [s.name for s in await listed(store, len(names))]
            assert all(recorder.causes == [] for recorder in recorders.values())
        with pytest.raises(FeedmuxError) as caught:
            await store.leases.open("t", "unowned", instance_id="one")
        assert caught.value.reason is ErrorReason.SUBSCRIPTION_NOT_FOUND


async def test_frozen_nothing_piles_up(redis_factory: RedisFactory) -> None:
    server = await redis_factory(persistence=False)
    async with client(server.url) as redis, client(server.url) as other:
        store = SubscriptionStore(redis, lease_s=600.0, timeout_s=0.4)
        counting = Counting(store.leases)
        await create(store, "t", "s")
        async with running(Committer(store.leases, interval_s=0.01)) as committer:
            stored, lease = await store.leases.open("t", "s", instance_id="one")
            recorder = Recorder()
            handle = committer.attach(lease, stored, recorder)
            submit(handle, 1)
            await handle.flush(PATIENCE_S)
            server.pause()
            tasks = len(asyncio.all_tasks())
            for number in range(2, 1000):
                submit(handle, number)
                await asyncio.sleep(0)
            await until(lambda: recorder.available == [False])
            for number in range(1000, 2000):
                submit(handle, number)
                await asyncio.sleep(0)
            # In what time: see tests/unit/store/test_commands.py.
            errors = await asyncio.gather(*(unavailable(store.get("t", "s")) for _ in range(100)))
            assert {error.metadata["redis_error"] for error in errors} <= {"TIMEOUT", "CONNECTION"}
            # Other servers on this loop have tasks too; of 2,000 commits and 100 calls none is left.
            assert len(asyncio.all_tasks()) <= tasks + 20
            patient = SubscriptionStore(redis, lease_s=600.0, timeout_s=10 * PATIENCE_S)
            waiting = [asyncio.create_task(patient.get("t", "s")) for _ in range(100)]
            # One more if the committer has one.
            await until(lambda: len(redis.connection_pool._in_use_connections) >= COMMANDS_MAX)
            server.resume()
            await asyncio.gather(*waiting)
            await until(lambda: recorder.commits[-1] == (1999, place(1999).position))
            assert recorder.available == [False, True]
            # One batch at a time, of one position: the batch in progress when Redis resumed, and then the newest.
            assert (counting.under_way_most, counting.requests_most) == (1, 1)
            assert len(recorder.commits) <= 3

            # Those of the commands that waited, the committer's, and `other`.
            async def few_connections() -> bool:
                return bool((await other.info("clients"))["connected_clients"] <= COMMANDS_MAX + 2)

            await servers.until(few_connections)
            await handle.detach()


async def test_out_of_memory_is_loud_and_passes(redis_factory: RedisFactory, caplog: pytest.LogCaptureFixture) -> None:
    server = await redis_factory(persistence=False)
    async with client(server.url) as redis:
        store = SubscriptionStore(redis, lease_s=30.0)
        await create(store, "t", "s")
        await create(store, "t", "gone")
        async with running(Committer(store.leases, interval_s=0.01)) as committer:
            stored, lease = await store.leases.open("t", "s", instance_id="one")
            recorder = Recorder()
            handle = committer.attach(lease, stored, recorder)
            await redis.config_set("maxmemory", "100kb")
            submit(handle, 3)
            await until(lambda: recorder.available == [False])
            assert "out of memory" in caplog.text
            error = await unavailable(create(store, "t", "new"))
            assert error.metadata == {"redis_error": "OOM"}
            assert "maxmemory" in error.message
            assert place_of(await store.get("t", "s")) == place(0)
            await store.delete("t", "gone")
            await redis.config_set("maxmemory", "0")
            await until(lambda: recorder.commits == [(3, place(3).position)])
            assert recorder.available == [False, True]
            await handle.detach()


async def test_a_redis_that_begins_to_evict_is_noticed(redis_factory: RedisFactory) -> None:
    server = await redis_factory()
    async with client(server.url) as redis:
        await check_eviction(redis, server.url, timeout_s=PATIENCE_S)
        await redis.config_set("maxmemory-policy", "allkeys-lru")
        with pytest.raises(FeedmuxError, match="has maxmemory-policy allkeys-lru, so it may evict") as caught:
            await check_eviction(redis, server.url, timeout_s=PATIENCE_S)
        assert caught.value.reason is ErrorReason.STATE_UNAVAILABLE
        await redis.config_set("maxmemory-policy", "noeviction")
        assert await check_eviction(redis, server.url, timeout_s=PATIENCE_S)
        await redis.acl_setuser("default", commands=["+@all", "-info"])
        assert not await check_eviction(redis, server.url, timeout_s=PATIENCE_S)


async def test_warnings_at_start(redis_factory: RedisFactory) -> None:
    server = await redis_factory(persistence=False)
    async with client(server.url) as redis:
        [warning] = await check_redis(redis, server.url)
        assert "append-only" in warning
        await redis.acl_setuser(
            "limited", enabled=True, passwords=["+secret"], keys=["*"], categories=["+@all"], commands=["-info"]
        )
    url = f"redis://limited:secret@127.0.0.1:{server.port}/0"
    async with client(url) as redis:
        [warning] = await check_redis(redis, url)
        assert "unchecked" in warning
        assert "secret" not in warning


async def test_a_replica_is_refused(redis_factory: RedisFactory) -> None:
    server = await redis_factory(config={"replicaof": "127.0.0.1 1"})
    async with client(server.url) as redis:
        with pytest.raises(StartupError, match="replica"):
            await check_redis(redis, server.url)
        store = SubscriptionStore(redis, lease_s=30.0)
        error = await unavailable(create(store, "t", "s"))
        assert "primary" in error.message


async def test_a_demoted_primary_is_left(redis_factory: RedisFactory) -> None:
    """It keeps running, read-only, and keeps its connections; the name in the URL leads to the new primary."""
    old = await redis_factory()
    new = await redis_factory(config={"replicaof": f"127.0.0.1 {old.port}", **SYNC_AT_ONCE})
    await servers.until(lambda: is_in_step(new.port))
    async with balanced([old.port]) as name, client(f"redis://127.0.0.1:{name.port}") as redis:
        store = SubscriptionStore(redis, lease_s=30.0, timeout_s=PATIENCE_S)
        await create(store, "t", "s")
        stored, lease = await store.leases.open("t", "s", instance_id="me")
        recorder = Recorder()
        async with running(Committer(store.leases, interval_s=0.01)) as committer:
            handle = committer.attach(lease, stored, recorder)
            submit(handle, 1)
            await until(lambda: recorder.commits[-1:] == [(1, place(1).position)])
            await ask(old.port, "CLIENT", "PAUSE", 60_000, "WRITE")
            await servers.until(lambda: has_all_of(new.port, old.port))
            await ask(new.port, "REPLICAOF", "NO", "ONE")
            await ask(old.port, "REPLICAOF", "127.0.0.1", new.port)
            await ask(old.port, "CLIENT", "UNPAUSE")
            error = await unavailable(check_writable(redis, timeout_s=PATIENCE_S))
            assert error.metadata == {"redis_error": "READONLY"}
            submit(handle, 2)
            await until(lambda: False in recorder.available)
            name.ports = [new.port]
            await until(lambda: recorder.commits[-1:] == [(2, place(2).position)])
            await check_writable(redis, timeout_s=PATIENCE_S)
        assert recorder.causes == []
        assert place_of(await store.get("t", "s")) == place(2)


async def test_unreachable_or_wrong_password_at_start(redis_factory: RedisFactory) -> None:
    url = f"redis://user:secret@127.0.0.1:{free_ports(1)[0]}/0"
    async with client(url) as redis:
        with pytest.raises(StartupError, match="cannot be reached") as caught:
            await check_redis(redis, url)
    assert "secret" not in str(caught.value)
    assert "127.0.0.1" in str(caught.value)
    server = await redis_factory(config={"requirepass": "right"})
    async with client(server.url.replace("//", "//:wrong@")) as redis:
        with pytest.raises(StartupError, match="password"):
            await check_redis(redis, server.url)
    async with client(server.url) as redis:
        with pytest.raises(StartupError, match="wants a password"):
            await check_redis(redis, server.url)
    with pytest.raises(StartupError, match="redis://HOST"):
        connect("http://localhost:1")
