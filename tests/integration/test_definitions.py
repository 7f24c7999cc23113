"""Definitions of subscriptions are bounded one by one, in all, and in every answer that holds many."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from feedmux.v1 import feed_pb2, operator_pb2
from feedmux_embedded import RedisServer, ReplicaSet
from feedmux_server.tenants.registry import hash_key
from tests.documents import Documents
from tests.integration.servers import KEY_A, KEY_B, OPERATOR_KEY, Here, Limited, serving, settings
from tests.integration.test_request_costs import COST_MAX, longest_callback
from tests.integration.wire import feed, refused


@pytest.fixture
def limited(mongo: ReplicaSet, redis_server: RedisServer, tmp_path: Path, name: str) -> Limited:
    """`async with limited(subscription_bytes=…) as here`: a tenant of its own with these quotas."""

    @asynccontextmanager
    async def make(**quotas: int) -> AsyncIterator[Here]:
        configuration = settings(mongo.uri, redis_server.url)
        path = tmp_path / "tenants.yaml"
        tenants = [
            {"name": f"{name}-a", "api_key_hashes": [hash_key(KEY_A)], "quotas": {"requests_per_s": 10_000, **quotas}},
            {"name": f"{name}-b", "api_key_hashes": [hash_key(KEY_B)]},
        ]
        path.write_text(json.dumps({"tenants": tenants}))
        configuration["tenants_file"] = str(path)
        configuration["operator_key_hashes"] = [hash_key(OPERATOR_KEY)]
        async with serving(configuration, key=KEY_A) as here:
            yield here

    return make


def of_size(database: str, size: int) -> feed_pb2.Feed:
    return feed(database, "c", json.dumps([{"$match": {"a": "x" * (size - 60)}}]))


async def sum_of(here: Here, name: str) -> int:
    return (await here.server.service.store.sizes.sums([f"{name}-a"]))[f"{name}-a"]


async def stored_bytes(here: Here, name: str) -> int:
    return sum([len(each.definition) async for each in here.server.service.store.every(f"{name}-a")])


async def test_all_definitions_together_have_a_quota(limited: Limited, database: Documents, name: str) -> None:
    async with limited(subscription_bytes=200_000) as here, here.api.with_key(KEY_B) as other:
        size = 60_000
        for number in range(3):
            await here.api.create(f"s{number}", of_size(database.name, size))
        full = await refused(here.api.create("s3", of_size(database.name, size)))
        assert (full.code, full.metadata["quota"]) == ("RESOURCE_EXHAUSTED", "subscription_bytes")
        await here.api.create("tiny", feed(database.name, "c"))
        grown = await refused(here.api.update(["feed"], name="tiny", feed=of_size(database.name, size)))
        assert grown.metadata["quota"] == "subscription_bytes"
        # The same again is no further one, nor is one that does not come to be.
        await here.api.create("s0", of_size(database.name, size))
        assert (await refused(here.api.create("s0", feed(database.name, "d")))).reason == "SUBSCRIPTION_EXISTS"
        assert (await refused(here.api.update(["feed"], name="s9", feed=feed(database.name, "c")))).code == "NOT_FOUND"
        assert await sum_of(here, name) == await stored_bytes(here, name)
        await here.api.delete("s0")
        await here.api.update(["feed"], name="s1", feed=feed(database.name, "c"))
        await here.api.create("s3", of_size(database.name, size))
        await other.create("s3", of_size(database.name, size))
        request, metadata = operator_pb2.ListTenantsRequest(), (("authorization", f"Bearer {OPERATOR_KEY}"),)
        answer = await here.api.operator.ListTenants(request, metadata=metadata)
        [usage] = [each for each in answer.tenants if each.tenant == f"{name}-a"]
        [use] = [each for each in usage.quotas if each.quota == "subscription_bytes"]
        assert (use.limit, use.used) == (200_000, await stored_bytes(here, name))


async def test_an_update_keeps_what_a_newer_server_has_stored(
    here: Here, redis_server: RedisServer, database: Documents, name: str
) -> None:
    await here.api.create(name, feed(database.name, "c"))
    newer = b"\xc0\x3e\x01"  # a field of the number 1000
    async with Redis.from_url(redis_server.url) as redis:
        key = f"feedmux:1:{{default/{name}}}"
        created = await redis.hget(key, "definition")
        assert isinstance(created, bytes)
        await redis.hset(key, "definition", created + newer)
        await here.api.update(["on_history_lost"], name=name, on_history_lost=feed_pb2.ON_HISTORY_LOST_EARLIEST)
        stored = await redis.hget(key, "definition")
    assert isinstance(stored, bytes)
    assert stored.endswith(newer)
    assert (await here.api.get(name)).on_history_lost == feed_pb2.ON_HISTORY_LOST_EARLIEST


async def test_a_long_list_does_not_hold_the_loop(
    limited: Limited, database: Documents, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with limited() as here:
        wanted = feed(database.name, "c")
        for begin in range(0, 400, 50):
            await asyncio.gather(*(here.api.create(f"s{begin + number}", wanted) for number in range(50)))
        method: Any = here.api.channel.unary_unary("/feedmux.v1.Subscriptions/ListSubscriptions")
        with longest_callback(monkeypatch) as longest:
            answer = await method(b"\x08\xe8\x07", metadata=here.api.metadata)  # page_size 1000
        assert len(answer) > 400 * 100
        assert 0 < longest() <= COST_MAX, longest()
