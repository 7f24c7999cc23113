"""The two sites on which every scenario runs: feedmux on MongoDB 6.0.5 and on 6.0.27.

A scenario that takes `site` runs on 6.0.5, and in `./run test --all` on 6.0.27 too. One that depends on the version
runs on both each time (`on_both_versions`). Take a database of your own (`database`).
"""

import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio
from pymongo import MongoClient
from pymongo.database import Database

from feedmux_embedded import RedisServer, ReplicaSet
from tests.conformance.pymongo_support import Lockstep, beside, close_made
from tests.conformance.pymongo_support import Site as Both
from tests.integration.servers import Here, serving, settings
from tests.integration.wire import Api

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Site:
    """A MongoDB with a feedmux server on it, without authentication."""

    mongo: ReplicaSet
    client: MongoClient[Document]
    """pymongo's own, straight to MongoDB."""
    here: Here
    version: tuple[int, ...]
    """MongoDB's: (6, 0, 5) or (6, 0, 27)."""

    @property
    def api(self) -> Api:
        return self.here.api


VERSIONS = ("6.0.5", "6.0.27")
NOT_AGAIN = [VERSIONS[0], pytest.param(VERSIONS[1], marks=pytest.mark.full)]
"""Both versions, of which `./run test` takes one."""
on_both_versions = pytest.mark.parametrize("deployment", VERSIONS, indirect=True, scope="session")


@pytest.fixture(scope="session", params=NOT_AGAIN)
def deployment(request: pytest.FixtureRequest) -> ReplicaSet:
    """One of the two, started when the first scenario asks for it."""
    replica_set = request.getfixturevalue("mongo" if request.param == VERSIONS[0] else "newer_mongo")
    assert isinstance(replica_set, ReplicaSet)
    return replica_set


@pytest_asyncio.fixture(scope="session")
async def site(deployment: ReplicaSet, redis_server: RedisServer) -> AsyncIterator[Site]:
    """Shared by all scenarios of a version; do not stop its servers."""
    with MongoClient[Document](deployment.uri) as client:
        version = tuple(client.server_info()["versionArray"][:3])
        async with serving(settings(deployment.uri, redis_server.url)) as here:
            yield Site(deployment, client, here, version)


@pytest.fixture
def database(site: Site) -> Iterator[Database[Document]]:
    """A database of the site with a fresh name, dropped after the test."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    yield site.client[name]
    site.client.drop_database(name)


@pytest_asyncio.fixture(scope="module")
async def both(deployment: ReplicaSet, redis_server: RedisServer) -> AsyncIterator[Both]:
    """pymongo and feedmux's clients, beside each other."""
    async with beside(deployment, redis_server) as made:
        yield made


@pytest_asyncio.fixture
async def shared(both: Both) -> AsyncIterator[str]:
    """The name of a database with a collection `c`, for all clients of `both`."""
    name = f"pymongo_{uuid.uuid4().hex[:8]}"
    both.mongo[name].create_collection("c")
    yield name
    await close_made(both)
    both.mongo.drop_database(name)


@pytest_asyncio.fixture
async def collection(both: Both, shared: str) -> Lockstep:
    """The collection `c` of each client."""
    return await both.collection(shared, "c")
