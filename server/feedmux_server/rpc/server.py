"""The gRPC servers: data, operator and health. Bytes pass as they are; handlers parse and splice."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import grpc
import grpc.aio

from feedmux_server.rpc.explain import Explain
from feedmux_server.rpc.health import CHANGE_FEED, OPERATOR, SUBSCRIPTIONS, Health
from feedmux_server.rpc.list_shared_streams import ListSharedStreams
from feedmux_server.rpc.operator import Operator
from feedmux_server.rpc.plan_range import PlanRange
from feedmux_server.rpc.read_range import ReadRange
from feedmux_server.rpc.receiving import receive_all, receive_one
from feedmux_server.rpc.resolve_position import ResolvePosition
from feedmux_server.rpc.service import Service
from feedmux_server.rpc.status import Context, guarded
from feedmux_server.rpc.subscribe import Subscribe
from feedmux_server.rpc.subscriptions import Subscriptions
from feedmux_server.rpc.tls import Tls
from feedmux_server.rpc.transport import Transport
from feedmux_server.rpc.watch import Watch

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Listeners:
    """Addresses to listen on, `host:port`; port 0 picks one."""

    data: str
    operator: str
    tls: Tls | None = None
    data_mtls: str = ""
    """A second address for data, where a client certificate is required; then `data` wants none."""
    transport: Transport = field(default_factory=Transport)


@dataclass(frozen=True, slots=True)
class Ports:
    """What is being listened on."""

    data: int
    operator: int
    health: int
    data_mtls: int | None = None


Unary = Callable[[bytes, Context], Awaitable[bytes]]


class PortInUse(Exception):
    """An address cannot be listened on; the message says what to do."""

    def __init__(self, address: str, name: str) -> None:
        super().__init__(
            f"cannot listen on {address} ({name}): the port is in use or the address is not this machine's."
            f" Set listen.{name} (or FEEDMUX_LISTEN__{name.upper()}) to another"
        )


class Servers:
    """The data and the operator server of a process. `health` has one of its own."""

    def __init__(self, service: Service, health: Health, listeners: Listeners) -> None:
        self._service = service
        self._listeners = listeners
        self._health = health
        self._servers: list[grpc.aio.Server] = []
        self._data = self._server(_data_handlers(service), (CHANGE_FEED, SUBSCRIPTIONS))
        self._operator = self._server(_operator_handlers(service), (OPERATOR,))

    async def start(self, health_port: int) -> Ports:
        """Raises PortInUse."""
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
        """Not serving; after the delay notices, acks flushed, streams ended; stops within the deadline and a second."""
        await self._health.drain()
        await asyncio.sleep(delay_s)
        self._service.draining = True
        for live in self._service.sessions():
            live.session.drain(deadline_s)
        # Connections are told to go at once: who reconnects must not meet this server again. Streams go on.
        going = asyncio.gather(*(server.stop(deadline_s + 1.0) for server in self._servers))
        with suppress(TimeoutError):
            async with asyncio.timeout(deadline_s + 1.0):
                await self._service.all_left()
        await self.stop(0.5)
        await going

    async def stop(self, grace_s: float) -> None:
        await asyncio.gather(*(server.stop(grace_s) for server in self._servers))

    def _server(self, handlers: tuple[grpc.GenericRpcHandler, ...], names: tuple[str, ...]) -> grpc.aio.Server:
        server = grpc.aio.server(options=self._listeners.transport.options())
        server.add_generic_rpc_handlers(handlers)
        self._health.add_to(server, names)
        self._servers.append(server)
        return server


def _data_handlers(service: Service) -> tuple[grpc.GenericRpcHandler, ...]:
    guard = partial(guarded, refused=service.refused, observer=service.hub.observer, service=CHANGE_FEED)
    subscriptions = Subscriptions(service)
    limits = service.request_limits
    receive = partial(receive_one, identify=service.identify, limits=limits, received=service.charge_bytes)
    one, streamed = partial(receive, counted=service.calling), partial(receive, counted=service.streaming)
    subscribe = receive_all(Subscribe(service), service.identify, service.streaming)
    feed: dict[str, Any] = {
        "Subscribe": grpc.stream_stream_rpc_method_handler(guard("Subscribe", subscribe)),
        "Watch": grpc.stream_stream_rpc_method_handler(guard("Watch", streamed(Watch(service)))),
        "ResolvePosition": grpc.stream_unary_rpc_method_handler(
            guard("ResolvePosition", one(ResolvePosition(service)))
        ),
        "PlanRange": grpc.stream_unary_rpc_method_handler(guard("PlanRange", one(PlanRange(service)))),
        "ReadRange": grpc.stream_stream_rpc_method_handler(guard("ReadRange", streamed(ReadRange(service)))),
        "Explain": grpc.stream_unary_rpc_method_handler(guard("Explain", one(Explain(service)))),
    }
    control = {
        "CreateSubscription": subscriptions.create,
        "GetSubscription": subscriptions.get,
        "ListSubscriptions": subscriptions.list_,
        "UpdateSubscription": subscriptions.update,
        "DeleteSubscription": subscriptions.delete,
        "SeekSubscription": subscriptions.seek,
    }
    unary: dict[str, Any] = {
        name: grpc.stream_unary_rpc_method_handler(guard(name, one(method), service=SUBSCRIPTIONS))
        for name, method in control.items()
    }
    return (
        grpc.method_handlers_generic_handler(CHANGE_FEED, feed),
        grpc.method_handlers_generic_handler(SUBSCRIPTIONS, unary),
    )


def _operator_handlers(service: Service) -> tuple[grpc.GenericRpcHandler, ...]:
    guard = partial(guarded, refused=service.refused, observer=service.hub.observer, service=OPERATOR)
    operator = Operator(service)
    methods: dict[str, Unary] = {
        "ListSharedStreams": ListSharedStreams(service),
        "ListTenants": operator.list_tenants,
        "EndSubscriber": operator.end_subscriber,
        "Drain": operator.drain,
    }
    one = partial(receive_one, identify=service.check_operator, counted=nullcontext, limits=service.request_limits)
    handlers: dict[str, Any] = {
        name: grpc.stream_unary_rpc_method_handler(guard(name, one(method))) for name, method in methods.items()
    }
    return (grpc.method_handlers_generic_handler(OPERATOR, handlers),)


def _listen(
    server: grpc.aio.Server, address: str, tls: Tls | None, name: str, *, client_certificate: bool = False
) -> int:
    try:
        if tls is not None:
            return server.add_secure_port(address, tls.credentials(client_certificate=client_certificate))
        return server.add_insecure_port(address)
    except RuntimeError:
        raise PortInUse(address, name) from None
