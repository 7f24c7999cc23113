"""`feedmux streams`: shows what the server reads from MongoDB and for which subscribers, through the operator port."""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING, Any

from feedmux.cli.connection import add_json_option
from feedmux.cli.copy_bar import copy_json, copy_text
from feedmux.cli.event_output import remark
from feedmux.cli.failure import CliError, Unreachable
from feedmux.cli.operator import add_operator_options, connected_operator
from feedmux.cli.terminal import Painted, Terminal, duration, flush, plain, print_json, say, size, table, utc_time

if TYPE_CHECKING:
    from feedmux.feeds import SnapshotStatus
    from feedmux.v1 import operator_pb2

_FOLLOW_S = 1.0
_STATE_COLOURS = {"reading": "green", "recovering": "red", "ended": "red", "opening": "yellow"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--subscribers", action="store_true", help="also show the subscribers of each stream")
    parser.add_argument(
        "--follow", action="store_true", help="refresh every second, until Ctrl-C, also after a restart of the server"
    )
    add_json_option(parser)
    parser.add_argument("--end", metavar="ID", help="end the session of this subscriber (ID in --subscribers)")
    group = add_operator_options(parser)
    group.add_argument("--source", metavar="NAME", default="", help="show only this MongoDB deployment")


def run(args: argparse.Namespace) -> int:
    from feedmux.v1 import operator_pb2

    terminal = Terminal(sys.stdout)
    with connected_operator(args) as ask:
        if args.end:
            try:
                ended = ask("EndSubscriber", operator_pb2.EndSubscriberRequest(subscriber_id=args.end))
            except CliError as error:
                error.hint = error.hint or "`feedmux streams --subscribers` shows the sessions and their ids."
                raise
            if args.json:
                print_json({"ended": args.end, "tenant": ended.tenant, "subscription": ended.subscription})
            else:
                say(plain(f"ended {ended.tenant}: {ended.subscription or '(inline)'}; its client may open it again"))
            return 0
        shown, reachable = False, True
        while True:
            try:
                # Subscribers are always requested: the table also counts the detached ones.
                answer = ask("ListSharedStreams", operator_pb2.ListSharedStreamsRequest(source=args.source))
            except Unreachable as error:
                if not shown:
                    raise
                if reachable:
                    remark(f"-- {error.message}; trying again")
                reachable = False
            else:
                _show(terminal, answer, args)
                if not args.follow:
                    return 0
                shown = reachable = True
            time.sleep(_FOLLOW_S)


def _show(terminal: Terminal, answer: operator_pb2.ListSharedStreamsResponse, args: argparse.Namespace) -> None:
    if args.json:
        print_json(as_json(answer))
    else:
        if args.follow and terminal.interactive:
            say(Painted("\x1b[H\x1b[2J"), end="")
        say(Painted(_text(terminal, answer, args.subscribers)))
    flush()


def _text(terminal: Terminal, answer: operator_pb2.ListSharedStreamsResponse, with_subscribers: bool) -> str:
    totals = answer.totals
    counts = (
        _counted(totals.shared_streams, "shared stream"),
        "on " + _counted(totals.cursors, "MongoDB cursor"),
        "for " + _counted(totals.subscribers, "subscriber"),
    )
    lines = [" ".join(counts) + f", {size(totals.memory_bytes)} of {size(totals.memory_bytes_max)} used"]
    if answer.shared_streams:
        headers = ("ID", "FEED", "STATE", "SUBSCRIBERS", "RING", "WINDOW", "LAG", "CURSOR", "READ", "RESUMES")
        lines += ["", table(terminal, headers, [_stream_row(terminal, each) for each in answer.shared_streams])]
    if answer.wide_groups:
        wide = "FEEDS OF", "OPTIONS", "FEEDS", "VIEWS", "WIDE STREAM", "DECISION", "READ", "FOR VIEWS", "RING"
        lines += ["", table(terminal, wide, [_group_row(each) for each in answer.wide_groups])]
    served = [*(one for each in answer.shared_streams for one in each.subscribers), *answer.detached_subscribers]
    silent = sum(one.state == "unacknowledged" for one in served)
    if silent:
        lines.append(
            f"{_counted(silent, 'subscriber')} in state `unacknowledged` (--subscribers): no more events until the"
            " client acknowledges"
        )
    copies = [one for one in served if one.HasField("snapshot")]
    if copies:
        copying = "ID", "TENANT", "SUBSCRIPTION", "COPIES", "STATE", "SNAPSHOT"
        lines += ["", table(terminal, copying, [_copy_row(one) for one in copies])]
    if with_subscribers and totals.subscribers:
        rows = [_subscriber_row(each.id, one) for each in answer.shared_streams for one in each.subscribers]
        rows += [_subscriber_row("-", one) for one in answer.detached_subscribers]
        columns = (
            "ID", "STREAM", "TENANT", "SUBSCRIPTION", "STATE", "POSITION", "LAG", "SENT", "UNACKED", "CREDIT", "PEER",
        )  # fmt: skip
        lines += ["", table(terminal, columns, rows)]
    elif answer.detached_subscribers:
        lines.append(
            f"and {len(answer.detached_subscribers)} subscribers that wait for credit and are behind every ring"
        )
    return "\n".join(lines)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _stream_row(terminal: Terminal, stream: operator_pb2.SharedStream) -> tuple[object, ...]:
    state = state_name(stream)
    return (
        stream.id,
        f"{stream.source}:{stream.scope}" + (" (filtered)" if stream.pipeline not in ("", "[]") else ""),
        terminal.paint(plain(f"{state} catch-up" if stream.catch_up else state), _STATE_COLOURS.get(state, "dim")),
        stream.subscriber_count,
        f"{stream.ring_events} events, {size(stream.ring_bytes)}",
        f"{utc_time(stream.oldest.seconds)} - {utc_time(stream.newest.seconds)}",
        duration(stream.lag.ToTimedelta().total_seconds()),
        "open" if stream.cursor_open else f"view of {stream.view_of}" if stream.view_of else "none",
        stream.events_read,
        stream.resumes,
    )


def _group_row(group: operator_pb2.WideGroup) -> tuple[object, ...]:
    return (
        group.source,
        group.options or "-",
        group.feeds,
        group.views,
        group.scope or "none",
        group.decision,
        group.events_read,
        group.events_taken,
        size(group.ring_bytes),
    )


def _subscriber_row(stream: str, one: operator_pb2.Subscriber) -> tuple[object, ...]:
    return (
        one.id,
        stream,
        one.tenant,
        one.subscription or "(inline)",
        one.state,
        utc_time(one.position.seconds),
        f"{one.lag_events} events, {duration(one.lag.ToTimedelta().total_seconds())}",
        one.events_sent,
        one.events_unacked,
        one.credit_events,
        one.peer,
    )


def _copy_row(one: operator_pb2.Subscriber) -> tuple[object, ...]:
    copied = _copied(one)
    name = one.subscription or "(inline)"
    return one.id, one.tenant, name, copied.namespace, one.state, copy_text(copied)


def as_json(answer: operator_pb2.ListSharedStreamsResponse) -> dict[str, Any]:
    """Return the answer with plain values."""
    return {
        "shared_streams": [
            _fields(each, "state", "subscribers")
            | {"state": state_name(each), "subscribers": [_subscriber_json(one) for one in each.subscribers]}
            for each in answer.shared_streams
        ],
        "detached_subscribers": [_subscriber_json(one) for one in answer.detached_subscribers],
        "wide_groups": [_fields(each, "scope") | {"wide_stream": each.scope} for each in answer.wide_groups],
        "totals": _fields(answer.totals),
    }


def _subscriber_json(one: operator_pb2.Subscriber) -> dict[str, Any]:
    snapshot = {"snapshot": copy_json(_copied(one))} if one.HasField("snapshot") else {}
    return _fields(one, "snapshot") | snapshot


def _fields(message: Any, *without: str) -> dict[str, Any]:
    """Return the fields of a message, with times as texts and durations in seconds."""
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        kind = field.message_type.name if field.message_type is not None else ""
        if kind == "Duration":
            found[f"{field.name}_s"] = value.ToTimedelta().total_seconds()
        elif field.name not in without:
            found[field.name] = f"{value.seconds}:{value.increment}" if kind == "ClusterTime" else value
    return found


def state_name(stream: operator_pb2.SharedStream) -> str:
    """Return a state's name as people write it."""
    from feedmux.v1 import operator_pb2

    states = operator_pb2.SharedStream.State
    known = stream.state in states.values()  # A newer server may have others.
    return states.Name(stream.state).removeprefix("STATE_").lower() if known else str(stream.state)


def _copied(one: operator_pb2.Subscriber) -> SnapshotStatus:
    from feedmux.requests import snapshot_value

    return snapshot_value(one.snapshot)
