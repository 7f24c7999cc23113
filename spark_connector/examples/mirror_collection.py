"""Mirrors a MongoDB collection to a table, with feedmux and Spark.

1. Reads the existing documents, and then the changes since then, as one stream.
2. Applies the latest change of each document, idempotently.
3. Compares the table with the collection.

Try it: run `feedmux dev --workload`, and with the key and the URI that it prints:

    python mirror_collection.py --token KEY --mongodb mongodb://127.0.0.1:PORT --path /tmp/orders

A second run continues from where the first run ended. `--follow` keeps applying changes until Ctrl-C. `--again` reads
the existing documents again into the table, after lost history: documents that were deleted meanwhile are swept.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pymongo import MongoClient
from pymongo.read_concern import ReadConcern
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import DataType, StructType

import feedmux_spark
from feedmux_spark.apply import DeltaMirror, Mirror, ParquetMirror, mirror_schema
from feedmux_spark.positions import snapshot_offsets
from feedmux_spark.rows import documents_batch

ORDERS = """_id STRING, customer BIGINT, status STRING, items ARRAY<STRUCT<item: STRING, quantity: INT>>, total DOUBLE,
 change BIGINT, note STRING"""


def main() -> int:
    args = arguments()
    feedmux_spark.java_home()
    spark = session(args)
    schema = DataType.fromDDL(args.schema)
    assert isinstance(schema, StructType)
    kind = DeltaMirror if args.format == "delta" else ParquetMirror
    mirror: Mirror = kind(spark, f"{args.path}/table", f"{args.database}.{args.collection}")
    options = {
        "endpoint": args.endpoint,
        "database": args.database,
        "collection": args.collection,
        "fullDocument": "updateLookup",
        "schemaMode": "typed",
        **({"token": args.token} if args.token else {}),
    }
    file = Path(args.path, "start.json")
    if args.again or not file.exists():
        offsets = snapshot_offsets(options)
        store(file, {"startingOffsets": offsets, "consumerName": f"mirror-{uuid.uuid4().hex}", "copies": "true"})
    start: dict[str, str] = json.loads(file.read_text())
    copies = start.pop("copies", "")
    if not mirror.exists():
        mirror.create_empty(schema)
    checkpoint = f"{args.path}/checkpoint/{start['consumerName']}"
    changes = spark.readStream.format("feedmux").options(**options, **start).schema(mirror_schema(schema)).load()
    writer = changes.writeStream.foreachBatch(mirror.apply).option("checkpointLocation", checkpoint)
    if args.follow:
        # Ctrl-C. A KeyboardInterrupt would be logged by py4j with a traceback.
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    if copies:
        writer.trigger(availableNow=True).start().awaitTermination()
        mirror.sweep(start["startingOffsets"])
        store(file, start)
        print(f"copied {mirror.read().count():,} documents", flush=True)
    if args.follow:
        writer = changes.writeStream.foreachBatch(mirror.apply).option("checkpointLocation", checkpoint)
        query = writer.start()
        query.awaitTermination()
    differing: dict[str, str] = {}
    for _ in range(args.looks):
        writer.trigger(availableNow=True).start().awaitTermination()
        before, differing = differing, differences(spark, args, schema, mirror)
        # A document that is being changed may differ for a moment. A document that differs twice without a change is
        # wrong.
        stuck = {key: place for key, place in differing.items() if before.get(key) == place}
        if stuck:
            print(f"{len(stuck):,} documents differ, such as {min(stuck)}", file=sys.stderr)
            return 1
        if not differing:
            print(f"equal: {mirror.read().count():,} documents")
            return 0
    print(f"equal, except for {len(differing):,} documents that were being changed")
    return 0


def store(file: Path, start: dict[str, str]) -> None:
    """Stores where the stream begins, its name, and `copies` until the copy is complete: a crash does no harm."""
    file.with_suffix(".new").write_text(json.dumps(start))
    file.with_suffix(".new").rename(file)


@contextmanager
def copied(spark: SparkSession, args: argparse.Namespace, schema: StructType) -> Iterator[DataFrame]:
    """Yields the collection's documents as MongoDB has them now, through a temporary Parquet file. On a cluster, use a
    shared file system."""
    with tempfile.TemporaryDirectory(prefix="copy-", dir=args.path) as folder, MongoClient[Any](args.mongodb) as client:
        collection = client[args.database].get_collection(args.collection, read_concern=ReadConcern("majority"))
        path, writer = f"{folder}/documents.parquet", None
        for raw in collection.find_raw_batches():
            batch = documents_batch(raw, schema)
            writer = writer or pq.ParquetWriter(path, batch.schema)
            writer.write_batch(batch)
        if writer is None:
            batch = documents_batch(b"", schema)
            writer = pq.ParquetWriter(path, batch.schema)
        writer.close()
        yield spark.read.parquet(path)


def differences(spark: SparkSession, args: argparse.Namespace, schema: StructType, mirror: Mirror) -> dict[str, str]:
    """Returns the documents that differ between the table and the collection, each with the `sort_key` of its last
    change."""
    with copied(spark, args, schema) as documents:
        theirs = documents.select("document_key", f.col("document").alias("theirs"))
        both = mirror.read().join(theirs, "document_key", "full_outer")
        rows = both.where(~f.col("document").eqNullSafe(f.col("theirs")))
        rows = rows.select(f.to_json("document_key").alias("key"), f.hex("sort_key").alias("place"))
        return {row.key: row.place or "" for row in rows.collect()}


def session(args: argparse.Namespace) -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("mirror").config("spark.ui.enabled", "false")
    if "SPARK_REMOTE" not in os.environ and "MASTER" not in os.environ:
        builder = builder.master("local[2]").config("spark.driver.bindAddress", "127.0.0.1")
        builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.sql.shuffle.partitions", "2")
    if args.format == "delta":
        builder = builder.config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension").config(
            "spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog"
        )
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--endpoint", default="localhost:7117", help="address of feedmux (localhost:7117)")
    parser.add_argument(
        "--token", default=os.environ.get("FEEDMUX_API_KEY"), help="an API key or JWT; by default FEEDMUX_API_KEY"
    )
    parser.add_argument(
        "--mongodb", required=True, metavar="URI", help="the deployment, to compare with the collection"
    )
    parser.add_argument("--database", default="shop", help="database of the collection (shop)")
    parser.add_argument("--collection", default="orders", help="name of the collection (orders)")
    parser.add_argument(
        "--schema", metavar="DDL", default=ORDERS, help="fields of the documents with Spark types, `_id` among them;"
        " by default those of the workload's orders",
    )  # fmt: skip
    parser.add_argument("--path", required=True, metavar="FOLDER", help="folder for the table and the checkpoint")
    parser.add_argument(
        "--format", choices=("parquet", "delta"), default="parquet", help="format of the table (parquet)"
    )
    parser.add_argument("--again", action="store_true", help="first read the existing documents again")
    parser.add_argument("--follow", action="store_true", help="keep applying changes instead of comparing")
    parser.add_argument(
        "--looks", type=int, default=5, metavar="N", help="how often to compare while writes continue (5)"
    )
    args = parser.parse_args()
    args.path = str(Path(args.path).resolve())
    Path(args.path).mkdir(parents=True, exist_ok=True)
    return args


if __name__ == "__main__":
    sys.exit(main())
