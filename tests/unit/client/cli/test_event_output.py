"""What `watch` and `consume` print besides events, and in which format they print events."""

import argparse
import io
import sys
from typing import Any, cast

import pytest
from bson.timestamp import Timestamp

import feedmux
from feedmux.cli.event_output import EventOutput, Notices, count
from feedmux.cli.failure import UsageError
from tests.tables import over


def test_a_lost_connection_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    class Session:
        cluster_time: Timestamp | None = Timestamp(1, 1)

    session, notices = Session(), Notices()
    notices.session = cast(feedmux.Session, session)
    lost = feedmux.Disconnected(feedmux.Unavailable("to all: ipv6:%5B::1%5D:1: Connection refused"), 0.1)
    for notice in (feedmux.Draining(1.0, b""), lost, lost):
        notices.show(notice)
    assert capsys.readouterr().err == "-- the server is shutting down; reconnecting\n"
    notices.check()
    assert capsys.readouterr().err == ""
    session.cluster_time = Timestamp(2, 1)
    notices.check()
    notices.check()
    assert capsys.readouterr().err == "-- connected again\n"
    for notice in (lost, lost):
        notices.show(notice)
    assert capsys.readouterr().err == "-- connection lost (Connection refused); reconnecting\n"
    notices.show(feedmux.Draining(1.0, b""))
    session.cluster_time = Timestamp(3, 1)
    notices.check()  # a server that drains still sends
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("notice", "line"),
    [
        (feedmux.Degraded("source", True), "the server has lost its connection to MongoDB"),
        (feedmux.Degraded("state", False), "the server is again connected to Redis"),
        (feedmux.Unacknowledged(7), "the server waits until some of 7 events are acknowledged"),
        (feedmux.HistoryAtRisk(59.7), "the oplog drops this position in 60 s"),
        (feedmux.Gap((0, 1), (3600, 1), "r"), "events are missing from 1970-01-01 00:00:00Z to 1970-01-01 01:00:00Z"),
        (feedmux.Rewound((0, 1), (9, 1)), "moved back to 1970-01-01 00:00:00Z: events are delivered again"),
        (feedmux.Skipped((0, 1), (60, 1), b"", b""), "from 1970-01-01 00:00:00Z to 1970-01-01 00:01:00Z: the events"),
    ],
)  # fmt: skip
def test_a_notice_is_a_line(notice: feedmux.Notice, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    Notices().show(notice)
    assert line in capsys.readouterr().err


class Shown(io.StringIO):
    """Standard output that is a terminal."""

    def isatty(self) -> bool:
        return True


def output(*, raw: bool = False, json: bool = False, **options: Any) -> EventOutput:
    return EventOutput(argparse.Namespace(raw=raw, json=json), **options)


def test_the_format_depends_on_who_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    assert output().wire_format == output(json=True).wire_format == "extended_json_relaxed"
    assert output(raw=True).wire_format == "bson"
    monkeypatch.setattr(sys, "stdout", Shown())
    assert (output().for_people, output().wire_format) == (True, "bson")
    assert (output(json=True).for_people, output(json=True).wire_format) == (False, "extended_json_relaxed")
    # The events go to a command, whoever reads what it prints.
    assert not output(to_stdout=False).for_people
    assert output(raw=True, to_stdout=False).wire_format == "bson"
    with pytest.raises(UsageError, match="standard output is a terminal"):
        output(raw=True)
    with pytest.raises(UsageError, match="cannot be used together"):
        output(raw=True, json=True)


def test_json_on_a_terminal_has_no_control_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    event = cast(feedmux.Event, argparse.Namespace(raw='{"a":"\x9b2J\x7fÂé"}'.encode()))
    assert output(json=True).encode(event) == event.raw + b"\n"
    monkeypatch.setattr(sys, "stdout", Shown())
    assert output(json=True).encode(event).decode() == '{"a":"\\u009b2J\\u007fÂé"}\n'


@over("text", ["0", "-1", "1.5", "", "²", "many"])
def test_a_count_is_a_whole_number_from_1(text: str) -> None:
    assert count("1") == 1
    with pytest.raises(argparse.ArgumentTypeError, match="1 or more"):
        count(text)
