"""The feeds of options, subscription and checkpoint: which differences count, and what the user reads about them."""

import logging
from typing import Any

import pytest

from feedmux import requests
from feedmux.errors import (
    FailedPrecondition,
    HistoryLost,
    InvalidArgument,
    SubscriptionExists,
    SubscriptionNotFound,
    TimelineForked,
)
from feedmux.feeds import Feed, Start
from feedmux.v1 import change_feed_pb2, feed_pb2, subscriptions_pb2
from feedmux_spark.agreement import Agreement, differences
from feedmux_spark.connection import Connection
from feedmux_spark.errors import FeedmuxSparkError
from feedmux_spark.offsets import Offset
from feedmux_spark.options import parse_options
from feedmux_spark.planning import Planner
from tests.tables import over
from tests.unit.spark.answers import FEED, Answers, resolved

STAGES = [{"$match": {"n": 1}}]
TEXT = '[ {"$match": {"n": {"$numberInt": "1"}}} ]'
CHANGED = FailedPrecondition("another feed", reason="FEED_CHANGED", status="FAILED_PRECONDITION")
EXISTS = SubscriptionExists("another feed", reason="SUBSCRIPTION_EXISTS", status="ALREADY_EXISTS")


def agreement(**more: str) -> Agreement:
    options = parse_options({"endpoint": "localhost:1", "consumerName": "c", "database": "shop", **more})
    connection = Connection(options)
    return Agreement(options, connection, Planner(options, connection, "c"))


def message(**more: Any) -> feed_pb2.Feed:
    return requests.feed_message(Feed("shop", **more), "main")


def stored(**more: Any) -> subscriptions_pb2.Subscription:
    return subscriptions_pb2.Subscription(name="c", feed=message(**more), position=b"stored")


def fingerprint(feed: bytes) -> change_feed_pb2.ResolvePositionResponse:
    return change_feed_pb2.ResolvePositionResponse(position=b"there", feed_fingerprint=feed)


def test_a_checkpoint_that_names_no_feed_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    Answers(monkeypatch, ResolvePosition=[resolved(b"here")])
    made = agreement()
    with caplog.at_level(logging.WARNING, "feedmux_spark"):
        assert made.check(Offset(b"there", feed=FEED)) == FEED
        assert not caplog.messages
        for _ in range(2):
            assert made.check(Offset(b"there"), Offset(b"further", feed=FEED)) == FEED
    (message,) = caplog.messages
    assert "were not compared" in message


@over(
    ("options", "names"),
    [
        ({"comment": "why", "read_preference": "primaryPreferred", "batch_size": 5}, []),
        ({"collation": {"locale": "de"}, "full_document": "updateLookup"}, ["fullDocument", "collation"]),
        ({"read_concern": "majority", "show_expanded_events": True}, ["showExpandedEvents", "readConcern"]),
    ],
)
def test_only_what_decides_which_events_come_is_a_difference(options: dict[str, Any], names: list[str]) -> None:
    assert differences(message(), message(**options)) == names


@pytest.mark.parametrize(
    ("answers", "same"),
    [
        ([fingerprint(b"one"), fingerprint(b"one")], True),
        ([fingerprint(b"one"), fingerprint(b"other")], False),
        ([InvalidArgument("an older server accepted it", reason="PIPELINE_INVALID", status="INVALID_ARGUMENT")], False),
    ],
)
def test_the_server_compares_pipelines(monkeypatch: pytest.MonkeyPatch, answers: list[Any], same: bool) -> None:
    server = Answers(
        monkeypatch, CreateSubscription=[EXISTS], GetSubscription=[stored(pipeline=STAGES)], ResolvePosition=answers
    )
    made = agreement(pipeline=TEXT)
    if same:
        assert made.create(Start.latest()).position == b"stored"
    else:
        with pytest.raises(SubscriptionExists):
            made.create(Start.latest())
    resolved = [request for method, request in server.asked if method == "ResolvePosition"]
    assert all(request.start.position == b"stored" for request in resolved)
    assert [request.feed.pipeline.WhichOneof("notation") for request in resolved] == ["bson", "extended_json"][
        : len(resolved)
    ]


def test_another_checkpoint_fails_or_is_read_with_the_new_options(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    compared = [fingerprint(b"of the stored feed"), fingerprint(b"of the options")]
    Answers(
        monkeypatch,
        ResolvePosition=[resolved(b"here"), *compared, resolved(b"here")],
        GetSubscription=[stored(pipeline=STAGES)],
    )
    other = Offset(b"there", feed=b"other")
    with pytest.raises(FeedmuxSparkError, match=r"The feed changed: the checkpoint .* differ in pipeline"):
        agreement().check(other)
    assert agreement(onFeedChange="update").check(other) == FEED
    assert "the feed changed" in caplog.text


def test_the_feeds_are_compared_also_where_the_position_or_the_subscription_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gone = SubscriptionNotFound("no subscription", reason="SUBSCRIPTION_NOT_FOUND", status="NOT_FOUND")
    for lost in (HistoryLost("gone", reason="HISTORY_LOST"), TimelineForked("gone", reason="TIMELINE_FORKED")):
        Answers(monkeypatch, ResolvePosition=[lost, resolved(b"oldest")], GetSubscription=[gone])
        made = agreement()
        assert made.check(Offset(b"there", feed=FEED)) == FEED
        with pytest.raises(FeedmuxSparkError, match=r"The feed changed: .* There is no subscription 'c'"):
            made.check(Offset(b"there", feed=b"other"))


def test_a_rejected_plan_changes_the_subscription_only_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Answers(
        monkeypatch,
        UpdateSubscription=[stored()],
        GetSubscription=[stored(pipeline=STAGES), stored()],
        ResolvePosition=[fingerprint(b"of the stored feed"), fingerprint(b"of the options")],
    )
    with pytest.raises(FeedmuxSparkError, match="subscription 'c' has another pipeline or other options"):
        agreement().settle(CHANGED)
    allowed = agreement(onFeedChange="update")
    allowed.settle(CHANGED)
    assert server.asked[-1][1].update_mask.paths == ["feed"]
    allowed.planned()
    with pytest.raises(FeedmuxSparkError, match=r"was changed while the query ran\. .* the checkpoint does not"):
        allowed.settle(CHANGED)
    with pytest.raises(FailedPrecondition, match="another reason"):
        allowed.settle(FailedPrecondition("another reason"))


def test_a_subscription_that_exists_is_used_if_its_feed_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    for found, more in (
        (stored(comment="of somebody else"), {}),
        (stored(pipeline=STAGES), {"onFeedChange": "update"}),
    ):
        compared = [fingerprint(b"of the stored feed"), fingerprint(b"of the options")]
        Answers(
            monkeypatch,
            CreateSubscription=[EXISTS],
            GetSubscription=[found],
            UpdateSubscription=[stored()],
            ResolvePosition=compared,
        )
        assert agreement(**more).create(Start.latest()).position == b"stored"
    Answers(monkeypatch, CreateSubscription=[EXISTS], GetSubscription=[stored(full_document="updateLookup")])
    with pytest.raises(SubscriptionExists):
        agreement().create(Start.latest())
