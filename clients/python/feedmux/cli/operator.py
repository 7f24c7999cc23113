"""The connection to the operator port, for commands of the people who run the service."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from feedmux.cli.connection import TIMEOUT_S, add_context_option, add_tls_settings, channel_to, explained, tls_of
from feedmux.cli.failure import CliError, Unreachable
from feedmux.cli.reachability import endpoint
from feedmux.cli.settings import fill_in

if TYPE_CHECKING:
    from feedmux.target import Tls

Ask = Callable[[str, Any], Any]
"""Calls a method with a request and returns its response."""


def add_operator_options(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Add --context, --operator-endpoint, --operator-key and the TLS options. `settings.fill_in` completes them."""
    group = parser.add_argument_group("connection")
    add_context_option(group)
    add_operator_settings(group)
    add_tls_settings(group)
    parser.set_defaults(complete=fill_in)
    return group


def add_operator_settings(group: argparse._ArgumentGroup) -> None:
    """Add --operator-endpoint and --operator-key."""
    group.add_argument(
        "--operator-endpoint",
        metavar="HOST:PORT",
        type=endpoint,
        help="address of the server's operator port (FEEDMUX_OPERATOR_ENDPOINT; default localhost:7118)",
    )
    group.add_argument(
        "--operator-key",
        metavar="KEY",
        help="operator key; prefer FEEDMUX_OPERATOR_KEY, as other users of this machine can see arguments",
    )


@contextmanager
def connected_operator(args: argparse.Namespace) -> Iterator[Ask]:
    """Provide calls to the operator port. Failures become CliErrors."""
    import grpc

    from feedmux.v1 import operator_pb2_grpc

    tls = tls_of(args)
    metadata = (("authorization", f"Bearer {args.operator_key}"),) if args.operator_key else ()
    with channel_to(args.operator_endpoint, tls) as channel:
        stub = operator_pb2_grpc.OperatorStub(channel)

        def ask(method: str, request: Any) -> Any:
            try:
                return getattr(stub, method)(request, timeout=TIMEOUT_S, metadata=metadata)
            except grpc.RpcError as error:
                raise _failure(error, args, tls) from None

        yield ask


def _failure(error: Any, args: argparse.Namespace, tls: bool | Tls) -> Exception:
    import grpc

    from feedmux.errors import Unavailable
    from feedmux.status import error_from_status

    address: str = args.operator_endpoint
    if error.code() in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
        return CliError(
            f"the operator port {address} rejects this operator key"
            if args.operator_key
            else f"the operator port {address} wants the operator's key, and none was given",
            "Set FEEDMUX_OPERATOR_KEY or --operator-key; the server's configuration holds the key's hash in"
            " operator_key_hashes.",
        )
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return CliError(
            f"{address} is not a feedmux operator port",
            "The operator port is separate from the data port, by default 7118.",
        )
    told = error_from_status(error.code(), error.details() or "", error.trailing_metadata())
    failure = explained(told, address, tls)
    if failure is None:
        return told
    hint = failure.hint.replace("--endpoint or FEEDMUX_ENDPOINT", "--operator-endpoint")
    return (Unreachable if isinstance(told, Unavailable) else CliError)(failure.message, hint)
