"""From startingOffsets to endingOffsets: the options, the plans, and the batch reader."""

import json

import pytest

from feedmux.errors import HistoryLost, TimelineForked, Unavailable, make_error
from feedmux.positions import FeedPosition
from feedmux.v1 import change_feed_pb2
from feedmux_spark.batch import FeedmuxBatchReader
from feedmux_spark.connection import Connection
from feedmux_spark.errors import FeedmuxSparkError, OptionError
from feedmux_spark.offsets import Offset, parse_start
from feedmux_spark.options import parse_options
from feedmux_spark.planning import Planner, Wanted, as_plan
from feedmux_spark.ranges import Slice
from feedmux_spark.rows import default_schema
from tests.tables import over
from tests.unit.spark.answers import FEED, Answers, plan, resolved


def reader(**more: str) -> FeedmuxBatchReader:
    options = parse_options({"endpoint": "localhost:1", "schemaMode": "json", **more})
    return FeedmuxBatchReader(options, default_schema("json"))


def offset(position: bytes) -> str:
    return json.dumps(Offset(position).as_json())


def test_nothing_is_one_empty_slice_since_spark_would_read_a_source_without_any(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Answers(monkeypatch, ResolvePosition=[resolved(b"end"), resolved(b"end")], PlanRange=[plan(b"end", caught_up=True)])
    assert reader().partitions() == [Slice(b"end", b"end", feed=FEED)]


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


def test_lost_changes_end_a_batch_or_are_left_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lost = HistoryLost("gone", reason="HISTORY_LOST")
    forked = TimelineForked("gone", reason="TIMELINE_FORKED")
    bounds = {"startingOffsets": offset(b"start"), "endingOffsets": offset(b"end")}
    end, start, oldest = resolved(b"end", 1500), resolved(b"start"), resolved(b"oldest", 2000)
    for places, plans, slices in (
        ([end, start, oldest], [lost, plan(b"end", 1, caught_up=True)], [b"end"]),
        ([end, forked, oldest], [plan(b"end", 1, caught_up=True)], [b"end"]),
        ([end, start, oldest], [lost, plan(b"end", caught_up=True)], [b"end"]),  # also the end is lost: no rows
    ):
        Answers(monkeypatch, ResolvePosition=[*places], PlanRange=[*plans])
        with pytest.raises(FeedmuxSparkError, match="Changes are lost"):
            reader(**bounds).partitions()
        server = Answers(monkeypatch, ResolvePosition=[*places], PlanRange=[*plans])
        found = reader(**bounds, failOnDataLoss="false").partitions()
        assert [each.until for each in found if isinstance(each, Slice)] == slices
        assert server.asked[-1][1].after == b"oldest"
    assert caplog.text.count("the batch begins at 1970-01-01T00:33:20Z/1 (failOnDataLoss=false)") == 3
    # A member of the set lost the start, and the primary has it: the oldest change is before the start.
    Answers(monkeypatch, ResolvePosition=[end, start, resolved(b"oldest", 500)], PlanRange=[lost])
    with pytest.raises(FeedmuxSparkError, match="Changes are lost"):
        reader(**bounds, failOnDataLoss="false").partitions()
    Answers(monkeypatch, ResolvePosition=[forked])
    with pytest.raises(OptionError, match="endingOffsets is an offset that MongoDB, which was restored, does not have"):
        reader(**bounds, failOnDataLoss="false").partitions()


def test_an_offset_is_canonical() -> None:
    offset = Offset(b"\x01\x02", (1763740800, 7), 2)
    text = json.dumps(offset.as_json())
    assert text == '{"clusterTime": "2025-11-21T16:00:00Z/7", "gaps": 2, "position": "AQI=", "version": 1}'
    assert Offset.from_json(json.loads(text)) == offset
    assert Offset.from_json({"position": "AQI="}).position == b"\x01\x02"


@over(
    "text",
    [
        "newest",
        "2026-11-21T15:00:00",
        "{",
        '{"a": ' * 100_000,
        "{}",
        '{"position": 1}',
        '{"position": "?"}',
        '{"version": 2, "position": ""}',
        '{"position": "AQI=", "gaps": Infinity}',
        '{"position": "AQI=", "clusterTime": "0001-01-01T00:00:00"}',
        '{"position": "AQI=", "clusterTime": null}',
        '{"position": "AQI=", "clusterTime": "0001-01-01T00:00:00+14:00"}',
        '{"position": "AQI=", "clusterTime": "2026-11-21T15:00:00Z/99999999999"}',
    ],
)
def test_not_a_start(text: str) -> None:
    with pytest.raises(OptionError, match="option startingOffsets"):
        parse_start(text, "startingOffsets")


def test_starts() -> None:
    assert parse_start("latest", "x").kind == "latest"
    assert parse_start("2026-11-21T15:00:00Z", "x").time == (1795273200, 0)
    assert parse_start('{"position": "AQI="}', "x").token == b"\x01\x02"


def test_an_offset_from_elsewhere_is_an_error_of_the_option() -> None:
    with pytest.raises(OptionError, match=r"supports no version after 2"):
        Offset.from_json({"version": 3, "position": "AQI="})
    copying = Offset(b"p", (5, 1), copied=7)
    assert (Offset.from_json(copying.as_json()), copying.as_json()["version"]) == (copying, 2)
    for content in (
        {},
        {"version": 2, "position": "AQI="},
        {"position": "AQI=", "gaps": "x"},
        {"position": "AQI=", "clusterTime": "noon/1"},
    ):
        with pytest.raises(OptionError, match="not an offset of feedmux"):
            Offset.from_json(content)


@over("option", ["startingOffsets", "endingOffsets"])
def test_a_batch_reads_no_existing_documents(option: str) -> None:
    options = parse_options({"endpoint": "localhost:1", option: "snapshot"})
    with pytest.raises(OptionError, match=rf"{option}: a batch reads changes.*a stream with startingOffsets=snapshot"):
        FeedmuxBatchReader(options, default_schema("envelope")).partitions()


@over("text", ["2026-11-21T15:00:00", "2026-11-21"])
def test_a_time_without_a_zone_is_told_what_to_write(text: str) -> None:
    with pytest.raises(OptionError, match=r"without a time zone: write .* for UTC") as caught:
        parse_start(text, "startingOffsets")
    advised = str(caught.value).partition("write ")[2].partition(" for")[0]
    assert parse_start(advised, "startingOffsets").kind == "time"


def planner(consumer_name: str = "", **more: str) -> Planner:
    options = parse_options({"endpoint": "localhost:1", "database": "shop", "readPartitions": "3", **more})
    return Planner(options, Connection(options), consumer_name, "spark/host/1")


def test_a_plan_of_a_server_that_compares_no_feeds_is_not_taken() -> None:
    answer = change_feed_pb2.PlanRangeResponse(end=b"end", event_count=1)
    with pytest.raises(Unavailable, match="older than this connector"):
        as_plan(answer)
    answer.feed_fingerprint = b"feed"
    assert as_plan(answer).end.position == b"end"


def test_a_range_is_planned_piece_by_piece_up_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [plan(b"one", 2), plan(b"two"), plan(b"until", 1, caught_up=True)]
    server = Answers(monkeypatch, PlanRange=answers)
    slices = planner().through(FeedPosition(b"after"), FEED, b"until", 1000)
    assert [(each.until, each.route, each.feed) for each in slices] == [
        (b"one", "route", FEED),
        (b"until", "route", FEED),
    ]
    requests = [request for _, request in server.asked]
    assert [request.after for request in requests] == [b"after", b"one", b"two"]
    assert {(request.until, request.bytes_max, request.slices) for request in requests} == {(b"until", 1000, 3)}


def test_a_plan_is_retried_while_a_server_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [Unavailable("away", status="UNAVAILABLE"), plan(b"end", 2)]
    Answers(monkeypatch, PlanRange=answers)
    assert planner().plan(Wanted(b"after", FEED)).count == 2


def test_a_stream_plans_under_its_subscription_and_a_batch_for_its_feed(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Answers(monkeypatch, PlanRange=[plan(b"end"), plan(b"end")])
    planner("q").plan(Wanted(b"after", FEED, wait_s=0.5), processed=b"done")
    planner().plan(Wanted(b"after", FEED), processed=b"done")
    (_, stream), (_, batch) = server.asked
    assert (stream.WhichOneof("target"), stream.subscription, stream.processed) == ("subscription", "q", b"done")
    assert stream.instance_id == "spark/host/1"
    assert stream.wait.ToMilliseconds() == 500
    assert (batch.WhichOneof("target"), batch.feed.database, batch.processed) == ("feed", "shop", b"")
