"""`feedmux streams`: the tables and the JSON of an answer."""

import argparse
import io
from contextlib import nullcontext
from typing import Any

import pytest
from google.protobuf import duration_pb2

from feedmux.cli import streams
from feedmux.cli.failure import CliError, Unreachable
from feedmux.cli.streams import _text, as_json, state_name
from feedmux.cli.terminal import Terminal
from feedmux.v1 import feed_pb2, operator_pb2

HOSTILE = "t\x1b[2J"
ONE = operator_pb2.Subscriber(
    id="s-1", tenant=HOSTILE, state="live", lag=duration_pb2.Duration(seconds=61), lag_events=3, peer="p"
)
STREAM = operator_pb2.SharedStream(
    id="1",
    source="main",
    scope="shop.orders",
    pipeline="[]",
    state=operator_pb2.SharedStream.STATE_READING,
    oldest=feed_pb2.ClusterTime(seconds=60, increment=1),
    newest=feed_pb2.ClusterTime(seconds=120, increment=2),
    ring_events=5,
    ring_bytes=2048,
    subscriber_count=1,
    subscribers=[ONE],
)


def answer(**more: object) -> operator_pb2.ListSharedStreamsResponse:
    totals = operator_pb2.Totals(shared_streams=1, cursors=2, subscribers=1)
    return operator_pb2.ListSharedStreamsResponse(**{"totals": totals, "shared_streams": [STREAM]} | more)  # type: ignore[arg-type]


def text(found: operator_pb2.ListSharedStreamsResponse, *, subscribers: bool = False) -> str:
    return _text(Terminal(io.StringIO()), found, subscribers)


def test_copies_are_shown_with_how_far_they_are() -> None:
    copying = operator_pb2.Subscriber(id="s-2", tenant=HOSTILE, subscription="s", state="lagging")
    status = feed_pb2.SnapshotStatus(
        state="STATE_RUNNING", documents=3000, documents_estimated=10_000, namespace="shop.\x1borders"
    )
    status.remaining.FromSeconds(70)
    copying.snapshot.CopyFrom(status)
    assert "SNAPSHOT" not in text(answer())
    shown = text(answer(detached_subscribers=[copying]))
    [row] = [line for line in shown.splitlines() if line.startswith("s-2")]
    assert row.endswith("shop.?orders  lagging  3,000 of about 10,000 documents (30 %), 100/s, 1 min 10 s left")
    assert "\x1b" not in shown
    [one] = as_json(answer(detached_subscribers=[copying]))["detached_subscribers"]
    assert (one["snapshot"]["documents"], one["snapshot"]["remaining_s"]) == (3000, 70.0)


def test_subscribers_that_do_not_acknowledge_are_counted() -> None:
    silent = operator_pb2.Subscriber(id="s-2", state="unacknowledged")
    assert "unacknowledged" not in text(answer())
    assert "1 subscriber in state `unacknowledged`" in text(answer(detached_subscribers=[silent]))


def test_subscribers_are_shown_on_demand() -> None:
    assert "s-1" not in text(answer())
    shown = text(answer(detached_subscribers=[ONE]), subscribers=True)
    rows = [line.split() for line in shown.splitlines() if line.startswith("s-1")]
    assert [row[1] for row in rows] == ["1", "-"], "of a stream, and of none"
    assert "(inline)" in shown
    assert "3 events, 1 min 1 s" in shown
    assert "\x1b" not in shown
    assert "1 subscribers that wait for credit" in text(answer(detached_subscribers=[ONE]))


def test_json_has_plain_numbers_and_names() -> None:
    (stream,) = as_json(answer())["shared_streams"]
    assert (stream["state"], stream["oldest"], stream["lag_s"]) == ("reading", "60:1", 0.0)
    assert (stream["subscribers"][0]["lag_s"], stream["subscribers"][0]["tenant"]) == (61.0, HOSTILE)
    assert state_name(operator_pb2.SharedStream(state=99)) == "99"  # type: ignore[arg-type]


def test_it_follows_through_a_restart_of_the_server(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What it cannot reach at first may not be there at all, and another failure stays."""
    away = Unreachable("cannot reach localhost:7118")
    answers: list[Any] = [answer(), away, away, answer(), away, answer(), CliError("rejected"), away]

    def ask(*_: object) -> operator_pb2.ListSharedStreamsResponse:
        found = answers.pop(0)
        if isinstance(found, CliError):
            raise found
        return found  # type: ignore[no-any-return]

    monkeypatch.setattr(streams, "connected_operator", lambda _: nullcontext(ask))
    monkeypatch.setattr(streams, "_FOLLOW_S", 0.0)
    args = argparse.Namespace(follow=True, json=True, end="", source="", subscribers=False)
    for error in ("rejected", "cannot reach"):
        with pytest.raises(CliError, match=error):
            streams.run(args)
    said = capsys.readouterr()
    assert said.out.count("totals") == 3
    assert said.err.count("-- cannot reach localhost:7118; trying again") == 2
