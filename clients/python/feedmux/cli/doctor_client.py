"""What `feedmux doctor --endpoint` looks at, in this order: connection, certificate, health, credentials."""

import argparse
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from feedmux.cli.connection import connected, tls_of
from feedmux.cli.failure import CliError
from feedmux.target import Tls

Answer = tuple[str, str, str]
"""level, says, advice."""
_EXPIRES_SOON_DAYS = 21
_SERVING = b"\x08\x01"
"""grpc.health.v1.HealthCheckResponse{status: SERVING}: the client does without the package of its messages."""


def steps(args: argparse.Namespace) -> Iterator[tuple[str, Callable[[], Answer]]]:
    """By name, in their order; each raises CliError where there is no point in going on."""
    host, _, port = args.endpoint.rpartition(":")
    if not host or not port.isdecimal():
        raise CliError(f"--endpoint {args.endpoint} is no HOST:PORT", "Name the server's data port, by default 7117.")
    yield "connection", lambda: _connection(host.strip("[]"), int(port), args.timeout)
    tls = tls_of(args)
    if tls is not False:
        files = Tls() if tls is True else tls
        yield "certificate", lambda: _certificate(host.strip("[]"), int(port), files, args.timeout)
    yield "health", lambda: _health(args)
    yield "credentials", lambda: _credentials(args)


def _connection(host: str, port: int, timeout_s: float) -> Answer:
    began_s = time.monotonic()
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise CliError(f"{host} has no address ({error.strerror})", "Mend the name, or this machine's DNS.") from None
    try:
        with socket.create_connection((host, port), timeout_s):
            took_ms = (time.monotonic() - began_s) * 1000
    except OSError as error:
        raise CliError(
            f"{host}:{port} does not take connections ({error.strerror or 'no answer'})",
            "See that the server runs and listens there (listen.data), and what firewalls and policies lie between.",
        ) from None
    names = len({address[4][0] for address in addresses})
    return "ok", f"{host}:{port} takes connections ({names} address{'es' if names > 1 else ''}, {took_ms:.0f} ms)", ""


def _certificate(host: str, port: int, tls: Tls, timeout_s: float) -> Answer:
    context = ssl.create_default_context(cafile=str(tls.root) if tls.root else None)
    if tls.certificate and tls.key:
        context.load_cert_chain(tls.certificate, tls.key)
    context.set_alpn_protocols(["h2"])
    try:
        with (
            socket.create_connection((host, port), timeout_s) as plain,
            context.wrap_socket(plain, server_hostname=tls.server_name or host) as secured,
        ):
            certificate: Any = secured.getpeercert()
            protocol = secured.selected_alpn_protocol()
    except ssl.SSLCertVerificationError as error:
        raise CliError(
            f"the server's certificate is not accepted: {error.verify_message}",
            "Name its authority by --ca-file; the certificate must be for the host's name as it is written here.",
        ) from None
    except (ssl.SSLError, OSError) as error:
        raise CliError(
            f"no TLS connection to {host}:{port} ({getattr(error, 'reason', None) or error.strerror or 'no answer'})",
            "Does the server have a [tls] section, and does it want a client certificate (--certificate-file)?",
        ) from None
    left_days = (ssl.cert_time_to_seconds(certificate["notAfter"]) - time.time()) / 86_400
    names = ", ".join(value for _, value in certificate.get("subjectAltName", ())) or "no host name"
    says = f"the server's certificate is for {names} and valid for {left_days:.0f} days"
    if protocol != "h2":
        return "warning", f"{says}, and the connection does not offer HTTP/2", "A proxy between must pass HTTP/2 (gRPC)"
    if left_days < _EXPIRES_SOON_DAYS:
        return "warning", says, "Renew it; the server reads it anew"
    return "ok", says, ""


def _health(args: argparse.Namespace) -> Answer:
    tls = tls_of(args)
    if tls is False:
        channel = grpc.insecure_channel(args.endpoint)
    else:
        channel = grpc.secure_channel(args.endpoint, (Tls() if tls is True else tls).credentials())
    with channel:
        try:
            check: Any = channel.unary_unary("/grpc.health.v1.Health/Check")
            answer: bytes = check(b"", timeout=args.timeout)
        except grpc.RpcError as error:
            raise CliError(
                f"{args.endpoint} does not answer as a gRPC server ({error.code().name})",
                "Is it the data port of feedmux, and are --tls and --ca-file as the server wants them?",
            ) from None
    if answer != _SERVING:
        return (
            "warning",
            "the server says NOT_SERVING: it starts, drains, or lacks Redis or every source",
            "See its log; `feedmux doctor --config` on its machine says more",
        )
    return "ok", "the server says SERVING", ""


def _credentials(args: argparse.Namespace) -> Answer:
    with connected(args) as client:
        next(iter(client.list_subscriptions(page_size=1)), None)
    given = "the key is accepted" if args.api_key else "the server lets everybody in, or knows the certificate"
    return "ok", f"{given}, and Redis answers", ""
