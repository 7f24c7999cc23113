"""The pipeline changes under a checkpoint: no event is planned by one feed and read by another, and none is skipped."""

import json
from collections.abc import Callable
from pathlib import Path

import bson
import pytest
from pyspark.sql import SparkSession

import feedmux
from feedmux_spark.errors import FeedmuxSparkError
from feedmux_spark.offsets import Offset
from feedmux_spark.options import parse_options
from feedmux_spark.ranges import read_slice
from feedmux_spark.stream import Progress
from tests.documents import Documents, insert
from tests.spark.support import PATIENCE_S, Sink, Site, drain, running, start, wait_until

Options = Callable[..., dict[str, str]]
OLD = '[{"$match": {"fullDocument.n": {"$lt": 210}}}]'
NEW = '[{"$match": {"fullDocument.n": {"$gte": 210}}}]'
EVERYTHING = 1_000_000


def failure(spark: SparkSession, options: dict[str, str], sink: Sink, check: Path) -> str:
    """The text that a query into `sink` fails with."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 Spark's, of several kinds; the text is what counts
        drain(spark, options, sink, check)
    return str(caught.value)


def update(site: Site, name: str, database: Documents, pipeline: str) -> None:
    with feedmux.Client(site.endpoint) as client:
        client.update_subscription(
            name, feed=feedmux.Feed(source="main", database=database.name, collection="c", pipeline=pipeline)
        )


def batches(check: Path) -> int:
    """Micro-batches that the checkpoint knows."""
    return len([path for path in (check / "offsets").iterdir() if path.name.isdigit()])


def test_another_pipeline_under_a_checkpoint(
    spark: SparkSession, database: Documents, options: Options, tmp_path: Path
) -> None:
    """210 events that only the new pipeline lets through: they come once the user says so, and never get lost."""
    check, sink = tmp_path / "check", Sink(tmp_path / "out")
    insert(database, range(10))
    drain(spark, options(pipeline=OLD), sink, check)
    failure(spark, options(pipeline=NEW), sink, check)
    # The former one continues where it was.
    insert(database, range(10, 20))
    spaced = json.dumps(json.loads(OLD), indent=4)
    drain(spark, options(pipeline=spaced, comment="another notation, and options that change no event"), sink, check)
    assert sink.numbers() == list(range(20))
    before = batches(check)
    insert(database, range(210, 420))
    text = failure(spark, options(pipeline=NEW), sink, check)
    assert "The feed changed: the checkpoint was made with another pipeline" in text
    assert "differ in pipeline" in text
    assert "onFeedChange=update" in text
    assert batches(check) == before
    drain(spark, options(pipeline=NEW, onFeedChange="update"), sink, check)
    assert sink.numbers() == [*range(20), *range(210, 420)]
    # The change is made: from now on it is no change.
    insert(database, range(420, 430))
    drain(spark, options(pipeline=NEW), sink, check)
    assert sink.numbers()[-10:] == list(range(420, 430))


@pytest.mark.full
def test_the_subscription_is_updated_under_a_running_query(
    spark: SparkSession, database: Documents, options: Options, site: Site, tmp_path: Path
) -> None:
    check, sink, chosen = tmp_path / "check", Sink(tmp_path / "out"), options(pipeline=OLD, pollTimeoutMs=100)
    insert(database, range(10))
    query = start(spark, chosen, sink, check)
    with running(query):
        wait_until(lambda: len(sink.numbers()) == 10, query)
        update(site, chosen["consumerName"], database, NEW)
        insert(database, range(210, 420))
        with pytest.raises(Exception, match="was changed while the query ran"):
            assert query.awaitTermination(PATIENCE_S), "the query goes on"
    assert sink.numbers() == list(range(10))
    # With the options of the subscription: the checkpoint still belongs to the former feed.
    text = failure(spark, options(pipeline=NEW), sink, check)
    assert "the checkpoint does not" in text
    drain(spark, options(pipeline=NEW, onFeedChange="update"), sink, check)
    assert sink.numbers() == [*range(10), *range(210, 420)]


def test_a_batch_that_was_not_committed_comes_again_by_one_feed(
    spark: SparkSession, database: Documents, options: Options, tmp_path: Path
) -> None:
    check, sink = tmp_path / "check", Sink(tmp_path / "out")
    insert(database, range(10))
    drain(spark, options(pipeline=OLD), sink, check)
    insert(database, range(200, 220))
    drain(spark, options(pipeline=OLD), sink, check)
    last = batches(check) - 1
    assert sink.numbers(last) == list(range(200, 210))
    for log in (str(last), f".{last}.crc"):
        (check / "commits" / log).unlink(missing_ok=True)
    assert "The feed changed" in failure(spark, options(pipeline=NEW), sink, check)
    again = Sink(tmp_path / "again")
    drain(spark, options(pipeline=NEW, onFeedChange="update"), again, check)
    assert again.numbers() == list(range(210, 220))


def test_a_checkpoint_of_an_older_connector_is_accepted_and_upgraded(database: Documents, options: Options) -> None:
    chosen = options(pipeline=OLD)
    insert(database, range(10))
    progress = Progress(parse_options(chosen))
    begin = progress.begin()
    old = Offset.from_json({name: value for name, value in begin.as_json().items() if name != "feed"})
    assert old.as_json() != begin.as_json()
    again = Progress(parse_options(chosen))
    end = again.advance(old, EVERYTHING)
    assert end.feed == begin.feed != b""
    assert again.advance(end, EVERYTHING) == end
    # It says nothing of its feed, but the subscription does.
    changed = Progress(parse_options(options(pipeline=NEW)))
    with pytest.raises(FeedmuxSparkError, match="The feed changed: subscription"):
        changed.advance(old, EVERYTHING)


def test_nothing_reads_what_another_feed_has_planned(database: Documents, options: Options) -> None:
    insert(database, range(200, 220))
    progress = Progress(parse_options(options(pipeline=OLD)))
    begin = progress.begin()
    slices = progress.slices(begin, progress.advance(begin, EVERYTHING))
    assert slices
    for each in slices:
        with pytest.raises(FeedmuxSparkError, match="The feed changed"):
            list(read_slice(parse_options(options(pipeline=NEW)), each))


def test_a_batch_carries_its_feed(
    spark: SparkSession, database: Documents, options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    from feedmux_spark.batch import FeedmuxBatchReader
    from feedmux_spark.rows import default_schema

    insert(database, range(200, 220))
    reader = FeedmuxBatchReader(parse_options(options(pipeline=OLD)), default_schema("envelope"))
    other = FeedmuxBatchReader(parse_options(options(pipeline=NEW)), default_schema("envelope"))
    (part, *_) = reader.partitions()
    assert sum(batch.num_rows for batch in reader.read(part)) > 0
    with pytest.raises(FeedmuxSparkError, match="The feed changed"):
        list(other.read(part))
    # Positions serve every feed of the scope: a range of a stream may be read by another pipeline, as a whole.
    progress = Progress(parse_options(options(pipeline=OLD)))
    begin = progress.begin()
    ends = {"startingOffsets": json.dumps(begin.as_json()), "endingOffsets": "latest"}
    rows = spark.read.format("feedmux").options(**options(pipeline=NEW, **ends)).load().collect()
    assert sorted(bson.decode(bytes(row["event"]))["fullDocument"]["n"] for row in rows) == list(range(210, 220))
