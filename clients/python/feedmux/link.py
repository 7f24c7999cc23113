"""The way to the server: one gRPC channel per event loop, credentials, and the calls that sessions and clients make.

A channel is made at the first use and belongs to the event loop and process that use it, so that a client can be made
before a fork and used from several `asyncio.run`. Nothing here knows what the messages mean.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import grpc.experimental
from grpc._cython import cygrpc  # type: ignore[attr-defined]

from feedmux.status import error_from_call
from feedmux.tracing import trace_context

_CHANNEL_OPTIONS: tuple[tuple[str, int | str], ...] = (
    ("grpc.max_receive_message_length", 72 * 1024 * 1024),
    ("grpc.max_send_message_length", 72 * 1024 * 1024),
    # Batches are up to 1 MiB: frames of that size instead of 16 KiB.
    ("grpc.http2.max_frame_size", 1024 * 1024),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 5_000),
    ("grpc.primary_user_agent", "feedmux-python"),
)
_NOT_SENT: type[Exception] = getattr(cygrpc, "InternalError", grpc.RpcError)
_SUBSCRIBE = "/feedmux.v1.ChangeFeed/Subscribe"
_ROUTE_KEY = "x-feedmux-route"

Metadata = tuple[tuple[str, str], ...]
Token = str | Callable[[], str]


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS by files (PEM). No `root` is the system's roots; certificate and key together are mutual TLS.

    `server_name` is what the server's certificate is checked against where it is not the target's host.
    """

    root: str | Path | None = None
    certificate: str | Path | None = None
    key: str | Path | None = None
    server_name: str | None = None

    def credentials(self) -> grpc.ChannelCredentials:
        """For gRPC. Raises OSError where a file cannot be read."""
        root, key, certificate = (
            Path(path).read_bytes() if path else None for path in (self.root, self.key, self.certificate)
        )
        return grpc.ssl_channel_credentials(root, key, certificate)


@dataclass(frozen=True, slots=True)
class Target:
    """Where the server is and how to speak to it."""

    address: str
    token: Token | None = field(default=None, repr=False)
    tls: Tls | None = None
    channel_options: Sequence[tuple[str, int | str]] = ()

    def channel(self) -> grpc.aio.Channel:
        """A new channel for the running event loop."""
        if self.tls is None:
            return grpc.aio.insecure_channel(self.address, options=self._options())
        return grpc.aio.secure_channel(self.address, self.tls.credentials(), options=self._options())

    def blocking_channel(self) -> grpc.Channel:
        """A new channel for a process without an event loop. Not before a fork: gRPC's threads do not survive it."""
        # The thread that asks for a message of a stream also fetches it: no hand-over for each.
        options = [*self._options(), (grpc.experimental.ChannelOptions.SingleThreadedUnaryStream, 1)]
        if self.tls is None:
            return grpc.insecure_channel(self.address, options=options)
        return grpc.secure_channel(self.address, self.tls.credentials(), options=options)

    def _options(self) -> list[tuple[str, int | str]]:
        chosen = [*_CHANNEL_OPTIONS, *self.channel_options]
        if self.tls is not None and self.tls.server_name:
            chosen.append(("grpc.ssl_target_name_override", self.tls.server_name))
        return chosen

    def metadata(self, route: str = "") -> Metadata:
        """The metadata of every call: credentials, asked for anew each time, the route where one is known, and the
        caller's trace."""
        pairs: list[tuple[str, str]] = []
        if self.token is not None:
            token = self.token if isinstance(self.token, str) else self.token()
            pairs.append(("authorization", f"Bearer {token}"))
        if route:
            pairs.append((_ROUTE_KEY, route))
        return (*pairs, *trace_context())


class _Connection:
    """A channel, which has one connection, and the calls that are open on it.

    A channel that was left takes no new calls. It closes with the last of its calls, so that sessions whose streams are
    in order keep them.
    """

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel
        self.left = False
        self._calls = 0

    @contextmanager
    def call(self) -> Iterator[grpc.aio.Channel]:
        """For the time of a call."""
        self._calls += 1
        try:
            yield self.channel
        finally:
            self._calls -= 1
            self._close_if_unused()

    def leave(self) -> None:
        """Takes no more calls."""
        self.left = True
        self._close_if_unused()

    def _close_if_unused(self) -> None:
        if self.left and not self._calls:
            try:
                loop = asyncio.get_running_loop()
            except RuntimeError:
                return  # A coroutine thrown away after its loop: the channel went with that.
            task = loop.create_task(self.channel.close())
            _closing.add(task)
            task.add_done_callback(_closing.discard)


_closing: set[asyncio.Task[None]] = set()
"""A task that nobody holds may be collected before its end."""


class Stream:
    """One Subscribe call of bytes up and bytes down, as `runner` uses it. Raises grpc.aio.AioRpcError."""

    def __init__(self, call: Any, connection: _Connection) -> None:
        self._call = call
        self.connection = connection
        self.read: Callable[[], Awaitable[Any]] = call.read
        """The next message; grpc.aio.EOF after the last."""
        # gRPC's own `write` puts an error of its own in the place of the server's status where it fails, and drops the
        # messages before that status (grpcio 1.85, `set_internal_error`): FENCED would never be read.
        core = getattr(call, "_cython_call", None)
        self._send: Callable[[bytes], Awaitable[None]] = getattr(core, "send_serialized_message", call.write)

    async def write(self, request: bytes) -> None:
        """Sends a message. One that cannot be sent belongs to a stream that ends; `read` tells why."""
        await self._call.wait_for_connection()
        try:
            await self._send(request)
        except _NOT_SENT:
            return

    def cancel(self) -> None:
        """Ends the call."""
        self._call.cancel()


class Link:
    """A client's connection: one channel for each event loop that uses it."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.routes: dict[str, str] = {}
        """By subscription, as far as the server has told."""
        self._connections: dict[tuple[int, int], tuple[asyncio.AbstractEventLoop, _Connection]] = {}

    @property
    def renews_token(self) -> bool:
        """Each call asks for the token anew, so that after one that has expired another may come."""
        return callable(self._target.token)

    def _connection(self) -> _Connection:
        loop = asyncio.get_running_loop()
        key = os.getpid(), id(loop)
        known = self._connections.get(key)
        if known is None or known[0] is not loop or known[1].left:
            known = self._connections[key] = loop, _Connection(self._target.channel())
        return known[1]

    @contextmanager
    def subscribe(self, route: str) -> Iterator[Stream]:
        """A Subscribe call; it ends with the context."""
        connection = self._connection()
        with connection.call() as channel:
            make: Any = channel.stream_stream(_SUBSCRIBE)
            stream = Stream(make(metadata=self._target.metadata(route)), connection)
            try:
                yield stream
            finally:
                stream.cancel()

    async def unary(self, service: str, method: str, request: Any, response_type: Any, timeout_s: float) -> Any:
        """One unary call within `timeout_s` seconds. Raises FeedmuxError."""
        with self._connection().call() as channel:
            call = channel.unary_unary(
                f"/feedmux.v1.{service}/{method}",
                request_serializer=type(request).SerializeToString,
                response_deserializer=response_type.FromString,
            )
            try:
                return await call(request, timeout=timeout_s, metadata=self._target.metadata())
            except grpc.aio.AioRpcError as error:
                raise error_from_call(error) from None

    async def close(self) -> None:
        """Closes the running loop's channel; its calls end. Another loop's channel is closed from there."""
        known = self._connections.pop((os.getpid(), id(asyncio.get_running_loop())), None)
        if known is not None:
            await known[1].channel.close()
