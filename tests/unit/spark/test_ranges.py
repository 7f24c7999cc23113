"""Reading a slice while the server fails or has lost history: no event twice, and none in silence."""

from pathlib import Path
from typing import Any

import bson
import pytest

from feedmux.errors import HistoryLost, InvalidArgument, OptionRefused, TimelineForked, Unauthenticated, Unavailable
from feedmux.v1 import change_feed_pb2
from feedmux_spark.errors import FeedmuxSparkError
from feedmux_spark.options import parse_options
from feedmux_spark.ranges import Slice, read_slice
from tests.unit.client.scripted_server import batch
from tests.unit.spark.answers import FEED, Answers, resolved

WANTED = Slice(b"after", b"until", "route", FEED)
AWAY = Unavailable("away", status="UNAVAILABLE")
LOST = HistoryLost("gone", reason="HISTORY_LOST")


def message(*numbers: int) -> change_feed_pb2.ReadRangeResponse:
    return change_feed_pb2.ReadRangeResponse(batch=batch(1, numbers).batch)


def read(**more: str) -> list[int]:
    options = parse_options({"endpoint": "localhost:1", **more})
    return [event["n"] for events in read_slice(options, WANTED) for event in bson.decode_all(events)]


def test_a_broken_read_continues_after_the_last_events(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Answers(monkeypatch, ReadRange=[[message(1, 2), AWAY], [AWAY], [message(3)]])
    assert read() == [1, 2, 3]
    assert [request.after for _, request in server.asked] == [b"after", b"P2", b"P2"]
    assert {(request.until, request.feed_fingerprint) for _, request in server.asked} == {(b"until", FEED)}


def test_an_error_for_good_is_not_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Answers(monkeypatch, ReadRange=[[OptionRefused("no", status="INVALID_ARGUMENT")]])
    with pytest.raises(FeedmuxSparkError, match="MongoDB rejected the pipeline"):
        read()
    assert len(server.asked) == 1


def test_a_token_that_expires_while_events_come_is_replaced_from_its_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    expired = Unauthenticated("expired", status="UNAUTHENTICATED", reason="UNAUTHENTICATED")
    file = tmp_path / "token"
    file.write_text("token")
    Answers(monkeypatch, ReadRange=[[message(1), expired], [message(2)]])
    assert read(tokenFile=str(file)) == [1, 2]
    for more, option in ([[expired]], {"tokenFile": str(file)}), ([], {"token": "token"}):
        Answers(monkeypatch, ReadRange=[[message(1), expired], *more])
        with pytest.raises(FeedmuxSparkError, match="rejected the credentials"):
            read(**option)


@pytest.mark.parametrize(
    ("answers", "numbers"),
    [
        ([[message(1), LOST], [message(5)]], [1, 5]),
        ([[LOST], [InvalidArgument("before after", metadata={"field": "until"})]], []),
    ],
    ids=["the rest comes", "the whole slice is lost"],
)
def test_lost_history_ends_the_query_or_is_left_out(
    answers: list[Any], numbers: list[int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    Answers(monkeypatch, ReadRange=[list(each) for each in answers])
    with pytest.raises(FeedmuxSparkError, match="Changes are lost"):
        read()
    again = list(answers)
    server = Answers(monkeypatch, ReadRange=answers, ResolvePosition=[resolved(b"oldest", 2000), resolved(b"after")])
    assert read(failOnDataLoss="false") == numbers
    assert server.asked[-1][1].after == b"oldest"
    assert "changes of a planned range are lost" in caplog.text
    # A member of the set lost it, and the primary did not: what comes after the oldest change was read before.
    Answers(monkeypatch, ReadRange=again, ResolvePosition=[resolved(b"oldest"), resolved(b"after")])
    with pytest.raises(FeedmuxSparkError, match="HISTORY_LOST"):
        read(failOnDataLoss="false")


def test_a_range_of_a_history_that_is_gone_has_no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    forked = TimelineForked("gone", reason="TIMELINE_FORKED")
    Answers(monkeypatch, ReadRange=[[message(1), forked]])
    with pytest.raises(FeedmuxSparkError, match="MongoDB was restored"):
        read()
    Answers(monkeypatch, ReadRange=[[message(1), forked]])
    assert read(failOnDataLoss="false") == [1]


def test_a_slice_that_ends_before_it_begins_is_an_error_without_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    Answers(monkeypatch, ReadRange=[[InvalidArgument("before after", metadata={"field": "until"})]])
    with pytest.raises(FeedmuxSparkError):
        read(failOnDataLoss="false")
