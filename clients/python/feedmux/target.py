"""The server's address and the credentials of calls: TLS, API keys, tokens and metadata."""

import asyncio
import contextvars
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Final

import grpc
import grpc.aio
import grpc.experimental

from feedmux.endpoint import checked_endpoint, proxy_options
from feedmux.errors import Unavailable
from feedmux.tracing import trace_context

_CHANNEL_OPTIONS: tuple[tuple[str, int | str], ...] = (
    ("grpc.max_receive_message_length", 72 * 1024 * 1024),
    ("grpc.max_send_message_length", 72 * 1024 * 1024),
    # Batches are up to 1 MiB: frames of that size instead of 16 KiB.
    ("grpc.http2.max_frame_size", 1024 * 1024),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # Newer versions of gRPC wait for the answer to a ping for this time, 60 s by default.
    ("grpc.http2.ping_timeout_ms", 10_000),
    # By default gRPC almost stops its pings while only the server sends, as in a read of history.
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    # A server that is back should not wait for long for its clients, nor a group for its members.
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.primary_user_agent", "feedmux-python"),
)
_ROUTE_KEY = "x-feedmux-route"
_TOKEN_S: Final = 30.0

Metadata = tuple[tuple[str, str], ...]
Token = str | Callable[[], str]


def clean_token(text: object) -> str:
    """Return an API key or token without surrounding white space. A key read from a file often ends with a newline.

    Raises ValueError, whose message does not quote the token.
    """
    if not isinstance(text, str):
        raise ValueError(f"it is not a str but {type(text).__name__}")
    token = text.strip(" \t\r\n")
    if not token:
        raise ValueError("it is empty")
    if not all("!" <= character <= "~" for character in token):
        raise ValueError("it has characters other than visible ASCII")
    return token


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS from PEM files. Without `root` the system's root certificates apply; certificate and key mean mutual TLS.

    `server_name` is the name that the server's certificate must have, if it is not the target's host. The files are
    read with every call and every stream: when they have changed, new ones use a new connection.
    Raises ValueError for a certificate without its key, or a key without its certificate.
    """

    root: str | Path | None = None
    certificate: str | Path | None = None
    key: str | Path | None = None
    server_name: str | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("mutual TLS needs both a certificate and its key")

    def read(self) -> tuple[bytes | None, ...]:
        """Return the contents of `root`, `key` and `certificate`. Raises OSError if a file cannot be read."""
        return tuple(Path(path).read_bytes() if path else None for path in (self.root, self.key, self.certificate))

    def credentials(self) -> grpc.ChannelCredentials:
        """Return gRPC's credentials. Raises OSError if a file cannot be read."""
        return grpc.ssl_channel_credentials(*self.read())


@dataclass(frozen=True, slots=True)
class Target:
    """The server's address and how to connect to it.

    Raises ValueError for an address that cannot be one, and for a token that cannot be sent; TypeError for a coroutine
    function as `token`.
    """

    address: str
    token: Token | None = field(default=None, repr=False)
    tls: Tls | None = None
    channel_options: Sequence[tuple[str, int | str]] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "address", checked_endpoint(self.address))
        if iscoroutinefunction(self.token):
            raise TypeError("token is a coroutine function: pass a plain function; AsyncClient calls it in a thread")
        if self.token is not None and not callable(self.token):
            try:
                object.__setattr__(self, "token", clean_token(self.token))
            except ValueError as error:
                raise ValueError(f"the API key or token cannot be sent: {error}") from None

    def tls_files(self) -> tuple[bytes | None, ...] | None:
        """Return the contents of the TLS files, for comparison; None without TLS, or while the files are replaced."""
        try:
            return self.tls.read() if self.tls is not None else None
        except OSError:
            return None

    def channel(self) -> grpc.aio.Channel:
        """Return a new channel for the running event loop."""
        if self.tls is None:
            return grpc.aio.insecure_channel(self.address, options=self._options())
        return grpc.aio.secure_channel(self.address, self.tls.credentials(), options=self._options())

    def blocking_channel(self) -> grpc.Channel:
        """Return a new channel for a process without an event loop.

        Do not fork afterwards: gRPC's threads do not survive.
        """
        # The thread that requests a message of a stream also fetches it, without a hand-over per message.
        options = [*self._options(), (grpc.experimental.ChannelOptions.SingleThreadedUnaryStream, 1)]
        if self.tls is None:
            return grpc.insecure_channel(self.address, options=options)
        return grpc.secure_channel(self.address, self.tls.credentials(), options=options)

    def _options(self) -> list[tuple[str, int | str]]:
        chosen = [*_CHANNEL_OPTIONS, *proxy_options(self.address), *self.channel_options]
        if self.tls is not None and self.tls.server_name:
            chosen.append(("grpc.ssl_target_name_override", self.tls.server_name))
        return chosen

    def fresh_token(self) -> str:
        """Return the token for one call.

        Raises Unavailable if the token function fails, as it may succeed next time.
        """
        if not callable(self.token):
            return self.token or ""
        try:
            return clean_token(self.token())
        except Exception as error:
            raise _no_token(error) from error

    def metadata(self, route: str = "") -> Metadata:
        """Return the metadata of a call: credentials, the route if known, and the caller's trace.

        Waits for the token function. Raises Unavailable as `fresh_token` does.
        """
        return metadata_of(self.fresh_token(), route)


def metadata_of(token: str, route: str) -> Metadata:
    pairs = [("authorization", f"Bearer {token}")] if token else []
    if route:
        pairs.append((_ROUTE_KEY, route))
    return (*pairs, *trace_context())


def _no_token(error: BaseException) -> Unavailable:
    return Unavailable(f"the token function failed: {type(error).__name__}: {error}", status="UNAVAILABLE")


class TokenThread:
    """Calls a token function in a thread, so that no event loop blocks, and one call at a time.

    All tasks that need a token while the function runs wait for that call, so a function that hangs occupies one
    thread.
    """

    def __init__(self, function: Callable[[], str]) -> None:
        self._function = function
        self._call: tuple[int, Future[str | BaseException]] = 0, Future()

    async def token(self) -> str:
        """Return a token. Raises Unavailable if the function fails or takes over 30 s; the caller may retry."""
        pid, answer = self._call
        if pid != os.getpid() or answer.done():  # A forked process does not have the thread that runs the function.
            answer = Future()
            answer.set_running_or_notify_cancel()  # Not cancelled when one of the waiting tasks is cancelled.
            # No executor: the interpreter waits for its threads at exit, however long the function takes.
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
        except BaseException as error:  # noqa: BLE001 - the waiting tasks must get any error
            token = error
        answer.set_result(token)
