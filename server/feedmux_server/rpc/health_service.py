"""grpc.health.v1 for any caller: it needs no credentials, so every part of it is bounded.

A client that does not read delays only itself: each watcher reads the statuses by itself, and nothing waits for it.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha._async import ReflectionServicer

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.rpc.receiving import RequestLimits, Requests, first_message
from feedmux_server.rpc.status import Context, abort

WATCHERS_MAX: Final = 1_000
RECEIVING_MAX: Final = 16
"""The most calls without credentials whose request is awaited. One more call ends the longest-waiting call."""
REQUEST_LIMITS: Final = RequestLimits(bytes_max=1024, first_message_s=5.0)
REFLECTION_LIMITS: Final = RequestLimits(bytes_max=1024, first_message_s=60.0)
_REFLECTION_S: Final = 60.0
_Status = health_pb2.HealthCheckResponse
_StatusValue = Any  # an enumeration that is a type for type checkers only


class Unnamed:
    """Receives requests of callers without credentials: few at a time; new callers displace the oldest."""

    def __init__(self, limits: RequestLimits = REQUEST_LIMITS) -> None:
        self._limits = limits
        self._waiting: dict[asyncio.Task[Any], None] = {}
        """The waiting calls, in order of arrival."""

    async def receive(self, requests: Requests, context: Context) -> bytes:
        """Receive the request. Ends the call if there is no request, or if newer calls need the room."""
        try:
            with self._waits():
                data = await first_message(requests, self._limits)
        except FeedmuxError as error:
            await abort(context, error)
        return data or b""

    @contextmanager
    def _waits(self) -> Iterator[None]:
        task = asyncio.current_task()
        assert task is not None
        if len(self._waiting) >= RECEIVING_MAX:
            oldest = next(iter(self._waiting))
            self._waiting.pop(oldest)
            oldest.cancel(_TOO_MANY)
        self._waiting[task] = None
        try:
            yield
        except asyncio.CancelledError as error:
            if _TOO_MANY not in error.args:
                raise
            task.uncancel()
            raise _busy("the server receives too many requests without credentials") from None
        finally:
            self._waiting.pop(task, None)


class HealthService:
    """Check and Watch of statuses by name."""

    def __init__(self) -> None:
        self._statuses: dict[str, _StatusValue] = {}
        self._changed = asyncio.Event()
        self._watchers = 0

    def show(self, name: str, *, up: bool) -> None:
        """Set a status for later checks, and notify the watchers."""
        status = _Status.SERVING if up else _Status.NOT_SERVING
        if self._statuses.get(name) != status:
            self._statuses[name] = status
            self._changed.set()
            self._changed = asyncio.Event()

    def handlers(self, service: str, unnamed: Unnamed) -> grpc.GenericRpcHandler:
        methods: dict[str, Any] = {
            "Check": grpc.stream_unary_rpc_method_handler(_named(self._check, unnamed)),
            "Watch": grpc.stream_stream_rpc_method_handler(_named(self._watch, unnamed)),
        }
        return grpc.method_handlers_generic_handler(service, methods)

    async def _check(self, name: str, context: Context) -> bytes:
        status = self._statuses.get(name)
        if status is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "there is no such service")
        return _message(status)

    async def _watch(self, name: str, context: Context) -> None:
        if self._watchers >= WATCHERS_MAX:
            await abort(context, _busy(f"{WATCHERS_MAX} calls already watch the server's health"))
        self._watchers += 1
        try:
            last: _StatusValue | None = None
            while True:
                changed = self._changed
                status = self._statuses.get(name, _Status.SERVICE_UNKNOWN)
                if status != last:
                    await context.write(_message(status))
                    last = status
                else:
                    await changed.wait()
        finally:
            self._watchers -= 1


def reflection_handlers(service: str, names: tuple[str, ...], unnamed: Unnamed) -> grpc.GenericRpcHandler:
    """Server reflection for tools such as grpcurl, in calls of a minute at most."""
    servicer: Any = ReflectionServicer(names)

    async def call(requests: Requests, context: Context) -> None:
        async def received() -> AsyncIterator[reflection_pb2.ServerReflectionRequest]:
            while data := await unnamed.receive(requests, context):
                try:
                    yield reflection_pb2.ServerReflectionRequest.FromString(data)
                except DecodeError:
                    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the request is not valid")

        try:
            async with asyncio.timeout(_REFLECTION_S):
                async for response in servicer.ServerReflectionInfo(received(), context):
                    await context.write(response.SerializeToString())
        except TimeoutError:
            await abort(context, _busy(f"the server ends a reflection call after {_REFLECTION_S:g} s"))

    method: Any = grpc.stream_stream_rpc_method_handler(call)
    return grpc.method_handlers_generic_handler(service, {"ServerReflectionInfo": method})


def _named(handler: Callable[[str, Context], Awaitable[bytes | None]], unnamed: Unnamed) -> Any:
    async def call(requests: Requests, context: Context) -> bytes | None:
        data = await unnamed.receive(requests, context)
        try:
            name = health_pb2.HealthCheckRequest.FromString(data).service
        except DecodeError:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the request is not valid")
        return await handler(name, context)

    return call


def _message(status: _StatusValue) -> bytes:
    return _Status(status=status).SerializeToString()


def _busy(what: str) -> FeedmuxError:
    return FeedmuxError(ErrorReason.QUOTA_EXCEEDED, f"{what}; try again", {"quota": "unnamed"}, retry_after_s=5.0)


_TOO_MANY: Final = "too many requests are being received"
