"""The table of methods, and the steps around each call: identity, quotas, a documented status at every end.

Handlers pass bytes on unchanged; the methods parse requests and assemble responses.

Every method is registered as one that streams its response, which is the same on the wire: gRPC would write the answer
of a unary handler when its call no longer counts, and keep it for a client that does not take it.
"""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import grpc

from feedmux_server.rpc.dead_letters import DeadLetters
from feedmux_server.rpc.explain import Explain
from feedmux_server.rpc.health import CHANGE_FEED, OPERATOR, SUBSCRIPTIONS
from feedmux_server.rpc.list_shared_streams import ListSharedStreams
from feedmux_server.rpc.operator import Operator
from feedmux_server.rpc.plan_range import PlanRange
from feedmux_server.rpc.read_range import ReadRange
from feedmux_server.rpc.receiving import Handler, StreamHandler, receive_all, receive_one
from feedmux_server.rpc.resolve_position import ResolvePosition
from feedmux_server.rpc.service import Service
from feedmux_server.rpc.status import Context, guarded
from feedmux_server.rpc.subscribe import Subscribe
from feedmux_server.rpc.subscriptions import Subscriptions
from feedmux_server.rpc.watch import Watch

Unary = Callable[[bytes, Context], Awaitable[bytes]]


def data_handlers(service: Service) -> tuple[grpc.GenericRpcHandler, ...]:
    """The handlers of ChangeFeed and Subscriptions."""
    subscriptions, letters = Subscriptions(service), DeadLetters(service)
    admission, limits = service.admission, service.limits.requests
    receive = partial(receive_one, identify=admission.identify, limits=limits, received=admission.charge_bytes)
    streamed = partial(receive, counted=admission.streaming)

    def one(method: Unary) -> StreamHandler:
        return receive(_answering(method, admission.answering), counted=admission.calling)

    feed = {
        "Subscribe": receive_all(Subscribe(service), admission.identify, admission.streaming),
        "Watch": streamed(Watch(service)),
        "ResolvePosition": one(ResolvePosition(service)),
        "PlanRange": one(PlanRange(service)),
        "ReadRange": streamed(ReadRange(service)),
        "Explain": one(Explain(service)),
    }
    control = {
        "CreateSubscription": one(subscriptions.create),
        "GetSubscription": one(subscriptions.get),
        "ListSubscriptions": one(subscriptions.list_),
        "UpdateSubscription": one(subscriptions.update),
        "DeleteSubscription": one(subscriptions.delete),
        "SeekSubscription": one(subscriptions.seek),
        "ListDeadLetters": one(letters.list_),
        "GetDeadLetter": one(letters.get),
        "DiscardDeadLetters": one(letters.discard),
        "ReplayDeadLetters": one(letters.replay),
    }
    return _guarded(service, CHANGE_FEED, feed), _guarded(service, SUBSCRIPTIONS, control)


def operator_handlers(service: Service) -> tuple[grpc.GenericRpcHandler, ...]:
    """The handlers of Operator."""
    operator = Operator(service)
    identify, limits = service.admission.check_operator, service.limits.requests

    def one(method: Unary) -> StreamHandler:
        return receive_one(_answering(method), identify, counted=nullcontext, limits=limits)

    methods = {
        "ListSharedStreams": one(ListSharedStreams(service)),
        "ListTenants": one(operator.list_tenants),
        "EndSubscriber": one(operator.end_subscriber),
        "Drain": one(operator.drain),
    }
    return (_guarded(service, OPERATOR, methods),)


class Elsewhere(grpc.GenericRpcHandler):
    """Answers a call of a service of feedmux that this port does not have with the port that has it. gRPC itself would
    say that there is no such method."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        name = handler_call_details.method.strip("/").partition("/")[0]
        port = _PORTS.get(name)
        if port is None or name in self._names:
            return None

        async def call(requests: object, context: Context) -> None:
            await context.abort(
                grpc.StatusCode.UNIMPLEMENTED,
                f"this port does not serve {name}: use the address of {port} in the server's configuration",
            )

        return grpc.stream_stream_rpc_method_handler(call)


_PORTS = {CHANGE_FEED: "listen.data", SUBSCRIPTIONS: "listen.data", OPERATOR: "listen.operator"}


def _guarded(service: Service, name: str, methods: Mapping[str, StreamHandler]) -> grpc.GenericRpcHandler:
    guard = partial(guarded, refused=service.audit.refused, observer=service.manager.observer, service=name)
    handlers: dict[str, Any] = {
        method: grpc.stream_stream_rpc_method_handler(guard(method, handler)) for method, handler in methods.items()
    }
    return grpc.method_handlers_generic_handler(name, handlers)


def _answering(
    method: Unary, holding: Callable[[int], AbstractContextManager[None]] = lambda size: nullcontext()
) -> Handler:
    """Write the answer of a method. `holding` counts its bytes until the client has taken them."""

    async def call(data: bytes, context: Context) -> None:
        answer = await method(data, context)
        with holding(len(answer)):
            await context.write(answer)

    return call
