"""Existing documents first: a mirror equals the collection, whatever is killed, written and deleted meanwhile."""

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bson
import pyarrow.parquet as pq
import pytest
from pymongo import AsyncMongoClient
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StructField, StructType

from feedmux_spark.apply import ParquetMirror, mirror_schema
from feedmux_spark.offsets import Offset
from feedmux_spark.options import parse_options
from feedmux_spark.positions import snapshot_offsets
from feedmux_spark.ranges import read_slice
from feedmux_spark.stream import Progress
from tests.documents import Documents, insert
from tests.spark.processes import Driver
from tests.spark.support import PATIENCE_S, Sink, drain, offset, shown
from tests.spark.test_faults import a_site, options_of, redis_command

Options = Callable[..., dict[str, str]]
DOCUMENT = StructType([StructField("_id", LongType()), StructField("v", LongType())])
KEY = StructType([StructField("_id", LongType())])


async def write(uri: str, database: str, ids: range) -> None:
    """Changes documents until it is cancelled."""
    rng = random.Random(1)
    async with AsyncMongoClient[dict[str, Any]](uri) as client:
        collection = client[database].c
        for number in range(10**9):
            one, kind = {"_id": rng.choice(ids)}, rng.random()
            if kind < 0.3:
                await collection.delete_one(one)
            elif kind < 0.6:
                await collection.replace_one(one, {"v": number}, upsert=True)
            else:
                await collection.update_one(one, {"$inc": {"v": 1}})
            # Few enough that Spark, which takes seconds for a batch on a busy machine, catches up.
            await asyncio.sleep(0.02)


@pytest.mark.full
async def test_a_mirror_equals_the_collection_whatever_breaks(spark: SparkSession, tmp_path: Path) -> None:
    """Queries fail before and after a batch is applied, and the server is killed, while the collection is written."""
    async with a_site(tmp_path, batch_events=100, snapshot_step_s=0) as (site, _):
        database, ids = site.client["copied"], range(600)
        database.c.insert_many([{"_id": each, "v": 0} for each in ids])
        mirror = ParquetMirror(spark, str(tmp_path / "mirror"))
        # Of an earlier copy: a document that is gone now.
        columns = StructType([StructField("document_key", KEY), StructField("document", DOCUMENT)])
        mirror.create(spark.createDataFrame([((-1,), (-1, 5))], columns))
        options = options_of(
            site, database, fullDocument="updateLookup", maxEventsPerTrigger=200, schemaMode="typed",
        )  # fmt: skip
        options["startingOffsets"] = await asyncio.to_thread(snapshot_offsets, options)
        wanted = mirror_schema(DOCUMENT)

        def run(fail_at: tuple[int, str] | None) -> None:
            def apply(batch: DataFrame, batch_id: int) -> None:
                if (batch_id, "before") == fail_at:
                    raise RuntimeError("before")
                mirror.apply(batch, batch_id)
                if (batch_id, "after") == fail_at:
                    raise RuntimeError("after")

            changes = spark.readStream.format("feedmux").options(**options).schema(wanted).load()
            writer = changes.writeStream.foreachBatch(apply).option("checkpointLocation", str(tmp_path / "check"))
            query = writer.trigger(availableNow=True).start()
            assert query.awaitTermination(PATIENCE_S)
            ends.append(offset(shown(query, "sources")[0]["endOffset"]))

        ends = list[dict[str, Any]]()
        host, port = site.client.primary or ("", 0)
        writing = asyncio.create_task(write(f"mongodb://{host}:{port}/?directConnection=true", database.name, ids))
        for fail_at in ((1, "after"), (2, "before")):
            with pytest.raises(Exception, match=fail_at[1]):
                await asyncio.to_thread(run, fail_at)
            await site.server.kill9()
            await site.server.start()
        await asyncio.to_thread(run, None)
        writing.cancel()
        await asyncio.wait([writing])
        assert writing.cancelled()
        await asyncio.to_thread(run, None)
        assert [end.get("copiedDocuments") for end in ends] == [None, None]
        held = {row.document_key._id: row.document.v for row in mirror.read().collect()}
        assert held.pop(-1) == 5
        mirror.sweep(options["startingOffsets"])
        assert mirror.read().where("document_key._id = -1").count() == 0
        assert mirror.read().count() == len(held)
        assert held == {each["_id"]: each["v"] for each in database.c.find()}


async def test_a_copy_continues_with_another_server_and_an_empty_redis(tmp_path: Path) -> None:
    async with a_site(tmp_path) as (site, redis):
        database = site.client["copied"]
        insert(database, range(300))
        options = parse_options(options_of(site, database, startingOffsets="snapshot"))
        first = Progress(options)
        begin = await asyncio.to_thread(first.begin)
        end = await asyncio.to_thread(first.advance, begin, 100)
        assert (begin.copied, end.copied) == (0, 100)
        first.stop()
        await site.server.kill9()
        await site.server.start()
        second = Progress(options)

        def read(after: Offset, until: Offset) -> list[int]:
            parts = [part for each in second.slices(after, until) for part in read_slice(options, each)]
            return [event["fullDocument"]["n"] for part in parts for event in bson.decode_all(part)]

        found = await asyncio.to_thread(read, begin, end)
        assert found == list(range(100))
        await redis_command(redis, b"FLUSHALL\r\n")
        while end.copied is not None:
            after, end = end, await asyncio.to_thread(second.advance, end, 100)
            found += await asyncio.to_thread(read, after, end)
        second.stop()
        assert found == list(range(300))


@pytest.mark.full
def test_a_batch_of_documents_comes_again_as_it_was(
    spark: SparkSession, database: Documents, options: Options, tmp_path: Path
) -> None:
    """The driver is killed, and the documents change before another one reads the batch again."""
    insert(database, range(300))
    chosen = options(startingOffsets="snapshot", maxEventsPerTrigger=100)
    check, sink = tmp_path / "check", Sink(tmp_path / "out")
    job = {"options": chosen, "sink": str(sink.folder), "checkpoint": str(check)}
    with Driver(tmp_path / "one", **job, hold={"batch": 1, "when": "after"}) as driver:
        driver.wait_held()
        driver.kill()
    before = events(sink, 1)
    assert len(before) == 100
    database.c.update_many({}, {"$inc": {"n": 1000}})
    database.c.delete_one({"n": 1150})
    query = drain(spark, chosen, sink, check)
    assert events(sink, 1) == before
    seen = [bson.decode(event) for event in events(sink, "*")]
    assert [event["fullDocument"]["n"] for event in seen[:200]] == list(range(200))
    copied = [offset(each["sources"][0]["endOffset"]).get("copiedDocuments") for each in query.recentProgress]
    assert copied[0] == 200
    assert copied[-1] is None


def events(sink: Sink, batch_id: int | str) -> list[bytes]:
    paths = sorted(
        sink.folder.glob(f"batch={batch_id}/*.parquet"), key=lambda path: (int(path.parent.name[6:]), path.name)
    )
    return [row["event"] for path in paths for row in pq.read_table(path).to_pylist()]
