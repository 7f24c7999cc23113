"""Views of wide streams deliver what MongoDB's own streams deliver."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient

from feedmux.v1 import operator_pb2
from feedmux_embedded import RedisServer, ReplicaSet
from feedmux_server.tenants.registry import hash_key
from tests.integration.servers import KEY_A, Here, serving, settings, until
from tests.integration.tenancy import entry
from tests.integration.wire import feed
from tests.wide.differential import Options, compare
from tests.wide.workload import COLLECTIONS

Mongo = MongoClient[dict[str, Any]]


@pytest.fixture(scope="module")
async def wide(mongo: ReplicaSet, redis_server: RedisServer) -> AsyncIterator[Here]:
    async with serving({**settings(mongo.uri, redis_server.url), "wide": {"feeds_min": 2}}) as here:
        yield here


@pytest.fixture(scope="module")
async def narrow(mongo: ReplicaSet, redis_server: RedisServer) -> AsyncIterator[Here]:
    async with serving({**settings(mongo.uri, redis_server.url), "wide": {"enabled": False}}) as here:
        yield here


ROUNDS: list[tuple[int, Options]] = [
    (0, ()),
    (1, (("show_expanded_events", True),)),
    (2, (("full_document", "whenAvailable"), ("full_document_before_change", "whenAvailable"))),
]


@pytest.mark.parametrize(("seed", "options"), ROUNDS)
async def test_views_deliver_what_mongodb_delivers(
    wide: Here, narrow: Here, mongo_client: Mongo, seed: int, options: Options
) -> None:
    found = await compare([wide.api, narrow.api], mongo_client, seed, steps=120, options=options, ddl=0.05)
    assert not found.differences
    assert found.views > 2
    assert found.hops


@pytest.mark.parametrize(("seed", "options"), ROUNDS)
async def test_views_of_a_tenant_with_grants_deliver_what_mongodb_delivers(
    mongo: ReplicaSet,
    redis_server: RedisServer,
    tmp_path: Path,
    mongo_client: Mongo,
    seed: int,
    options: Options,
) -> None:
    """Each collection is granted separately, so that the only withheld data are the names of other collections."""
    grants = [{"database": f"wide{seed}_*", "collection": name} for name in COLLECTIONS]
    path = tmp_path / "tenants.yaml"
    path.write_text(json.dumps({"tenants": [entry("a", KEY_A, grants=grants)]}))
    configuration = {
        **settings(mongo.uri, redis_server.url),
        "tenants_file": str(path),
        "operator_key_hashes": [hash_key(KEY_A)],
    }
    async with (
        serving({**configuration, "wide": {"feeds_min": 2}}, key=KEY_A) as wide,
        serving({**configuration, "wide": {"enabled": False}}, key=KEY_A) as narrow,
    ):
        found = await compare(
            [wide.api, narrow.api],
            mongo_client,
            seed,
            steps=120,
            options=options,
            ddl=0.05,
            granted=True,
        )
    assert not found.differences
    assert found.views > 2
    assert found.hops


async def test_an_operator_sees_what_was_decided_and_the_feed_cannot_tell(wide: Here, mongo_client: Mongo) -> None:
    database = mongo_client["wide_operator"]
    feeds = [wide.api.watch(feed(database.name, name)) for name in "ab"]
    required = wide.api.watch(feed(database.name, "a", full_document="required"))
    for each in (*feeds, required):
        await each.opened()

    async def two_views() -> bool:
        return sum(bool(each.view_of) for each in await wide.api.streams()) == 2

    await until(two_views)
    answer = await wide.api.operator.ListSharedStreams(operator_pb2.ListSharedStreamsRequest())
    (group,) = answer.wide_groups
    assert (group.decision, group.feeds, group.views, group.scope) == ("shared", 2, 2, database.name)
    assert answer.totals.cursors == 2  # the wide stream's cursor, and the cursor of the feed that may be no view
    before = group.events_read
    database.a.insert_one({"n": 1})
    database.c.insert_one({"n": 2})
    database.b.insert_one({"n": 3})
    assert await feeds[0].numbers(1) == [1]
    assert await feeds[1].numbers(1) == [3]
    (group,) = (await wide.api.operator.ListSharedStreams(operator_pb2.ListSharedStreamsRequest())).wide_groups
    assert (group.events_read - before, group.events_taken) == (3, 2)
    assert (await wide.api.explain(feed=feed(database.name, "a"))).may_be_view
    assert not (await wide.api.explain(feed=feed(database.name, "a", full_document="required"))).may_be_view
    for each in (*feeds, required):
        each.cancel()


async def test_a_feed_that_only_chooses_operations_is_a_view(wide: Here, mongo_client: Mongo) -> None:
    database = mongo_client["wide_narrowed"]
    deletes = '[{"$match": {"operationType": {"$in": ["delete"]}}}]'
    of_a = '[{"$match": {"ns.coll": "a"}}]'
    of_pipeline = '[{"$match": {"fullDocument.n": 1}}]'
    wanted = [feed(database.name, "a", deletes), feed(database.name, "a"), feed(database.name, pipeline=of_a)]
    assert [(await wide.api.explain(feed=each)).may_be_view for each in wanted] == [True] * 3
    assert not (await wide.api.explain(feed=feed(database.name, "a", of_pipeline))).may_be_view
    feeds = [wide.api.watch(each) for each in wanted]
    for each in feeds:
        await each.opened()

    async def views() -> bool:
        found = [*await wide.api.streams(database.name), *await wide.api.streams(f"{database.name}.a")]
        return sum(bool(each.view_of) for each in found) == 3

    await until(views)
    for number in range(3):
        database.a.insert_one({"_id": number, "n": number})
        database.b.insert_one({"n": -1})
    database.a.delete_one({"_id": 1})
    assert [event.document["documentKey"]["_id"] for event in await feeds[0].take(1)] == [1]
    for each in feeds[1:]:
        assert await each.numbers(3) == [0, 1, 2]
        assert [event.document["operationType"] for event in await each.take(1)] == ["delete"]
    for each in feeds:
        each.cancel()


async def test_feeds_change_between_wide_streams_and_their_own_while_events_come(
    mongo: ReplicaSet, redis_server: RedisServer, mongo_client: Mongo
) -> None:
    """Too few feeds, enough feeds, feeds of two databases, and too few again: nothing is missed, nothing repeated."""
    async with serving({**settings(mongo.uri, redis_server.url), "wide": {"feeds_min": 3}}) as here:
        api, database = here.api, mongo_client["wide_change"]
        first = api.watch(feed(database.name, "a"))
        await first.opened()
        written = 0

        async def insert_and_read() -> None:
            nonlocal written
            for _ in range(20):
                database.a.insert_one({"n": written})
                database.b.insert_one({"n": -1})
                assert await first.numbers(1) == [written]
                written += 1

        async def served_from(scope: str) -> None:
            async def it_is() -> bool:
                (stream,) = await api.streams(f"{database.name}.a")
                return stream.view_of == scope

            await until(it_is)
            await insert_and_read()

        await insert_and_read()
        others = [api.watch(feed(database.name, name)) for name in "bc"]
        for each in others:
            await each.opened()
        await served_from(database.name)
        elsewhere = api.watch(feed("wide_elsewhere", "d"))
        await elsewhere.opened()
        await served_from("*")
        for each in (*others, elsewhere):
            each.cancel()
        await served_from("")
        first.cancel()
