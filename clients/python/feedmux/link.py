"""The way to the server: one gRPC channel per event loop, credentials, and the calls that sessions and clients make.

A channel is made at the first use and belongs to the event loop and process that use it, so that a client can be made
before a fork and used from several `asyncio.run`. Nothing here knows what the messages mean.
"""

import asyncio
import contextvars
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import grpc
import grpc.aio
import grpc.experimental
from grpc._cython import cygrpc  # type: ignore[attr-defined]

from feedmux.errors import Unavailable
from feedmux.status import error_from_call
from feedmux.tracing import trace_context

_CHANNEL_OPTIONS: tuple[tuple[str, int | str], ...] = (
    ("grpc.max_receive_message_length", 72 * 1024 * 1024),
    ("grpc.max_send_message_length", 72 * 1024 * 1024),
    # Batches are up to 1 MiB: frames of that size instead of 16 KiB.
    ("grpc.http2.max_frame_size", 1024 * 1024),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # By default gRPC all but stops its pings where only the server sends, as in a read of history.
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 5_000),
    ("grpc.primary_user_agent", "feedmux-python"),
)
_NOT_SENT: type[Exception] = getattr(cygrpc, "InternalError", grpc.RpcError)
_SUBSCRIBE = "/feedmux.v1.ChangeFeed/Subscribe"
_ROUTE_KEY = "x-feedmux-route"
_TOKEN_S: Final = 30.0
_DEAD_AFTER_S: Final = 5.0
"""A unary call that has waited for so long in vain takes its connection for dead."""

Metadata = tuple[tuple[str, str], ...]
Token = str | Callable[[], str]


def clean_token(text: object) -> str:
    """An API key or token as it is sent: without the white space around it. A key read from a file ends with a newline.

    Raises ValueError, which does not quote it.
    """
    if not isinstance(text, str):
        raise ValueError(f"it is no str but {type(text).__name__}")
    token = text.strip(" \t\r\n")
    if not token:
        raise ValueError("it is empty")
    if not all("!" <= character <= "~" for character in token):
        raise ValueError("it has characters other than visible ASCII")
    return token


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS by files (PEM). No `root` is the system's roots; certificate and key together are mutual TLS.

    `server_name` is what the server's certificate is checked against where it is not the target's host.
    Raises ValueError for a certificate without its key, or a key without its certificate.
    """

    root: str | Path | None = None
    certificate: str | Path | None = None
    key: str | Path | None = None
    server_name: str | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("mutual TLS needs both: certificate and key")

    def credentials(self) -> grpc.ChannelCredentials:
        """For gRPC. Raises OSError where a file cannot be read."""
        root, key, certificate = (
            Path(path).read_bytes() if path else None for path in (self.root, self.key, self.certificate)
        )
        return grpc.ssl_channel_credentials(root, key, certificate)


@dataclass(frozen=True, slots=True)
class Target:
    """Where the server is and how to speak to it. Raises ValueError for a token that cannot be sent."""

    address: str
    token: Token | None = field(default=None, repr=False)
    tls: Tls | None = None
    channel_options: Sequence[tuple[str, int | str]] = ()

    def __post_init__(self) -> None:
        if self.token is not None and not callable(self.token):
            try:
                object.__setattr__(self, "token", clean_token(self.token))
            except ValueError as error:
                raise ValueError(f"the API key or token cannot be sent: {error}") from None

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

    def fresh_token(self) -> str:
        """The token for one call. Raises Unavailable where the function that gives it fails: next time it may not."""
        if not callable(self.token):
            return self.token or ""
        try:
            return clean_token(self.token())
        except Exception as error:
            raise _no_token(error) from error

    def metadata(self, route: str = "") -> Metadata:
        """The metadata of a call: credentials, the route where one is known, and the caller's trace.

        Waits for the function that gives the token. Raises Unavailable as `fresh_token` does.
        """
        return _metadata(self.fresh_token(), route)


def _metadata(token: str, route: str) -> Metadata:
    pairs = [("authorization", f"Bearer {token}")] if token else []
    if route:
        pairs.append((_ROUTE_KEY, route))
    return (*pairs, *trace_context())


def _no_token(error: BaseException) -> Unavailable:
    return Unavailable(f"the token function failed: {type(error).__name__}: {error}", status="UNAVAILABLE")


class TokenThread:
    """Calls a token function in a thread, so that no event loop waits for it, and one call at a time.

    Whoever needs a token while the function runs waits for that call: one that hangs holds one thread.
    """

    def __init__(self, function: Callable[[], str]) -> None:
        self._function = function
        self._call: tuple[int, Future[str | BaseException]] = 0, Future()

    async def token(self) -> str:
        """Raises Unavailable where the function fails, or takes over 30 s: it may be asked for again."""
        pid, answer = self._call
        if pid != os.getpid() or answer.done():  # A forked process does not have the thread that would answer.
            answer = Future()
            answer.set_running_or_notify_cancel()  # Not cancelled together with one of those that wait for it.
            # An executor's threads are waited for when the interpreter ends, however long the function takes.
            run = partial(contextvars.copy_context().run, self._answer, answer)
            threading.Thread(target=run, name="feedmux-token", daemon=True).start()
            self._call = os.getpid(), answer
        waiting = asyncio.wrap_future(answer)
        try:
            await asyncio.wait([waiting], timeout=_TOKEN_S)
            if not waiting.done():
                late = f"the token function has not returned within {_TOKEN_S:g} s"
                raise Unavailable(late, status="UNAVAILABLE")
            token = waiting.result()
        finally:
            waiting.cancel()
        if isinstance(token, BaseException):
            raise _no_token(token) from token
        return token

    def _answer(self, answer: "Future[str | BaseException]") -> None:
        try:
            token: str | BaseException = clean_token(self._function())
        except BaseException as error:  # noqa: BLE001 - whoever waits has to know
            token = error
        answer.set_result(token)


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
        return _metadata(token, route)

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
