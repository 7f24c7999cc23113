"""The bar that shows how far a copy is, on a terminal of its own."""

import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

import feedmux
from feedmux.cli.copy_bar import CopyBar, copy_text
from feedmux.cli.event_output import Notices
from tests.unit.client.cli.test_event_output import Shown

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
