"""What the server holds when clients do not read, acknowledge or come back: by its own account, and really."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from feedmux.v1 import change_feed_pb2 as wire
from feedmux.v1 import feed_pb2
from feedmux_embedded import RedisServer, ReplicaSet
from tests.documents import Documents
from tests.integration.raw_http2 import RawConnection
from tests.integration.servers import KEY_A, ServerProcess, server_process, settings, until
from tests.integration.tenancy import entry
from tests.integration.wire import LATEST, at, feed
from tests.telemetry.scrape import scrape

KIB, MIB = 1 << 10, 1 << 20
MEMORY, KEPT, RING = 64 * MIB, 16 * MIB, 8 * MIB
MOST = wire.Credit(events=100_000, bytes=64 * MIB)
LARGEST_MESSAGE = 64 * MIB
RETURNED_AT_ONCE = {"MALLOC_MMAP_THRESHOLD_": str(64 * KIB), "MALLOC_TRIM_THRESHOLD_": "0", "PYTHONMALLOC": "malloc"}
"""What is freed goes back to the system, so that what is resident is what is held."""
FRAGMENTATION = 1.25
TRANSIENT = 24 * MIB
"""What is on its way from MongoDB into a ring, and buffers that grow with use and stay."""


class Stalled:
    """Calls whose clients take nothing: each has a connection of its own and leaves its window as it is."""

    def __init__(self, server: ServerProcess, stack: ExitStack, key: str) -> None:
        self._port = server.ports[0]
        self._stack = stack
        self._metadata = (("authorization", f"Bearer {key}"),)
        self.connections: list[RawConnection] = []

    def call(self, method: str, message: Any) -> None:
        connection = self._stack.enter_context(RawConnection(self._port))
        connection.call(f"/feedmux.v1.ChangeFeed/{method}", self._metadata, message=message.SerializeToString())
        self.connections.append(connection)

    def subscribe(self, wanted: feed_pb2.Feed, **fields: Any) -> None:
        opening = wire.Open(feed=wanted, message_bytes_max=LARGEST_MESSAGE, credit=MOST, **fields)
        self.call("Subscribe", wire.SubscribeRequest(open=opening))

    def pump(self) -> None:
        for each in self.connections:
            each.pump()

    async def until(self, condition: Any) -> None:
        async def held() -> bool:
            self.pump()
            return bool(await condition())

        await until(held, every_s=0.1)


def resident(server: ServerProcess) -> int:
    return server.process.rss_bytes()


async def account(server: ServerProcess) -> dict[str, int]:
    """Bytes by part."""
    page = await scrape(server.ports[3])
    return {labels["feedmux_part"]: int(value) for labels, value in page.samples("feedmux_memory_usage_bytes")}


async def steady(server: ServerProcess, stalled: Stalled) -> dict[str, int]:
    """The account once nothing moves any more."""
    seen: list[dict[str, int]] = []

    async def still() -> bool:
        seen.append(await account(server))
        return len(seen) > 5 and all(each == seen[-1] for each in seen[-5:])

    await stalled.until(still)
    return seen[-1]


@asynccontextmanager
async def server_with(
    mongo: ReplicaSet, redis: RedisServer, folder: Path, *tenants: dict[str, Any], **limits: Any
) -> AsyncIterator[ServerProcess]:
    path = folder / "tenants.yaml"
    path.write_text(json.dumps({"tenants": tenants or [entry("a", KEY_A)]}))
    limits = {"memory_bytes": MEMORY, "retained_bytes": KEPT, "ring_bytes": RING, **limits}
    configuration = {**settings(mongo.uri, redis.url, **limits), "tenants_file": str(path), "wide": {"feeds_min": 4}}
    async with server_process(configuration, folder, RETURNED_AT_ONCE) as server:
        yield server


def load(database: Documents, collection: str, count: int, size: int) -> None:
    padding = "x" * (size - 300)
    for first in range(0, count, 32):
        numbers = range(first, min(count, first + 32))
        database[collection].insert_many([{"n": n, "pad": padding} for n in numbers])


async def test_what_is_counted_is_bounded_and_is_what_the_process_holds(
    mongo: ReplicaSet, redis_server: RedisServer, database: Documents, tmp_path: Path, name: str
) -> None:
    """The account is filled by what grows most, and compared with what the process has become larger by."""
    tenants = [entry("a", KEY_A, quotas={"requests_per_s": 10_000})]
    async with server_with(mongo, redis_server, tmp_path, *tenants) as server, server.api(KEY_A) as api:
        large, small = feed(database.name, "large"), feed(database.name, "small")
        start = (await api.resolve(large, LATEST)).position
        begin = at(position=(await api.resolve(small, LATEST)).position)
        await asyncio.to_thread(load, database, "large", 64, MIB)
        await asyncio.to_thread(load, database, "small", 20_000, 600)
        # One of each kind of call, so that what is loaded on first use is there.
        watch = api.watch(small, begin, format=feed_pb2.FORMAT_EXTENDED_JSON_RELAXED)
        await watch.take(1)
        watch.cancel()
        before = resident(server)
        with ExitStack() as stack:
            stalled = Stalled(server, stack, KEY_A)
            # Ranges that no reader reads, some of them evicted during the read.
            after = start
            for _ in range(6):
                plan = await api.plan(feed=large, after=after, bytes_max=14 * MIB)
                read = wire.ReadRangeRequest(
                    feed=large, after=plan.after, until=plan.end, message_bytes_max=LARGEST_MESSAGE
                )
                stalled.call("ReadRange", read)
                stalled.pump()
                after = plan.end
            # Messages.
            for _ in range(12):
                stalled.subscribe(large, start=at(position=start))
            # Events that are not acknowledged.
            await api.create(name, small, begin)
            durable = await api.open(name, credit=MOST)
            await durable.take(20_000)
            parts = await steady(server, stalled)
            grown = resident(server) - before
        assert parts.keys() == {
            "rings", "unsent", "requests", "unacknowledged", "renderings", "checks", "policies", "retained",
        }  # fmt: skip
        assert parts["unsent"] > 4 * MIB
        assert parts["retained"] > 8 * MIB
        assert parts["unacknowledged"] > MIB
        counted = sum(parts.values())
        assert counted - parts["retained"] <= MEMORY + MIB
        assert grown <= FRAGMENTATION * counted + TRANSIENT, (grown / MIB, parts)
        assert counted <= FRAGMENTATION * grown + TRANSIENT, (grown / MIB, parts)
