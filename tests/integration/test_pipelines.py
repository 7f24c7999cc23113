"""Which pipelines a tenant may use, with `bounded` and with `any`, in every call that accepts a pipeline."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import bson
import pytest
import pytest_asyncio
from pymongo import MongoClient

from feedmux.v1 import feed_pb2
from feedmux_embedded import RedisServer, ReplicaSet
from tests.integration.tenancy import Tenancy, configuration, entry, tenancy
from tests.integration.wire import LATEST, Api, Refused, feed, refused

BOUNDED = entry("bounded", "key-bounded")
TRUSTED = entry("trusted", "key-trusted", pipelines="any")
DOUBLE = {"$concatArrays": ["$$value", "$$value"]}
BOMB: list[Any] = [{"$set": {"x": {"$reduce": {"input": {"$range": [0, 40]}, "initialValue": [1], "in": DOUBLE}}}}]
HARMLESS: list[Any] = [{"$match": {"operationType": "insert"}}]


@pytest_asyncio.fixture
async def site(mongo: ReplicaSet, redis_server: RedisServer, tmp_path: Path) -> AsyncIterator[Tenancy]:
    async with tenancy(configuration(mongo, redis_server, tmp_path, BOUNDED, TRUSTED), "key-bounded") as made:
        yield made


def asked(stages: list[Any]) -> feed_pb2.Feed:
    return feed("pipelines", "c", json.dumps(stages))


def is_bounds_refusal(refusal: Refused) -> bool:
    return refusal.reason == "STAGE_NOT_ALLOWED" and refusal.metadata["operator"] == "$reduce"


async def refused_everywhere(api: Api, name: str, wrong: feed_pb2.Feed) -> list[Refused]:
    """How every call that accepts a pipeline rejects this one."""
    harmless = asked(HARMLESS)
    position = (await api.resolve(harmless, LATEST)).position
    outcomes = [
        await api.watch(wrong).end(),
        await (await api.session(feed=wrong)).end(),
        await refused(api.create(name, wrong)),
        await refused(api.resolve(wrong, LATEST)),
        await refused(api.plan(feed=wrong, after=position)),
        await api.read_range(feed=wrong, after=position, until=position).end(),
    ]
    await api.create(name, harmless)
    outcomes.append(await refused(api.update(["feed"], name=name, feed=wrong)))
    assert {(await api.explain(feed=wrong)).refusal.reason} == {each.reason for each in outcomes}
    return outcomes


async def test_a_bomb_is_refused_by_every_call(site: Tenancy, name: str) -> None:
    assert all(map(is_bounds_refusal, await refused_everywhere(site.here.api, name, asked(BOMB))))


@pytest.mark.parametrize("key", ["key-bounded", "key-trusted"])
@pytest.mark.parametrize(
    ("pipeline", "path"),
    [
        (
            feed_pb2.Pipeline(extended_json='[{"$match": {"a": 1, "b": {"$in": [{"$oid": "abc"}]}}}]'),
            "pipeline.0.$match.b.$in.0",
        ),
        (feed_pb2.Pipeline(extended_json=""), "pipeline"),
        (feed_pb2.Pipeline(bson=b""), "pipeline"),
    ],
    ids=["no query", "empty text", "empty bson"],
)
async def test_what_is_no_pipeline_is_rejected_by_every_call(
    site: Tenancy, name: str, key: str, pipeline: feed_pb2.Pipeline, path: str
) -> None:
    wrong = feed("pipelines", "c")
    wrong.pipeline.CopyFrom(pipeline)
    async with site.here.api.with_key(key) as api:
        for refusal in await refused_everywhere(api, name, wrong):
            assert (refusal.code, refusal.reason) == ("INVALID_ARGUMENT", "PIPELINE_INVALID")
            assert refusal.metadata["path"] == path


@pytest.mark.parametrize("key", ["key-bounded", "key-trusted"])
async def test_every_call_reads_both_conditions_of_a_text(
    site: Tenancy, name: str, key: str, mongo_client: MongoClient[dict[str, Any]]
) -> None:
    """An inline feed, a stored subscription and a range."""
    text = feed(name, "c", '[{"$match": {"fullDocument.name": {"$regex": "^a", "$ne": "abc"}}}]')
    async with site.here.api.with_key(key) as api:
        start = feed_pb2.Start(position=(await api.resolve(text, LATEST)).position)
        await api.create(name, text, start)
        mongo_client[name].c.insert_many([{"name": each} for each in ("abc", "b", "abd", "abc", "ax")])
        durable = await api.session(name)
        await durable.credit(2)
        for receiver in (api.watch(text, start), durable):
            names = [bson.decode(event.data)["fullDocument"]["name"] for event in await receiver.take(2)]
            assert names == ["abd", "ax"]
            receiver.cancel()
        planned = await api.plan(feed=text, after=start.position, events_max=2)
        assert planned.event_count == 2
        assert "$ne" in (await api.explain(feed=text)).pipeline
    mongo_client.drop_database(name)


async def test_a_trusted_tenant_may_do_all(site: Tenancy) -> None:
    async with site.here.api.with_key("key-trusted") as api:
        receiver = api.watch(asked([{"$set": {"x": {"$reduce": {"input": [1], "initialValue": 0, "in": "$$this"}}}}]))
        await receiver.opened()
        receiver.cancel()


async def test_a_tenant_that_becomes_bounded(
    site: Tenancy, name: str, mongo_client: MongoClient[dict[str, Any]]
) -> None:
    """Its sessions with a pipeline end; what is allowed can be opened again, stored or not, and the rest cannot."""
    stages: list[Any] = [{"$set": {"x": {"$reduce": {"input": [1], "initialValue": 0, "in": "$$this"}}}}]
    async with site.here.api.with_key("key-trusted") as api:
        await api.create(name, asked(stages))
        bound_to_end = [api.watch(asked(stages)), api.watch(asked(HARMLESS)), await api.session(name)]
        unaffected = api.watch(feed("pipelines", "c"))
        for receiver in (*bound_to_end, unaffected):
            await receiver.opened()
        site.write(BOUNDED, entry("trusted", "key-trusted"))
        for receiver in bound_to_end:
            ended = await receiver.end()
            assert (ended.code, ended.reason) == ("ABORTED", "GRANTS_CHANGED")
        assert is_bounds_refusal(await api.watch(asked(stages)).end())
        assert is_bounds_refusal(await (await api.session(name)).end())
        again = api.watch(asked(HARMLESS))
        await again.opened()
        # The way out: another pipeline.
        await api.update(["feed"], name=name, feed=asked(HARMLESS))
        reopened = await api.session(name)
        await reopened.opened()
        site.write(BOUNDED, TRUSTED)
        mongo_client["pipelines"]["c"].insert_one({})
        await unaffected.take(1)
        for receiver in (again, unaffected, reopened):
            receiver.cancel()


@pytest.mark.parametrize("stages", [[], HARMLESS, [{"$project": {"fullDocument": 1}}]], ids=repr)
async def test_what_is_allowed_runs(site: Tenancy, stages: list[Any]) -> None:
    receiver = site.here.api.watch(asked(stages))
    await receiver.opened()
    receiver.cancel()
