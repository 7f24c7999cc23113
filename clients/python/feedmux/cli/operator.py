"""The way to the operator's port, for the commands of those who run the service."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from feedmux.cli.connection import TIMEOUT_S, add_context_option, add_tls_settings, explained, tls_of
from feedmux.cli.failure import CliError
from feedmux.cli.reachability import endpoint
from feedmux.cli.settings import fill_in

if TYPE_CHECKING:
    from feedmux.target import Tls

Ask = Callable[[str, Any], Any]
"""Method and request to response."""


def add_operator_options(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """--context, --operator-endpoint, --operator-key, and those of TLS. `settings.fill_in` completes them."""
    group = parser.add_argument_group("connection")
    add_context_option(group)
    add_operator_settings(group)
    add_tls_settings(group)
    parser.set_defaults(complete=fill_in)
    return group


def add_operator_settings(group: argparse._ArgumentGroup) -> None:
    """--operator-endpoint, --operator-key."""
    group.add_argument(
        "--operator-endpoint",
        metavar="HOST:PORT",
        type=endpoint,
        help="the server's operator port (FEEDMUX_OPERATOR_ENDPOINT; localhost:7118)",
    )
    group.add_argument(
        "--operator-key",
        metavar="KEY",
        help="better by FEEDMUX_OPERATOR_KEY: other users of this machine see arguments",
    )


@contextmanager
def connected_operator(args: argparse.Namespace) -> Iterator[Ask]:
    """Asks the operator's port. What goes wrong comes out as a CliError."""
    import grpc

    from feedmux.target import Tls
    from feedmux.v1 import operator_pb2_grpc

    tls = tls_of(args)
    if tls is False:
        channel = grpc.insecure_channel(args.operator_endpoint)
    else:
        channel = grpc.secure_channel(args.operator_endpoint, (Tls() if tls is True else tls).credentials())
    metadata = (("authorization", f"Bearer {args.operator_key}"),) if args.operator_key else ()
    with channel:
        stub = operator_pb2_grpc.OperatorStub(channel)

        def ask(method: str, request: Any) -> Any:
            try:
                return getattr(stub, method)(request, timeout=TIMEOUT_S, metadata=metadata)
            except grpc.RpcError as error:
                raise _failure(error, args.operator_endpoint, tls) from None

        yield ask


def _failure(error: Any, address: str, tls: bool | Tls) -> Exception:
    import grpc

    from feedmux.status import error_from_status

    if error.code() in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
        return CliError(
            "the operator port wants the operator's key",
            "Give it by --operator-key or FEEDMUX_OPERATOR_KEY; its hash is operator_key_hashes in the server's"
            " configuration.",
        )
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return CliError(f"{address} is not an operator port", "It is a port of its own, by default 7118.")
    told = error_from_status(error.code(), error.details() or "", error.trailing_metadata())
    failure = explained(told, address, tls)
    if failure is None:
        return told
    failure.hint = failure.hint.replace("--endpoint or FEEDMUX_ENDPOINT", "--operator-endpoint")
    return failure
