"""Two replicas on one Redis: who owns a subscription, where sessions go, and what is deleted when no client uses it."""

import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from pymongo.database import Database

import feedmux
from feedmux.connection import Connection
from feedmux.responses import Opened
from feedmux.transport import Stream, Transport
from feedmux_embedded import RedisServer, ReplicaSet
from tests.conftest import RedisFactory
from tests.integration.servers import KEY_A, Here, serving, settings, tenants_file, until
from tests.integration.test_health import told
from tests.integration.wire import at, feed, refused

Documents = Database[dict[str, Any]]
DAYS = 1 / 86_400
"""A second."""


@pytest_asyncio.fixture(scope="module")
async def two(mongo: ReplicaSet, redis_server: RedisServer) -> AsyncIterator[tuple[Here, Here]]:
    configured = settings(mongo.uri, redis_server.url)
    async with serving(configured) as one, serving(configured) as other:
        yield one, other


def insert(database: Documents, numbers: range) -> None:
    database.c.insert_many([{"n": n} for n in numbers])


async def test_a_subscription_has_one_owner_among_all_replicas(
    two: tuple[Here, Here], database: Documents, name: str
) -> None:
    here, there = (each.api for each in two)
    await here.create(name, feed(database.name, "c"))
    first = await here.open(name, instance_id="one")
    insert(database, range(6))
    await first.take(6)
    await first.ack_and_wait(2)
    busy = await refused((await there.session(name, instance_id="two")).opened())
    assert (busy.reason, busy.metadata["owner"]) == ("SUBSCRIPTION_BUSY", "one")
    # The same client, sent to another replica by its balancer, does not wait for its own lease.
    second = await there.open(name, instance_id="one")
    assert await second.numbers(4) == [2, 3, 4, 5]
    # The first replica hears of it when it next commits or renews, and then its client does: it would open again.
    await first.ack(4)
    assert (await first.end()).metadata["cause"] == "LEASE"
    third = await here.open(name, instance_id="three", takeover=True)
    assert await third.numbers(4) == [2, 3, 4, 5]
    await second.ack(1)
    assert (await second.end()).reason == "FENCED"
    assert (await there.get(name)).epoch > 0
    await third.ack_and_wait(4)
    await third.close()
    last = await there.open(name)
    insert(database, range(6, 7))
    assert await last.numbers(1) == [6]
    await last.close()


@pytest.mark.parametrize("cause", ["SEEK", "UPDATE", "DELETE"])
async def test_a_change_through_one_replica_ends_the_session_on_another(
    two: tuple[Here, Here], database: Documents, name: str, cause: str
) -> None:
    here, there = (each.api for each in two)
    created = await here.create(name, feed(database.name, "c"))
    session = await here.open(name)
    match cause:
        case "SEEK":
            await there.seek(name, at(position=created.position))
        case "UPDATE":
            await there.update(name=name, feed=feed(database.name, "c", "[]"), on_invalidate=2)
        case "DELETE":
            await there.delete(name)
    assert (await session.end()).metadata["cause"] == cause


async def test_before_a_delayed_drain_everybody_is_still_served(
    mongo: ReplicaSet, redis_server: RedisServer, database: Documents
) -> None:
    async with serving(settings(mongo.uri, redis_server.url, drain_delay_s=1.5)) as here:
        port = here.server.ports.health
        watch = here.api.watch(feed(database.name, "c"))
        await watch.opened()
        here.stop()

        async def not_serving() -> bool:
            return (await told(port, "readiness"))["readiness"] == "NOT_SERVING"

        await until(not_serving)
        late = here.api.watch(feed(database.name, "c"))
        await late.opened()
        insert(database, range(1))
        assert await late.numbers(1) == [0]
        assert await watch.numbers(1) == [0]
        assert (await told(port, "liveness"))["liveness"] == "SERVING"
        assert {(await each.end()).reason for each in (watch, late)} == {"DRAINING"}


async def test_unused_subscriptions_expire_and_it_is_announced(
    mongo: ReplicaSet, redis_factory: RedisFactory, database: Documents, name: str, tmp_path: Path
) -> None:
    redis = await redis_factory()  # of its own, because it deletes what others have left
    configured = settings(mongo.uri, redis.url, unused_subscription_days=3 * DAYS)
    audit = tmp_path / "audit.jsonl"
    configured["tenants_file"] = str(tenants_file(tmp_path))
    configured["audit"] = {"file": str(audit)}
    kept, gone = f"{name}-kept", f"{name}-gone"

    def events(subscription: str) -> list[str]:
        lines = [json.loads(line) for line in audit.read_text().splitlines()]
        return [line["event"] for line in lines if line.get("subscription") == subscription]

    async with serving(configured, key=KEY_A) as one, serving(configured, key=KEY_A):
        api = one.api
        for each in (kept, gone):
            await api.create(each, feed(database.name, "c"))
        session = await api.open(kept)
        expires = (await api.get(gone)).expire_time.ToMilliseconds() - (
            await api.get(gone)
        ).update_time.ToMilliseconds()
        assert expires == 3000
        assert not (await api.get(kept)).HasField("expire_time"), "it is open"
        await until(lambda: "subscription_expired" in events(gone), 30)
        assert (await refused(api.get(gone))).code == "NOT_FOUND"
        # Before it came the announcement; the two replicas take turns, so that there may be one of each.
        assert events(gone)[0] == "subscription_expiring"
        assert events(gone).count("subscription_expired") == 1
        assert events(kept) == []
        await session.close()
        assert (await api.get(kept)).HasField("expire_time")


async def test_the_client_says_which_replica_reads_its_feed(
    here: Here, database: Documents, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    routes: list[str] = []
    told_routes: list[str] = []
    subscribe, on_opened = Transport.subscribe, Connection._on_opened

    def subscribing(transport: Transport, route: str) -> AbstractAsyncContextManager[Stream]:
        routes.append(route)
        return subscribe(transport, route)

    def opened(connection: Connection, response: Opened) -> None:
        told_routes.append(response.routing_key)
        on_opened(connection, response)

    monkeypatch.setattr(Transport, "subscribe", subscribing)
    monkeypatch.setattr(Connection, "_on_opened", opened)
    collection = "Größe 大"
    async with feedmux.AsyncClient(f"127.0.0.1:{here.server.ports.data}", source="main") as client:
        for scope in ((database.name, collection), (database.name, None), (None, None)):
            async with client.feed(feedmux.Feed(database=scope[0], collection=scope[1])).open():
                pass
        assert routes == told_routes, "a feed's route is known beforehand"
        info = await client.create_subscription(name, database=database.name, collection=collection)
        for _ in range(2):
            async with client.subscription(name).open():
                pass
        assert routes[3:] == [told_routes[0]] * 2
    async with feedmux.AsyncClient(f"127.0.0.1:{here.server.ports.data}", source="main") as client:
        for _ in range(2):
            async with client.subscription(name).open():
                pass
        assert routes[5:] == ["", told_routes[0]], "a stranger's first session goes anywhere"
        assert (await client.get_subscription(name)).routing_key == info.routing_key == told_routes[0]
        await client.delete_subscription(name)
