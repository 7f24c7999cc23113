"""Sessions whose connections are cut on their way to a real server, and what they return as resume tokens."""

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
