"""What people read: lines, tables, bars, times and numbers; nothing from a document controls the terminal."""

import io
import json
import re
import sys
import unicodedata
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from bson import Binary, Decimal128, MaxKey, ObjectId, Regex, Timestamp

import feedmux
from feedmux.cli import main
from feedmux.cli.copy_bar import CopyBar, copy_text
from feedmux.cli.event_line import event_line, value_text
from feedmux.cli.event_output import Notices
from feedmux.cli.terminal import (
    Painted,
    Terminal,
    cut,
    duration,
    escaped,
    iso_time,
    plain,
    print_json,
    say,
    size,
    table,
    utc_time,
)
from tests.tables import over
from tests.unit.client.cli.test_event_output import Shown


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("COLUMNS", "200")
    return Terminal(io.StringIO())


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
def test_json_is_json_in_every_locale(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, encoding, write_through=True))
    print_json({"né": "✓"})
    assert json.loads(written.getvalue().decode(encoding)) == {"né": "✓"}


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
def test_text_is_shown_in_every_locale(encoding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    written = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, encoding, write_through=True))
    assert main(["context", "save", "one", "--endpoint", "bücher…:1"]) == 0
    assert main(["context", "show", "one"]) == 0
    assert "bücher…:1" in written.getvalue().decode(encoding).replace(r"\u2026", "…").replace(r"\xfc", "ü")


def test_cutting_leaves_colours_whole() -> None:
    assert cut("\x1b[31mabcdef\x1b[0m", 4) == "\x1b[31mabc\x1b[0m…"
    assert cut("\x1b[31mabcd\x1b[0m", 4) == "\x1b[31mabcd\x1b[0m"


def test_a_table_without_rows(terminal: Terminal) -> None:
    assert table(terminal, ("A", "B"), []) == "A  B"


def test_durations_are_rounded_before_they_are_split() -> None:
    shown = {
        0.4: "0 s", 59.4: "59 s", 59.6: "1 min 0 s", 1079.7: "18 min 0 s", 3599.9: "1 h 0 min", 7_290: "2 h 1 min",
        172_799: "47 h 59 min", 176_400: "2 d 1 h",
    }  # fmt: skip
    assert {seconds: duration(seconds) for seconds in shown} == shown


def test_a_table_is_cut_to_the_terminal_but_not_to_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "8")
    monkeypatch.setenv("NO_COLOR", "1")
    rows = [("one", "a\x1b[2Jb"), ("fourteen", 2)]
    assert table(Terminal(io.StringIO()), ("A", "B"), rows).splitlines() == [
        "A         B",
        "one       a?[2Jb",
        "fourteen  2",
    ]
    assert table(Terminal(Shown()), ("A", "B"), rows).splitlines()[2] == "fourtee…"


@pytest.mark.parametrize(
    ("environment", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_colours_are_for_terminals_that_show_them(
    environment: dict[str, str], coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert ("\x1b" in Terminal(Shown()).paint("text", "red")) == coloured
    assert Terminal(io.StringIO()).paint("text", "red") == "text"


def test_sizes_change_their_unit_at_1024() -> None:
    shown = {
        0: "0 B",
        1023: "1023 B",
        1024: "1.0 KiB",
        1024**2: "1.0 MiB",
        3 * 1024**3: "3.0 GiB",
        1024**4: "1024.0 GiB",
    }
    assert {count: size(count) for count in shown} == shown


def test_times_are_in_utc_whatever_their_zone() -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, 678_900, tzinfo=timezone(timedelta(hours=2)))
    assert iso_time(moment) == "2026-01-02T01:04:05.678900Z"
    assert iso_time(None) is None
    assert utc_time(moment.timestamp(), milliseconds=True) == "2026-01-02 01:04:05.678Z"
    assert len(utc_time(datetime.now(UTC).timestamp())) in (9, 20)  # midnight may pass


def test_json_has_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    value = {"name": "\x9b2J\x7fé\x00\x1b\u2028\u202e\U000e0041"}
    print_json(value)
    told = capsys.readouterr().out
    assert "é" in told
    assert "\\u202e\\udb40\\udc41" in told
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", told)
    assert json.loads(told) == value


def test_control_characters_are_shown_as_question_marks() -> None:
    assert plain("a\x1b[2J\n\x7f\x9bé") == "a?[2J???é"
    assert plain("a\u202egpj.exe\u2066\u200d ü\u3000語") == "a?gpj.exe?? ü\u3000語"
    shown = [chr(code) for code in range(sys.maxunicode + 1) if plain(chr(code)) != "?"]
    assert [each for each in shown if unicodedata.category(each) in ("Cc", "Cf", "Zl", "Zp")] == []


def test_what_is_printed_controls_nothing_but_what_the_program_painted(capsys: pytest.CaptureFixture[str]) -> None:
    say(Painted("\x1b[1mnote:\x1b[0m\n"), "\x1b[2J\u202e", 7)
    assert capsys.readouterr().out == "\x1b[1mnote:\x1b[0m\n ?[2J? 7\n"


def test_json_for_a_terminal_that_is_not_utf_8_stays_as_it_is() -> None:
    assert escaped(b'{"a": "\xff\xe2\x80\xae"}\n') == b'{"a": "\xff\\u202e"}\n'


@pytest.mark.parametrize(
    ("event", "words"),
    [
        ({}, ""),
        ({"_id": 1, "anything": 2}, "anything: 2"),
        ({"operationType": "insert", "fullDocument": {"_id": 1, "a": {"b": {"c": {"d": 1}}}}}, "a: {b: {c: {…}}}"),
        ({"operationType": "rename", "to": {"db": "shop", "coll": "old"}}, "to shop.old"),
        ({"operationType": "create", "operationDescription": {"idIndex": 1}}, "idIndex: 1"),
        ({"updateDescription": {"truncatedArrays": [{"field": "tags", "newSize": 2}]}}, "tags cut to 2"),
        ({"operationType": "update", "updateDescription": 5, "ns": 3, "documentKey": 4}, "update"),
        ({"updateDescription": {"removedFields": 2, "truncatedArrays": 3, "updatedFields": 4}}, "?"),
        ({"updateDescription": {"truncatedArrays": [{"newSize": "\x1b[2J\n"}, 1]}}, "None cut to ?[2J?"),
        ({"operationType": "delete", "documentKey": {"region": "eu", "_id": 5}}, '{region: "eu", _id: 5}'),
        ({"operationType": 7, "wallTime": "yesterday", "clusterTime": Timestamp(1, 1)}, "7"),
    ],
)  # fmt: skip
def test_shapes(terminal: Terminal, event: dict[str, Any], words: str) -> None:
    line = event_line(terminal, event)
    assert words in line
    assert "\n" not in line


@over(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (1.5, "1.5"),
        ("line\nbreak \x1b", '"line?break ?"'),
        ("x" * 100, '"' + "x" * 60 + '…"'),
        (ObjectId("6b0170b0e72021d4ffb44009"), "6b0170b0e72021d4ffb44009"),
        (Decimal128("1.10"), "1.10"),
        (Binary(b"abc"), "<3 bytes>"),
        (Regex("^a"), "/^a/"),
        (Timestamp(5, 6), "5:6"),
        (datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02T00:00:00.000+00:00"),
        ([1, [2, [3]]], "[1, [2, [1 items]]]"),
        (MaxKey(), "MaxKey()"),
    ],
)
def test_values(value: object, text: str) -> None:
    assert value_text(value) == text


STATUS = feedmux.SnapshotStatus(True, 1200, 0, 5000, 19.0)


def test_a_copy_is_a_bar_on_a_terminal_and_nothing_without_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Notices().show(feedmux.SnapshotProgress(STATUS))
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    terminal = Shown()
    monkeypatch.setattr(sys, "stderr", terminal)
    notices = Notices()
    with notices.bar:
        notices.opened(cast(feedmux.Session, SimpleNamespace(copying=replace(STATUS, documents=0))))
        notices.show(feedmux.SnapshotProgress(STATUS))
        with notices.bar.hidden():
            terminal.write("event\n")
        notices.show(feedmux.SnapshotComplete(5001))
        terminal.write("after\n")
    clear = "\r\x1b[K"
    bar = "[#####...................] 1,200 of about 5,000 documents (24 %), 200/s, 19 s left"
    first, *rest = terminal.getvalue().split(clear)[1:]
    assert "] 0 of about 5,000 documents (0 %)" in first
    done = "-- the existing documents are copied (5,001); changes follow"
    assert [each.replace("\x1b[2m", "").replace("\x1b[0m", "") for each in rest] == [
        bar, "event\n", bar, f"{done}\nafter\n",
    ]  # fmt: skip


def test_a_bar_fits_into_its_terminal_and_is_never_full_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "40")
    terminal = Shown()
    CopyBar(terminal).show(replace(STATUS, documents=6000))
    assert len(terminal.getvalue()) == len("\r\x1b[K") + 39
    assert copy_text(replace(STATUS, documents=6000, remaining_s=None)) == "6,000 of about 5,000 documents (99 %)"
    assert copy_text(feedmux.SnapshotStatus(True, 7)) == "7 documents"
    monkeypatch.setenv("TERM", "dumb")
    plain = Shown()
    CopyBar(plain).show(STATUS)
    assert plain.getvalue() == ""
