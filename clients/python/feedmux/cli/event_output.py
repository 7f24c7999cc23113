"""What `feedmux watch` and `feedmux consume` share: the format of events, notices, and the end of a loop."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from time import monotonic
from typing import Final

import bson
from bson.timestamp import Timestamp

import feedmux
from feedmux.cli.copy_bar import CopyBar
from feedmux.cli.event_line import event_line
from feedmux.cli.failure import UsageError, cause_of
from feedmux.cli.feed_arguments import scope_name
from feedmux.cli.terminal import Terminal, escaped, flush, plain, reader_has_gone, say, utc_time
from feedmux.cli.typed_json import shown
from feedmux.feeds import Feed, Format
from feedmux.options import SESSION_CODEC

CHECK_EVERY_S: Final = 1.0
"""How often an idle command checks whether its output still has a reader."""
_ANY_TEXT: Final = SESSION_CODEC.with_options(unicode_decode_error_handler="replace")
"""MongoDB stores texts that are not UTF-8, too."""


def add_output_options(parser: argparse.ArgumentParser) -> None:
    """Add --limit, --json and --raw."""
    parser.add_argument("--limit", metavar="N", type=count, help="stop after N events")
    parser.add_argument("--json", action="store_true", help="print JSON lines, also on a terminal")
    parser.add_argument(
        "--raw", action="store_true", help="write the BSON documents as MongoDB sent them (pipe to bsondump)"
    )


class EventOutput:
    """The format of the events that a command prints or hands to another program."""

    def __init__(self, args: argparse.Namespace, *, to_stdout: bool = True) -> None:
        """Choose the format. Raises UsageError for options that contradict each other."""
        self._terminal = Terminal(sys.stdout)
        if args.raw and args.json:
            raise UsageError("--raw and --json cannot be used together")
        self._for_a_terminal = to_stdout and self._terminal.interactive
        if args.raw and self._for_a_terminal:
            raise UsageError(
                "--raw writes binary data, and standard output is a terminal",
                "Pipe the output into a program: | bsondump",
            )
        self.for_people = self._for_a_terminal and not args.json
        self._end = b"" if args.raw else b"\n"
        self.wire_format: Format = "bson" if args.raw or self.for_people else "extended_json_relaxed"
        self.one_collection = False
        """Whether all events are from one collection, whose name a narrow terminal omits."""

    def encode(self, event: feedmux.Event) -> bytes:
        """Return one event as a line or as a BSON document."""
        if self.for_people:
            try:
                document = bson.decode(event.raw, _ANY_TEXT)
            except bson.errors.InvalidBSON:  # a value that MongoDB takes, and pymongo does not
                document = shown(event.raw)
            return event_line(self._terminal, document, one_collection=self.one_collection).encode() + b"\n"
        return (escaped(event.raw) if self._for_a_terminal else event.raw) + self._end


def wait(session: feedmux.Session, notices: Notices, *, watch_reader: bool = True) -> feedmux.Event | None:
    """Return the next event, or None when `CHECK_EVERY_S` has passed.

    With `watch_reader`, raises BrokenPipeError when nothing reads standard output any more.
    """
    event = session.try_next()
    if event is None:
        flush()
        try:
            event = session.next(CHECK_EVERY_S)
        except TimeoutError:
            if watch_reader and reader_has_gone():
                raise BrokenPipeError from None
    notices.check()
    return event


def remark(text: str) -> None:
    """Print a line for people on standard error, after flushing earlier output."""
    flush()
    say(Terminal(sys.stderr).paint(plain(text), "dim"), file=sys.stderr)


def note_if_missing(client: feedmux.Client, feed: Feed) -> None:
    """Print a line if the feed's collection or database does not exist. Prints none where the server cannot tell."""
    try:
        if not client.feed(feed).explain().scope_missing:
            return
    except feedmux.FeedmuxError:
        return
    what = "collection" if feed.collection else "database"
    remark(f"-- {what} {scope_name(feed)} does not exist yet; events come once it is created")


class Notices:
    """Prints a session's notices on standard error: a line for each, but only one for all attempts to reconnect. How
    far a copy is, a bar shows."""

    session: feedmux.Session | feedmux.Member | None = None

    def __init__(self) -> None:
        self.bar = CopyBar()
        self._lost_at: Timestamp | None = None
        self._reconnecting = False
        self._copying: feedmux.SnapshotStatus | None = None
        self._documents = 0
        self._began_s: float | None = None
        """When the first documents were processed, which count for no rate."""
        self._since_then = 0

    def show(self, notice: feedmux.Notice) -> None:
        """Print a notice."""
        if isinstance(notice, feedmux.SnapshotProgress):
            self.bar.show(notice.status)
            return
        if isinstance(notice, feedmux.Disconnected | feedmux.Draining) and self.session is not None:
            # Where the session has heard from the server since, this is another loss.
            lost_at, self._lost_at = self._lost_at, self.session.cluster_time
            self._reconnecting = isinstance(notice, feedmux.Disconnected)
            if lost_at is not None and lost_at == self._lost_at:
                return
        self.bar.hide()
        _print_notice(notice)

    def opened(self, session: feedmux.Session) -> None:
        """Note the session, which is open, and show how far its copy is."""
        self.session = session
        if session.copying is not None:
            self.bar.show(session.copying)

    def processed(self, events: Sequence[feedmux.Event], copying: feedmux.SnapshotStatus | None) -> None:
        """Show that documents of a copy are processed. The server's messages come in order with them: where a
        command is slow, thousands of documents wait before the next one."""
        documents = sum(event.snapshot for event in events) if copying is not None else 0
        if copying is None or not documents:
            return
        if copying is not self._copying:
            self._copying, self._documents = copying, 0
        self._documents += documents
        now_s, left_s = monotonic(), None
        left = copying.documents_estimated - copying.documents - self._documents
        if self._began_s is None:
            self._began_s = now_s
        else:
            self._since_then += documents
            left_s = left * (now_s - self._began_s) / self._since_then if left > 0 else None
        self.bar.show(replace(copying, documents=copying.documents + self._documents, remaining_s=left_s))

    def check(self) -> None:
        """Print a line if the session has heard from the server since the connection was lost."""
        if self._reconnecting and self.session is not None and self.session.cluster_time != self._lost_at:
            self._reconnecting = False
            self.bar.hide()
            remark("-- connected again")


def _print_notice(notice: feedmux.Notice) -> None:
    match notice:
        case feedmux.Disconnected():
            text = f"connection lost ({cause_of(notice.error)}); reconnecting"
        case feedmux.Draining():
            text = "the server is shutting down; reconnecting"
        case feedmux.Degraded():
            dependency = "MongoDB" if notice.dependency == "source" else "Redis"
            change = "has lost its connection to" if notice.unavailable else "is again connected to"
            text = f"the server {change} {dependency}"
        case feedmux.SnapshotComplete():
            text = f"the existing documents are copied ({notice.documents:,}); changes follow"
        case feedmux.HistoryAtRisk():
            text = f"the oplog drops this position in {notice.remaining_s:.0f} s"
        case feedmux.Unacknowledged():
            text = f"the server waits until some of {notice.events} events are acknowledged"
        case feedmux.Gap():
            text = f"events are missing from {utc_time(notice.after[0])} to {utc_time(notice.before[0])}"
        case feedmux.Rewound():
            text = f"moved back to {utc_time(notice.begins_at[0])}: events are delivered again"
        case feedmux.Skipped():
            reached, begins = utc_time(notice.had_reached[0]), utc_time(notice.begins_at[0])
            text = f"the stored position was moved from {reached} to {begins}: the events in between are skipped"
    remark(f"-- {text}")


def count(text: str) -> int:
    """Parse an argument that is a whole number, 1 or more."""
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError("must be a whole number, 1 or more")
    return number
