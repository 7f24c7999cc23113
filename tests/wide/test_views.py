"""Views of wide streams deliver what MongoDB's own streams deliver."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from pymongo import MongoClient

from feedmux_server.embedded import RedisServer, ReplicaSet
from tests.integration.servers import Here, serving, settings
from tests.wide.differential import Options, compare


@pytest.fixture(scope="module")
async def wide(mongo: ReplicaSet, redis_server: RedisServer) -> AsyncIterator[Here]:
    async with serving({**settings(mongo.uri, redis_server.url), "wide": {"feeds_min": 2}}) as here:
        yield here


@pytest.fixture(scope="module")
async def narrow(mongo: ReplicaSet, redis_server: RedisServer) -> AsyncIterator[Here]:
    async with serving({**settings(mongo.uri, redis_server.url), "wide": {"enabled": False}}) as here:
        yield here


@pytest.mark.parametrize(
    "options",
    [
        (),
        (("show_expanded_events", True),),
        (("full_document", "whenAvailable"), ("full_document_before_change", "whenAvailable")),
    ],
)
@pytest.mark.parametrize("seed", range(3))
async def test_views_deliver_what_mongodb_delivers(
    wide: Here, narrow: Here, mongo_client: MongoClient[dict[str, Any]], seed: int, options: Options
) -> None:
    found = await compare([wide.api, narrow.api], mongo_client, seed, steps=150, options=options)
    print(found)
    assert not found.differences
    assert found.views > 2
