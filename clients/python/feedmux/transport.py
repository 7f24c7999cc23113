"""The connection to the server: one gRPC channel per event loop, and the calls that sessions and clients make.

A channel is made at the first use and belongs to the event loop and process that use it, so that a client can be made
before a fork and used from several `asyncio.run`. This module does not interpret messages.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, Protocol

import grpc
import grpc.aio
from grpc._cython import cygrpc

from feedmux.background_loop import check_process, open_channels
from feedmux.errors import Unavailable
from feedmux.status import error_from_call
from feedmux.target import Metadata, Target, TokenThread, metadata_of

_NOT_SENT: type[Exception] = getattr(cygrpc, "InternalError", grpc.RpcError)
_SUBSCRIBE = "/feedmux.v1.ChangeFeed/Subscribe"
_DEAD_AFTER_S: Final = 5.0
"""After a unary call has waited this long in vain, it considers its connection dead."""


class _Channel:
    """A channel, which has one connection, and the calls that are open on it.

    A channel that was left accepts no new calls. It closes with the last of its calls, so that sessions with healthy
    streams keep them.
    """

    def __init__(self, grpc_channel: grpc.aio.Channel, tls_files: tuple[bytes | None, ...] | None) -> None:
        self.grpc_channel = grpc_channel
        self.tls_files = tls_files
        self.left = False
        self._calls = 0
        open_channels.add(self)

    @contextmanager
    def call(self) -> Iterator[grpc.aio.Channel]:
        """Count a call while the block runs."""
        self._calls += 1
        try:
            yield self.grpc_channel
        finally:
            self._calls -= 1
            self._close_if_unused()

    def leave(self) -> None:
        """Accept no more calls."""
        self.left = True
        self._close_if_unused()

    def _close_if_unused(self) -> None:
        if self.left and not self._calls:
            try:
                loop = asyncio.get_running_loop()
            except RuntimeError:
                return  # A coroutine discarded after its loop: the channel ended with the loop.
            task = loop.create_task(self.close())
            _closing[task] = None
            task.add_done_callback(_closing.pop)

    async def close(self) -> None:
        await self.grpc_channel.close()
        open_channels.discard(self)


_closing: dict[asyncio.Task[None], None] = {}
"""References to running tasks: without one, a task may be garbage-collected before its end."""


class Stream:
    """One Subscribe call that sends and receives bytes, for `connection`. Raises grpc.aio.AioRpcError."""

    def __init__(self, call: Any, channel: _Channel) -> None:
        self._call = call
        self.channel = channel
        self.read: Callable[[], Awaitable[Any]] = call.read
        """Reads the next message; grpc.aio.EOF after the last."""
        # When gRPC's own `write` fails, it replaces the server's status by an internal error, and drops the messages
        # before that status (grpcio 1.85, `set_internal_error`): FENCED would never be read.
        core = getattr(call, "_cython_call", None)
        self._send: Callable[[bytes], Awaitable[None]] = getattr(core, "send_serialized_message", call.write)

    async def write(self, request: bytes) -> None:
        """Send a message. If it cannot be sent, the stream is ending, and `read` raises the reason."""
        await self._call.wait_for_connection()
        try:
            await self._send(request)
        except _NOT_SENT:
            return

    def cancel(self) -> None:
        """Cancel the call."""
        self._call.cancel()


class OpenSession(Protocol):
    """The interface of a session to its transport."""

    loop: asyncio.AbstractEventLoop

    async def end_with_client(self) -> None:
        """End the session as its user would, and notify its user."""


class Transport:
    """The calls of a client: one channel for each event loop that uses it."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._token_thread = TokenThread(target.token) if callable(target.token) else None
        self.sessions: dict[OpenSession, None] = {}
        """The running sessions, on any event loop."""
        self.routes: dict[str, str] = {}
        """The route by subscription, as far as the server has reported it."""
        self._channels: dict[tuple[int, int], tuple[asyncio.AbstractEventLoop, _Channel]] = {}
        """The channels that accept new calls."""

    @property
    def renews_token(self) -> bool:
        """Whether each call requests a new token, so that an expired token can be replaced."""
        return callable(self._target.token)

    async def _metadata(self, route: str = "") -> Metadata:
        """Return `Target.metadata`, from an event loop."""
        token = self._target.fresh_token() if self._token_thread is None else await self._token_thread.token()
        return metadata_of(token, route)

    def _channel(self) -> _Channel:
        check_process()
        loop = asyncio.get_running_loop()
        key = os.getpid(), id(loop)
        known = self._channels.get(key)
        files = self._target.tls_files()
        if known is not None and known[0] is loop and files not in (None, known[1].tls_files):
            known[1].leave()  # gRPC connects with the files of its beginning, whose certificates expire.
        if known is None or known[0] is not loop or known[1].left:
            self._drop_ended()
            known = self._channels[key] = loop, _Channel(self._target.channel(), files)
        return known[1]

    @asynccontextmanager
    async def subscribe(self, route: str) -> AsyncIterator[Stream]:
        """Open a Subscribe call, which ends with the context. Raises Unavailable if no token is available."""
        metadata = await self._metadata(route)
        channel = self._channel()
        with channel.call() as grpc_channel:
            make: Any = grpc_channel.stream_stream(_SUBSCRIBE)
            stream = Stream(make(metadata=metadata), channel)
            try:
                yield stream
            finally:
                stream.cancel()

    async def unary(self, service: str, method: str, request: Any, response_type: Any, timeout_s: float) -> Any:
        """Make one unary call within `timeout_s` seconds, including the time to get the token. Raises FeedmuxError."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        try:
            async with asyncio.timeout(timeout_s):
                metadata = await self._metadata()
        except TimeoutError:
            message = f"the token function has not returned within {timeout_s:g} s"
            raise Unavailable(message, status="DEADLINE_EXCEEDED") from None
        channel = self._channel()
        with channel.call() as grpc_channel:
            call = grpc_channel.unary_unary(
                f"/feedmux.v1.{service}/{method}",
                request_serializer=type(request).SerializeToString,
                response_deserializer=response_type.FromString,
            )
            left_s = max(0.0, began_s + timeout_s - loop.time())
            try:
                return await call(request, timeout=left_s, metadata=metadata)
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED and left_s >= _DEAD_AFTER_S:
                    channel.leave()
                raise error_from_call(error) from None

    async def close(self) -> None:
        """End the sessions of the running loop, then its channel; those of another loop are closed from that loop."""
        loop = asyncio.get_running_loop()
        await asyncio.gather(*(each.end_with_client() for each in list(self.sessions) if each.loop is loop))
        known = self._channels.pop((os.getpid(), id(loop)), None)
        self._drop_ended()
        if known is not None:
            await known[1].close()

    def _drop_ended(self) -> None:
        """Drop the channels of event loops that have ended. gRPC closes a channel that nobody holds; after a fork it
        cannot close those of the other process."""
        for key, (loop, _) in list(self._channels.items()):
            if loop.is_closed() and key[0] == os.getpid():
                self._channels.pop(key, None)
