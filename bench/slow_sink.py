"""`python -m bench.slow_sink JOB.json`: a Spark query that reads a backlog into nothing, at a rate.

The job: `options` of the format feedmux, `rows_per_s` (0: as fast as it goes), `folder`. There it writes `jvm`, the
JVM's pid, and `rows`, how many have been taken so far. It continues until it is killed.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import feedmux_spark

CORES = 2
_NAP_MS = 10


def main(job: dict[str, Any]) -> None:
    feedmux_spark.java_home()
    folder = Path(job["folder"])
    spark = (
        SparkSession.builder.master(f"local[{CORES}]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    jvm: Any = spark.sparkContext._jvm
    (folder / "jvm").write_text(str(jvm.java.lang.ProcessHandle.current().pid()))
    rows = spark.readStream.format("feedmux").options(**job["options"]).load()

    def take(batch: DataFrame, _: int) -> None:
        if job["rows_per_s"]:
            # Each task sleeps after a number of rows; the tasks run in parallel.
            every = max(1, round(job["rows_per_s"] / CORES * _NAP_MS / 1000))
            nap = f.expr(f"reflect('java.lang.Thread', 'sleep', cast({_NAP_MS} as bigint))")
            waited = f.when(f.monotonically_increasing_id() % every == 0, nap).otherwise(f.lit(""))
            batch = batch.withColumn("waited", waited).where(f.col("waited").isNotNull() | f.col("event").isNotNull())
        batch.write.format("noop").mode("overwrite").save()

    writer = rows.writeStream.foreachBatch(take).option("checkpointLocation", str(folder / "checkpoint"))
    query, taken = writer.start(), dict[int, int]()
    while query.isActive:
        taken |= {each["batchId"]: each["numInputRows"] for each in query.recentProgress}
        fresh = folder / "rows.new"
        fresh.write_text(str(sum(taken.values())))
        fresh.replace(folder / "rows")
        time.sleep(0.2)
    raise SystemExit(f"the query has ended: {query.exception()}")


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
