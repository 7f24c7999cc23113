"""Finds out why a server cannot be used, with plain sockets, because gRPC reports only that the connection failed."""

from __future__ import annotations

import argparse
import re
import socket
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from feedmux.cli.failure import PORTS_HINT, SERVER_HINT, CliError
from feedmux.endpoint import Proxy, checked_endpoint, host_and_port, proxy_of

if TYPE_CHECKING:
    from feedmux.target import Tls

TIMEOUT_S: Final = 3.0
"""Timeout in seconds for each connection."""
_CONNECTED = re.compile(r"HTTP/1\.[01] 2\d\d")
_ANSWER_BYTES = 16_384
_STATUS_BYTES = 200


def endpoint(text: str) -> str:
    """Parse an argument HOST:PORT, or a target with one of gRPC's schemes. Raises ArgumentTypeError."""
    try:
        return checked_endpoint(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def why_unreachable(text: str, tls: bool | Tls, timeout_s: float = TIMEOUT_S) -> CliError | None:
    """Return the cause and the next step; None if no cause was found."""
    server = server_at(text, timeout_s)
    if server is None:
        return None
    try:
        server.check(tls)
    except CliError as cause:
        return cause
    return None


def server_at(text: str, timeout_s: float = TIMEOUT_S) -> Server | None:
    """Return the server at HOST:PORT; None for any other target. `timeout_s` applies to each connection."""
    target = host_and_port(text)
    return Server(text, *target, timeout_s, proxy_of(target[0])) if target else None


@dataclass(frozen=True, slots=True)
class Secured:
    """The result of a TLS handshake."""

    certificate: Any
    """The certificate as `ssl.SSLSocket.getpeercert` returns it."""
    http2: bool
    """Whether the server offers HTTP/2 (ALPN)."""


@dataclass(frozen=True, slots=True)
class Server:
    """The program that listens at an address. Each call makes new connections, and raises a CliError with the cause."""

    text: str
    """The address as the user wrote it."""
    host: str
    port: int
    timeout_s: float
    proxy: Proxy | None = None
    """The proxy through which gRPC connects."""

    def check(self, tls: bool | Tls) -> None:
        """Connect as a client would. What listens there without TLS is not asked whether it is a server of gRPC."""
        if tls is False:
            with self.connect() as plain:
                uses_tls = _accepts_tls(plain, self.host)
            if uses_tls:
                raise CliError(
                    f"{self.text} uses TLS", "Give --tls, or --ca-file FILE if its certificate authority is private."
                )
        elif not self.handshake(tls).http2:
            raise CliError(
                f"{self.text} uses TLS, but does not offer HTTP/2, which gRPC needs",
                "Check that it is a feedmux server's data port. A proxy in front of the server must pass HTTP/2.",
            )

    def connect(self) -> socket.socket:
        """Return a connected socket, as gRPC would connect: through the proxy, if there is one."""
        if self.proxy is not None:
            return self._through(self.proxy)
        try:
            addresses = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        except OSError:
            raise CliError(
                f"the host name {self.host} cannot be resolved", "Check the name and this machine's DNS."
            ) from None
        try:
            return socket.create_connection((self.host, self.port), self.timeout_s)
        except ConnectionRefusedError:
            raise CliError(f"nothing listens on {self.text} (connection refused)", SERVER_HINT) from None
        except TimeoutError:
            raise CliError(
                f"{self.text} does not answer (no connection to {addresses[0][4][0]} within {self.timeout_s:g} s)",
                "Check the address, and firewalls and network policies on the way to it.",
            ) from None
        except OSError as error:
            raise CliError(
                f"no connection to {self.text} ({error.strerror})", "Check the address and this machine's network."
            ) from None

    def _through(self, proxy: Proxy) -> socket.socket:
        hint = f"Unset {proxy.variable}, or add {self.host} to no_proxy, if {self.text} needs no proxy."
        if not proxy.port:
            raise CliError(f"the proxy {proxy} for {self.text} is not http://HOST:PORT", hint)
        connected: socket.socket | None = None
        try:
            connected = socket.create_connection((proxy.host, proxy.port), self.timeout_s)
            status = _tunnel(connected, self.text, proxy.authorization)
        except OSError as error:
            if connected is not None:
                connected.close()
            reason = "no answer in time" if isinstance(error, TimeoutError) else error.strerror or error
            raise CliError(f"the proxy {proxy} for {self.text} cannot be used ({reason})", hint) from None
        if _CONNECTED.match(status):
            return connected
        connected.close()
        answer = status.partition(" ")[2] or "what listens there is no HTTP proxy"
        raise CliError(f"the proxy {proxy} does not connect to {self.text} ({answer})", hint)

    def handshake(self, tls: bool | Tls) -> Secured:
        """Make a TLS connection as the client would, and close it."""
        name = (None if isinstance(tls, bool) else tls.server_name) or self.host
        with self.connect() as plain:
            try:
                with _context(tls).wrap_socket(plain, server_hostname=name) as secured:
                    result = Secured(secured.getpeercert(), secured.selected_alpn_protocol() == "h2")
                    # With TLS 1.3 a server checks the client certificate after the handshake, and rejects it by an
                    # alert or by closing. Otherwise gRPC speaks first.
                    if not result.http2 or secured.recv(1):
                        return result
                    reason = "CLOSED"
            except TimeoutError:
                raise CliError(
                    f"{self.text} accepts connections, but does not answer",
                    "If it is feedmux's data port, the server hangs, or a proxy in front of it cannot reach it.",
                ) from None
            except ssl.SSLCertVerificationError as error:
                raise self._untrusted(error, name, tls) from None
            except (ssl.SSLError, OSError) as error:
                reason = getattr(error, "reason", None) or error.strerror or "no answer"
        if reason == "CLOSED" or "ALERT" in reason:
            ended = f"{self.text} ends the connection after the TLS handshake"
            if not isinstance(tls, bool) and tls.certificate is not None:
                raise CliError(
                    f"{ended}: it may not accept the client certificate",
                    "The authority that signed --certificate-file must be in the server's tls.client_ca_file.",
                )
            raise CliError(
                f"{ended}: it may require a client certificate", "Give one with --certificate-file and --key-file."
            )
        raise CliError(
            f"{self.text} does not use TLS",
            f"If it is a feedmux server's data port, leave out --tls, --ca-file and --certificate-file. {PORTS_HINT}",
        )

    def _untrusted(self, error: ssl.SSLCertVerificationError, name: str, tls: bool | Tls) -> CliError:
        message = error.verify_message.rstrip(".")
        if "mismatch" in message:
            return CliError(
                f"the certificate of {self.text} is not for the name {name}",
                "Connect by a name in the certificate, or issue a certificate for this name.",
            )
        if "expired" in message or "not yet valid" in message:
            return CliError(
                f"the certificate of {self.text} is not valid now ({message})",
                "Renew the certificate, or correct this machine's clock.",
            )
        roots = "this system's roots" if isinstance(tls, bool) or tls.root is None else str(tls.root)
        return CliError(
            f"the certificate of {self.text} is not signed by an authority in {roots} ({message})",
            "Give the certificate of its authority with --ca-file FILE.",
        )


def _tunnel(proxy: socket.socket, address: str, authorization: str) -> str:
    """Ask a proxy for a connection; return the first line of its answer, after reading all of the answer's header."""
    lines = [f"CONNECT {address} HTTP/1.1", f"Host: {address}"]
    if authorization:
        lines.append(f"Proxy-Authorization: {authorization}")
    proxy.sendall("\r\n".join([*lines, "", ""]).encode("utf-8", "surrogateescape"))
    answer = bytearray()
    # One byte at a time: what follows the header is the server's.
    while not answer.endswith(b"\r\n\r\n") and len(answer) < _ANSWER_BYTES and (more := proxy.recv(1)):
        answer += more
    return bytes(answer.partition(b"\r\n")[0][:_STATUS_BYTES]).decode("latin-1")


def _accepts_tls(connected: socket.socket, name: str) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with context.wrap_socket(connected, server_hostname=name):
            return True
    except OSError as error:
        return isinstance(error, ssl.SSLError) and "ALERT" in (error.reason or "")


def _context(tls: bool | Tls) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=None if isinstance(tls, bool) or not tls.root else str(tls.root))
    if not isinstance(tls, bool) and tls.certificate and tls.key:
        context.load_cert_chain(tls.certificate, tls.key)
    context.set_alpn_protocols(["h2"])
    return context
