"""Spark, and a server that it reads from, each a process of its own: Spark's calls would block a server in this one.

One session of `local[2]` serves all tests that ask for `spark`. Drivers that are to be killed, and other cluster
managers, are processes: see `driver_process`.
"""

import logging
import os
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from pymongo import MongoClient
from pyspark import SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

import feedmux_spark
from feedmux_embedded import RedisServer, ReplicaSet
from tests.documents import Documents
from tests.integration.servers import server_process, settings
from tests.spark.support import PATIENCE_S, Site

# Spark starts its workers by this name; else `python3`, which need not be this environment's.
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
# Spark waits for each of its workers on a port of the kernel's choice, and takes whoever connects for it: here also a
# client of another test that still looks for its server. Unix sockets have no such visitors.
os.environ.setdefault("PYSPARK_UDS_MODE", "true")
# Most of these programs end before Java's second compiler has saved what it costs.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test ends after its waits, not before."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(3 * PATIENCE_S))


@pytest.fixture(scope="session")
def java() -> None:
    """JAVA_HOME is set to a Java that Spark runs on."""
    feedmux_spark.java_home()


@pytest.fixture(scope="session")
def spark(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session of `local[2]`."""
    logging.getLogger("py4j").setLevel(logging.WARNING)
    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        # These tables are small: to compile a query, and to plan it again, costs more than the query. Programs that
        # tests start, as those of test_faults.py, use Spark's own settings.
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        .config("spark.sql.adaptive.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
    )
    session = started(builder)
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
    # The JVM goes when its standard input is closed; pyspark leaves that to the end of the process.
    gateway: Any = SparkContext._gateway
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(60)
    SparkContext._gateway = SparkContext._jvm = None


def started(builder: SparkSession.Builder) -> SparkSession:
    """pyspark forks this process to start Java. gRPC, which other tests use here, may end the fork before that."""
    for tries_left in (2, 1, 0):
        try:
            return builder.getOrCreate()
        except PySparkRuntimeError as error:
            if error.getCondition() != "JAVA_GATEWAY_EXITED" or not tries_left:
                raise
    raise AssertionError("unreachable")


@pytest_asyncio.fixture(scope="session")
async def site(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    """MongoDB, Redis and a server. MongoDB's clock advances by itself every second, so a pinned end is reached soon."""
    async with ReplicaSet(oplog_mb=2048, parameters={"periodicNoopIntervalSecs": "1"}) as mongo:
        configuration = settings(mongo.uri, redis_server.url)
        async with server_process(configuration, tmp_path_factory.mktemp("server")) as server:
            with MongoClient[dict[str, Any]](mongo.uri) as client:
                yield Site(server, client)


@pytest.fixture
def database(site: Site) -> Iterator[Documents]:
    """A database with a fresh name, dropped after the test."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    yield site.client[name]
    site.client.drop_database(name)


@pytest.fixture
def options(site: Site, database: Documents) -> Callable[..., dict[str, str]]:
    """The options of a stream of `database.c` under a name of its own, which further ones are added to."""
    consumer_name = f"query-{uuid.uuid4().hex[:12]}"

    def make(**more: Any) -> dict[str, str]:
        chosen = {
            "endpoint": site.endpoint,
            "database": database.name,
            "collection": "c",
            "consumerName": consumer_name,
            "startingOffsets": "earliest",
            **more,
        }
        return {name: str(value) for name, value in chosen.items()}

    return make
