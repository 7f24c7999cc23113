"""The way to the server: one gRPC channel per event loop, and the calls that sessions and clients make.

A channel is made at the first use and belongs to the event loop and process that use it, so that a client can be made
before a fork and used from several `asyncio.run`. Nothing here knows what the messages mean.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, Protocol

import grpc
import grpc.aio
from grpc._cython import cygrpc  # type: ignore[attr-defined]

from feedmux.errors import Unavailable
from feedmux.status import error_from_call
from feedmux.target import Metadata, Target, TokenThread, metadata_of

_NOT_SENT: type[Exception] = getattr(cygrpc, "InternalError", grpc.RpcError)
_SUBSCRIBE = "/feedmux.v1.ChangeFeed/Subscribe"
_DEAD_AFTER_S: Final = 5.0
"""A unary call that has waited for so long in vain takes its connection for dead."""


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
            _closing[task] = None
            task.add_done_callback(_closing.pop)


_closing: dict[asyncio.Task[None], None] = {}
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


class OpenSession(Protocol):
    """What a link knows of a session on it."""

    loop: asyncio.AbstractEventLoop

    async def end_with_client(self) -> None:
        """Ends it as its user would, and lets its user know."""


class Link:
    """A client's connection: one channel for each event loop that uses it."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._token_thread = TokenThread(target.token) if callable(target.token) else None
        self.sessions: dict[OpenSession, None] = {}
        """Those that run, on any event loop."""
        self.routes: dict[str, str] = {}
        """By subscription, as far as the server has told."""
        self._connections: dict[tuple[int, int], tuple[asyncio.AbstractEventLoop, _Connection]] = {}
        """Those that take new calls."""

    @property
    def renews_token(self) -> bool:
        """Each call asks for the token anew, so that after one that has expired another may come."""
        return callable(self._target.token)

    async def _metadata(self, route: str = "") -> Metadata:
        """As `Target.metadata`, on an event loop."""
        token = self._target.fresh_token() if self._token_thread is None else await self._token_thread.token()
        return metadata_of(token, route)

    def _connection(self) -> _Connection:
        loop = asyncio.get_running_loop()
        key = os.getpid(), id(loop)
        known = self._connections.get(key)
        if known is None or known[0] is not loop or known[1].left:
            known = self._connections[key] = loop, _Connection(self._target.channel())
        return known[1]

    @asynccontextmanager
    async def subscribe(self, route: str) -> AsyncIterator[Stream]:
        """A Subscribe call; it ends with the context. Raises Unavailable where there is no token."""
        metadata = await self._metadata(route)
        connection = self._connection()
        with connection.call() as channel:
            make: Any = channel.stream_stream(_SUBSCRIBE)
            stream = Stream(make(metadata=metadata), connection)
            try:
                yield stream
            finally:
                stream.cancel()

    async def unary(self, service: str, method: str, request: Any, response_type: Any, timeout_s: float) -> Any:
        """One unary call within `timeout_s` seconds, in which the token is had too. Raises FeedmuxError."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        try:
            async with asyncio.timeout(timeout_s):
                metadata = await self._metadata()
        except TimeoutError:
            message = f"the token function has not returned within {timeout_s:g} s"
            raise Unavailable(message, status="DEADLINE_EXCEEDED") from None
        connection = self._connection()
        with connection.call() as channel:
            call = channel.unary_unary(
                f"/feedmux.v1.{service}/{method}",
                request_serializer=type(request).SerializeToString,
                response_deserializer=response_type.FromString,
            )
            left_s = max(0.0, began_s + timeout_s - loop.time())
            try:
                return await call(request, timeout=left_s, metadata=metadata)
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED and left_s >= _DEAD_AFTER_S:
                    connection.leave()
                raise error_from_call(error) from None

    async def close(self) -> None:
        """Ends the sessions of the running loop, then its channel. Another loop's are closed from there."""
        loop = asyncio.get_running_loop()
        await asyncio.gather(*(each.end_with_client() for each in list(self.sessions) if each.loop is loop))
        known = self._connections.pop((os.getpid(), id(loop)), None)
        if known is not None:
            await known[1].channel.close()
