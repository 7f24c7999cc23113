"""The batch reader: from startingOffsets to endingOffsets, planned before anything is read."""

import json

import pytest

from feedmux.errors import make_error
from feedmux.v1 import change_feed_pb2
from feedmux_spark.batch import FeedmuxBatchReader
from feedmux_spark.errors import OptionError
from feedmux_spark.offsets import Offset
from feedmux_spark.options import parse_options
from feedmux_spark.ranges import Slice
from feedmux_spark.rows import default_schema
from tests.unit.spark.answers import FEED, Answers, plan, resolved
from tests.unit.spark.events import event, stream


def reader(**more: str) -> FeedmuxBatchReader:
    options = parse_options({"endpoint": "localhost:1", "schemaMode": "json", **more})
    return FeedmuxBatchReader(options, default_schema("json"))


def offset(position: bytes) -> str:
    return json.dumps(Offset(position).as_json())


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


def test_a_bound_in_the_future_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    error = make_error("OUT_OF_RANGE", "start is in the future", "START_IN_FUTURE", {})
    bounds = {"startingOffsets": "2222-01-01T00:00:00Z", "endingOffsets": "2222-02-02T00:00:00Z"}
    for found, option in ([error], "endingOffsets"), ([resolved(b"end"), error], "startingOffsets"):
        Answers(monkeypatch, ResolvePosition=found)
        with pytest.raises(
            OptionError, match=f"option {option} \\({bounds[option]}\\) is not a time up to which MongoDB has committed"
        ):
            reader(**bounds).partitions()


def test_a_bound_that_no_clock_of_mongodb_has_is_not_called_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "start.time must lie between 1970 and 2106"
    error = make_error("INVALID_ARGUMENT", text, "MESSAGE_INVALID", {"field": "start.time"})
    Answers(monkeypatch, ResolvePosition=[resolved(b"end"), error])
    with pytest.raises(OptionError, match=rf"startingOffsets \(1900.*\) is not a time that MongoDB knows\. \(.*{text}"):
        reader(startingOffsets="1900-01-01T00:00:00Z").partitions()


def test_bounds_that_are_swapped(monkeypatch: pytest.MonkeyPatch) -> None:
    empty, back = plan(b"start", caught_up=True), plan(b"start", 1, caught_up=True)
    bounds = {"startingOffsets": offset(b"start"), "endingOffsets": offset(b"end")}
    swapped = r"startingOffsets \(1970-01-01T00:16:41Z/1\) is after endingOffsets \(1970-01-01T00:16:40Z/1\)"
    Answers(monkeypatch, ResolvePosition=[resolved(b"end"), resolved(b"start", 1001)], PlanRange=[empty])
    with pytest.raises(OptionError, match=swapped):
        reader(**bounds).partitions()
    # Within one cluster time only the server knows the order of two events.
    Answers(monkeypatch, ResolvePosition=[resolved(b"end"), resolved(b"start")], PlanRange=[empty, back])
    with pytest.raises(OptionError, match="is after endingOffsets"):
        reader(**bounds).partitions()
    Answers(monkeypatch, ResolvePosition=[resolved(b"end"), resolved(b"start")], PlanRange=[empty, empty])
    assert len(reader(**bounds).partitions()) == 1
    # MongoDB's clock may advance between the two questions.
    Answers(monkeypatch, ResolvePosition=[resolved(b"end"), resolved(b"start", 1001)], PlanRange=[empty])
    assert len(reader(startingOffsets="latest").partitions()) == 1
