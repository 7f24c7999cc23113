"""A subscription that lacks fields in Redis: its callers and the operator are notified; others are unaffected."""

import uuid
from typing import Any

import pytest
from pymongo.database import Database
from redis.asyncio import Redis

from feedmux_embedded import RedisServer, ReplicaSet
from tests.integration.servers import serving, settings, until
from tests.integration.state_support import client
from tests.integration.wire import LATEST, feed, refused
from tests.telemetry.scrape import scrape

Documents = Database[dict[str, Any]]


def key(name: str) -> str:
    return f"feedmux:1:{{default/{name}}}"


async def test_it_is_reported_and_nobody_else_notices(
    mongo: ReplicaSet, redis_server: RedisServer, database: Documents, caplog: pytest.LogCaptureFixture
) -> None:
    damaged, whole = uuid.uuid4().hex, uuid.uuid4().hex
    configuration = settings(mongo.uri, redis_server.url, position_check_interval_s=1)
    async with serving(configuration) as here, client(redis_server.url) as redis:
        await here.api.create(damaged, feed(database.name, "c"), LATEST)
        await here.api.create(whole, feed(database.name, "c"), LATEST)
        await _damage(redis, damaged)

        async def counted() -> int:
            page = await scrape(here.server.metrics_port)
            return round(page.value("feedmux_subscription_damaged", tenant="default"))

        async def is_reported() -> bool:
            return await counted() == 1

        await until(is_reported)
        assert any(getattr(each, "subscription", "") == damaged for each in caplog.records)
        outcome = await refused(here.api.get(damaged))
        assert (outcome.code, outcome.reason) == ("UNAVAILABLE", "STATE_UNAVAILABLE")
        assert outcome.metadata["redis_error"] == "DAMAGED"
        listed = [each.name for each in (await here.api.page()).subscriptions]
        assert whole in listed
        assert damaged not in listed
        session = await here.api.open(whole)
        database.c.insert_one({"n": 1})
        assert await session.numbers(1) == [1]
        await session.ack_and_wait(1)
        await session.close()
        await here.api.delete(damaged)

        async def is_gone() -> bool:
            return await counted() == 0

        await until(is_gone)
        assert not any(each.exc_info for each in caplog.records)


async def _damage(redis: Redis, name: str) -> None:
    assert await redis.hdel(key(name), "definition", "order") == 2
