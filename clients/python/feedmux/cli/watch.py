"""`feedmux watch`: prints changes as they happen; for people on a terminal, JSON lines or BSON for programs."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import cache

import feedmux
from feedmux.cli.connection import OPEN_TIMEOUT_S, add_connection_options, connected
from feedmux.cli.event_output import EventOutput, Notices, add_output_options, note_if_missing, remark, wait
from feedmux.cli.failure import CliError
from feedmux.cli.feed_arguments import START_HELP, add_feed_arguments, feed_of, position_text, scope_name, start
from feedmux.cli.terminal import flush, write


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_feed_arguments(parser)
    parser.epilog = (
        "Examples:\n"
        "  feedmux watch shop.orders\n"
        '  feedmux watch shop --start 15m --pipeline \'[{"$match": {"operationType": "delete"}}]\'\n'
        "  feedmux watch shop.orders | jq .documentKey\n\n"
        "On a terminal it prints a line for people; otherwise one event per line in relaxed extended JSON."
    )
    parser.add_argument("--start", metavar="POSITION", type=start, help=START_HELP)
    add_output_options(parser)
    add_connection_options(parser)


def run(args: argparse.Namespace) -> int:
    output, notices = EventOutput(args), Notices()
    feed = feed_of(args)
    output.one_collection = feed.collection is not None
    with (
        connected(args, _located) as client,
        notices.bar,
        client.feed(feed).open(
            args.start, on_notice=notices.show, format=output.wire_format, open_timeout_s=OPEN_TIMEOUT_S
        ) as session,
    ):
        if output.for_people:
            what = "the whole deployment" if feed.database is None else scope_name(feed)
            remark(f"watching {what} at {args.endpoint} (press Ctrl-C to stop)")
        notices.opened(session)
        _follow(session, output, notices, args.limit, cache(lambda: note_if_missing(client, feed)))
    return 0


def _follow(
    session: feedmux.Session, output: EventOutput, notices: Notices, limit: int | None, at_pause: Callable[[], None]
) -> None:
    written = 0
    while limit is None or written < limit:
        event = wait(session, notices)
        if event is not None:
            with notices.bar.hidden():
                write(output.encode(event))
            written += 1
        else:
            at_pause()
    flush()


def _located(error: Exception) -> CliError | None:
    """Add to the error of an invalidate how to resume after it."""
    if not isinstance(error, feedmux.FeedInvalidated) or not error.position:
        return None
    return CliError(
        "the feed has ended: its collection or database was dropped or renamed",
        f"Resume after it with --start {position_text(error.position)}",
    )
