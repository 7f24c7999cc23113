"""A network between feedmux and MongoDB that is cut in the middle of a reply, or silent: results stay correct."""

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from pymongo import MongoClient
from pymongo.database import Database

from feedmux_embedded import RedisServer, ReplicaSet
from tests.conformance.faults import insert, writing, written_more
from tests.conformance.proxy import Proxy, proxied
from tests.conformance.statements import FEEDMUX, shows
from tests.documents import Document
from tests.integration.servers import Here, serving, settings, until
from tests.integration.wire import Api, feed, seconds


@pytest_asyncio.fixture(scope="module")
async def proxy(mongo: ReplicaSet) -> AsyncIterator[Proxy]:
    async with proxied(mongo.nodes[0].port) as proxy:
        yield proxy


@pytest_asyncio.fixture(scope="module")
async def behind(proxy: Proxy, redis_server: RedisServer) -> AsyncIterator[Here]:
    """A server that reaches MongoDB through the proxy only."""
    configuration = settings(proxy.uri, redis_server.url)
    del configuration["sources"]["other"]
    async with serving(configuration) as here:
        yield here


@pytest.fixture
def api(behind: Here) -> Api:
    return behind.api


@pytest.fixture
def database(mongo_client: MongoClient[Document], request: pytest.FixtureRequest) -> Iterator[Database[Document]]:
    name = f"net_{abs(hash(request.node.name)) % 10**10}"
    yield mongo_client[name]
    mongo_client.drop_database(name)


@pytest.mark.parametrize("count", [1, 10, 1_000, 150_000, 1_000_000])
@shows(FEEDMUX, "Resuming", "A reply cut in the middle is no reply: its events come once, from the next")
async def test_a_reply_cut_in_the_middle(api: Api, proxy: Proxy, database: Database[Document], count: int) -> None:
    session = await api.open(feed=feed(database.name, "c"))
    insert(database, range(1))
    assert await session.numbers(1) == [0]
    proxy.cut_after_bytes = count
    for n in range(1, 31):
        insert(database, [n], pad="x" * 100_000)
    assert await session.numbers(30) == list(range(1, 31))
    await until(lambda: proxy.cut_after_bytes is None)
    session.cancel()


@shows(FEEDMUX, "Resuming", "A connection over which nothing comes any more is noticed, and left for a new one")
async def test_a_silent_network(api: Api, proxy: Proxy, mongo: ReplicaSet, database: Database[Document]) -> None:
    session = await api.open(feed=feed(database.name, "c"), heartbeat_interval=seconds(1))
    async with writing(mongo.uri, database.name) as written:
        await written_more(written, 10)
        proxy.freeze()
        try:
            await session.until(lambda: session.notices)
            assert session.notices[0].degraded.unavailable
        finally:
            # What was under way is gone, as packets are.
            proxy.cut()
            proxy.thaw()
        await written_more(written, 10)
    total = written[0]
    assert await session.numbers(total) == list(range(total))
    session.cancel()
