"""The batch reader: from startingOffsets to endingOffsets, planned before anything is read."""

import pytest

from feedmux.v1 import change_feed_pb2
from feedmux_spark.batch import FeedmuxBatchReader
from feedmux_spark.options import parse_options
from feedmux_spark.ranges import Slice
from feedmux_spark.rows import default_schema
from tests.unit.spark.answers import FEED, Answers, plan, resolved
from tests.unit.spark.events import event, stream


def reader() -> FeedmuxBatchReader:
    return FeedmuxBatchReader(parse_options({"endpoint": "localhost:1", "schemaMode": "json"}), default_schema("json"))


def test_it_ends_where_the_feed_ended_when_it_began(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = change_feed_pb2.Batch(first_delivery_sequence=1, event_count=2, bson=stream(event(1), event(2)))
    server = Answers(
        monkeypatch,
        ResolvePosition=[resolved(b"end"), resolved(b"begin")],
        PlanRange=[plan(b"half", 2), plan(b"end", 1, caught_up=True)],
        ReadRange=[[change_feed_pb2.ReadRangeResponse(batch=batch)]],
    )
    made = reader()
    slices = made.partitions()
    assert [each.until for each in slices if isinstance(each, Slice)] == [b"half", b"end"]
    starts = [request.start.WhichOneof("at") for method, request in server.asked if method == "ResolvePosition"]
    assert starts == ["latest", "earliest"]
    assert sum(rows.num_rows for rows in made.read(slices[0])) == 2


def test_nothing_is_one_empty_slice_since_spark_would_read_a_source_without_any(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Answers(monkeypatch, ResolvePosition=[resolved(b"end"), resolved(b"end")], PlanRange=[plan(b"end", caught_up=True)])
    assert reader().partitions() == [Slice(b"end", b"end", feed=FEED)]
