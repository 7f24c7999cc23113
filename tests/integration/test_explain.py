"""Explain: what a feed would do, need and withhold, and why it would be rejected; it reveals nothing ungranted."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest_asyncio

import feedmux
from feedmux.v1 import change_feed_pb2 as wire
from feedmux.v1 import feed_pb2
from feedmux_embedded import RedisServer, ReplicaSet
from tests.documents import Documents
from tests.integration.grants_support import granted, key_of, with_images
from tests.integration.servers import Here
from tests.integration.wire import EARLIEST, Api, at, feed

GRANTS: dict[str, list[dict[str, Any]] | None] = {
    "all": None,
    "team-a": [
        {"database": "test_*", "collection": "orders", "match": {"owner": "canary-team"}, "hide": ["canary-field"]},
        {"database": "test_*", "collection": "plain"},
    ],
    "twin": [
        {"database": "test_*", "collection": "orders", "match": {"owner": "canary-team"}, "hide": ["canary-field"]},
        {"database": "test_*", "collection": "plain"},
    ],
}


@pytest_asyncio.fixture(scope="module")
async def here(mongo: ReplicaSet, redis_server: RedisServer, tmp_path_factory: Any) -> AsyncIterator[Here]:
    folder = tmp_path_factory.mktemp("explain")
    async with granted(mongo.uri, redis_server.url, folder, GRANTS) as here:
        yield here


async def explain(
    here: Here, tenant: str, asked: feed_pb2.Feed, start: feed_pb2.Start | None = None
) -> wire.ExplainResponse:
    async with here.api.with_key(key_of(tenant)) as api:
        return await _explain(api, asked, start)


async def _explain(api: Api, asked: feed_pb2.Feed, start: feed_pb2.Start | None) -> wire.ExplainResponse:
    request = wire.ExplainRequest(feed=asked, start=start)
    response = await api.feeds.Explain(request, metadata=api.metadata, timeout=60)
    assert isinstance(response, wire.ExplainResponse)
    return response


async def test_a_feed_without_grants(here: Here, database: Documents) -> None:
    found = await explain(here, "all", feed(database.name, "c", '[{"$match": {"a": 1}}]', show_expanded_events=True))
    assert not found.HasField("refusal")
    assert json.loads(found.pipeline) == [{"$changeStream": {"showExpandedEvents": True}}, {"$match": {"a": 1}}]
    assert not found.stream_open
    assert not found.withheld
    assert not found.images
    assert found.HasField("oplog_headroom")
    at_the_edge = await explain(here, "all", feed(database.name, "c"), EARLIEST)
    assert at_the_edge.oplog_headroom.seconds <= 1
    # Before the set was created: MongoDB accepts it, and has every change.
    long_ago = at(start_at_operation_time=feed_pb2.ClusterTime(seconds=9))
    before_all = await explain(here, "all", feed(database.name, "c"), long_ago)
    assert (before_all.HasField("refusal"), before_all.HasField("oplog_headroom")) == (False, False)


async def test_what_a_tenant_may_know_of_its_grants(here: Here, database: Documents) -> None:
    with_images(database, "orders")
    database.create_collection("plain")
    database.create_collection("canary-private")
    asked = feed(database.name, full_document="whenAvailable", show_expanded_events=True)
    found = await explain(here, "team-a", asked)
    assert not found.HasField("refusal")
    assert "canary" not in str(found)
    assert [(each.collection, each.enabled, each.for_grants) for each in found.images] == [
        ("orders", True, True),
        ("plain", False, False),
    ]
    words = [each.what for each in found.withheld]
    for part in ("everything outside", "condition does not hold", "1 hidden field", "without stored images", "rename"):
        assert any(part in each for each in words), part
    assert json.loads(found.pipeline) == [
        {
            "$changeStream": {
                "fullDocument": "whenAvailable",
                "fullDocumentBeforeChange": "whenAvailable",
                "showExpandedEvents": True,
            }
        }
    ]


async def test_the_stream_is_named_before_it_is_shared(here: Here, database: Documents) -> None:
    asked = feed(database.name, "orders")
    before, twin = await explain(here, "team-a", asked), await explain(here, "twin", asked)
    assert before.stream_key == twin.stream_key != (await explain(here, "all", asked)).stream_key
    assert not before.stream_open
    async with here.api.with_key(key_of("twin")) as api, here.api.with_key(key_of("operator")) as operator:
        receiver = api.watch(asked)
        await receiver.opened()
        assert (await explain(here, "team-a", asked)).stream_open
        assert not (await explain(here, "all", asked)).stream_open
        streams = await operator.streams(f"{database.name}.orders")
        assert [each.stream_key for each in streams] == [before.stream_key]
        receiver.cancel()


async def test_from_python(here: Here, database: Documents) -> None:
    client = feedmux.AsyncClient(f"localhost:{here.api.data_port}", api_key=key_of("team-a"))
    found = await client.feed(database=database.name, collection="orders").explain()
    assert found.refusal is None
    assert found.oplog_headroom_s is not None
    assert found.withheld
    denied = await client.feed(database=database.name, collection="private").explain(feedmux.Start.earliest())
    assert denied.refusal is not None
    assert denied.refusal.reason == "NAMESPACE_DENIED"
    assert denied.stream_key == ""
    await client.close()
