"""The stream within one session: triggers and limits."""

from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import feedmux
from feedmux_spark.offsets import Offset
from tests.documents import Documents, insert
from tests.spark.support import (
    PATIENCE_S,
    Sink,
    Site,
    drain,
    is_subscribed,
    offset,
    running,
    shown,
    start,
    wait_until,
)

Options = Callable[..., dict[str, str]]


def test_found_without_registering_and_drained(
    spark: SparkSession, database: Documents, options: Options, tmp_path: Path
) -> None:
    insert(database, range(1000))
    sink = Sink(tmp_path / "out")
    query = drain(spark, options(maxEventsPerTrigger=300, readPartitions=3), sink, tmp_path / "check")
    assert sink.numbers() == list(range(1000))
    assert sink.sizes() == [300, 300, 300, 100]
    progress = query.recentProgress[0]
    source = progress["sources"][0]
    assert source["numInputRows"] == 300
    end = offset(source["endOffset"])
    assert list(end) == sorted(end) == ["clusterTime", "feed", "gaps", "position", "version"]
    # Again: what came meanwhile, once.
    insert(database, range(1000, 1100))
    drain(spark, options(), sink, tmp_path / "check")
    assert sink.numbers() == list(range(1100))


def test_live_with_the_default_trigger(
    spark: SparkSession, database: Documents, options: Options, tmp_path: Path
) -> None:
    sink = Sink(tmp_path / "out")
    query = start(spark, options(startingOffsets="latest"), sink, tmp_path / "check")
    with running(query):
        wait_until(lambda: is_subscribed(options()), query)
        for first in range(0, 300, 100):
            insert(database, range(first, first + 100))
            wait_for_rows(sink, first + 100, query)
        assert sink.numbers() == list(range(300))
        wait_until(lambda: lag(query) <= 1, query)
        # Spark never commits a last batch; the server hears of it by the next question.
        end = Offset.from_json(offset(shown(query, "sources")[0]["endOffset"]))
        with feedmux.Client(options()["endpoint"]) as client:
            wait_until(lambda: stored_time(client, options()["consumerName"]) >= end.time, query)


def stored_time(client: feedmux.Client, name: str) -> tuple[int, int]:
    """The cluster time of a subscription's position."""
    time = client.get_subscription(name).cluster_time
    return (time.time, time.inc) if time else (0, 0)


def now(site: Site) -> Any:
    """MongoDB's cluster time."""
    return site.client.admin.command("hello")["operationTime"]


def has_advanced(site: Site, time: Any) -> bool:
    return bool(now(site) > time)


def wait_for_rows(sink: Sink, count: int, query: StreamingQuery) -> None:
    wait_until(lambda: len(sink.numbers()) == count, query)


def lag(query: Any) -> float:
    """Seconds between what MongoDB has and what was read, as the progress shows it."""
    source = shown(query, "sources")[0]
    ends = [offset(source[name]) for name in ("endOffset", "latestOffset")]
    read, there = (datetime.fromisoformat(end["clusterTime"].partition("/")[0]) for end in ends)
    return (there - read).total_seconds()


@pytest.mark.full
@pytest.mark.parametrize("trigger", ["once", "availableNow"])
def test_one_run_after_another(
    spark: SparkSession, database: Documents, options: Options, site: Site, tmp_path: Path, trigger: str
) -> None:
    """Each run moves the checkpoint, also one that finds nothing, and the stored position follows it."""
    sink, check, chosen = Sink(tmp_path / "out"), tmp_path / "check", options(maxEventsPerTrigger=400)
    ends: list[tuple[int, int]] = []
    for count in (500, 0, 0):
        if count:
            insert(database, range(count))
        else:
            wait_until(partial(has_advanced, site, now(site)))
        query = start(spark, chosen, sink, check, **{trigger: True})
        assert query.awaitTermination(PATIENCE_S)
        ends.append(Offset.from_json(offset(query.recentProgress[-1]["sources"][0]["endOffset"])).time)
    assert sink.numbers() == list(range(500))
    if trigger == "once":
        assert sink.sizes() == [500, 0, 0]
    assert ends == sorted(set(ends))
    with feedmux.Client(chosen["endpoint"]) as client:
        assert stored_time(client, chosen["consumerName"]) >= ends[-3 if trigger == "once" else -2]
