"""How far a copy of existing documents is, for people: a line of text, and a bar on a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Final, TextIO

from feedmux.cli.terminal import Terminal, cut, duration, flush
from feedmux.feeds import SnapshotStatus

_BAR_COLUMNS: Final = 24
_CLEAR: Final = "\r\x1b[K"


def copy_text(status: SnapshotStatus) -> str:
    """Return how far a copy is: documents, total, share, rate and time left, as far as they are known."""
    total, rate = status.documents_estimated, status.documents_per_s
    return ", ".join(
        [
            f"{status.documents:,}{f' of about {total:,}' if total else ''} documents{_share(status, ' ({} %)')}",
            *([f"{rate:,.0f}/s"] if rate is not None else []),
            *([f"{duration(status.remaining_s)} left"] if status.remaining_s is not None else []),
        ]
    )


def copy_json(status: SnapshotStatus) -> dict[str, Any]:
    """Return how far a copy is, as --json prints it."""
    read = status.read_time
    return asdict(status) | {
        "fraction": status.fraction,
        "documents_per_s": status.documents_per_s,
        "read_time": f"{read.time}:{read.inc}" if read is not None else None,
    }


def _share(status: SnapshotStatus, form: str) -> str:
    """Return the per cent: fewer than 100 while documents are still to come, because the total is an estimate."""
    if status.fraction is None:
        return ""
    return form.format(min(99, int(status.fraction * 100)) if status.running else 100)


class CopyBar:
    """The last line of a terminal while documents are copied. Does nothing where standard error is no terminal.

    Hide it before anything else is printed; as a context manager, it hides itself at the end.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._terminal = Terminal(stream or sys.stderr)
        self._enabled = self._terminal.interactive and os.environ.get("TERM", "dumb") != "dumb"
        self._line = ""
        """What is shown; empty while nothing is."""

    def show(self, status: SnapshotStatus, remark: str = "") -> None:
        """Show how far the copy is, in place of what was shown before."""
        line = copy_text(status) + (f" - {remark}" if remark else "")
        if status.fraction is not None:
            done = int(status.fraction * _BAR_COLUMNS)
            line = f"[{'#' * done}{'.' * (_BAR_COLUMNS - done)}] {line}"
        if self._enabled:
            flush()
            self._draw(cut(line, self._terminal.width - 1))

    def hide(self) -> None:
        """Clear the line if it is shown."""
        if self._line:
            self._draw("")

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Hide the line while something else is printed."""
        line = self._line
        self.hide()
        yield
        if line:
            flush()
            self._draw(line)

    def _draw(self, line: str) -> None:
        self._line = line
        self._terminal.stream.write(_CLEAR + line)
        self._terminal.stream.flush()

    def __enter__(self) -> CopyBar:
        return self

    def __exit__(self, *_: object) -> None:
        self.hide()
