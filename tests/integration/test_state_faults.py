"""Redis unavailable, frozen, restarted, emptied, full or wrongly set up: what waits is bounded and comes through."""

from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from feedmux_embedded import RedisServer
from feedmux_embedded.ports import free_ports
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.store.checks import check_eviction, check_redis, check_writable
from feedmux_server.store.committer import Committer
from feedmux_server.store.connection import StartupError, connect
from feedmux_server.store.store import SubscriptionStore
from tests.conformance.proxy import proxied
from tests.integration import servers
from tests.integration.redis_topologies import SYNC_AT_ONCE, ask, has_all_of, is_in_step
from tests.integration.state_support import (
    STATE_SERVERS,
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


async def unavailable(call: Awaitable[object]) -> FeedmuxError:
    with pytest.raises(FeedmuxError) as caught:
        await call
    assert caught.value.reason is ErrorReason.STATE_UNAVAILABLE
    assert caught.value.retry_after_s
    return caught.value


@pytest.fixture(params=STATE_SERVERS)
def redis_factory(request: pytest.FixtureRequest, redis_factory: RedisFactory) -> RedisFactory:
    """A server of each kind."""
    return partial(redis_factory, binary=state_server(request.param))


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
    async with proxied(old.port) as name, client(f"redis://127.0.0.1:{name.port}") as redis:
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
            name.target = new.port
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
    async with client(server.url.replace("redis:", "rediss:")) as redis:
        with pytest.raises(StartupError, match="begins with rediss exactly if Redis expects TLS"):
            await check_redis(redis, server.url)
    with pytest.raises(StartupError, match="redis://HOST"):
        connect("http://localhost:1")
