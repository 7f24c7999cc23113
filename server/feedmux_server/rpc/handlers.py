"""The table of methods, and the steps around each call: identity, quotas, a documented status at every end.

Handlers pass bytes on unchanged; the methods parse requests and assemble responses.

Every method is registered as one that streams its response, which is the same on the wire: gRPC would write the answer
of a unary handler when its call no longer counts, and keep it for a client that does not take it.
"""

from collections.abc import Awaitable, Callable
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
    guard = partial(guarded, refused=service.audit.refused, observer=service.manager.observer, service=CHANGE_FEED)
    subscriptions, letters = Subscriptions(service), DeadLetters(service)
    admission, limits = service.admission, service.limits.requests
    receive = partial(receive_one, identify=admission.identify, limits=limits, received=admission.charge_bytes)
    streamed = partial(receive, counted=admission.streaming)

    def one(method: Unary) -> StreamHandler:
        return receive(_answering(method, admission.answering), counted=admission.calling)

    subscribe = receive_all(Subscribe(service), admission.identify, admission.streaming)
    feed: dict[str, Any] = {
        "Subscribe": grpc.stream_stream_rpc_method_handler(guard("Subscribe", subscribe)),
        "Watch": grpc.stream_stream_rpc_method_handler(guard("Watch", streamed(Watch(service)))),
        "ResolvePosition": grpc.stream_stream_rpc_method_handler(
            guard("ResolvePosition", one(ResolvePosition(service)))
        ),
        "PlanRange": grpc.stream_stream_rpc_method_handler(guard("PlanRange", one(PlanRange(service)))),
        "ReadRange": grpc.stream_stream_rpc_method_handler(guard("ReadRange", streamed(ReadRange(service)))),
        "Explain": grpc.stream_stream_rpc_method_handler(guard("Explain", one(Explain(service)))),
    }
    control = {
        "CreateSubscription": subscriptions.create,
        "GetSubscription": subscriptions.get,
        "ListSubscriptions": subscriptions.list_,
        "UpdateSubscription": subscriptions.update,
        "DeleteSubscription": subscriptions.delete,
        "SeekSubscription": subscriptions.seek,
        "ListDeadLetters": letters.list_,
        "GetDeadLetter": letters.get,
        "DiscardDeadLetters": letters.discard,
        "ReplayDeadLetters": letters.replay,
    }
    unary: dict[str, Any] = {
        name: grpc.stream_stream_rpc_method_handler(guard(name, one(method), service=SUBSCRIPTIONS))
        for name, method in control.items()
    }
    return (
        grpc.method_handlers_generic_handler(CHANGE_FEED, feed),
        grpc.method_handlers_generic_handler(SUBSCRIPTIONS, unary),
    )


def operator_handlers(service: Service) -> tuple[grpc.GenericRpcHandler, ...]:
    """The handlers of Operator."""
    guard = partial(guarded, refused=service.audit.refused, observer=service.manager.observer, service=OPERATOR)
    operator = Operator(service)
    methods: dict[str, Unary] = {
        "ListSharedStreams": ListSharedStreams(service),
        "ListTenants": operator.list_tenants,
        "EndSubscriber": operator.end_subscriber,
        "Drain": operator.drain,
    }
    identify, limits = service.admission.check_operator, service.limits.requests
    one = partial(receive_one, identify=identify, counted=nullcontext, limits=limits)
    handlers: dict[str, Any] = {
        name: grpc.stream_stream_rpc_method_handler(guard(name, one(_answering(method))))
        for name, method in methods.items()
    }
    return (grpc.method_handlers_generic_handler(OPERATOR, handlers),)


def _answering(
    method: Unary, holding: Callable[[int], AbstractContextManager[None]] = lambda size: nullcontext()
) -> Handler:
    """Write the answer of a method. `holding` counts its bytes until the client has taken them."""

    async def call(data: bytes, context: Context) -> None:
        answer = await method(data, context)
        with holding(len(answer)):
            await context.write(answer)

    return call
