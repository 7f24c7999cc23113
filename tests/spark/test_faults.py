"""Faults: drivers, workers and servers that are killed, and lost history. No row is lost, none comes twice."""

import asyncio
import os
import signal
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import bson
import pytest
from pymongo import MongoClient
from pyspark.sql import SparkSession

from feedmux_embedded import RedisServer, ReplicaSet
from feedmux_spark.errors import FeedmuxSparkError
from feedmux_spark.options import parse_options
from feedmux_spark.ranges import read_slice
from feedmux_spark.stream import Progress
from tests.conformance.faults import overrun
from tests.documents import Documents, insert
from tests.integration.servers import server_process, settings
from tests.spark.processes import Driver, alive, readers
from tests.spark.support import Sink, Site, drain, is_subscribed, offset, running, shown, slowed, start, wait_until

Options = Callable[..., dict[str, str]]


@asynccontextmanager
async def a_site(
    folder: Path, mongo: ReplicaSet | None = None, **limits: Any
) -> AsyncIterator[tuple[Site, RedisServer]]:
    """Servers for one test, which it may kill or interrupt."""
    async with AsyncExitStack() as stack:
        if mongo is None:
            mongo = await stack.enter_async_context(ReplicaSet(parameters={"periodicNoopIntervalSecs": "1"}))
        redis = await stack.enter_async_context(RedisServer(persistence=True))
        server = await stack.enter_async_context(server_process(settings(mongo.uri, redis.url, **limits), folder))
        client = stack.enter_context(MongoClient[dict[str, Any]](mongo.uri))
        yield Site(server, client), redis


def options_of(site: Site, database: Documents, **more: Any) -> dict[str, str]:
    chosen = {
        "endpoint": site.endpoint,
        "database": database.name,
        "collection": "c",
        "consumerName": f"query-{uuid.uuid4().hex[:12]}",
        "startingOffsets": "earliest",
        **more,
    }
    return {name: str(value) for name, value in chosen.items()}


def logged(checkpoint: Path, log: str) -> list[int]:
    """Batches that a log of the checkpoint holds."""
    return sorted(int(path.name) for path in (checkpoint / log).glob("[0-9]*"))


# --- The driver.


def test_driver_killed_in_batch_0(spark: SparkSession, database: Documents, options: Options, tmp_path: Path) -> None:
    """From the latest on: what came between start and kill is not skipped, though Spark logs no first offset."""
    check, sink = tmp_path / "check", Sink(tmp_path / "out")
    job = {"options": options(startingOffsets="latest"), "sink": str(sink.folder), "checkpoint": str(check)}
    with Driver(tmp_path / "one", **job, trigger="default", hold={"batch": 0, "when": "before"}) as driver:
        wait_until(lambda: is_subscribed(options()))
        insert(database, range(100))
        driver.wait_held()
        jvm = driver.jvm
        driver.kill()
    assert not alive(jvm)
    assert logged(check, "commits") == []
    assert not sink.folder.exists()
    insert(database, range(100, 150))
    drain(spark, options(startingOffsets="latest"), sink, check)
    assert sink.numbers() == list(range(150))


@pytest.mark.full
@pytest.mark.parametrize("when", ["before", "after"])
def test_driver_killed_between_the_logs(
    spark: SparkSession, database: Documents, options: Options, tmp_path: Path, when: str
) -> None:
    """Before or after the sink wrote batch 1: it comes again, the same."""
    check, sink = tmp_path / "check", Sink(tmp_path / "out")
    insert(database, range(300))
    job = {"options": options(maxEventsPerTrigger=100), "sink": str(sink.folder), "checkpoint": str(check)}
    with Driver(tmp_path / "one", **job, hold={"batch": 1, "when": when}) as driver:
        driver.wait_held()
        driver.kill()
    assert (logged(check, "offsets"), logged(check, "commits")) == ([0, 1], [0])
    assert len(sink.numbers()) == (200 if when == "after" else 100)
    drain(spark, options(maxEventsPerTrigger=70), sink, check)
    assert sink.numbers(1) == list(range(100, 200))
    assert sink.numbers() == list(range(300))


@pytest.mark.full
def test_worker_killed_in_the_middle_of_a_slice(
    site: Site, database: Documents, options: Options, tmp_path: Path
) -> None:
    check, sink = tmp_path / "check", Sink(tmp_path / "out")
    insert(database, range(8000), pad=2000)
    job = {"options": options(readPartitions=1), "sink": str(sink.folder), "checkpoint": str(check)}
    with Driver(tmp_path / "one", master="local[2,4]", **job, ms_per_row=0.5) as driver:
        port = site.server.ports[0]
        wait_until(lambda: driver.started and readers(driver.jvm, port))
        killed = readers(driver.jvm, port)
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        driver.wait_done()
        assert "Python worker exited unexpectedly" in driver.log.read_text()
        assert not any(map(alive, killed))
    assert sink.numbers() == list(range(8000))


# --- The server, and what it depends on.


@pytest.mark.full
async def test_server_killed_in_the_middle_of_reads_and_plans(spark: SparkSession, tmp_path: Path) -> None:
    async with a_site(tmp_path) as (site, _):
        database = site.client["killed"]
        insert(database, range(8000), pad=2000)
        sink = Sink(tmp_path / "out")

        def write(batch: Any, batch_id: int) -> None:
            sink.write(slowed(batch, 0.5), batch_id)

        query = start(spark, options_of(site, database, pollTimeoutMs=5000), write, tmp_path / "check")
        with running(query):
            jvm: Any = spark.sparkContext._jvm
            driver = jvm.java.lang.ProcessHandle.current().pid()
            await in_time(lambda: readers(driver, site.server.ports[0]))
            await site.server.kill9()
            assert not site.server.process.running
            await site.server.start()
            await in_time(lambda: len(sink.numbers()) == 8000)
            # Now it is waiting at the server for more.
            await in_time(lambda: shown(query, "numInputRows") == 0)
            await site.server.kill9()
            insert(database, range(8000, 8100))
            await site.server.start()
            await in_time(lambda: len(sink.numbers()) == 8100)
            assert query.isActive
        assert sink.numbers() == list(range(8100))


@pytest.mark.full
async def test_history_lost_in_the_middle(spark: SparkSession, tmp_path: Path) -> None:
    quick: dict[str, Any] = {"oplog_mb": 8, "arguments": ["--syncdelay", "1"]}
    async with ReplicaSet(**quick, parameters={"periodicNoopIntervalSecs": "1"}) as mongo, AsyncExitStack() as stack:
        site, _ = await stack.enter_async_context(a_site(tmp_path, mongo, unused_stream_s=0.05))
        database, sink, check = site.client["lost"], Sink(tmp_path / "out"), tmp_path / "check"
        options = options_of(site, database)
        insert(database, range(10))
        await asyncio.to_thread(drain, spark, options, sink, check)
        insert(database, range(10, 20))
        await overrun(site.client)
        insert(database, range(20, 30))
        with pytest.raises(Exception, match=r"Changes are lost.*failOnDataLoss=false.*HISTORY_LOST"):
            await asyncio.to_thread(drain, spark, options, sink, check)
        assert sink.numbers() == list(range(10))
        query = await asyncio.to_thread(drain, spark, {**options, "failOnDataLoss": "false"}, sink, check)
        assert sink.numbers() == [*range(10), *range(20, 30)]
        ends = [offset(progress["sources"][0]["endOffset"])["gaps"] for progress in query.recentProgress]
        assert ends[-1] == 1


async def test_redis_lost_everything_and_the_server_restarted(tmp_path: Path) -> None:
    """Nobody can verify the checkpoint any more; the error says where to begin instead."""
    async with a_site(tmp_path) as (site, redis):
        database = site.client["lost"]
        options = options_of(site, database)
        insert(database, range(5))
        progress = Progress(parse_options(options))
        begin = await asyncio.to_thread(progress.begin)
        end = await asyncio.to_thread(progress.advance, begin, 1000)
        insert(database, range(5, 10))
        await site.server.kill9()
        await redis_command(redis, b"FLUSHALL\r\n")
        await site.server.start()
        with pytest.raises(FeedmuxSparkError, match="a new consumerName and startingOffsets") as caught:
            await asyncio.to_thread(Progress(parse_options(options)).advance, end, 1000)
        time = str(caught.value).partition("startingOffsets ")[2].partition(",")[0]
        again = Progress(parse_options({**options, "consumerName": "another", "startingOffsets": time}))
        begin = await asyncio.to_thread(again.begin)
        end = await asyncio.to_thread(again.advance, begin, 1000)
        read = b"".join(
            events for each in again.slices(begin, end) for events in read_slice(parse_options(options), each)
        )
        assert {5, 6, 7, 8, 9} <= {event["fullDocument"]["n"] for event in bson.decode_all(read)}


async def in_time(condition: Callable[[], object]) -> None:
    """Wait without blocking the loop, in which servers are started and killed."""
    await asyncio.to_thread(wait_until, condition)


async def redis_command(redis: RedisServer, command: bytes) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", redis.port)
    writer.write(command)
    await writer.drain()
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
