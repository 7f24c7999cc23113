"""The connector reports checks that it could not make. Tested without Spark and without a server."""

import logging
from pathlib import Path

import pytest

from feedmux.errors import Unavailable
from feedmux.positions import FeedPosition
from feedmux.v1 import change_feed_pb2
from feedmux_spark.agreement import Agreement
from feedmux_spark.connection import Connection, Located
from feedmux_spark.errors import FeedmuxSparkError
from feedmux_spark.offsets import Offset
from feedmux_spark.options import parse_options
from feedmux_spark.planning import Planner, as_plan


def agreement(monkeypatch: pytest.MonkeyPatch) -> Agreement:
    """Of a query whose feed has the fingerprint `feed`."""
    located = Located(FeedPosition(b"here"), b"feed")
    monkeypatch.setattr(Connection, "locate", lambda *_: located)
    options = parse_options({"endpoint": "localhost:1", "consumerName": "c"})
    connection = Connection(options)
    return Agreement(options, connection, Planner(options, connection, "c"))


def test_a_plan_of_a_server_that_compares_no_feeds_is_not_taken() -> None:
    answer = change_feed_pb2.PlanRangeResponse(end=b"end", event_count=1)
    with pytest.raises(Unavailable, match="older than this connector"):
        as_plan(answer)
    answer.feed_fingerprint = b"feed"
    assert as_plan(answer).end.position == b"end"


def test_a_checkpoint_that_names_no_feed_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = agreement(monkeypatch)
    with caplog.at_level(logging.WARNING, "feedmux_spark"):
        assert made.check(Offset(b"there", feed=b"feed")) == b"feed"
        assert not caplog.messages
        for _ in range(2):
            assert made.check(Offset(b"there"), Offset(b"further", feed=b"feed")) == b"feed"
    (message,) = caplog.messages
    assert "were not compared" in message


def test_a_token_file_that_is_not_there_is_no_network_that_is_away(tmp_path: Path) -> None:
    connection = Connection(parse_options({"endpoint": "localhost:1", "tokenFile": str(tmp_path / "none")}))
    with pytest.raises(FeedmuxSparkError, match="option tokenFile"):
        connection.unary("ChangeFeed", "Explain", change_feed_pb2.ExplainRequest(), change_feed_pb2.ExplainResponse)
