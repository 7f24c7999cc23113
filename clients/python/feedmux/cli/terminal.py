"""Output of the commands: optional colours, tables and JSON.

Invariant: no text from a document or a name reaches a terminal with control characters in it.
"""

import json
import os
import re
import select
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from typing import Any, TextIO

from feedmux.cli.signals import SIGNALS

_CODES = {
    "bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34", "magenta": "35", "cyan": "36",
}  # fmt: skip
# Unicode's control and format characters (Cc, Cf) and its separators of lines: they move the cursor, change the order
# in which text is shown, or hide it. Names in some scripts and emoji have format characters, too; they become "?".
_CONTROL = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\ufeff\ufff9-\ufffb\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0001\U000e0020-\U000e007f]"
)
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


class Painted(str):
    """Text in which the program itself has put colours or line ends: it is printed as it is."""

    __slots__ = ()


class Terminal:
    """A stream, and whether it is a terminal that shows colours (https://no-color.org)."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.interactive = stream.isatty()
        self.colours = self.interactive and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"

    @property
    def width(self) -> int:
        """Return the current number of columns; the terminal may be resized at any time."""
        return shutil.get_terminal_size((100, 24)).columns

    def paint(self, text: str, *styles: str) -> str:
        if not self.colours or not styles:
            return text
        return Painted(f"\x1b[{';'.join(_CODES[style] for style in styles)}m{text}\x1b[0m")

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Print one line for a step that takes a while: its name, then how long it took."""
        started_s = time.monotonic()
        if self.interactive:
            self.stream.write(f"    {name} …")
            self.stream.flush()
        try:
            yield
        except BaseException:
            if self.interactive:
                self.stream.write("\n")
            raise
        took = f"{time.monotonic() - started_s:.1f} s"
        if self.interactive:
            self.stream.write(f"\r  {self.paint('✓', 'green')} {name} {self.paint(took, 'dim')}  \n")
        else:
            self.stream.write(f"  {name}: {took}\n")
        self.stream.flush()


def plain(text: object) -> str:
    """Return the text with question marks in place of control and format characters."""
    return _CONTROL.sub("?", str(text))


def say(*parts: object, end: str = "\n", file: TextIO | None = None, flush: bool = False) -> None:
    """Print text that may come from a document, a name or a server: the one way to print for all commands. What is
    `Painted` is printed as it is."""
    shown = " ".join(each if isinstance(each, Painted) else plain(each) for each in parts)
    with SIGNALS.deferred() if file is None else nullcontext():
        print(shown, end=end, file=file, flush=flush)


def write(data: bytes) -> None:
    """Write to standard output, which may be buffered, whole: from a write that a signal interrupts, Python drops what
    its buffer does not hold."""
    with SIGNALS.deferred():
        sys.stdout.buffer.write(data)


def flush() -> None:
    """Write out what standard output has buffered, whole."""
    with SIGNALS.deferred():
        sys.stdout.flush()


def escaped(json_text: bytes) -> bytes:
    """Return the JSON text, in UTF-8, with all characters in strings escaped that `plain` replaces."""
    # JSON escapes those below a space itself; outside strings, they are line ends.
    text = json_text.decode("utf-8", "surrogateescape")
    return _CONTROL.sub(_escape, text).encode("utf-8", "surrogateescape")


def _escape(found: re.Match[str]) -> str:
    if found.group() < " ":
        return found.group()
    units = found.group().encode("utf-16-be")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def cut(text: str, width: int) -> str:
    """Cut a line to `width` columns; escape sequences do not count."""
    if len(_ESCAPE.sub("", text)) <= width:
        return text
    kept: list[str] = []
    room = max(0, width - 1)
    at = 0
    for found in _ESCAPE.finditer(text):
        piece = text[at : found.start()][:room]
        room -= len(piece)
        kept += (piece, found.group())
        at = found.end()
    kept.append(text[at:][:room])
    return "".join(kept) + "…"


def table(terminal: Terminal, headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Print a table with columns as wide as their content, cut to the width of a terminal."""
    cells = [[value if isinstance(value, Painted) else plain(value) for value in row] for row in rows]
    widths = [
        max(len(header), *(len(_ESCAPE.sub("", row[index])) for row in cells)) if cells else len(header)
        for index, header in enumerate(headers)
    ]
    lines = [
        terminal.paint("  ".join(header.ljust(width) for header, width in zip(headers, widths, strict=True)), "dim")
    ]
    for row in cells:
        padded = (cell + " " * (width - len(_ESCAPE.sub("", cell))) for cell, width in zip(row, widths, strict=True))
        lines.append("  ".join(padded).rstrip())
    if terminal.interactive:
        lines = [cut(line, terminal.width) for line in lines]
    return Painted("\n".join(line.rstrip() for line in lines))


def print_json(value: Mapping[str, Any]) -> None:
    """Print one JSON object on one line, in ASCII if the locale has no more."""
    text = json.dumps(value, ensure_ascii=sys.stdout.encoding.lower() != "utf-8", allow_nan=False)
    say(Painted(escaped(text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")))


def silence_stdout() -> None:
    """Discard further output after its reader has gone, so that the interpreter does not complain at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def reader_has_gone() -> bool:
    """Return whether standard output is a pipe that nothing reads any more."""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
    except (OSError, ValueError, AttributeError):
        return False


def utc_time(seconds: float, *, milliseconds: bool = False) -> str:
    """Return the time of day in UTC, with the date unless it is today: `07:26:06Z`, `2026-11-26 07:26:06Z`."""
    moment = datetime.fromtimestamp(seconds, UTC)
    shape = "%H:%M:%S" if moment.date() == datetime.now(UTC).date() else "%Y-%m-%d %H:%M:%S"
    fraction = f".{moment.microsecond // 1000:03d}" if milliseconds else ""
    return f"{moment.strftime(shape)}{fraction}Z"


def iso_time(moment: datetime | None) -> str | None:
    """Return a time for JSON: ISO 8601 in UTC."""
    return None if moment is None else moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def size(count: float) -> str:
    """Return a number of bytes for people."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def duration(seconds: float) -> str:
    """Return a time span for people."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 48 * 3600:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"
