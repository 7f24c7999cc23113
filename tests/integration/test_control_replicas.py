"""Changes that Create, Update, Seek and Delete have confirmed survive a failover of Redis; all servers are real."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio
from redis.asyncio import Redis, RedisCluster

from feedmux_embedded import RedisServer, ReplicaSet
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.store.commands import Command, Commands
from feedmux_server.store.connection import REPLICATED_MAX, connect
from feedmux_server.store.model import StoredSubscription
from feedmux_server.store.store import SubscriptionStore
from tests.conftest import RedisFactory
from tests.documents import Documents
from tests.integration.redis_topologies import ask, cluster, is_in_step
from tests.integration.servers import serving, settings, until
from tests.integration.state_support import commit, create, place, place_of
from tests.integration.wire import EARLIEST, LATEST, PATIENCE_S, feed, refused

Change = Callable[[SubscriptionStore], Awaitable[object]]


async def make(store: SubscriptionStore) -> StoredSubscription:
    return await create(store, "t", "new")


async def update(store: SubscriptionStore) -> StoredSubscription:
    return await store.update("t", "s", definition=b"changed", etag="changed", expected_etag="etag-a")


async def seek(store: SubscriptionStore, name: str = "s") -> StoredSubscription:
    to = place(2)
    return await store.seek("t", name, position=to.position, cluster_time=to.cluster_time, order=to.order)


async def delete(store: SubscriptionStore) -> None:
    await store.delete("t", "s")


async def delete_again(store: SubscriptionStore) -> None:
    with pytest.raises(FeedmuxError) as caught:
        await store.delete("t", "s")
    if caught.value.reason is not ErrorReason.SUBSCRIPTION_NOT_FOUND:
        raise caught.value


CHANGES: dict[str, tuple[Change, Change]] = {
    "create": (make, make),
    "update": (update, update),
    "seek": (seek, seek),
    "delete": (delete, delete_again),
}
"""Each with how it is repeated."""


@asynccontextmanager
async def connected(url: str, **options: Any) -> AsyncIterator[SubscriptionStore]:
    async with aclosing(connect(url)) as client:
        yield SubscriptionStore(client, lease_s=30.0, **{"timeout_s": PATIENCE_S, **options})


async def expire(change: Awaitable[object], port: int) -> None:
    """Makes a change; where Redis waits for replicas, it answers as it does at the time limit."""
    making = asyncio.ensure_future(change)

    async def made() -> bool:
        async with Redis(port=port) as redis:
            for each in await redis.client_list():
                if each["cmd"] == "wait" and "b" in each["flags"]:
                    await redis.client_unblock(int(each["id"]))
        return making.done()

    await until(made)
    await making


async def unconfirmed(change: Awaitable[object], port: int) -> None:
    with pytest.raises(FeedmuxError) as caught:
        await expire(change, port)
    error = caught.value
    assert (error.reason, error.metadata) == (ErrorReason.STATE_UNAVAILABLE, {"redis_error": "NOT_REPLICATED"})
    assert error.retry_after_s
    assert "repeat the call" in error.message


async def is_changed(store: SubscriptionStore, kind: str) -> bool:
    try:
        stored = await store.get("t", "new" if kind == "create" else "s")
    except FeedmuxError as error:
        return kind == "delete" and error.reason is ErrorReason.SUBSCRIPTION_NOT_FOUND
    return {
        "create": True,
        "update": stored.definition == b"changed",
        "seek": place_of(stored) == place(2),
        "delete": False,
    }[kind]


@pytest_asyncio.fixture
async def pair(redis_factory: RedisFactory) -> tuple[RedisServer, RedisServer]:
    """A primary and its replica. The replica answers nobody but its primary while it is frozen."""
    primary = await redis_factory(config={"repl-diskless-sync-delay": "0"})
    replica = await redis_factory(config={"replicaof": f"127.0.0.1 {primary.port}"})
    await until(lambda: is_in_step(replica.port))
    return primary, replica


@pytest.mark.parametrize("kind", CHANGES)
async def test_what_is_confirmed_is_on_the_replica(pair: tuple[RedisServer, RedisServer], kind: str) -> None:
    primary, replica = pair
    change, again = CHANGES[kind]
    async with connected(primary.url) as store:
        await create(store, "t", "s", at=9)
        replica.pause()
        await unconfirmed(change(store), primary.port)
        assert await is_changed(store, kind), "the change is made, as the error says"
        async with connected(primary.url) as another:
            # On a connection that has written nothing itself.
            await unconfirmed(again(another), primary.port)
        # Nothing else waits for the frozen replica: neither a read, nor an open, nor an ack.
        if kind != "delete":
            name = "new" if kind == "create" else "s"
            _, lease = await store.leases.open("t", name, instance_id="me")
            assert (await commit(store, lease, 11)).position == place(11).position
            await store.leases.release(lease)
        replica.resume()
        await again(store)
        await primary.kill9()
        await ask(replica.port, "REPLICAOF", "NO", "ONE")
    async with connected(replica.url) as store:
        if kind == "seek":
            assert place_of(await store.get("t", "s")) == place(2)
        assert await is_changed(store, kind)


async def test_commits_do_not_wait_with_those_who_wait_for_a_replica(pair: tuple[RedisServer, RedisServer]) -> None:
    primary, replica = pair
    async with connected(primary.url, timeout_s=10 * PATIENCE_S) as store, Redis(port=primary.port) as redis:
        await create(store, "t", "s")
        _, lease = await store.leases.open("t", "s", instance_id="me")
        replica.pause()
        making = [asyncio.create_task(create(store, "t", f"more-{number}")) for number in range(5 * REPLICATED_MAX)]

        async def all_wait() -> bool:
            waiting = [each for each in await redis.client_list() if each["cmd"] == "wait" and "b" in each["flags"]]
            return len(waiting) >= REPLICATED_MAX

        await until(all_wait)
        assert (await commit(store, lease, 11)).position == place(11).position
        assert not any(each.done() for each in making)
        replica.resume()
        await asyncio.gather(*making)


async def test_a_script_that_redis_forgot_is_confirmed_too(pair: tuple[RedisServer, RedisServer]) -> None:
    primary, replica = pair
    async with connected(primary.url) as store:
        await create(store, "t", "s", at=9)
        await ask(primary.port, "SCRIPT", "FLUSH")
        await seek(store)
        replica.pause()
        await ask(primary.port, "SCRIPT", "FLUSH")
        await unconfirmed(seek(store), primary.port)
        replica.resume()


async def test_a_cluster_asks_the_replica_of_the_very_node() -> None:
    async with cluster(node_timeout_ms=15_000) as nodes, aclosing(connect(nodes.url)) as client:
        assert isinstance(client, RedisCluster)
        store = SubscriptionStore(client, lease_s=30.0, timeout_s=PATIENCE_S)
        of_first, of_others = _names(client, first=True), _names(client, first=False)
        for name in (of_first, of_others):
            await create(store, "t", name, at=9)
        nodes.servers[3].pause()
        await unconfirmed(seek(store, of_first), nodes.servers[0].port)
        await seek(store, of_others)  # that node has no replica
        nodes.servers[3].resume()
        await seek(store, of_first)
        await nodes.servers[0].kill9()
        await ask(nodes.servers[3].port, "CLUSTER", "FAILOVER", "TAKEOVER")
        await until(lambda: _answers(store, of_first))
        assert place_of(await store.get("t", of_first)) == place(2)


def _names(client: RedisCluster, *, first: bool) -> str:
    """A subscription on the first node, or on another one."""
    return next(
        f"s{number}" for number in range(1000) if (client.keyslot(f"feedmux:1:{{t/s{number}}}") < 5461) == first
    )


async def _answers(store: SubscriptionStore, name: str = "s") -> bool:
    try:
        await store.get("t", name)
    except FeedmuxError:
        return False
    return True


async def test_an_unconfirmed_change_is_told_to_the_client_and_fences_at_once(
    pair: tuple[RedisServer, RedisServer], mongo: ReplicaSet, database: Documents, name: str
) -> None:
    primary, replica = pair
    async with serving(settings(mongo.uri, primary.url)) as here:
        await here.api.create(name, feed(database.name, "c"), LATEST)
        session = await here.api.open(name)
        replica.pause()
        seeking = asyncio.ensure_future(refused(here.api.seek(name, EARLIEST)))
        await expire(seeking, primary.port)
        outcome = await seeking
        assert (outcome.code, outcome.reason) == ("UNAVAILABLE", "STATE_UNAVAILABLE")
        assert outcome.retry_s
        ended = await session.end()
        assert (ended.reason, ended.metadata["cause"]) == ("FENCED", "SEEK")
        replica.resume()
        await here.api.seek(name, EARLIEST)


async def test_redis_answers_while_the_caller_still_listens(
    pair: tuple[RedisServer, RedisServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis waits for replicas for half of the time limit of the call."""
    sent: list[Command] = []
    pipeline = Commands._pipeline

    async def recorded(commands: Commands, batch: Sequence[Command], node: Any = None, **how: Any) -> list[Any]:
        sent.extend(batch)
        return await pipeline(commands, batch, node, **how)

    monkeypatch.setattr(Commands, "_pipeline", recorded)
    async with connected(pair[0].url, timeout_s=PATIENCE_S) as store:
        await create(store, "t", "first")  # which learns what the clock of Redis shows
        sent.clear()
        await create(store, "t", "s")
    assert [each for each in sent if each[0] == "WAIT"] == [("WAIT", 1, PATIENCE_S * 500)]
