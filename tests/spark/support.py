"""Helpers for the Spark tests: a sink that tolerates repeats, queries into it, and waiting for what they do."""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bson
import pyarrow.parquet as pq
from pymongo import MongoClient
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

import feedmux
from tests import waiting
from tests.documents import Document
from tests.integration.servers import ServerProcess

Write = Callable[[DataFrame, int], None]
PATIENCE_S = 600
"""Each wait ends much sooner; but a Java that starts, and its Python workers, take ten times as long beside the five
other processes of `./run test --all`."""


@dataclass(frozen=True, slots=True)
class Site:
    """A server, and MongoDB behind it."""

    server: ServerProcess
    client: MongoClient[Document]

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.server.ports[0]}"


def numbers(rows: Iterable[Any]) -> list[int]:
    """`fullDocument.n` of rows of the envelope."""
    return [int(bson.decode(bytes(row["event"]))["fullDocument"]["n"]) for row in rows]


class Sink:
    """A table of Parquet files, a folder for each micro-batch, so that writing one again does no harm."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, batch: DataFrame, batch_id: int) -> None:
        batch.select("event").write.mode("overwrite").parquet(str(self.folder / f"batch={batch_id}"))

    def numbers(self, batch_id: int | str = "*") -> list[int]:
        """What it holds, in the order of batches, partitions and rows."""

        def order(path: Path) -> tuple[int, str]:
            return int(path.parent.name.removeprefix("batch=")), path.name.partition("-c000")[0]

        found = sorted(self.folder.glob(f"batch={batch_id}/*.parquet"), key=order)
        return [n for path in found for n in numbers(pq.read_table(path).to_pylist())]

    def sizes(self) -> list[int]:
        """Rows of each batch."""
        count = len(list(self.folder.glob("batch=*")))
        return [len(self.numbers(batch_id)) for batch_id in range(count)]


def stream(spark: SparkSession, options: dict[str, str]) -> DataFrame:
    return spark.readStream.format("feedmux").options(**options).load()


def slowed(rows: DataFrame, ms_per_row: float) -> DataFrame:
    """The same rows, taken no faster than that: a wait of 10 ms for every so many."""
    if not ms_per_row:
        return rows
    every = max(1, round(10 / ms_per_row))
    nap = f.expr("reflect('java.lang.Thread', 'sleep', cast(10 as bigint))")
    waited = f.when(f.monotonically_increasing_id() % every == 0, nap).otherwise(f.lit(""))
    # Depends on the row and is part of what is kept, so it is not left out.
    return rows.withColumn("waited", waited).where(f.col("waited").isNotNull() | f.col("event").isNotNull())


def start(
    spark: SparkSession, options: dict[str, str], sink: Sink | Write, checkpoint: Path, **trigger: Any
) -> StreamingQuery:
    """A query into the sink; without a trigger, as fast as it goes."""
    writer = stream(spark, options).writeStream.foreachBatch(sink.write if isinstance(sink, Sink) else sink)
    if trigger:
        writer = writer.trigger(**trigger)
    return writer.option("checkpointLocation", str(checkpoint)).start()


def drain(
    spark: SparkSession, options: dict[str, str], sink: Sink, checkpoint: Path, patience_s: float = PATIENCE_S
) -> StreamingQuery:
    """All that is there now."""
    query = start(spark, options, sink, checkpoint, availableNow=True)
    assert query.awaitTermination(int(patience_s)), "the query did not end"
    return query


def offset(shown: Any) -> Document:
    """An offset of the query's progress."""
    found: Document = json.loads(shown) if isinstance(shown, str) else shown
    return found


def is_subscribed(options: dict[str, str]) -> bool:
    """Whether the query has stored its start."""
    with feedmux.Client(options["endpoint"]) as client:
        return any(each.name == options["consumerName"] for each in client.list_subscriptions())


def shown(query: StreamingQuery, name: str) -> Any:
    """A field of the query's last progress; None before there is any."""
    progress: Any = query.lastProgress
    return None if progress is None else progress[name]


@contextmanager
def running(query: StreamingQuery) -> Iterator[StreamingQuery]:
    try:
        yield query
    finally:
        query.stop()


def wait_until(condition: Callable[[], object], query: StreamingQuery | None = None) -> None:
    """Wait until the condition holds; a query that fails meanwhile fails the test."""

    def holds() -> object:
        if query is not None and not query.isActive:
            raise AssertionError(f"the query has ended: {query.exception()}")
        return condition()

    waiting.wait_until(holds, guard_s=PATIENCE_S)
