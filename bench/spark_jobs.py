"""The driver of the benchmark `spark`: streams of change events through PySpark into a sink, by several sources.

One driver with one JVM runs all sources in turn, kind by kind and round after round, so that no source meets a JVM that
has compiled less of the code. A query is timed from `start()` until Spark has reported the last row as processed. The
rows are counted in the sink: of files, those that Spark has committed.
"""

import base64
import json
import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

from bson.timestamp import Timestamp
from pymongo import MongoClient
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import DataType, StructType

from bench.crew import Gate
from bench.measure import documents_returned
from bench.report import progress
from bench.settings import COLLECTION, DATABASE
from bench.thread_cpu import ThreadCpu, between

Mode = Literal["envelope", "typed", "same", "json"]
Sink = Literal["parquet", "hash"]
Kind = tuple[Mode, Sink]
KINDS: tuple[Kind, ...] = (("envelope", "hash"), ("typed", "parquet"), ("same", "hash"), ("json", "hash"))
"""`envelope` and `typed` have the columns that each source is made for. `same` and `json` have equal columns: the
fields of the document; and four columns of the event, with all of it as text."""
ENVELOPE_HASH: Final[Kind] = ("envelope", "hash")
SAME_HASH: Final[Kind] = ("same", "hash")

Source = Literal["feedmux", "connector", "connector_even", "raw_cursor"]
WARM_COLLECTION: Final = "warm"
WARM_EVENTS: Final = 2_000

_DOCUMENT: Final = "_id BIGINT, customer STRING, status STRING, quantity INT, price DOUBLE, sent_ns BIGINT, note STRING"
_SAME: Final = f"document STRUCT<{_DOCUMENT.replace(' ', ': ').replace(',: ', ', ')}>"
_JSON: Final = "operation STRING, database STRING, collection STRING, event STRING"
_CONNECTOR_EVENT: Final = (
    "_id STRING, clusterTime STRING, wallTime TIMESTAMP, operationType STRING, ns STRUCT<db: STRING, coll: STRING>,"
    " documentKey STRING, fullDocument STRING"
)
_PARTITIONS: Final = 2
_POLL_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class Task:
    """The task of the driver. Each round runs `sources` for each of `kinds`."""

    kinds: Sequence[Kind]
    rounds: int
    start: Timestamp
    end: Timestamp
    """The operation time after the last insert."""
    warm_start: Timestamp
    """Where the events of WARM_COLLECTION begin."""
    count: int
    endpoint: str
    mongodb: str
    servers: Mapping[str, int]
    """The process ids of MongoDB and feedmux."""
    packages: str = ""
    """Maven coordinates of MongoDB's connector, which the driver fetches. Without them it is not measured."""

    @property
    def sources(self) -> tuple[Source, ...]:
        return ("feedmux", "connector", "connector_even") if self.packages else ("feedmux",)


@dataclass(frozen=True, slots=True)
class Measured:
    """One query."""

    round: int
    source: Source
    kind: Kind
    elapsed_s: float
    count: int
    hash: int
    """Of all columns of all rows; 0 for a sink that has none."""
    cpu_s: Mapping[str, float]
    """By process and kind of thread."""
    returned: int
    """Documents that MongoDB returned meanwhile."""


def drive(gate: Gate, task: Task) -> list[Measured]:
    """Run everything. Reports that it is ready when each source has read a few events."""
    spark = _session(task)
    jvm: Any = spark.sparkContext._jvm
    cpu = ThreadCpu(int(jvm.java.lang.ProcessHandle.current().pid()), task.servers)
    readers: dict[Source, Callable[[Kind, str], DataFrame]] = {
        "feedmux": partial(_by_feedmux, spark, task),
        "connector": partial(_by_connector, spark, task, False),
        "connector_even": partial(_by_connector, spark, task, True),
    }
    measured: list[Measured] = []
    with (
        tempfile.TemporaryDirectory(prefix="feedmux-bench-", ignore_cleanup_errors=True) as name,
        MongoClient[dict[str, Any]](task.mongodb) as client,
    ):
        folder = Path(name)
        for source in task.sources:
            _run(spark, readers[source](SAME_HASH, WARM_COLLECTION), "hash", WARM_EVENTS, folder / "warm" / source)
        gate.wait()
        for number in range(task.rounds):
            for kind in task.kinds:
                for source in task.sources:
                    place = folder / str(number) / source / "-".join(kind)
                    before, returned = cpu.read(), documents_returned(client)
                    rows = readers[source](kind, COLLECTION)
                    elapsed_s, count, found, after = _run(spark, rows, kind[1], task.count, place, cpu)
                    used, returned = between(before, after), documents_returned(client) - returned
                    measured.append(Measured(number, source, kind, elapsed_s, count, found, used, returned))
                    rate = f"{count / elapsed_s:,.0f} rows/s"
                    progress(f"round {number}: {source.replace('_', ' ')}, {' to '.join(kind)}: {rate}")
            elapsed_s, count = _raw_cursor(client, task)
            measured.append(Measured(number, "raw_cursor", ENVELOPE_HASH, elapsed_s, count, 0, {}, count))
        spark.stop()
    return measured


def _by_feedmux(spark: SparkSession, task: Task, kind: Kind, collection: str) -> DataFrame:
    from feedmux.feeds import Start
    from feedmux_spark.connection import Connection
    from feedmux_spark.options import parse_options
    from feedmux_spark.rows import typed_schema

    schemas = {"typed": typed_schema(_struct(_DOCUMENT)), "same": _struct(_SAME), "json": _struct(_JSON)}
    mode = "typed" if kind[0] == "same" else kind[0]
    options = {"endpoint": task.endpoint, "database": DATABASE, "collection": collection, "schemaMode": mode}
    parsed = parse_options(options)
    start = Start.operation_time(task.warm_start if collection == WARM_COLLECTION else task.start)
    position = Connection(parsed).resolve(parsed, start).position
    options["startingOffsets"] = json.dumps({"position": base64.b64encode(position).decode()})
    # A separate comment, so that no query uses events that another one left in the server's memory.
    options["comment"] = options["consumerName"] = f"bench-{time.monotonic_ns()}"
    reader = spark.readStream.format("feedmux").options(**options)
    rows = (reader.schema(schemas[kind[0]]) if kind[0] in schemas else reader).load()
    return rows.select("document.*") if kind[0] == "same" else rows


def _by_connector(spark: SparkSession, task: Task, even: bool, kind: Kind, collection: str) -> DataFrame:
    """Read with MongoDB's connector.

    It has no envelope: event columns with extended JSON are the closest equivalent. It cuts the time between the start
    and now into partitions, and so, by default, most of a backlog that was written in seconds is in one of them.
    """
    start = task.warm_start if collection == WARM_COLLECTION else task.start
    if even and collection == COLLECTION:
        # As long before the middle of the backlog as now is after it: the cut between two partitions is the middle.
        middle_s = (task.start.time + task.end.time) / 2
        start = Timestamp(int(2 * middle_s - time.time()), 1)
    whole = kind[0] in ("envelope", "json")
    options = {
        "connection.uri": task.mongodb,
        "database": DATABASE,
        "collection": collection,
        "change.stream.startup.mode": "timestamp",
        "change.stream.startup.mode.timestamp.start.at.operation.time": json.dumps(
            {"$timestamp": {"t": start.time, "i": start.inc}}
        ),
        "change.stream.micro.batch.max.partition.count": str(_PARTITIONS),
        "change.stream.publish.full.document.only": str(not whole).lower(),
    }
    schema = _CONNECTOR_EVENT if whole else _DOCUMENT
    rows = spark.readStream.format("mongodb").options(**options).schema(schema).load()
    if kind[0] != "json":
        return rows
    text = f.concat_ws(",", "_id", "clusterTime", f.col("wallTime").cast("string"), "documentKey", "fullDocument")
    return rows.select(
        f.col("operationType").alias("operation"),
        f.col("ns.db").alias("database"),
        f.col("ns.coll").alias("collection"),
        text.alias("event"),
    )


def _raw_cursor(client: MongoClient[dict[str, Any]], task: Task) -> tuple[float, int]:
    """Read without Spark: one cursor of pymongo's raw batches, split into events."""
    began_s, count = time.monotonic(), 0
    stage = {"$changeStream": {"startAtOperationTime": task.start}}
    with client[DATABASE][COLLECTION].aggregate_raw_batches([stage]) as cursor:
        while count < task.count:
            batch: Any = cursor.next()
            at = 0
            while at < len(batch):
                at += int.from_bytes(batch[at : at + 4], "little")
                count += 1
    return time.monotonic() - began_s, count


def _session(task: Task) -> SparkSession:
    import feedmux_spark

    feedmux_spark.java_home()
    # Python workers import the connector from the same folders.
    os.environ["PYTHONPATH"] = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    logging.getLogger("py4j").setLevel(logging.WARNING)
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    builder = builder.config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
    builder = builder.config("spark.driver.memory", "2g").config("spark.sql.shuffle.partitions", "2")
    if task.packages:
        # Stopped in the middle of a read, the connector's error is longer than a thread's usual stack can match.
        builder = builder.config("spark.jars.packages", task.packages).config(
            "spark.driver.extraJavaOptions", "-Xss16m"
        )
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def _run(
    spark: SparkSession, rows: DataFrame, sink: Sink, count: int, folder: Path, cpu: ThreadCpu | None = None
) -> tuple[float, int, int, Mapping[tuple[str, int], float]]:
    """Return how long `count` rows took, the rows in the sink and their hash, and the CPU time up to the last row."""
    batches: dict[int, tuple[int, int]] = {}

    def hash_all(batch: DataFrame, batch_id: int) -> None:
        found = batch.agg(f.count("*").alias("rows"), f.bit_xor(f.xxhash64(*batch.columns)).alias("hash")).first()
        assert found is not None
        batches[batch_id] = found.rows, found.hash or 0

    writer = rows.writeStream.option("checkpointLocation", str(folder / "checkpoint"))
    if sink == "hash":
        writer = writer.foreachBatch(hash_all)
    else:
        writer = writer.format("parquet").option("path", str(folder / "rows"))
    began_s = time.monotonic()
    query = writer.start()
    _wait(query, count)
    elapsed_s = time.monotonic() - began_s
    used = cpu.read() if cpu is not None else {}  # before the query's processes end
    query.stop()
    if sink == "parquet":
        # Reads the files that the sink's log names: others were not finished.
        return elapsed_s, spark.read.parquet(str(folder / "rows")).count(), 0, used
    found = 0
    for _, each in batches.values():
        found ^= each
    return elapsed_s, sum(number for number, _ in batches.values()), found, used


def _wait(query: StreamingQuery, count: int) -> None:
    """Wait until Spark has processed `count` rows."""
    done: dict[int, int] = {}
    while sum(done.values()) < count:
        if not query.isActive:
            raise RuntimeError(f"the query has ended: {query.exception()}")
        for progress_ in query.recentProgress:
            done[progress_["batchId"]] = max(done.get(progress_["batchId"], 0), progress_["numInputRows"])
        time.sleep(_POLL_S)


def _struct(ddl: str) -> StructType:
    schema = DataType.fromDDL(ddl)
    assert isinstance(schema, StructType)
    return schema
