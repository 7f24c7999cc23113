"""Plans as the server returns them, and the requests for them."""

import pytest

from feedmux.errors import Unavailable
from feedmux.positions import FeedPosition
from feedmux.v1 import change_feed_pb2
from feedmux_spark.connection import Connection
from feedmux_spark.options import parse_options
from feedmux_spark.planning import Planner, Wanted, as_plan
from tests.unit.spark.answers import FEED, Answers, plan


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
