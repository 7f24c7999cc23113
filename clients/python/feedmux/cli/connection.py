"""The connection options that all client commands share, and the client made from them."""

from __future__ import annotations

import argparse
import ssl
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import feedmux
from feedmux.cli.failure import CliError, UsageError, as_cli_error
from feedmux.cli.reachability import endpoint, why_unreachable
from feedmux.cli.settings import fill_in
from feedmux.endpoint import proxy_options

TIMEOUT_S = 10.0
OPEN_TIMEOUT_S = 3.0
"""How long a command retries an unreachable server before it fails."""

Action = Callable[["feedmux.Client", argparse.Namespace], int]
"""What `feedmux COMMAND ACTION` does."""


def add_action(
    actions: argparse._SubParsersAction[argparse.ArgumentParser], name: str, summary: str, act: Action
) -> argparse.ArgumentParser:
    """Add an action, with --json and the connection options. `run_action` runs it."""
    parser: argparse.ArgumentParser = actions.add_parser(
        name, help=summary, description=summary[0].upper() + summary[1:] + "."
    )
    parser.set_defaults(act=act)
    add_json_option(parser)
    add_connection_options(parser)
    return parser


def run_action(args: argparse.Namespace) -> int:
    """Run the action of the arguments with a connected client."""
    with connected(args) as client:
        action: Action = args.act
        return action(client, args)


def add_connection_options(parser: argparse.ArgumentParser) -> None:
    """Add --context, --endpoint, --api-key, --source and the TLS options. `settings.fill_in` completes them."""
    group = parser.add_argument_group("connection")
    add_context_option(group)
    add_connection_settings(group)
    add_tls_settings(group)
    parser.set_defaults(complete=fill_in)


def add_context_option(group: argparse._ArgumentGroup) -> None:
    """Add --context."""
    group.add_argument(
        "--context", metavar="NAME", help="name of stored connection settings (FEEDMUX_CONTEXT); see `feedmux context`"
    )


def add_connection_settings(group: argparse._ArgumentGroup) -> None:
    """Add --endpoint, --api-key and --source."""
    group.add_argument(
        "--endpoint",
        metavar="HOST:PORT",
        type=endpoint,
        help="address of the server (FEEDMUX_ENDPOINT; default localhost:7117)",
    )
    group.add_argument(
        "--api-key",
        metavar="KEY",
        help="API key; prefer FEEDMUX_API_KEY, as other users of this machine can see arguments",
    )
    group.add_argument(
        "--source",
        metavar="NAME",
        help="the MongoDB deployment, by its name in the server's configuration (FEEDMUX_SOURCE; default main)",
    )


def add_tls_settings(group: argparse._ArgumentGroup) -> None:
    """Add --tls, --ca-file, --certificate-file and --key-file."""
    group.add_argument(
        "--tls",
        action="store_true",
        default=None,
        help="use TLS with the system's root certificates (FEEDMUX_USE_TLS=1)",
    )
    group.add_argument(
        "--ca-file", metavar="FILE", type=Path, help="use TLS with these root certificates, PEM (FEEDMUX_CA_FILE)"
    )
    group.add_argument(
        "--certificate-file",
        metavar="FILE",
        type=Path,
        help="use TLS with this client certificate, PEM (FEEDMUX_CERTIFICATE_FILE)",
    )
    group.add_argument(
        "--key-file", metavar="FILE", type=Path, help="private key of the client certificate, PEM (FEEDMUX_KEY_FILE)"
    )


def add_json_option(parser: argparse._ActionsContainer) -> None:
    """Add --json."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def tls_of(args: argparse.Namespace) -> bool | feedmux.Tls:
    """Return the TLS settings of the arguments. Raises CliError for a file that is unreadable or is not valid PEM."""
    if (args.certificate_file is None) != (args.key_file is None):
        raise UsageError("--certificate-file and --key-file must be given together")
    if args.ca_file is None and args.certificate_file is None:
        return bool(args.tls)
    for option in ("ca_file", "certificate_file", "key_file"):
        path, name = getattr(args, option), f"--{option.replace('_', '-')}"
        if path is None:
            continue
        try:
            if not stat.S_ISREG(path.stat().st_mode):  # a device may have no end, and a pipe is read only once
                raise CliError(f"{name} {path} is not a file")
            path.open("rb").close()
        except OSError as error:
            raise CliError(f"{name} {path} cannot be read: {error.strerror}") from None
    if args.ca_file is not None:
        try:
            ssl.create_default_context(cafile=args.ca_file)
        except ssl.SSLError:
            raise CliError(f"--ca-file {args.ca_file} contains no PEM certificate") from None
    if args.certificate_file is not None:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(args.certificate_file, args.key_file)
        except ssl.SSLError:
            raise CliError(
                f"--certificate-file {args.certificate_file} and --key-file {args.key_file} are not a certificate and"
                " its private key in PEM"
            ) from None
    return feedmux.Tls(root=args.ca_file, certificate=args.certificate_file, key=args.key_file)


def channel_to(address: str, tls: bool | feedmux.Tls) -> Any:
    """Return gRPC's channel, for calls that are not those of a client."""
    import grpc

    if tls is False:
        return grpc.insecure_channel(address, proxy_options(address))
    credentials = (feedmux.Tls() if tls is True else tls).credentials()
    return grpc.secure_channel(address, credentials, proxy_options(address))


@contextmanager
def connected(
    args: argparse.Namespace, wrap: Callable[[Exception], CliError | None] | None = None
) -> Iterator[feedmux.Client]:
    """Provide a client made from the options.

    A FeedmuxError in the block becomes a CliError that names the endpoint.
    """
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
    """Say why the credentials were rejected.

    The server has one message for all causes; the client knows what it sent.
    """
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
            "Add the certificate's name to the server's tenants file, or set FEEDMUX_API_KEY to a key.",
        )
    hint = "Set FEEDMUX_API_KEY or --api-key; `feedmux keys new` makes a key."
    if name := getattr(args, "ignored_context", None):
        hint += f" The context in use is for another server: --context {name} sends its key to this one, too."
    return CliError(f"{args.endpoint} wants an API key, and none was given", hint)


def explained(error: feedmux.FeedmuxError, address: str, tls: bool | feedmux.Tls) -> CliError | None:
    """Return the CliError that explains an error of a call to this address."""
    if isinstance(error, feedmux.Unavailable) and not error.reason:
        return why_unreachable(address, tls) or as_cli_error(error, address)
    return as_cli_error(error, address)
