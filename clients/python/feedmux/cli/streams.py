"""`feedmux streams`: what the server reads from MongoDB, and for whom, by the operator's port."""

import argparse
import os
import sys
import time
from typing import Any

import grpc

from feedmux.cli.connection import TIMEOUT_S, add_json_option, add_tls_options, tls_of
from feedmux.cli.failure import CliError, as_cli_error
from feedmux.cli.terminal import Terminal, duration, local_time, print_json, size, table
from feedmux.link import Tls
from feedmux.status import error_from_status
from feedmux.v1 import feed_pb2, operator_pb2, operator_pb2_grpc

_ENDPOINT = "localhost:7118"
_FOLLOW_S = 1.0
_STATE_COLOURS = {"reading": "green", "recovering": "red", "ended": "red", "opening": "yellow"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--subscribers", action="store_true", help="also those who are served")
    parser.add_argument("--follow", action="store_true", help="again every second, until Ctrl-C")
    add_json_option(parser)
    group = parser.add_argument_group("connection")
    group.add_argument(
        "--operator-endpoint",
        metavar="HOST:PORT",
        default=os.environ.get("FEEDMUX_OPERATOR_ENDPOINT") or _ENDPOINT,
        help=f"the server's operator port (FEEDMUX_OPERATOR_ENDPOINT; {_ENDPOINT})",
    )
    group.add_argument(
        "--operator-key",
        metavar="KEY",
        default=os.environ.get("FEEDMUX_OPERATOR_KEY") or None,
        help="better by FEEDMUX_OPERATOR_KEY: other users of this machine see arguments",
    )
    group.add_argument("--source", metavar="NAME", default="", help="only this MongoDB deployment")
    add_tls_options(group)


def run(args: argparse.Namespace) -> int:
    terminal = Terminal(sys.stdout)
    with _channel(args) as channel:
        stub = operator_pb2_grpc.OperatorStub(channel)
        while True:
            answer = _ask(stub, args)
            if args.json:
                print_json(as_json(answer))
            else:
                if args.follow and terminal.interactive:
                    print("\x1b[H\x1b[2J", end="")
                print(_text(terminal, answer, args.subscribers))
            sys.stdout.flush()
            if not args.follow:
                return 0
            time.sleep(_FOLLOW_S)


def _channel(args: argparse.Namespace) -> grpc.Channel:
    tls = tls_of(args)
    if tls is False:
        return grpc.insecure_channel(args.operator_endpoint)
    return grpc.secure_channel(args.operator_endpoint, (Tls() if tls is True else tls).credentials())


def _ask(stub: operator_pb2_grpc.OperatorStub, args: argparse.Namespace) -> operator_pb2.ListSharedStreamsResponse:
    # Subscribers are always asked for: the table counts the detached ones, too.
    request = operator_pb2.ListSharedStreamsRequest(source=args.source)
    metadata = (("authorization", f"Bearer {args.operator_key}"),) if args.operator_key else ()
    try:
        answer: operator_pb2.ListSharedStreamsResponse = stub.ListSharedStreams(
            request, timeout=TIMEOUT_S, metadata=metadata
        )
        return answer
    except grpc.RpcError as error:
        told = error_from_status(error.code(), error.details() or "", error.trailing_metadata())
        if error.code() in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
            raise CliError(
                "the operator port wants the operator's key",
                "Give it by --operator-key or FEEDMUX_OPERATOR_KEY; its hash is operator_key_hashes in the server's"
                " configuration.",
            ) from None
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            raise CliError(
                f"{args.operator_endpoint} is not an operator port", "It is a port of its own, by default 7118."
            ) from None
        failure = as_cli_error(told, args.operator_endpoint)
        if failure is None:
            raise
        failure.hint = failure.hint.replace("--endpoint or FEEDMUX_ENDPOINT", "--operator-endpoint")
        raise failure from None


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
    if with_subscribers and totals.subscribers:
        rows = [_subscriber_row(each.id, one) for each in answer.shared_streams for one in each.subscribers]
        rows += [_subscriber_row("-", one) for one in answer.detached_subscribers]
        headers = ("STREAM", "TENANT", "SUBSCRIPTION", "STATE", "PLACE", "LAG", "SENT", "UNACKED", "CREDIT", "PEER")
        lines += ["", table(terminal, headers, rows)]
    elif answer.detached_subscribers:
        lines.append(f"and {len(answer.detached_subscribers)} subscribers that wait for credit, behind every ring")
    return "\n".join(lines)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _stream_row(terminal: Terminal, stream: operator_pb2.SharedStream) -> tuple[object, ...]:
    state = state_name(stream)
    return (
        stream.id,
        f"{stream.source}:{stream.scope}" + (" (filtered)" if stream.pipeline not in ("", "[]") else ""),
        terminal.paint(state, _STATE_COLOURS.get(state, "dim")) + (" trailing" if stream.trailing else ""),
        stream.subscriber_count,
        f"{stream.ring_events} events, {size(stream.ring_bytes)}",
        f"{local_time(stream.oldest.seconds)} - {local_time(stream.newest.seconds)}",
        duration(stream.lag.ToTimedelta().total_seconds()),
        "open" if stream.cursor_open else "none",
        stream.events_read,
        stream.resumes,
    )


def _subscriber_row(stream: str, one: operator_pb2.Subscriber) -> tuple[object, ...]:
    return (
        stream,
        one.tenant,
        one.subscription or "(inline)",
        one.state,
        local_time(one.position.seconds),
        f"{one.lag_events} events, {duration(one.lag.ToTimedelta().total_seconds())}",
        one.events_sent,
        one.events_unacked,
        one.credit_events,
        one.peer,
    )


def as_json(answer: operator_pb2.ListSharedStreamsResponse) -> dict[str, Any]:
    """The answer with plain numbers."""
    totals = answer.totals
    return {
        "shared_streams": [_stream_json(each) for each in answer.shared_streams],
        "detached_subscribers": [_subscriber_json(one) for one in answer.detached_subscribers],
        "totals": {
            "shared_streams": totals.shared_streams,
            "cursors": totals.cursors,
            "subscribers": totals.subscribers,
            "memory_bytes": totals.memory_bytes,
            "memory_bytes_max": totals.memory_bytes_max,
        },
    }


def _stream_json(stream: operator_pb2.SharedStream) -> dict[str, Any]:
    return {
        "id": stream.id,
        "source": stream.source,
        "scope": stream.scope,
        "pipeline": stream.pipeline,
        "stream_key": stream.stream_key,
        "state": state_name(stream),
        "trailing": stream.trailing,
        "oldest": _time(stream.oldest),
        "newest": _time(stream.newest),
        "ring_events": stream.ring_events,
        "ring_bytes": stream.ring_bytes,
        "lag_s": stream.lag.ToTimedelta().total_seconds(),
        "events_read": stream.events_read,
        "batches_read": stream.batches_read,
        "resumes": stream.resumes,
        "cursor_open": stream.cursor_open,
        "subscriber_count": stream.subscriber_count,
        "subscribers": [_subscriber_json(one) for one in stream.subscribers],
    }


def _subscriber_json(one: operator_pb2.Subscriber) -> dict[str, Any]:
    return {
        "id": one.id,
        "tenant": one.tenant,
        "subscription": one.subscription,
        "instance_id": one.instance_id,
        "state": one.state,
        "position": _time(one.position),
        "lag_s": one.lag.ToTimedelta().total_seconds(),
        "lag_events": one.lag_events,
        "events_sent": one.events_sent,
        "events_unacked": one.events_unacked,
        "credit_events": one.credit_events,
        "credit_bytes": one.credit_bytes,
        "peer": one.peer,
    }


def state_name(stream: operator_pb2.SharedStream) -> str:
    """As people write it."""
    return operator_pb2.SharedStream.State.Name(stream.state).removeprefix("STATE_").lower()


def _time(at: feed_pb2.ClusterTime) -> str:
    return f"{at.seconds}:{at.increment}"
