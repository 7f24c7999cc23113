"""Servers that these tests share. Take a database of your own (`database`) and names of your own (`name`)."""

import asyncio
import json
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from redis.asyncio import Redis

from feedmux_embedded import RedisServer, ReplicaSet
from feedmux_server.core.feeds.feed import FeedSpec
from feedmux_server.source.deployment import Source
from feedmux_server.store.store import SubscriptionStore
from feedmux_server.tenants.registry import hash_key
from tests.integration.servers import (
    KEY_A,
    OPERATOR_KEY,
    SMALL_STEPS,
    DocumentsRead,
    Here,
    Limited,
    OnRead,
    serving,
    settings,
    tenants_file,
)
from tests.integration.state_support import client
from tests.integration.wire import Api


@pytest_asyncio.fixture(scope="session")
async def here(mongo: ReplicaSet, redis_server: RedisServer) -> AsyncIterator[Here]:
    """A server without authentication."""
    async with serving(settings(mongo.uri, redis_server.url)) as here:
        yield here


@pytest.fixture
def api(here: Here) -> Api:
    return here.api


@pytest_asyncio.fixture(scope="session")
async def tenants(
    mongo: ReplicaSet, redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Here]:
    """A server with tenants `a` and `b`; its client belongs to tenant `a`."""
    folder: Path = tmp_path_factory.mktemp("tenants")
    configuration = settings(mongo.uri, redis_server.url)
    configuration["tenants_file"] = str(tenants_file(folder))
    configuration["operator_key_hashes"] = [hash_key(OPERATOR_KEY)]
    async with serving(configuration, key=KEY_A) as here:
        yield here


def _on(*mongos: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("version", mongos, indirect=True, scope="session")


on_both_versions, on_one_that_splits = _on("mongo", "newer_mongo"), _on("newer_mongo")


@pytest.fixture(scope="session", params=["mongo", pytest.param("newer_mongo", marks=pytest.mark.full)])
def version(request: pytest.FixtureRequest) -> ReplicaSet:
    """MongoDB 6.0.5, and in `./run test --all` 6.0.27 too."""
    mongo: ReplicaSet = request.getfixturevalue(request.param)
    return mongo


@pytest.fixture
def name() -> str:
    """A subscription's name."""
    return f"sub-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def limited(mongo: ReplicaSet, redis_server: RedisServer, tmp_path: Path) -> Limited:
    """`async with limited({"sessions": 2}, sessions=5) as here`: tenant `a` with these quotas, and a server with these
    limits. Tenant `b` has the defaults."""

    @asynccontextmanager
    async def make(quotas: dict[str, int] | None = None, **limits: Any) -> AsyncIterator[Here]:
        configuration = settings(mongo.uri, redis_server.url, **limits)
        path = tenants_file(tmp_path)
        content = json.loads(path.read_text())
        content["tenants"][0]["quotas"] = quotas or {}
        path.write_text(json.dumps(content))
        configuration |= {"tenants_file": str(path), "operator_key_hashes": [hash_key(OPERATOR_KEY)]}
        async with serving(configuration, key=KEY_A) as here:
            yield here

    return make


@pytest_asyncio.fixture
async def redis(redis_server: RedisServer) -> AsyncIterator[Redis]:
    async with client(redis_server.url) as redis:
        yield redis


@pytest.fixture
def store(redis: Redis) -> SubscriptionStore:
    return SubscriptionStore(redis, lease_s=30.0)


@pytest.fixture
def tenant() -> str:
    return f"t{uuid.uuid4().hex[:10]}"


@pytest.fixture
def documents_read(monkeypatch: pytest.MonkeyPatch) -> DocumentsRead:
    """Has `before` and `after` called around each read of the documents of a copy, with the name of the collection and
    how often it was read. Returns these counts."""

    def install(before: OnRead = lambda *_: None, after: OnRead = lambda *_: None) -> Counter[str]:
        counts: Counter[str] = Counter()
        original = Source.open_documents

        async def open_documents(source: Source, spec: FeedSpec, *asked: Any) -> Any:
            read = spec.scope.collection
            counts[read] += 1
            number = counts[read]
            await asyncio.to_thread(before, read, number)
            cursor = await original(source, spec, *asked)
            await asyncio.to_thread(after, read, number)
            return cursor

        monkeypatch.setattr(Source, "open_documents", open_documents)
        return counts

    return install


@pytest_asyncio.fixture(scope="module")
async def stepwise(mongo: ReplicaSet, redis_server: RedisServer) -> AsyncIterator[Here]:
    """A server whose copies read each batch of documents in a step of its own."""
    async with serving(settings(mongo.uri, redis_server.url, **SMALL_STEPS)) as here:
        yield here
