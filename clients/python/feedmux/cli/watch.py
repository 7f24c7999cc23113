"""`feedmux watch`: changes as they happen; for people on a terminal, JSON lines or BSON for programs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

import feedmux
from feedmux.cli.connection import OPEN_TIMEOUT_S, add_connection_options, connected
from feedmux.cli.event_line import event_line
from feedmux.cli.failure import CliError, UsageError
from feedmux.cli.feed_arguments import START_HELP, add_feed_arguments, feed_of, position_text, scope_name, start
from feedmux.cli.terminal import Terminal, local_time, reader_has_gone
from feedmux.feeds import Format

_LOOK_AROUND_S = 1.0
"""How often an idle command looks whether anybody still reads its output."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_feed_arguments(parser)
    parser.epilog = (
        "Examples:\n"
        "  feedmux watch shop.orders\n"
        '  feedmux watch shop --start 15m --pipeline \'[{"$match": {"operationType": "delete"}}]\'\n'
        "  feedmux watch shop.orders | jq .documentKey\n\n"
        "On a terminal a line for people; else one event per line in relaxed extended JSON."
    )
    parser.add_argument("--start", metavar="PLACE", type=start, help=START_HELP)
    parser.add_argument("--limit", metavar="N", type=_count, help="end after N events")
    parser.add_argument("--json", action="store_true", help="JSON lines on a terminal, too")
    parser.add_argument("--raw", action="store_true", help="the BSON documents as MongoDB sent them (| bsondump)")
    add_connection_options(parser)


def run(args: argparse.Namespace) -> int:
    terminal = Terminal(sys.stdout)
    if args.raw and args.json:
        raise UsageError("--raw and --json exclude each other")
    if args.raw and terminal.interactive:
        raise UsageError("--raw writes binary data, and standard output is a terminal", "Pipe it: | bsondump")
    for_people = terminal.interactive and not args.json
    feed = feed_of(args)
    wire_format: Format = "bson" if args.raw or for_people else "extended_json_relaxed"
    write = (
        _line_writer(terminal, feed.collection is not None) if for_people else _raw_writer(b"" if args.raw else b"\n")
    )
    with (
        connected(args, _located) as client,
        client.feed(feed).open(
            args.start, on_notice=_say, format=wire_format, open_timeout_s=OPEN_TIMEOUT_S
        ) as session,
    ):
        if for_people:
            what = "the whole deployment" if feed.database is None else scope_name(feed)
            told = f"watching {what} at {args.endpoint} (Ctrl-C ends)"
            print(Terminal(sys.stderr).paint(told, "dim"), file=sys.stderr)
        _follow(session, write, args.limit)
    return 0


def _follow(session: feedmux.Session, write: Callable[[feedmux.Event], None], limit: int | None) -> None:
    left = limit
    while left is None or left > 0:
        event = session.try_next()
        if event is None:
            sys.stdout.flush()
            try:
                event = session.next(_LOOK_AROUND_S)
            except TimeoutError:
                if reader_has_gone():
                    raise BrokenPipeError from None
                continue
        write(event)
        if left is not None:
            left -= 1
    sys.stdout.flush()


def _line_writer(terminal: Terminal, one_collection: bool) -> Callable[[feedmux.Event], None]:
    def write(event: feedmux.Event) -> None:
        print(event_line(terminal, event.document, one_collection=one_collection))

    return write


def _raw_writer(end: bytes) -> Callable[[feedmux.Event], None]:
    out = sys.stdout.buffer

    def write(event: feedmux.Event) -> None:
        out.write(event.raw + end)

    return write


def _say(notice: feedmux.Notice) -> None:
    match notice:
        case feedmux.Disconnected():
            text = f"connection lost ({notice.error.message}); trying again"
        case feedmux.Draining():
            text = "the server goes away; connecting again"
        case feedmux.Degraded():
            away = "MongoDB" if notice.dependency == "source" else "Redis"
            text = f"the server {'has lost' if notice.away else 'has found'} {away}{'' if notice.away else ' again'}"
        case feedmux.HistoryAtRisk():
            text = f"the oplog passes this place in {notice.remaining_s:.0f} s"
        case feedmux.Gap():
            text = f"events are missing from {local_time(notice.after[0])} to {local_time(notice.before[0])}"
        case feedmux.Rewound():
            text = f"going back to {local_time(notice.begins_at[0])}: events come again"
        case feedmux.Skipped():
            reached, begins = local_time(notice.had_reached[0]), local_time(notice.begins_at[0])
            text = f"the stored position was moved from {reached} to {begins}: events between are skipped"
    sys.stdout.flush()
    print(Terminal(sys.stderr).paint(f"-- {text}", "dim"), file=sys.stderr)


def _located(error: Exception) -> CliError | None:
    """The end by an invalidate says how to go on behind it."""
    if not isinstance(error, feedmux.FeedInvalidated) or not error.position:
        return None
    return CliError(
        "the feed has ended: its collection or database was dropped or renamed",
        f"Go on behind it with --start {position_text(error.position)}",
    )


def _count(text: str) -> int:
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError("a whole number from 1 on is wanted")
    return number
