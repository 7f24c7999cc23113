"""Two replicas on one Redis: which sessions a change ends, and what is deleted when no client uses it."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from pymongo.database import Database

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
