"""Jobs of the benchmark `spark`: streams of change events through PySpark into a sink, by three sources.

A job is a driver with its own Java process. It does the preparation that must not be measured (the session, one small
query of each kind, so that Java has compiled the code), waits for the start, and then times its queries one after the
other: from `start()` until Spark has reported the last row as processed. The rows are counted in the sink.
"""

import base64
import json
import logging
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
from bson.timestamp import Timestamp
from pymongo import MongoClient
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import DataType, StructType

from bench.crew import Gate
from bench.settings import COLLECTION, DATABASE

Mode = Literal["envelope", "typed"]
Sink = Literal["parquet", "hash"]
Kind = tuple[Mode, Sink]
KINDS: tuple[Kind, ...] = (("envelope", "parquet"), ("envelope", "hash"), ("typed", "parquet"), ("typed", "hash"))
WARM_COLLECTION = "warm"
WARM_EVENTS = 2_000
SYNTHETIC = "feedmux-synthetic"

DOCUMENT = "_id BIGINT, customer STRING, status STRING, quantity INT, price DOUBLE, sent_ns BIGINT, note STRING"
_CONNECTOR_ENVELOPE = (
    "_id STRING, clusterTime STRING, wallTime TIMESTAMP, operationType STRING, ns STRUCT<db: STRING, coll: STRING>,"
    " documentKey STRING, fullDocument STRING"
)
_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Task:
    """The task of one driver. `kinds` are timed in order."""

    kinds: Sequence[Kind]
    start: Timestamp
    warm_start: Timestamp
    """Where the events of WARM_COLLECTION begin."""
    count: int
    endpoint: str = ""
    mongodb: str = ""
    packages: str = ""
    """Maven coordinates that the driver fetches."""
    sample: bytes = b""
    """Events of the synthetic source, which repeats them."""

    def begin(self, collection: str) -> Timestamp:
        return self.warm_start if collection == WARM_COLLECTION else self.start


@dataclass(frozen=True, slots=True)
class Timed:
    """The timing of one query."""

    kind: Kind
    elapsed_s: float
    count: int


def by_feedmux(gate: Gate, task: Task) -> list[Timed]:
    from feedmux.feeds import Start
    from feedmux_spark.connection import Connection
    from feedmux_spark.options import parse_options
    from feedmux_spark.rows import typed_schema

    spark = _session(task)
    run = f"{os.getpid()}-{time.monotonic_ns()}"

    def source(kind: Kind, collection: str) -> DataFrame:
        options = {"endpoint": task.endpoint, "database": DATABASE, "collection": collection, "schemaMode": kind[0]}
        parsed = parse_options(options)
        position = Connection(parsed).resolve(parsed, Start.operation_time(task.begin(collection))).position
        options["startingOffsets"] = json.dumps({"position": base64.b64encode(position).decode()})
        # A separate comment, so that the run does not use events that another run left in the server's memory.
        options["comment"] = options["consumerName"] = f"bench-{run}-{'-'.join(kind)}-{collection}"
        reader = spark.readStream.format("feedmux").options(**options)
        return (reader.schema(typed_schema(_struct(DOCUMENT))) if kind[0] == "typed" else reader).load()

    return _timed(gate, task, spark, source)


def by_connector(gate: Gate, task: Task) -> list[Timed]:
    """Read with MongoDB's connector.

    It has no envelope: event columns with extended JSON are the closest equivalent.
    """
    spark = _session(task)

    def source(kind: Kind, collection: str) -> DataFrame:
        options = {
            "connection.uri": task.mongodb,
            "database": DATABASE,
            "collection": collection,
            "change.stream.startup.mode": "timestamp",
            "change.stream.startup.mode.timestamp.start.at.operation.time": json.dumps(
                {"$timestamp": {"t": task.begin(collection).time, "i": task.begin(collection).inc}}
            ),
            "change.stream.micro.batch.max.partition.count": "2",
            "change.stream.publish.full.document.only": str(kind[0] == "typed").lower(),
        }
        schema = DOCUMENT if kind[0] == "typed" else _CONNECTOR_ENVELOPE
        return spark.readStream.format("mongodb").options(**options).schema(schema).load()

    return _timed(gate, task, spark, source)


def by_nothing(gate: Gate, task: Task) -> list[Timed]:
    """Read the same rows from the memory of the Python workers, to show what Spark itself achieves with two cores."""
    spark = _session(task)
    spark.dataSource.register(Synthetic)
    folder = tempfile.mkdtemp(prefix="feedmux-bench-")
    sample = Path(folder, "events.bson")
    sample.write_bytes(task.sample)

    def source(kind: Kind, collection: str) -> DataFrame:
        from feedmux_spark.rows import typed_schema

        rows = WARM_EVENTS if collection == WARM_COLLECTION else task.count
        reader = spark.readStream.format(SYNTHETIC).options(mode=kind[0], rows=str(rows), sample=str(sample))
        return (reader.schema(typed_schema(_struct(DOCUMENT))) if kind[0] == "typed" else reader).load()

    return _timed(gate, task, spark, source)


def by_raw_cursor(gate: Gate, task: Task) -> list[Timed]:
    """Read without Spark: one cursor of pymongo's raw batches, split into events."""
    with MongoClient[dict[str, Any]](task.mongodb) as client:
        orders = client[DATABASE][COLLECTION]
        orders.find_one()
        stage = {"$changeStream": {"startAtOperationTime": task.start}}
        began_s = gate.wait()
        count = 0
        with orders.aggregate_raw_batches([stage]) as cursor:
            while count < task.count:
                batch: Any = cursor.next()
                at = 0
                while at < len(batch):
                    at += int.from_bytes(batch[at : at + 4], "little")
                    count += 1
        return [Timed(("envelope", "hash"), time.monotonic() - began_s, count)]


def _session(task: Task) -> SparkSession:
    import feedmux_spark

    feedmux_spark.java_home()
    # Python workers import this module and the connector from the same folders.
    os.environ["PYTHONPATH"] = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
    logging.getLogger("py4j").setLevel(logging.WARNING)
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
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


def _timed(gate: Gate, task: Task, spark: SparkSession, source: Any) -> list[Timed]:
    with tempfile.TemporaryDirectory(prefix="feedmux-bench-", ignore_cleanup_errors=True) as folder:
        for kind in task.kinds:
            _run(spark, source(kind, WARM_COLLECTION), kind[1], WARM_EVENTS, Path(folder, "warm", *kind))
        gate.wait()
        found = [_run(spark, source(kind, COLLECTION), kind[1], task.count, Path(folder, *kind)) for kind in task.kinds]
        spark.stop()
    return [Timed(kind, *each) for kind, each in zip(task.kinds, found, strict=True)]


def _run(spark: SparkSession, rows: DataFrame, sink: Sink, count: int, folder: Path) -> tuple[float, int]:
    """Return how long `count` rows took, and how many rows are in the sink."""
    hashed: list[int] = []

    def hash_all(batch: DataFrame, _batch_id: int) -> None:
        found = batch.agg(f.count("*").alias("rows"), f.bit_xor(f.xxhash64(*batch.columns)).alias("hash")).first()
        assert found is not None
        hashed.append(found.rows)

    writer = rows.writeStream.option("checkpointLocation", str(folder / "checkpoint"))
    if sink == "hash":
        writer = writer.foreachBatch(hash_all)
    else:
        writer = writer.format("parquet").option("path", str(folder / "rows"))
    began_s = time.monotonic()
    query = writer.start()
    _wait(query, count)
    elapsed_s = time.monotonic() - began_s
    query.stop()
    if sink == "hash":
        return elapsed_s, sum(hashed)
    files = (folder / "rows").glob("*.parquet")
    return elapsed_s, sum(pq.read_metadata(file).num_rows for file in files)


def _wait(query: StreamingQuery, count: int) -> None:
    """Wait until Spark has processed `count` rows."""
    done: dict[int, int] = {}
    while sum(done.values()) < count:
        if not query.isActive:
            raise RuntimeError(f"the query has ended: {query.exception()}")
        for progress in query.recentProgress:
            done[progress["batchId"]] = max(done.get(progress["batchId"], 0), progress["numInputRows"])
        time.sleep(_POLL_S)


def _struct(ddl: str) -> StructType:
    schema = DataType.fromDDL(ddl)
    assert isinstance(schema, StructType)
    return schema


class Synthetic(DataSource):
    """`rows` rows of `mode`, from the events in the file `sample`."""

    @classmethod
    def name(cls) -> str:
        return SYNTHETIC

    def schema(self) -> StructType:
        from feedmux_spark.rows import default_schema

        return default_schema(self.options["mode"])

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 Spark's name
        return _SyntheticReader(self.options, schema)


@dataclass(frozen=True)
class _Part(InputPartition):
    rows: int


class _SyntheticReader(DataSourceStreamReader):
    """Micro-batches of the size that feedmux has for these events: 64 MB."""

    _BATCH_ROWS = 125_000
    _CORES = 2

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = dict(options)
        self._schema = schema
        self._given = 0

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return {"rows": 0}

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802
        self._given = min(self._given + self._BATCH_ROWS, int(self._options["rows"]))
        return {"rows": self._given}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        rows = end["rows"] - start["rows"]
        half = rows // self._CORES
        return [_Part(half), _Part(rows - half)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from feedmux_spark.rows import row_maker

        assert isinstance(partition, _Part)
        events = Path(self._options["sample"]).read_bytes()
        (batch,) = row_maker(self._options["mode"], self._schema, "fail").record_batches(events)
        left = partition.rows
        while left > 0:
            yield batch.slice(0, min(left, batch.num_rows))
            left -= batch.num_rows

    def commit(self, end: dict[str, Any]) -> None: ...
