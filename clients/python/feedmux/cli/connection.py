"""The options that every client command shares, and the client they make."""

from __future__ import annotations

import argparse
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import feedmux
from feedmux.cli.failure import CliError, UsageError, as_cli_error
from feedmux.cli.reachability import endpoint, why_unreachable
from feedmux.cli.settings import fill_in

TIMEOUT_S = 10.0
OPEN_TIMEOUT_S = 3.0
"""How long a server that cannot be reached is tried again before a command gives up."""


def add_connection_options(parser: argparse.ArgumentParser) -> None:
    """--context, --endpoint, --api-key, --source, and those of TLS. `settings.fill_in` completes them."""
    group = parser.add_argument_group("connection")
    add_context_option(group)
    add_connection_settings(group)
    add_tls_settings(group)
    parser.set_defaults(complete=fill_in)


def add_context_option(group: argparse._ArgumentGroup) -> None:
    """--context."""
    group.add_argument(
        "--context", metavar="NAME", help="stored settings of a connection (FEEDMUX_CONTEXT); see `feedmux context`"
    )


def add_connection_settings(group: argparse._ArgumentGroup) -> None:
    """--endpoint, --api-key, --source."""
    group.add_argument(
        "--endpoint", metavar="HOST:PORT", type=endpoint, help="the server (FEEDMUX_ENDPOINT; localhost:7117)"
    )
    group.add_argument(
        "--api-key", metavar="KEY", help="better by FEEDMUX_API_KEY: other users of this machine see arguments"
    )
    group.add_argument(
        "--source",
        metavar="NAME",
        help="the MongoDB deployment in the server's configuration (FEEDMUX_SOURCE; main)",
    )


def add_tls_settings(group: argparse._ArgumentGroup) -> None:
    """--tls, --ca-file, --certificate-file, --key-file."""
    group.add_argument(
        "--tls", action="store_true", default=None, help="use TLS with the system's roots (FEEDMUX_USE_TLS=1)"
    )
    group.add_argument("--ca-file", metavar="FILE", type=Path, help="use TLS with these roots, PEM (FEEDMUX_CA_FILE)")
    group.add_argument(
        "--certificate-file",
        metavar="FILE",
        type=Path,
        help="use TLS with this client certificate, PEM (FEEDMUX_CERTIFICATE_FILE)",
    )
    group.add_argument("--key-file", metavar="FILE", type=Path, help="and its private key, PEM (FEEDMUX_KEY_FILE)")


def add_json_option(parser: argparse.ArgumentParser) -> None:
    """--json."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def tls_of(args: argparse.Namespace) -> bool | feedmux.Tls:
    """Raises CliError for a file that cannot be read or holds something else."""
    if (args.certificate_file is None) != (args.key_file is None):
        raise UsageError("--certificate-file and --key-file go together")
    if args.ca_file is None and args.certificate_file is None:
        return bool(args.tls)
    for option in ("ca_file", "certificate_file", "key_file"):
        path = getattr(args, option)
        try:
            if path is not None:
                path.read_bytes()
        except OSError as error:
            name = option.replace("_", "-")
            raise CliError(f"--{name} {path} cannot be read: {error.strerror}") from None
    if args.ca_file is not None:
        try:
            ssl.create_default_context(cafile=args.ca_file)
        except ssl.SSLError:
            raise CliError(f"--ca-file {args.ca_file} holds no certificate in PEM") from None
    if args.certificate_file is not None:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(args.certificate_file, args.key_file)
        except ssl.SSLError:
            raise CliError(
                f"--certificate-file {args.certificate_file} and --key-file {args.key_file} are not a certificate and"
                " its private key in PEM"
            ) from None
    return feedmux.Tls(root=args.ca_file, certificate=args.certificate_file, key=args.key_file)


@contextmanager
def connected(
    args: argparse.Namespace, wrap: Callable[[Exception], CliError | None] | None = None
) -> Iterator[feedmux.Client]:
    """A client by the options. FeedmuxErrors within come out as CliErrors that name the endpoint."""
    tls = tls_of(args)
    try:
        made = feedmux.Client(args.endpoint, api_key=args.api_key, source=args.source, tls=tls, timeout_s=TIMEOUT_S)
    except ValueError as error:
        raise UsageError(f"--api-key or FEEDMUX_API_KEY: {error}") from None
    try:
        with made as client:
            yield client
    except feedmux.FeedmuxError as error:
        told = (wrap(error) if wrap else None) or _rejected(error, args) or explained(error, args.endpoint, tls)
        raise told or error from None


def _rejected(error: feedmux.FeedmuxError, args: argparse.Namespace) -> CliError | None:
    """The server has one message for all that is wrong with credentials; here it is known what was sent."""
    if not isinstance(error, feedmux.Unauthenticated):
        return None
    if args.api_key is not None:
        return CliError(
            f"{args.endpoint} rejects this API key: it is unknown, or has expired",
            "Check --api-key or FEEDMUX_API_KEY. The server's tenants file lists the hashes of the keys it accepts.",
        )
    if args.certificate_file is not None:
        return CliError(
            f"{args.endpoint} does not know this client certificate, and no API key was given",
            "The server's tenants file lists the names of certificates; or give a key by FEEDMUX_API_KEY.",
        )
    return CliError(
        f"{args.endpoint} wants an API key, and none was given",
        "Give it by FEEDMUX_API_KEY or --api-key; `feedmux keys new` makes one.",
    )


def explained(error: feedmux.FeedmuxError, address: str, tls: bool | feedmux.Tls) -> CliError | None:
    """What to tell about an error of a call to this address."""
    if isinstance(error, feedmux.Unavailable) and not error.reason:
        return why_unreachable(address, tls) or as_cli_error(error, address)
    return as_cli_error(error, address)
