"""The checks of `feedmux doctor --endpoint`, in this order: connection, certificate, health, credentials."""

import argparse
import ssl
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from feedmux.cli.connection import channel_to, connected, tls_of
from feedmux.cli.failure import CliError
from feedmux.cli.reachability import Server, server_at, why_unreachable
from feedmux.target import Tls

Answer = tuple[str, str, str]
"""level, says, advice."""
_EXPIRES_SOON_DAYS = 21
_SERVING = b"\x08\x01"
"""grpc.health.v1.HealthCheckResponse{status: SERVING}: the client does not need the package that defines it."""


def steps(args: argparse.Namespace) -> Iterator[tuple[str, Callable[[], Answer]]]:
    """Return the checks by name, in order; a check raises CliError if later ones would be pointless."""
    server = server_at(args.endpoint, args.timeout)
    if server is None:
        raise CliError(f"--endpoint {args.endpoint} is not HOST:PORT", "Give the server's data port, by default 7117.")
    yield "connection", lambda: _connection(server)
    tls = tls_of(args)
    if tls is not False:
        yield "certificate", lambda: _certificate(server, tls)
    yield "health", lambda: _health(args)
    yield "credentials", lambda: _credentials(args)


def _connection(server: Server) -> Answer:
    began_s = time.monotonic()
    with server.connect():
        took_ms = (time.monotonic() - began_s) * 1000
    way = f", through the proxy {server.proxy}" if server.proxy is not None else ""
    return "ok", f"{server.text} accepts connections ({took_ms:.0f} ms{way})", ""


def _certificate(server: Server, tls: bool | Tls) -> Answer:
    secured = server.handshake(tls)
    left_days = (ssl.cert_time_to_seconds(secured.certificate["notAfter"]) - time.time()) / 86_400
    names = ", ".join(value for _, value in secured.certificate.get("subjectAltName", ())) or "no host name"
    says = f"the server's certificate is for {names} and valid for {left_days:.0f} days"
    if not secured.http2:
        return (
            "warning",
            f"{says}, and the connection does not offer HTTP/2",
            "A proxy in between must pass HTTP/2 (gRPC)",
        )
    if left_days < _EXPIRES_SOON_DAYS:
        return "warning", says, "Renew the certificate; the server reloads it"
    return "ok", says, ""


def _health(args: argparse.Namespace) -> Answer:
    tls = tls_of(args)
    with channel_to(args.endpoint, tls) as channel:
        try:
            check: Any = channel.unary_unary("/grpc.health.v1.Health/Check")
            answer: bytes = check(b"", timeout=args.timeout)
        except grpc.RpcError as error:
            raise why_unreachable(args.endpoint, tls) or CliError(
                f"{args.endpoint} does not answer as a gRPC server ({error.code().name})",
                "Check that it is feedmux's data port, and that --tls and --ca-file match the server's TLS settings.",
            ) from None
    if answer != _SERVING:
        return (
            "warning",
            "the server says NOT_SERVING: it is starting or draining, or Redis or every source is unavailable",
            "Check its log, and run `feedmux doctor --config` on its machine",
        )
    return "ok", "the server says SERVING", ""


def _credentials(args: argparse.Namespace) -> Answer:
    with connected(args) as client:
        next(iter(client.list_subscriptions(page_size=1)), None)
    given = (
        "the key is accepted" if args.api_key else "the server requires no authentication, or accepts the certificate"
    )
    return "ok", f"{given}, and Redis answers", ""
