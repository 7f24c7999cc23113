"""Sessions against a real server, MongoDB and Redis: nothing lost, nothing repeated, whatever breaks in between."""

import asyncio
import contextlib
import random
import uuid
from collections.abc import AsyncIterator
from typing import Any

import bson
import pytest
import pytest_asyncio
from bson import Decimal128, Int64
from pymongo import AsyncMongoClient
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import OperationFailure

import feedmux
from feedmux.async_client import AsyncSubscription
from feedmux_embedded import RedisServer, ReplicaSet
from tests.integration.servers import Here, serving, settings

Documents = AsyncCollection[dict[str, Any]]


class Proxy:
    """A TCP proxy whose connections can be cut."""

    def __init__(self, target: str) -> None:
        self._host, port = target.rsplit(":", 1)
        self._port = int(port)
        self._writers: set[asyncio.StreamWriter] = set()
        self.address = ""

    async def __aenter__(self) -> "Proxy":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.cut()

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(self._host, self._port)
        self._writers |= {writer, far_writer}
        with contextlib.suppress(OSError):
            await asyncio.gather(_pipe(reader, far_writer), _pipe(far_reader, writer))


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()


@pytest_asyncio.fixture(scope="module")
async def server(mongo: ReplicaSet, redis_server: RedisServer) -> AsyncIterator[Here]:
    async with serving(settings(mongo.uri, redis_server.url)) as here:
        yield here


@pytest_asyncio.fixture
async def documents(mongo: ReplicaSet) -> AsyncIterator[Documents]:
    """An empty collection in a database of its own."""
    async with AsyncMongoClient[dict[str, Any]](mongo.uri) as client:
        name = f"client_{uuid.uuid4().hex[:8]}"
        await client[name].create_collection("orders")
        yield client[name]["orders"]
        await client.drop_database(name)


@pytest_asyncio.fixture
async def client(server: Here) -> AsyncIterator[feedmux.AsyncClient]:
    options = feedmux.SessionOptions(backoff_first_s=0.02, backoff_most_s=0.2)
    client = feedmux.AsyncClient(address(server), session=options)
    yield client
    await client.close()


def address(server: Here) -> str:
    return f"127.0.0.1:{server.server.ports.data}"


async def subscribe(client: feedmux.AsyncClient, documents: Documents) -> AsyncSubscription:
    subscription = client.subscription(f"s-{uuid.uuid4().hex[:8]}")
    await subscription.create(database=documents.database.name, collection=documents.name)
    return subscription


def n(event: feedmux.Event) -> int:
    number: int = event.document["fullDocument"]["n"]
    return number


async def test_a_durable_subscription_goes_on_where_it_was_acked(
    client: feedmux.AsyncClient, documents: Documents
) -> None:
    subscription = await subscribe(client, documents)
    await documents.insert_many([{"n": number} for number in range(100)])
    async with asyncio.timeout(60):
        async with subscription.open() as session:
            seen = []
            async for event in session:
                seen.append(n(event))
                if len(seen) == 50:
                    session.ack(event)
                if len(seen) == 60:
                    break
        assert seen == list(range(60))
        async with subscription.open() as session:
            assert [n(await session.next()) for _ in range(50)] == list(range(50, 100))
            session.ack()
        assert session.committed
        info = await subscription.get()
        assert info.position == session.committed
        assert not info.active


@pytest.mark.parametrize("seed", range(3))
async def test_cut_connections_lose_and_repeat_nothing(server: Here, documents: Documents, seed: int) -> None:
    rng = random.Random(seed)
    total = 3000
    options = feedmux.SessionOptions(backoff_first_s=0.02, backoff_most_s=0.1, window_events=200)
    async with Proxy(address(server)) as proxy, asyncio.timeout(60):
        client = feedmux.AsyncClient(proxy.address, session=options)
        subscription = await subscribe(client, documents)
        notices: list[feedmux.Notice] = []

        async def write() -> None:
            for first in range(0, total, 100):
                await documents.insert_many([{"n": number} for number in range(first, first + 100)])
                await asyncio.sleep(0.01)

        writing = asyncio.create_task(write())
        seen: list[int] = []
        cut_at = 200
        async with subscription.open(on_notice=notices.append) as session:
            async for event in session:
                seen.append(n(event))
                if rng.random() < 0.02:
                    session.ack(event)
                if len(seen) == cut_at:
                    proxy.cut()
                    cut_at += rng.randint(100, 500)
                if len(seen) == total:
                    session.ack()
                    break
        await writing
        await client.close()
    assert seen == list(range(total))
    assert sum(isinstance(each, feedmux.Disconnected) for each in notices) >= 3
    assert session.committed


async def test_a_seek_moves_the_open_session(client: feedmux.AsyncClient, documents: Documents) -> None:
    subscription = await subscribe(client, documents)
    begin = (await subscription.get()).position
    await documents.insert_many([{"n": number} for number in range(10)])
    async with asyncio.timeout(60), subscription.open(on_notice=lambda _: None) as session:
        assert [n(await session.next()) for _ in range(10)] == list(range(10))
        session.ack()
        while not session.committed:
            await asyncio.sleep(0.02)
        await subscription.seek(begin)
        assert [n(await session.next()) for _ in range(10)] == list(range(10))


async def test_large_events_come_as_fragments(client: feedmux.AsyncClient, documents: Documents) -> None:
    async with asyncio.timeout(60):
        feed = client.feed(database=documents.database.name)
        async with feed.open(message_bytes_max=65536, window_bytes=100_000) as session:
            await documents.insert_many(
                [{"n": number, "pad": "x" * size} for number, size in enumerate((5, 400_000, 9))]
            )
            await documents.insert_many([{"n": 3, "pad": "y" * 100_000}])
            events = [await session.next() for _ in range(4)]
        assert [n(event) for event in events] == [0, 1, 2, 3]
        assert len(events[1].document["fullDocument"]["pad"]) == 400_000


async def test_the_same_changes_as_pymongo(server: Here, documents: Documents, mongo: ReplicaSet) -> None:
    """`watch()` of both, from the same token, over the same writes, to the invalidate."""
    ours = feedmux.AsyncClient(address(server))
    name = documents.database.name
    async with asyncio.timeout(60):
        async with await documents.watch() as theirs:
            token = theirs.resume_token
            assert token is not None
            await documents.insert_many([{"_id": number, "n": number} for number in range(5)])
            await documents.update_one({"_id": 1}, {"$set": {"n": 7}})
            await documents.delete_one({"_id": 2})
            await documents.drop()
            expected = [change async for change in theirs]
            last = theirs.resume_token
        async with await ours[name][documents.name].watch(resume_after=token) as stream:
            assert [change async for change in stream] == expected
            assert stream.resume_token == last
            assert not stream.alive
        with pytest.raises(OperationFailure) as caught:
            await (await ours[name][documents.name].watch(resume_after=last)).next()
        assert caught.value.code == 260
        async with await ours[name][documents.name].watch(start_after=last, max_await_time_ms=100) as stream:
            assert await stream.try_next() is None
        with pytest.raises(OperationFailure):
            await ours[name].watch([{"$nope": {}}])
    await ours.close()


async def test_synchronously(server: Here, documents: Documents) -> None:
    await documents.insert_many([{"n": number} for number in range(20_000)])

    def work() -> list[int]:
        with feedmux.Client(address(server)) as client:
            feed = feedmux.Feed(documents.database.name, documents.name)
            start = client.resolve("earliest", feed).position
            client.subscription(documents.database.name).create(feed, start=start)
            seen = []
            with client.subscription(documents.database.name).open() as session:
                for event in session:
                    if event.document["operationType"] == "insert":
                        seen.append(n(event))
                    session.ack(event)
                    if len(seen) == 20_000:
                        break
            client.subscription(documents.database.name).delete()
            return seen

    async with asyncio.timeout(60):
        assert await asyncio.to_thread(work) == list(range(20_000))


async def test_a_resume_token_is_the_same_bytes_in_every_format(
    client: feedmux.AsyncClient, documents: Documents
) -> None:
    ids = [Int64(1), -2.5, Decimal128("3.00"), Int64(-(2**53) - 1), -0.0, float("nan"), Decimal128("-0.10"), 8, "text"]
    begin = (await client.resolve("latest")).cluster_time
    await documents.insert_many([{"_id": each} for each in ids])
    feed = client.feed(database=documents.database.name, collection=documents.name)
    tokens: dict[str, list[bytes]] = {}
    async with asyncio.timeout(60):
        for format_ in ("bson", "extended_json_canonical", "extended_json_relaxed"):
            async with feed.open(begin, format=format_) as session:
                events = [await session.next() for _ in ids]
            tokens[format_] = [bson.encode(event.resume_token or {}) for event in events]
            for number, event in enumerate(events[:-1]):
                async with feed.open(event.resume_token, format=format_) as session:
                    assert (await session.next()).raw == events[number + 1].raw
    assert tokens["extended_json_canonical"] == tokens["extended_json_relaxed"] == tokens["bson"]
