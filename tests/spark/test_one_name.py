"""Two queries on one consumerName: the second is rejected, in the same application and in another, and the first goes
on."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import feedmux
from feedmux_spark.errors import FeedmuxSparkError
from feedmux_spark.options import parse_options
from feedmux_spark.stream import Progress
from tests.documents import Documents, insert
from tests.spark.support import PATIENCE_S, Sink, drain, running, start, wait_until

Options = Callable[..., dict[str, str]]


@pytest.mark.full
def test_in_one_application(spark: SparkSession, database: Documents, options: Options, tmp_path: Path) -> None:
    first, second = Sink(tmp_path / "first"), Sink(tmp_path / "second")
    insert(database, range(10))
    query = start(spark, options(), first, tmp_path / "check-first")
    with running(query):
        wait_until(lambda: len(first.numbers()) == 10, query)
        other = start(spark, options(), second, tmp_path / "check-second")
        with pytest.raises(Exception, match="Another query of this Spark application reads under consumerName"):
            assert other.awaitTermination(PATIENCE_S), "both queries run"
        insert(database, range(10, 20))
        wait_until(lambda: len(first.numbers()) == 20, query)
    assert not second.numbers()
    # A query that was stopped is started again at once.
    insert(database, range(20, 30))
    drain(spark, options(), first, tmp_path / "check-first")
    assert first.numbers() == list(range(30))


@pytest.mark.full
def test_in_two_applications_while_a_batch_takes_longer_than_the_lease(
    spark: SparkSession, database: Documents, options: Options, tmp_path: Path
) -> None:
    sink, held, go_on = Sink(tmp_path / "out"), threading.Event(), threading.Event()

    def write(batch: DataFrame, batch_id: int) -> None:
        held.set()
        assert go_on.wait(PATIENCE_S)
        sink.write(batch, batch_id)

    insert(database, range(10))
    query = start(spark, options(), write, tmp_path / "check")
    with running(query), feedmux.Client(options()["endpoint"]) as client:
        wait_until(held.is_set, query)
        name = options()["consumerName"]
        # Renewals are at least half a second apart: so many take longer than the lease.
        epoch = client.get_subscription(name).epoch
        wait_until(lambda: client.get_subscription(name).epoch >= epoch + 10, query)
        other = Progress(parse_options(options(retryTimeoutMs=0)))
        with pytest.raises(FeedmuxSparkError, match="Another client reads under consumerName"):
            other.advance(other.begin(), 1_000)
        go_on.set()
        wait_until(lambda: len(sink.numbers()) == 10, query)
        insert(database, range(10, 20))
        wait_until(lambda: len(sink.numbers()) == 20, query)
