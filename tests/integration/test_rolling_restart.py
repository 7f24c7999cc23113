"""Replicas are restarted under load, and new ones get their share. Clients go through a TCP balancer."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pymongo import AsyncMongoClient
from pymongo.database import Database

import feedmux
from feedmux_embedded import RedisServer, ReplicaSet
from tests.integration.balancer import balanced
from tests.integration.client_history import ClientHistory, written_since
from tests.integration.servers import ServerProcess, serving, settings, until
from tests.integration.wire import feed

Documents = Database[dict[str, Any]]


class Writer:
    """Inserts numbers from 0 on, without a hole, until it is stopped."""

    def __init__(self) -> None:
        self.count = 0
        self._stopped = asyncio.Event()

    def stop(self) -> None:
        self._stopped.set()

    async def run(self, uri: str, database: str) -> None:
        async with AsyncMongoClient[dict[str, Any]](uri) as client:
            while not self._stopped.is_set():
                await client[database].c.insert_many([{"n": self.count + i} for i in range(5)])
                self.count += 5
                await asyncio.sleep(0.01)


class Reader:
    """A subscriber of the Python client: keeps what its loop sees, and acknowledges every so many events."""

    def __init__(self, name: str, ack_every: int) -> None:
        self.name = name
        self.seen: list[int] = []
        self._ack_every = ack_every

    async def run(self, port: int) -> None:
        async with feedmux.AsyncClient(f"127.0.0.1:{port}", source="main") as client:
            options = {"backoff_first_s": 0.1, "backoff_most_s": 0.5, "on_notice": lambda _: None}
            async with client.subscription(self.name).open(**options) as session:  # type: ignore[arg-type]
                async for event in session:
                    self.seen.append(event.document["fullDocument"]["n"])
                    if len(self.seen) % self._ack_every == 0:
                        session.ack(event)


@asynccontextmanager
async def reading(readers: list[Reader], port: int) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(reader.run(port)) for reader in readers]
        yield
        for task in running:
            task.cancel()


async def test_rolling_restart_of_three_replicas(
    mongo: ReplicaSet,
    redis_server: RedisServer,
    database: Documents,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start = database.client.admin.command("ping")["operationTime"]
    history = ClientHistory(monkeypatch)
    # The last one leaves much unacknowledged, and so keeps the drain waiting to its deadline.
    readers = [Reader(f"{name}-{i}", ack_every) for i, ack_every in enumerate((1, 1, 10, 10, 100, 1000))]
    writer = Writer()
    async with AsyncExitStack() as stack:
        servers = []
        for index in range(3):
            folder = tmp_path / str(index)
            folder.mkdir()
            server = ServerProcess(settings(mongo.uri, redis_server.url, drain_s=1.5), folder)
            stack.push_async_callback(server.kill9)
            await server.start()
            servers.append(server)
        balancer = await stack.enter_async_context(balanced([server.ports[0] for server in servers]))
        async with feedmux.AsyncClient(f"127.0.0.1:{balancer.port}", source="main") as client:
            for reader in readers:
                await client.create_subscription(reader.name, database=database.name, collection="c")
        writing = asyncio.create_task(writer.run(mongo.uri, database.name))
        async with reading(readers, balancer.port):
            await until(lambda: all(len(reader.seen) > 100 for reader in readers))
            for server in servers:
                went = history.sessions
                server.process.send_signal(signal.SIGTERM)
                await until(lambda server=server: not server.process.running)  # type: ignore[misc]
                assert server.process.returncode == 0, server.log.read_text()[-3000:]
                await server.start()
                before = writer.count
                await until(lambda before=before: all(r.seen[-1] > before for r in readers))  # type: ignore[misc]
                assert history.sessions > went, "nobody was on it, so its restart has shown nothing"
            writer.stop()
            await writing
            await until(lambda: all(reader.seen[-1] == writer.count - 1 for reader in readers))
        for reader in readers:
            # What the loop of the Python client sees is better than what is promised: no repeats, across sessions too.
            assert reader.seen == list(range(writer.count))
        history.judge(await asyncio.to_thread(written_since, database.c, start, writer.count))


async def test_a_new_replica_gets_its_share(
    mongo: ReplicaSet,
    redis_server: RedisServer,
    database: Documents,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start = database.client.admin.command("ping")["operationTime"]
    history = ClientHistory(monkeypatch)
    readers = [Reader(f"{name}-{i}", 10) for i in range(4)]
    writer = Writer()
    configured = settings(mongo.uri, redis_server.url, connection_age_s=1.0)
    async with (
        serving(configured) as old,
        serving(configured) as new,
        balanced([old.server.ports.data]) as balancer,
    ):
        for reader in readers:
            async with feedmux.AsyncClient(f"127.0.0.1:{balancer.port}", source="main") as client:
                await client.create_subscription(reader.name, database=database.name, collection="c")
        writing = asyncio.create_task(writer.run(mongo.uri, database.name))
        async with reading(readers, balancer.port):
            await until(lambda: len(old.server.service.sessions) == 4)
            balancer.ports.append(new.server.ports.data)
            await until(lambda: len(new.server.service.sessions) >= 1)
            went = history.sessions
            await until(lambda: history.sessions >= went + 4)
            writer.stop()
            await writing
            await until(lambda: all(reader.seen[-1] == writer.count - 1 for reader in readers))
        assert all(reader.seen == list(range(writer.count)) for reader in readers)
        history.judge(await asyncio.to_thread(written_since, database.c, start, writer.count))


async def test_the_second_signal_ends_at_once(
    mongo: ReplicaSet, redis_server: RedisServer, database: Documents, name: str, tmp_path: Path
) -> None:
    # Longer than the test: only the signal can end it.
    server = ServerProcess(settings(mongo.uri, redis_server.url, drain_s=3600.0), tmp_path)
    await server.start()
    try:
        async with server.api() as api:
            await api.create(name, feed(database.name, "c"))
            session = await api.open(name)
            database.c.insert_many([{"n": n} for n in range(10)])
            await session.take(10)
            server.process.send_signal(signal.SIGTERM)
            await session.until(lambda: session.notices)
            assert server.process.running
            server.process.send_signal(signal.SIGTERM)
            await until(lambda: not server.process.running)
            session.cancel()
    finally:
        await server.kill9()
