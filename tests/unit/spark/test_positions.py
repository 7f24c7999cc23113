"""The current offset, taken before a copy."""

import json

import pytest

from feedmux.errors import Unauthenticated
from feedmux_spark.errors import FeedmuxSparkError
from feedmux_spark.offsets import parse_start
from feedmux_spark.positions import latest_offsets
from tests.unit.spark.answers import Answers, resolved


def test_it_is_a_value_of_starting_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Answers(monkeypatch, ResolvePosition=[resolved(b"now", 1763740800)])
    offset = latest_offsets({"ENDPOINT": "localhost:1", "database": "shop"})
    assert parse_start(offset, "startingOffsets").token == b"now"
    assert json.loads(offset)["clusterTime"] == "2025-11-21T16:00:00Z/1"
    ((_, request),) = server.asked
    assert (request.feed.database, request.start.WhichOneof("at")) == ("shop", "latest")


def test_its_errors_have_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    Answers(monkeypatch, ResolvePosition=[Unauthenticated("no", status="UNAUTHENTICATED")])
    with pytest.raises(FeedmuxSparkError, match="check the option token"):
        latest_offsets({"endpoint": "localhost:1"})
