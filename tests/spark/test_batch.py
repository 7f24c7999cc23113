"""Batches, clear errors, and secrets that must not appear."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from pyspark.sql import SparkSession

from feedmux_embedded import RedisServer
from feedmux_spark.batch import FeedmuxBatchReader
from feedmux_spark.errors import OptionError
from feedmux_spark.options import parse_options
from feedmux_spark.rows import default_schema
from feedmux_spark.stream import Progress
from tests.documents import Documents, insert
from tests.integration.servers import KEY_A, server_process, settings, tenants_file
from tests.spark.processes import Driver
from tests.spark.support import Sink, Site, drain, numbers, offset

Options = Callable[..., dict[str, str]]

FULL = pytest.mark.full


def read(spark: SparkSession, options: dict[str, str]) -> list[int]:
    return numbers(spark.read.format("feedmux").options(**options).load().collect())


def test_a_range_of_offsets(spark: SparkSession, database: Documents, options: Options, tmp_path: Path) -> None:
    insert(database, range(300))
    sink = Sink(tmp_path / "out")
    query = drain(spark, options(maxEventsPerTrigger=100), sink, tmp_path / "check")
    ends = [json.dumps(offset(each["sources"][0]["endOffset"])) for each in query.recentProgress]
    insert(database, range(300, 310))
    some = {"maxBytesPerTrigger": 20_000, "readPartitions": 3}
    assert read(spark, options(startingOffsets=ends[0], endingOffsets=ends[1], **some)) == list(range(100, 200))
    assert read(spark, options(startingOffsets=ends[0])) == list(range(100, 310))
    assert read(spark, options(startingOffsets=ends[1], endingOffsets=ends[1])) == []
    rows = spark.read.format("feedmux").options(**options(schemaMode="json", **some)).load()
    assert json.loads(rows.orderBy("sort_key").take(1)[0]["event"])["fullDocument"]["n"] == 0


def test_bounds_that_give_no_range(site: Site, database: Documents, options: Options) -> None:
    """In the future, or swapped, even within a transaction, whose events have one cluster time."""
    database.create_collection("c")
    with site.client.start_session() as session, session.start_transaction():
        database.c.insert_many([{"n": n} for n in range(3)], session=session)
    progress = Progress(parse_options(options()))
    ends = [progress.begin()]
    for _ in range(3):
        ends.append(progress.advance(ends[-1], 1))
    assert ends[1].time == ends[2].time

    def partitions(first: str, last: str) -> Sequence[Any]:
        chosen = parse_options(options(startingOffsets=first, endingOffsets=last))
        return FeedmuxBatchReader(chosen, default_schema("envelope")).partitions()

    one, two = (json.dumps(end.as_json()) for end in ends[1:3])
    assert partitions(one, two)[0].after == ends[1].position
    assert [each.after for each in partitions(one, one)] == [ends[1].position]
    for first, last in (two, one), ("latest", one), (two, "earliest"):
        with pytest.raises(OptionError, match=r"option startingOffsets .* is after endingOffsets"):
            partitions(first, last)
    for future, why in ("2099", "is not a time up to which MongoDB"), ("2222", "is not a time that MongoDB knows"):
        bound = f"{future}-01-01T00:00:00Z"
        for option, first, last in ("endingOffsets", "earliest", bound), ("startingOffsets", bound, one):
            with pytest.raises(OptionError, match=rf"option {option} \({bound}\) {why}"):
                partitions(first, last)


def failure(spark: SparkSession, options: dict[str, str], tmp_path: Path) -> str:
    """What a stream with these options fails with."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 Spark's, of several kinds; the text is what counts
        drain(spark, options, Sink(tmp_path / "out"), tmp_path / "check")
    return str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"endpoint": None}, "option endpoint is missing"),
        ({"pipeline": '[{"$lookup": {}}]'}, "STAGE_NOT_ALLOWED"),
        pytest.param({"source": "nowhere"}, "check the options source and consumerName", marks=FULL),
        pytest.param({"startingOffsets": '{"position": "AQI="}'}, "not a position in this feed", marks=FULL),
    ],
)
def test_clear_errors(
    spark: SparkSession, options: Options, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    chosen = {name: value for name, value in {**options(), **change}.items() if value is not None}
    assert message in failure(spark, chosen, tmp_path)


@pytest_asyncio.fixture
async def guarded(site: Site, redis_server: RedisServer, tmp_path: Path) -> AsyncIterator[Site]:
    """A server that wants credentials."""
    configuration = settings("mongodb://{}:{}".format(*site.client.address or ()), redis_server.url)
    configuration["tenants_file"] = str(tenants_file(tmp_path))
    async with server_process(configuration, tmp_path) as server:
        yield Site(server, site.client)


@FULL
async def test_secrets_are_not_seen(
    spark: SparkSession, guarded: Site, database: Documents, options: Options, tmp_path: Path
) -> None:
    """Not in plans, progress, checkpoints, event logs, the driver's log, or errors."""
    insert(database, range(10))
    wrong = "wrong-credential-canary"
    told = failure(spark, options(endpoint=guarded.endpoint, token=wrong), tmp_path / "wrong")
    assert "rejected the credentials" in told
    assert wrong not in told
    file = tmp_path / "credential"
    file.write_text(KEY_A + "\n")
    chosen = options(endpoint=guarded.endpoint, tokenFile=str(file))
    rows = spark.read.format("feedmux").options(**chosen).load()
    assert numbers(rows.collect()) == list(range(10))
    assert KEY_A not in rows._jdf.queryExecution().toString()

    seen, sink = tmp_path / "seen", Sink(tmp_path / "out")
    seen.mkdir()
    events = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": str(seen), "spark.eventLog.compress": "false"}
    job = {
        "options": options(endpoint=guarded.endpoint, token=KEY_A),
        "sink": str(sink.folder),
        "checkpoint": str(seen / "check"),
        "conf": events,
    }
    with Driver(tmp_path / "one", **job) as driver:
        await asyncio.to_thread(driver.wait_done)
        said = driver.log.read_text()
    assert sink.numbers() == list(range(10))
    assert "WARN" in said
    kept = {path.name: path.read_bytes() for path in seen.rglob("*") if path.is_file()}
    assert any(b"SparkListenerSQLExecutionStart" in content for content in kept.values())
    for content in (said.encode(), *kept.values()):
        assert KEY_A.encode() not in content
