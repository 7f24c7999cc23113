"""grpc.health.v1 for any caller: it needs no credentials, so every part of it is bounded.

A client that does not read delays only itself: each watcher reads the statuses by itself, and nothing waits for it.
Such a call counts until it ends, as gRPC cannot end a call whose message is not taken. So no call makes room for
another: instead, the callers of one network may hold as many calls as they leave free.
"""

import asyncio
import ipaddress
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final
from urllib.parse import unquote

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
"""The most calls of Watch on one port. The callers of one network have half of them at most."""
CHECKS_MAX: Final = 200
"""The same for Check, whose callers may not take the answer, and for reflection."""
RECEIVING_MAX: Final = 16
"""The most calls without credentials whose request is awaited. One more call ends the call that has waited longest, of
the network with the most."""
_IPV6_NETWORK_BYTES: Final = 8
REQUEST_LIMITS: Final = RequestLimits(bytes_max=1024, first_message_s=5.0)
REFLECTION_LIMITS: Final = RequestLimits(bytes_max=1024, first_message_s=60.0)
_Status = health_pb2.HealthCheckResponse
_StatusValue = Any  # an enumeration that is a type for type checkers only


class Unnamed:
    """Receives requests of callers without credentials: few at a time; new callers displace the oldest."""

    def __init__(self, limits: RequestLimits = REQUEST_LIMITS) -> None:
        self._limits = limits
        self._waiting: dict[asyncio.Task[Any], str] = {}
        """The waiting calls, in order of arrival, with their networks."""

    async def receive(self, requests: Requests, context: Context) -> bytes:
        """Receive the request. Ends the call if there is no request, or if newer calls need the room."""
        try:
            with self._waits(network_of(context.peer())):
                data = await first_message(requests, self._limits)
        except FeedmuxError as error:
            await abort(context, error)
        return data or b""

    @contextmanager
    def _waits(self, network: str) -> Iterator[None]:
        task = asyncio.current_task()
        assert task is not None
        if len(self._waiting) >= RECEIVING_MAX:
            [(crowded, _)] = Counter(self._waiting.values()).most_common(1)
            oldest = next(each for each, of in self._waiting.items() if of == crowded)
            self._waiting.pop(oldest)
            oldest.cancel(_TOO_MANY)
        self._waiting[task] = network
        try:
            yield
        except asyncio.CancelledError as error:
            if _TOO_MANY not in error.args:
                raise
            task.uncancel()
            raise _busy("the server receives too many requests without credentials") from None
        finally:
            self._waiting.pop(task, None)


class Places:
    """The calls of one method that have been received. The callers of one network may hold as many as they leave free:
    one alone half of them, two a third each."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._by_network: Counter[str] = Counter()

    @contextmanager
    def place(self, context: Context) -> Iterator[None]:
        """Count a call. Raises QUOTA_EXCEEDED."""
        network = network_of(context.peer())
        if self._by_network.total() + self._by_network[network] >= self._most:
            raise _busy("your network already has its share of the calls without credentials")
        self._by_network[network] += 1
        try:
            yield
        finally:
            self._by_network[network] -= 1
            if not self._by_network[network]:
                del self._by_network[network]


def network_of(peer: str | None) -> str:
    """The network of a peer as gRPC names it (`ipv4:10.0.0.1:5`, `ipv6:%5B2001:db8::1%5D:5`): the address, or the first
    64 bits of an IPv6 address, since one caller may have all that begin with them."""
    kind, _, rest = (peer or "").partition(":")
    address = unquote(rest).rpartition(":")[0].strip("[]").partition("%")[0]
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return kind
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is None:
            return found.packed[:_IPV6_NETWORK_BYTES].hex()
        found = found.ipv4_mapped
    return str(found)


class HealthService:
    """Check and Watch of statuses by name."""

    def __init__(self) -> None:
        self._statuses: dict[str, _StatusValue] = {}
        self._changed = asyncio.Event()

    def show(self, name: str, *, up: bool) -> None:
        """Set a status for later checks, and notify the watchers."""
        status = _Status.SERVING if up else _Status.NOT_SERVING
        if self._statuses.get(name) != status:
            self._statuses[name] = status
            self._changed.set()
            self._changed = asyncio.Event()

    def handlers(self, service: str, unnamed: Unnamed) -> grpc.GenericRpcHandler:
        methods: dict[str, Any] = {
            "Check": grpc.stream_stream_rpc_method_handler(_named(self._check, unnamed, Places(CHECKS_MAX))),
            "Watch": grpc.stream_stream_rpc_method_handler(_named(self._watch, unnamed, Places(WATCHERS_MAX))),
        }
        return grpc.method_handlers_generic_handler(service, methods)

    async def _check(self, name: str, context: Context) -> None:
        status = self._statuses.get(name)
        if status is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "there is no such service")
        await context.write(_message(status))

    async def _watch(self, name: str, context: Context) -> None:
        last: _StatusValue | None = None
        while True:
            changed = self._changed
            status = self._statuses.get(name, _Status.SERVICE_UNKNOWN)
            if status != last:
                await context.write(_message(status))
                last = status
            else:
                await changed.wait()


def reflection_handlers(service: str, names: tuple[str, ...], unnamed: Unnamed) -> grpc.GenericRpcHandler:
    """Server reflection for tools such as grpcurl."""
    servicer: Any = ReflectionServicer(names)
    places = Places(CHECKS_MAX)

    async def call(requests: Requests, context: Context) -> None:
        async def received() -> AsyncIterator[reflection_pb2.ServerReflectionRequest]:
            while data := await unnamed.receive(requests, context):
                try:
                    yield reflection_pb2.ServerReflectionRequest.FromString(data)
                except DecodeError:
                    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the request is not valid")

        async with _placed(places, context):
            async for response in servicer.ServerReflectionInfo(received(), context):
                await context.write(response.SerializeToString())

    method: Any = grpc.stream_stream_rpc_method_handler(call)
    return grpc.method_handlers_generic_handler(service, {"ServerReflectionInfo": method})


def _named(handler: Callable[[str, Context], Awaitable[None]], unnamed: Unnamed, places: Places) -> Any:
    async def call(requests: Requests, context: Context) -> None:
        data = await unnamed.receive(requests, context)
        try:
            name = health_pb2.HealthCheckRequest.FromString(data).service
        except DecodeError:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the request is not valid")
        async with _placed(places, context):
            await handler(name, context)

    return call


@asynccontextmanager
async def _placed(places: Places, context: Context) -> AsyncIterator[None]:
    """Count a call, or end it."""
    try:
        with places.place(context):
            yield
    except FeedmuxError as error:
        await abort(context, error)
    except grpc.aio.InternalError as error:
        # A message could not be written: the client has gone, and gRPC is about to cancel the call.
        raise asyncio.CancelledError from error


def _message(status: _StatusValue) -> bytes:
    return _Status(status=status).SerializeToString()


def _busy(what: str) -> FeedmuxError:
    return FeedmuxError(ErrorReason.QUOTA_EXCEEDED, f"{what}; try again", {"quota": "unnamed"}, retry_after_s=5.0)


_TOO_MANY: Final = "too many requests are being received"
