"""Tables, cut lines, times and numbers for people; nothing from a document controls the terminal."""

import io
import json
import re
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from feedmux.cli import main
from feedmux.cli.terminal import Terminal, cut, duration, iso_time, plain, print_json, size, table, utc_time


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
    shown = {0.4: "0 s", 59.4: "59 s", 59.6: "1 min 0 s", 1079.7: "18 min 0 s", 3599.9: "1 h 0 min", 7_290: "2 h 1 min"}
    assert {seconds: duration(seconds) for seconds in shown} == shown


def test_a_table_is_cut_to_the_terminal_but_not_to_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    class Shown(io.StringIO):
        def isatty(self) -> bool:
            return True

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
    class Shown(io.StringIO):
        def isatty(self) -> bool:
            return True

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
    value = {"name": "\x9b2J\x7fé\x00\x1b\u2028"}
    print_json(value)
    told = capsys.readouterr().out
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", told)
    assert json.loads(told) == value


def test_control_characters_are_shown_as_question_marks() -> None:
    assert plain("a\x1b[2J\n\x7f\x9bé") == "a?[2J???é"
