"""Quotas of tenants over the wire: counts reject and name the next step, rates throttle, other tenants continue."""

import asyncio
import json
from pathlib import Path
from typing import Any

import grpc.aio
from pymongo import MongoClient

from feedmux.v1 import feed_pb2
from feedmux_embedded import RedisServer, ReplicaSet
from tests.documents import Documents
from tests.integration.servers import KEY_A, KEY_B, Here, Limited, serving, settings, tenants_file, until
from tests.integration.wire import EARLIEST, LATEST, Api, Refused, Session, feed, refusal, refused
from tests.integration.wire import at as start_at


class Frozen:
    """Stops the clock of a server's accounts, until a test moves it."""

    def __init__(self, here: Here) -> None:
        accounts = here.server.service.manager.accounts
        self.now_s = accounts.clock()
        accounts.clock = lambda: self.now_s


def is_quota(refusal: Refused, quota: str) -> bool:
    assert (refusal.code, refusal.reason) == ("RESOURCE_EXHAUSTED", "QUOTA_EXCEEDED")
    assert "QuotaFailure" in refusal.details
    return refusal.metadata["quota"] == quota


async def test_streams(limited: Limited, database: Documents) -> None:
    async with limited({"sessions": 2}) as here, here.api.with_key(KEY_B) as other:
        wanted = feed(database.name, "c")
        first, second = await here.api.open(feed=wanted), here.api.watch(wanted)
        await second.opened()
        for one_more in (await here.api.session(feed=wanted), here.api.watch(wanted)):
            refusal = await one_more.end()
            assert is_quota(refusal, "sessions")
            assert refusal.retry_s
            assert refusal.metadata["limit"] == "2"
        others = await other.open(feed=wanted)
        others.cancel()
        first.cancel()
        await until(lambda: len(here.server.service.sessions) == 1)
        third = await here.api.open(feed=wanted)
        third.cancel()
        second.cancel()


async def test_large_requests_count_for_more(limited: Limited, database: Documents) -> None:
    async with limited({"requests_per_s": 20}) as here, here.api.with_key(KEY_B) as other:
        pads = [f"{number}{'x' * 60_000}" for number in range(40)]
        large = [feed(database.name, "c", json.dumps([{"$match": {"a": pad}}])) for pad in pads]
        Frozen(here)
        accepted, refusals = 0, []
        for each in large:  # one after the other: what a call costs is charged once its request is there
            try:
                await here.api.resolve(each, LATEST)
                accepted += 1
            except grpc.aio.AioRpcError as error:
                refusals.append(refusal(error))
        # A hundred small calls may come at once, and twenty more that wait; of these, each counts for eight and more.
        assert 1 <= accepted <= 15
        assert all(is_quota(each, "requests_per_s") and each.retry_s for each in refusals)
        await other.resolve(feed(database.name, "c"), LATEST)


async def test_a_tenant_without_grants_makes_nobody_check_its_pipeline(
    mongo: ReplicaSet, redis_server: RedisServer, tmp_path: Path, database: Documents
) -> None:
    configuration = settings(mongo.uri, redis_server.url)
    path = tenants_file(tmp_path)
    content = json.loads(path.read_text())
    content["tenants"][0]["grants"] = []
    path.write_text(json.dumps(content))
    configuration["tenants_file"] = str(path)
    async with serving(configuration, key=KEY_A) as here:
        wanted = feed(database.name, "c", "[" * 190_000, comment=b"x" * 4096)
        for call in (here.api.resolve(wanted, LATEST), here.api.create("x", wanted), here.api.watch(wanted).opened()):
            assert (await refused(call)).reason == "NAMESPACE_DENIED"
        assert here.server.service.checks._process.pid is None


class Sampler:
    """The most cursors that MongoDB has open at a time on a namespace, and the most sessions of the server."""

    def __init__(self, uri: str, database: str, here: Here) -> None:
        self._database = database
        self._client = MongoClient[dict[str, Any]](uri)
        self._stages: list[dict[str, Any]] = [
            {"$currentOp": {"allUsers": True, "idleCursors": True}},
            {"$match": {"ns": f"{database}.c", "cursor.cursorId": {"$exists": True}}},
        ]
        self._here = here
        self.cursors = self.sessions = 0

    async def run(self) -> None:
        while True:
            await self.sample()

    async def sample(self) -> None:
        found = await asyncio.to_thread(self._look)
        self.cursors = max(self.cursors, len({each["cursor"]["cursorId"] for each in found}))
        self.sessions = max(self.sessions, len(self._here.server.service.sessions))

    def _look(self) -> list[dict[str, Any]]:
        self._client[self._database]["clock"].insert_one({})  # so that streams come to the present at once
        return list(self._client.admin.aggregate(self._stages))

    async def __aenter__(self) -> "Sampler":
        self._task = asyncio.create_task(self.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])
        self._client.close()


def distinct(database: Documents, number: int) -> feed_pb2.Feed:
    return feed(database.name, "c", f'[{{"$match": {{"n": {{"$ne": {number}}}}}}}]')


async def _plan(api: Api, name: str, wanted: feed_pb2.Feed, at: bytes) -> None:
    await api.plan(feed=wanted, after=at)


async def _plan_subscription(api: Api, name: str, wanted: feed_pb2.Feed, at: bytes) -> None:
    await api.create(name, wanted, EARLIEST)
    await api.plan(subscription=name, instance_id="i")


async def _read(api: Api, name: str, wanted: feed_pb2.Feed, at: bytes) -> None:
    until = (await api.resolve(wanted, LATEST)).position
    reading = api.read_range(feed=wanted, after=at, until=until)
    ended = await reading.end()
    assert ended.code == "OK" or is_quota(ended, "shared_streams")


async def _explain(api: Api, name: str, wanted: feed_pb2.Feed, at: bytes) -> None:
    await api.explain(feed=wanted, start=EARLIEST)


async def _watch(api: Api, name: str, wanted: feed_pb2.Feed, at: bytes) -> None:
    watching = api.watch(wanted, start_at(position=at))
    await watching.opened()
    watching.cancel()


async def _subscribe(api: Api, name: str, wanted: feed_pb2.Feed, at: bytes) -> None:
    await api.create(name, wanted)
    session = await api.open(name)
    session.cancel()


async def _resolve(api: Api, name: str, wanted: feed_pb2.Feed, at: bytes) -> None:
    for start in (EARLIEST, LATEST):
        await api.resolve(wanted, start)
    await api.create(name, wanted, EARLIEST)
    await api.seek(name, LATEST)
    await api.update(["feed"], name=name, feed=wanted)
    await api.delete(name)


WAYS = (_plan, _plan_subscription, _read, _explain, _watch, _subscribe, _resolve)


async def opened_with_room(api: Api, wanted: feed_pb2.Feed) -> Session:
    """A session, as soon as what gives way to it is closed: that takes MongoDB its time."""
    while True:
        try:
            return await api.open(feed=wanted)
        except grpc.aio.AioRpcError as error:
            if not is_quota(refusal(error), "shared_streams"):
                raise


async def test_no_call_opens_more_cursors_than_the_quota(
    mongo: ReplicaSet, limited: Limited, database: Documents, name: str
) -> None:
    """However calls are mixed, and however soon their streams are left again."""
    quotas = {"shared_streams": 2, "requests_per_s": 10_000, "subscriptions": 10_000}
    database["c"].insert_many([{"n": n} for n in range(10)])
    async with limited(quotas, unused_stream_s=60.0) as here:
        at = (await here.api.resolve(feed(database.name, "c"), EARLIEST)).position
        succeeded, refusals = 0, []
        numbers = iter(range(48))

        async def worst() -> None:
            nonlocal succeeded
            for number in numbers:
                try:
                    call = WAYS[number % len(WAYS)]
                    await call(here.api, f"{name}-{number}", distinct(database, number), at)
                    succeeded += 1
                except grpc.aio.AioRpcError as error:
                    refusals.append(refusal(error))
                await sampler.sample()

        async with Sampler(mongo.uri, database.name, here) as sampler:
            await asyncio.gather(*(worst() for _ in range(6)))
        assert sampler.cursors <= 2
        assert sampler.sessions <= 2
        assert all(is_quota(each, "shared_streams") for each in refusals)
        assert succeeded > 1
        # What was left open gives way: two feeds can be read, and what is counted for them is given back.
        both = [await opened_with_room(here.api, distinct(database, number)) for number in (100, 101)]
        for session in both:
            await session.close()
        account = here.server.service.manager.accounts.of("a")
        await until(lambda: not account.sessions and not account.feeds)


async def test_a_reader_that_waits_for_a_plan_counts_and_gives_way(limited: Limited, database: Documents) -> None:
    async with limited({"shared_streams": 2}) as here:
        account = here.server.service.manager.accounts.of("a")
        at = (await here.api.resolve(feed(database.name, "c"), LATEST)).position
        for number in range(5):
            await here.api.plan(feed=distinct(database, number), after=at)
            assert len(account.feeds) == min(2, number + 1)
        # The reader of the last plan is used again, the older one gives way, and sessions do not.
        again = await here.api.plan(feed=distinct(database, 4), after=at)
        first = await here.api.open(feed=distinct(database, 10))
        second = await here.api.open(feed=distinct(database, 11))
        refused_plan = await refused(here.api.plan(feed=distinct(database, 4), after=again.end))
        assert is_quota(refused_plan, "shared_streams")
        explained = await here.api.explain(feed=distinct(database, 10), start=LATEST)
        assert not explained.HasField("refusal")  # it would share the stream
        explained = await here.api.explain(feed=distinct(database, 12), start=LATEST)
        assert explained.refusal.reason == "QUOTA_EXCEEDED"
        first.cancel()
        second.cancel()
        await until(lambda: not account.feeds)
        await here.api.plan(feed=distinct(database, 4), after=again.end)
