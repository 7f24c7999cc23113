"""The gRPC servers for data, operator and health: how they begin to listen, and how they end."""

import asyncio
import errno
import logging
import socket
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import grpc
import grpc.aio
from grpc.aio._server import server as _plain_server

from feedmux_server.rpc.handlers import Elsewhere, data_handlers, operator_handlers
from feedmux_server.rpc.health import CHANGE_FEED, OPERATOR, SUBSCRIPTIONS, Health
from feedmux_server.rpc.service import Service
from feedmux_server.rpc.tls import Tls
from feedmux_server.rpc.transport import Transport

log = logging.getLogger(__name__)

_OF_BOTH_FAMILIES: Final = {
    **dict.fromkeys(("0.0.0.0", "::"), ("0.0.0.0", "::")),
    "localhost": ("127.0.0.1", "::1"),
}
"""What gRPC makes of these hosts."""


@dataclass(frozen=True, slots=True)
class Listeners:
    """Addresses to listen on, `host:port`; port 0 picks one."""

    data: str
    operator: str
    tls: Tls | None = None
    data_mtls: str = ""
    """A second address for data that requires a client certificate; if it is set, `data` requires none."""
    transport: Transport = field(default_factory=Transport)


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports that the servers listen on."""

    data: int
    operator: int
    health: int
    data_mtls: int | None = None


class PortInUse(Exception):
    """The server cannot listen on an address; the message says what to do."""

    def __init__(self, address: str, name: str) -> None:
        self.address = address
        super().__init__(
            f"cannot listen on {address} ({name}): the port is in use or the address is not this machine's."
            f" Set listen.{name} (or FEEDMUX_LISTEN__{name.upper()}) to another"
        )


class HealthServer:
    """Serves the health statuses before all other services start, and until the process ends."""

    def __init__(self, health: Health) -> None:
        self._server = _grpc_server(Transport(request_bytes=1024, connections=1_000))
        self._server.add_generic_rpc_handlers((*health.handlers(), Elsewhere(())))

    async def start(self, address: str) -> int:
        """Start listening; return the port. Raises PortInUse."""
        port = _listen(self._server, address, None, "health")
        await self._server.start()
        return port

    async def stop(self) -> None:
        await self._server.stop(0)


class Servers:
    """The data and the operator server of a process."""

    def __init__(self, service: Service, health: Health, listeners: Listeners) -> None:
        self._service = service
        self._listeners = listeners
        self._health = health
        self._servers: list[grpc.aio.Server] = []
        self._data = self._server(data_handlers(service), (CHANGE_FEED, SUBSCRIPTIONS))
        self._operator = self._server(operator_handlers(service), (OPERATOR,))

    async def start(self, health_port: int) -> Ports:
        """Start listening on all ports. Raises PortInUse."""
        at = self._listeners
        authorities = at.tls is not None and at.tls.material.client_authorities is not None
        ports = Ports(
            _listen(self._data, at.data, at.tls, "data", client_certificate=authorities and not at.data_mtls),
            _listen(self._operator, at.operator, at.tls, "operator"),
            health_port,
            _listen(self._data, at.data_mtls, at.tls, "data_mtls", client_certificate=True) if at.data_mtls else None,
        )
        for server in self._servers:
            await server.start()
        return ports

    async def drain(self, deadline_s: float, delay_s: float) -> None:
        """Drain the servers: report NOT_SERVING and wait for the delay; then notify sessions, flush their acks and end
        them. Stops within the deadline and one second."""
        self._health.drain()
        await asyncio.sleep(delay_s)
        self._service.begin_drain(deadline_s)
        # Close connections to new calls at once, so that reconnecting clients reach another server. Streams continue.
        going = asyncio.gather(*(server.stop(deadline_s + 1.0) for server in self._servers))
        await self._service.sessions.all_left(deadline_s + 1.0)
        await self.stop(0.5)
        await going

    async def stop(self, grace_s: float) -> None:
        await asyncio.gather(*(server.stop(grace_s) for server in self._servers))

    def _server(self, handlers: tuple[grpc.GenericRpcHandler, ...], names: tuple[str, ...]) -> grpc.aio.Server:
        server = _grpc_server(self._listeners.transport)
        server.add_generic_rpc_handlers((*handlers, *self._health.handlers(names), Elsewhere(names)))
        self._servers.append(server)
        return server


def _grpc_server(transport: Transport) -> grpc.aio.Server:
    """Return a server without the interceptors of agents.

    Agents that instrument programs replace `grpc.aio.server`, as OpenTelemetry's operator does (grpc_aio_server). Their
    interceptors iterate over the responses of a stream, but a handler may also write them, and those of feedmux do.
    """
    server: grpc.aio.Server = _plain_server(options=transport.options())
    return server


def _listen(
    server: grpc.aio.Server, address: str, tls: Tls | None, name: str, *, client_certificate: bool = False
) -> int:
    if _is_in_use(address):
        raise PortInUse(address, name)
    try:
        if tls is not None:
            return server.add_secure_port(address, tls.credentials(client_certificate=client_certificate))
        return server.add_insecure_port(address)
    except RuntimeError:
        raise PortInUse(address, name) from None


def _is_in_use(address: str) -> bool:
    """Whether another program listens there, by IPv4 or IPv6. gRPC would listen on what is left of a name's addresses,
    and take a Unix socket from the program that listens on it."""
    if address.startswith("unix:"):
        with socket.socket(socket.AF_UNIX) as sock, suppress(OSError):
            sock.setblocking(False)
            return sock.connect_ex(address.removeprefix("unix:").removeprefix("//")) in (0, errno.EAGAIN)
        return False
    host, _, port = address.rpartition(":")
    host = host.strip("[]").lower()
    for each in _OF_BOTH_FAMILIES.get(host, (host,)):
        with suppress(OSError):
            found = socket.getaddrinfo(each, int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            if any(_is_taken(family, place) for family, *_, place in found):
                return True
    return False


def _is_taken(family: int, place: Any) -> bool:
    try:
        with socket.socket(family) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind(place)
    except OSError as error:
        return error.errno == errno.EADDRINUSE
    return False
