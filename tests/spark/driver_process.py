"""`python -m tests.spark.driver_process JOB.json`: one query with a driver and a JVM of its own, to be killed.

The job: `master`, `options`, `trigger` ("available" or "default"), `sink` and `checkpoint` folders, `conf`;
`hold`: stop in batch `batch`, "before" or "after" it is written, forever; `ms_per_row`: how slowly rows
are taken. It writes `jvm` (the JVM's pid), `held` and `done` beside the job's file.
"""

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import feedmux_spark
from tests.spark.support import Sink, slowed, start


def main(path: Path) -> None:
    job: dict[str, Any] = json.loads(path.read_text())
    feedmux_spark.java_home()
    # Else the workers of a local cluster write into Spark's installation.
    os.environ["SPARK_WORKER_DIR"] = str(path.parent / "workers")
    builder = SparkSession.builder.master(job["master"]).config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
    for name, value in job.get("conf", {}).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    jvm: Any = spark.sparkContext._jvm
    (path.parent / "jvm").write_text(str(jvm.java.lang.ProcessHandle.current().pid()))
    sink, hold = Sink(Path(job["sink"])), job.get("hold")

    def at(batch_id: int, when: str) -> None:
        if hold == {"batch": batch_id, "when": when}:
            (path.parent / "held").touch()
            threading.Event().wait()

    def write(batch: DataFrame, batch_id: int) -> None:
        at(batch_id, "before")
        sink.write(slowed(batch, job.get("ms_per_row", 0)), batch_id)
        at(batch_id, "after")

    trigger = {"availableNow": True} if job["trigger"] == "available" else {}
    query = start(spark, job["options"], write, Path(job["checkpoint"]), **trigger)
    query.awaitTermination()
    (path.parent / "done").touch()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
