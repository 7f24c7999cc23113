"""`feedmux consume`: reads a durable subscription and acknowledges events once they are printed or processed."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Final

from bson.timestamp import Timestamp

import feedmux
from feedmux.background_loop import background_loop
from feedmux.cli.connection import OPEN_TIMEOUT_S, add_connection_options, connected
from feedmux.cli.event_output import (
    EventOutput,
    Notices,
    add_output_options,
    count,
    note_if_missing,
    remark,
    wait,
)
from feedmux.cli.failure import CliError, UsageError
from feedmux.cli.feed_arguments import (
    START_HELP,
    add_feed_arguments,
    feed_of,
    namespace,
    position_text,
    scope_name,
    start,
)
from feedmux.cli.join import check_join, consume_group
from feedmux.cli.shell_command import begin, ending
from feedmux.cli.signals import SIGNALS, Signals
from feedmux.cli.terminal import flush, write

PRINTED_AT_ONCE: Final = 1000
"""The most events that are printed and acknowledged together."""
HEARTBEAT_S: Final = 1.0
"""With --until-caught-up: how often an idle server reports how far it has read."""
_OF_A_NEW_ONE: Final = (
    "start", "pipeline", "full_document", "full_document_before_change", "show_expanded_events", "extra_options",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "Examples:\n"
        "  feedmux consume orders-to-search --create shop.orders --start earliest\n"
        "  feedmux consume orders-to-search --exec ./index-one.sh\n"
        "  feedmux consume orders-to-search --until-caught-up --exec ./index-many.sh --batch 500\n"
        "  feedmux consume orders-to-search | tee -a orders.jsonl\n"
        "  feedmux consume orders --join --create shop.orders --exec ./index-one.sh --jobs 4\n\n"
        "An event is acknowledged when it has been written, or when the command of --exec has exited with 0. An event\n"
        "that is not acknowledged is delivered again by the next run, so the command may see an event more than once.\n"
        "The format is that of `feedmux watch`. With --start snapshot, the existing documents come first; a bar on a\n"
        "terminal's standard error shows how many of them, how fast, and the time left.\n\n"
        "With --join, any number of commands share the events of a group, in order per key. The exit status of an\n"
        "--exec command settles its event: 0 is processed, 65 makes it a dead letter, after any other it is delivered\n"
        "again, with the last line of standard error as the reason. After 126 and 127 (the command does not run) this\n"
        "worker ends.\n\n"
        "After SIGINT or SIGTERM, no command is started any more, and those in progress may end; a second signal\n"
        "kills them and their children. Without --join, SIGINT (Ctrl-C) is passed on to the command. A command has no\n"
        "terminal to read from."
    )
    parser.add_argument("name", metavar="NAME", help="the durable subscription")
    add_output_options(parser)
    parser.add_argument(
        "--until-caught-up",
        action="store_true",
        help="stop after the events that MongoDB had committed when the command started",
    )
    parser.add_argument(
        "--exec",
        metavar="COMMAND",
        dest="command_line",
        help="run a shell command for each event, with the event on its standard input; stop if the command fails",
    )
    parser.add_argument(
        "--batch", metavar="N", type=count, help="with --exec: up to N events for each run of the command, one per line"
    )
    parser.add_argument(
        "--takeover", action="store_true", help="end the session of another client that reads the subscription"
    )
    parser.add_argument(
        "--join",
        action="store_true",
        help="be one of the members of a group, which share its events; the commands of --exec also fail and reject",
    )
    parser.add_argument(
        "--jobs", metavar="N", type=count, help="with --join and --exec: run up to N commands at once (default 1)"
    )
    new = parser.add_argument_group("a new subscription")
    new.add_argument(
        "--create",
        metavar="DB[.COLL]",
        dest="namespace",
        type=namespace,
        help="create the subscription if it does not exist, with --join as a group; * is the whole deployment",
    )
    new.add_argument("--start", metavar="POSITION", type=start, help=f"with --create: {START_HELP}")
    add_feed_arguments(parser, optional=False)
    add_connection_options(parser)


def run(args: argparse.Namespace) -> int:
    _check_usage(args)
    check_join(args)
    output = EventOutput(args, to_stdout=args.command_line is None)
    notices = Notices()
    sink: Sink = _Printer(output) if args.command_line is None else Command(args.command_line, output, SIGNALS)
    with connected(args, lambda error: _explained(error, args.name, joins=args.join)) as client:
        if args.namespace is not None:
            group = feedmux.Group() if args.join else None
            client.create_subscription(args.name, feed_of(args), start=args.start, group=group)
        feed = client.get_subscription(args.name).feed
        if args.join:
            consume_group(client, args, feed, notices)
            return 0
        output.one_collection = feed.collection is not None
        head = client.resolve(feedmux.Start.latest(), feed) if args.until_caught_up else None
        options: dict[str, Any] = {"format": output.wire_format, "open_timeout_s": OPEN_TIMEOUT_S}
        if head is not None:
            options["heartbeat_s"] = HEARTBEAT_S
        subscription = client.subscription(args.name)
        with (
            notices.bar,
            subscription.open(takeover=args.takeover, on_notice=notices.show, **options) as session,
        ):
            if output.for_people:
                remark(f"consuming {args.name} ({scope_name(feed)}) at {args.endpoint} (press Ctrl-C to stop)")
            notices.opened(session)
            at_pause = cache(lambda: note_if_missing(client, feed))
            nothing_left = partial(_nothing_left, client, feed, session, head)
            head_time = head.cluster_time if head is not None else None
            at_once = args.batch or sink.at_once
            process_events(session, sink, SIGNALS, notices, at_once, args.limit, head_time, at_pause, nothing_left)
    return 0


def _nothing_left(
    client: feedmux.Client, feed: feedmux.Feed, session: feedmux.Session, head: feedmux.ResolvedPosition | None
) -> bool:
    if head is None:
        return False
    try:
        return background_loop().call(client._api.nothing_between(feed, session.position, head.position))
    except feedmux.FeedmuxError:
        return False  # the session reports what concerns it; otherwise a later time of MongoDB shows the same


def _check_usage(args: argparse.Namespace) -> None:
    if args.namespace is None and (given := next((each for each in _OF_A_NEW_ONE if getattr(args, each)), "")):
        raise UsageError(f"--{given.replace('_', '-')} is for a new subscription: give --create DB[.COLL] too")
    if args.command_line is not None and not args.command_line.strip():
        raise UsageError("--exec is empty: every event would be acknowledged without being processed")
    if args.batch is not None and args.command_line is None:
        raise UsageError("--batch requires --exec COMMAND")


def process_events(
    session: feedmux.Session,
    sink: Sink,
    signals: Signals,
    notices: Notices,
    at_once: int,
    limit: int | None,
    head: Timestamp | None,
    at_pause: Callable[[], None],
    nothing_left: Callable[[], bool] = lambda: False,
) -> None:
    """Pass events to the sink and acknowledge them: up to `limit` events, or all before the cluster time `head`.
    `nothing_left` asks whether there is any after those that the session has returned."""
    done = 0
    while limit is None or done < limit:
        most = at_once if limit is None else min(at_once, limit - done)
        events = _take(session, notices, most, watch_reader=sink.writes_to_stdout)
        if events:
            with notices.bar.hidden(), signals.deferred():
                sink.process(events)
                session.ack(events[-1])
            notices.processed(events, session.copying)
            done += len(events)
        else:
            at_pause()
        if head is not None and session.cluster_time is not None and not session.copying:
            left = _number(head) - _number(session.cluster_time)
            # At the time before `head`, more events may follow, however long the pause: of a transaction, or the first
            # one, if the position had that time from the beginning. An idle MongoDB names a later time only after 10 s.
            if left <= 0 or (left == 1 and not events and nothing_left()):
                return


def _number(time: Timestamp) -> int:
    return time.time << 32 | time.inc


def _take(session: feedmux.Session, notices: Notices, most: int, *, watch_reader: bool) -> list[feedmux.Event]:
    """Return the events that have arrived, limited in number; none if nothing arrived for a while."""
    event = wait(session, notices, watch_reader=watch_reader)
    events = [] if event is None else [event]
    while events and len(events) < most:
        try:
            event = session.try_next()
        except feedmux.FeedmuxError:
            break  # the next call raises it again, after these events have been processed
        if event is None:
            break
        events.append(event)
    return events


class Sink:
    """The output or command that receives the events."""

    at_once = 1
    """The most events for one `process` call."""
    writes_to_stdout = False

    def process(self, events: Sequence[feedmux.Event]) -> None:
        """Process events. Returns when they may be acknowledged; raises otherwise."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class _Printer(Sink):
    output: EventOutput
    at_once = PRINTED_AT_ONCE
    writes_to_stdout = True

    def process(self, events: Sequence[feedmux.Event]) -> None:
        write(b"".join(map(self.output.encode, events)))
        flush()


@dataclass(frozen=True, slots=True)
class Command(Sink):
    """The command of --exec."""

    command_line: str
    output: EventOutput
    signals: Signals

    def process(self, events: Sequence[feedmux.Event]) -> None:
        again = f"The next run delivers {'it' if len(events) == 1 else 'them'} again."
        given = b"".join(map(self.output.encode, events))
        try:
            status = self.signals.run(partial(begin, self.command_line, given))
        except OSError as error:
            raise CliError(f"the command cannot be started: {error.strerror}", again) from None
        if status == 0:
            return
        self.signals.check()
        what = "the event" if len(events) == 1 else f"the {len(events)} events"
        raise CliError(
            f"the command {ending(status)}: {what} it was given {'is' if len(events) == 1 else 'are'} not acknowledged",
            again,
        )


def _explained(error: Exception, name: str, *, joins: bool = False) -> CliError | None:
    if isinstance(error, feedmux.SubscriptionNotFound):
        return CliError(error.message, f"Create it: feedmux consume {name} --create DB.COLL")
    if isinstance(error, feedmux.GroupMismatch):
        if joins:
            return CliError(
                f"subscription {name!r} is not a group", f"Make it a group: feedmux subscriptions update {name} --group"
            )
        return CliError(f"subscription {name!r} is a group", "Use --join to read it as one of its members.")
    if joins and isinstance(error, feedmux.DeadLettersUnavailable):
        return CliError(
            "the server has no collection for the dead letters that exit status 65 of the command makes",
            "Exit with another status to get the event again, or let the operator configure dead_letters.",
        )
    if isinstance(error, feedmux.SubscriptionBusy):
        return CliError(
            f"another client reads subscription {name!r}",
            "Wait until that client has ended (after a crash that is when its lease ends), or use --takeover.",
        )
    if isinstance(error, feedmux.Fenced) and error.metadata.get("cause") == "TAKEOVER":
        return CliError(f"another client has taken over subscription {name!r}", "Use --takeover to read it here again.")
    if isinstance(error, feedmux.FeedInvalidated) and error.position:
        return CliError(
            "the feed has ended: its collection or database was dropped or renamed",
            f"Resume after it: feedmux subscriptions seek {name} {position_text(error.position)}",
        )
    return None
