"""A subscription that lacks fields in Redis: its callers and the operator are notified; others are unaffected."""

import uuid
from typing import Any

import pytest

from feedmux_embedded import RedisServer, ReplicaSet
from tests.documents import Documents
from tests.integration.servers import serving, settings, until
from tests.integration.state_support import client
from tests.integration.wire import LATEST, feed, refused
from tests.telemetry.scrape import scrape


def key(name: str) -> str:
    return f"feedmux:1:{{default/{name}}}"


GARBAGE: dict[str, dict[Any, Any]] = {
    "definition": {"definition": b"\xff\xff"},
    "no-definition": {"definition": b""},
    "epoch": {"epoch": str(2**70)},
    "seek-epoch": {"seek_epoch": str(2**63)},
    "cluster-time": {"cluster_time": str(2**70)},
    "time": {"create_ms": str(2**52)},
    "used": {"used_ms": str(2**52)},
    "lease": {"lease_until_ms": "soon"},
    "delivered": {"delivered": str(2**70)},
    "members": {"members": "-1"},
    "etag": {"etag": b"\xff"},
}


async def test_garbage_fails_itself_alone_and_can_be_deleted(
    mongo: ReplicaSet, redis_server: RedisServer, database: Documents, caplog: pytest.LogCaptureFixture
) -> None:
    damaged = {kind: f"{kind}-{uuid.uuid4().hex}" for kind in (*GARBAGE, "no-hash")}
    whole, unnamed = uuid.uuid4().hex, b"\xff" + uuid.uuid4().hex.encode()
    configuration = settings(mongo.uri, redis_server.url, position_check_interval_s=1)
    async with serving(configuration) as here, client(redis_server.url) as redis:
        for name in (whole, *damaged.values()):
            await here.api.create(name, feed(database.name, "c"), LATEST)
        for kind, fields in GARBAGE.items():
            await redis.hset(key(damaged[kind]), mapping=fields)
        await redis.set(key(damaged["no-hash"]), "text")
        await redis.zadd("feedmux:1:names:{default}", {unnamed: 0})
        await redis.hset("feedmux:1:sizes:{default}", mapping={"": "garbage", whole: str(2**70)})

        async def counted() -> int:
            page = await scrape(here.server.metrics_port)
            return round(page.value("feedmux_subscription_damaged", tenant="default"))

        async def are_reported() -> bool:
            return await counted() == len(damaged) + 1

        listed = [each.name for each in (await here.api.page()).subscriptions]
        assert whole in listed
        assert not set(listed) & set(damaged.values())
        for name in damaged.values():
            for call in (here.api.get(name), here.api.open(name), here.api.seek(name, LATEST)):
                outcome = await refused(call)
                assert (outcome.reason, outcome.metadata.get("redis_error")) == ("STATE_UNAVAILABLE", "DAMAGED"), name
        for kind in GARBAGE:
            assert await redis.hget(key(damaged[kind]), "nonce") == b"", "nobody keeps a lease"
        await until(are_reported)
        logged = [each.getMessage() for each in caplog.records if "changed a part" in each.getMessage()]
        printed = key(repr(unnamed)[2:-1])
        for shown in (printed, *map(key, damaged.values())):
            assert len([each for each in logged if shown in each]) == 1, shown
        await redis.zrem("feedmux:1:names:{default}", unnamed)
        for name in damaged.values():
            await here.api.delete(name)
            await here.api.create(name, feed(database.name, "c"), LATEST)
            await (await here.api.open(name)).close()

        async def is_gone() -> bool:
            return await counted() == 0

        await until(is_gone)
        assert not any(each.exc_info for each in caplog.records)
