"""A mirror in a Delta table, where there is a Delta for this Spark: its jars come from Maven Central."""

import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from tests.integration.servers import REPOSITORY

# Delta 4.4 for Spark 4.2 loads on Spark 4.3 and writes, but its MERGE calls a constructor that is gone.
DELTA = {"4.2": "io.delta:delta-spark_4.2_2.13:4.4.0"}

SCRIPT = """
import sys
from pathlib import Path
from pyspark.sql import SparkSession
import feedmux_spark
from feedmux_spark.apply import DeltaMirror
from tests.spark.test_apply import DOCUMENT, KEY, change, content, frame
from pyspark.sql.types import StructField, StructType

feedmux_spark.java_home()
spark = (
    SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    .config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
    .config("spark.sql.shuffle.partitions", "2").config("spark.jars.packages", sys.argv[1])
    .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
    .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog").getOrCreate()
)
print("started", flush=True)
mirror = DeltaMirror(spark, sys.argv[2])
assert not mirror.exists()
copy = StructType([StructField("document_key", KEY), StructField("document", DOCUMENT)])
mirror.create(spark.createDataFrame([((number,), (number, "copied")) for number in (1, 2, 3)], copy))
assert mirror.exists()
first = frame(spark, [
    change(1, "update", 1, "updated"), change(2, "delete", 2), change(3, "insert", 4, "new"),
    change(4, "insert", 5, "short-lived"), change(5, "delete", 5),
])
mirror.apply(first, 0)
assert content(mirror) == {1: "updated", 3: "copied", 4: "new"}, content(mirror)
versions = len(list(Path(sys.argv[2], "_delta_log").glob("*.json")))
mirror.apply(first, 0)
assert len(list(Path(sys.argv[2], "_delta_log").glob("*.json"))) == versions
mirror.apply(frame(spark, [change(1, "update", 1, "old")]), 1)
assert content(mirror) == {1: "updated", 3: "copied", 4: "new"}, content(mirror)
dropped = [change(7, "insert", 9, "lost"), change(8, "drop", None), change(9, "insert", 1, "after")]
mirror.apply(frame(spark, dropped), 2)
assert content(mirror) == {1: "after"}, content(mirror)
print("passed", flush=True)
"""


def test_changes_are_merged_once(tmp_path: Path, java: None) -> None:
    version = ".".join(pyspark.__version__.split(".")[:2])
    if version not in DELTA:
        pytest.skip(f"no Delta for Spark {version} on Maven Central")
    command = [sys.executable, "-c", SCRIPT, DELTA[version], str(tmp_path / "table")]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=280, check=False)
    if "started" not in done.stdout:
        pytest.skip(f"Delta could not be had: {done.stderr.strip().splitlines()[-1]}")
    assert done.stdout.splitlines()[-1] == "passed", done.stderr
