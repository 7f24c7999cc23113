"""Calls to feedmux from one Spark process: one channel for each server and credential, reused between batches.

A channel is created at the first call of a process, never before: Spark forks its workers from a daemon, and gRPC does
not survive a fork. Spark reuses a worker for many tasks, so channels are cached by process id. A broken call is retried
here, with backoff: an exception in a driver's call would end the query, and so would an exception in a task if Spark
does not retry tasks (`local[2]`).
"""

import logging
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import grpc

from feedmux import requests
from feedmux.endpoint import host_and_port, proxy_of
from feedmux.errors import FeedmuxError, Fenced, SnapshotUnsupported, SubscriptionBusy, Unavailable
from feedmux.feeds import Start
from feedmux.positions import FeedPosition
from feedmux.recovery import Backoff, Step, next_step
from feedmux.silence_detector import SilenceDetector
from feedmux.status import error_from_call
from feedmux.target import Metadata, Target, Token
from feedmux.v1 import change_feed_pb2, feed_pb2
from feedmux_spark.errors import FeedmuxSparkError, explained
from feedmux_spark.options import Options

log = logging.getLogger("feedmux_spark")
T = TypeVar("T")

HEARTBEAT_S: Final = 10.0
"""How often a server sends a message while it reads a range. Three silent intervals end the connection."""
FIRST_CONTACT_S: Final = 15.0
"""An endpoint at which no server has answered yet is reported after this time: it may be mistyped."""
BUSY_S: Final = 60.0
"""A driver that was killed holds its subscription until its lease ends, by default 15 s."""

_channels: dict[tuple[int, Target], tuple[grpc.Channel, object]] = {}
"""Each with the TLS files that it was made with."""


@dataclass(frozen=True, slots=True)
class TokenFile:
    """Reads the credential from a file, again for each call."""

    path: str

    def __call__(self) -> str:
        place = f"option tokenFile: {self.path!r}"
        try:
            token = Path(self.path).read_text("utf-8-sig").strip()
        except OSError as error:
            raise FeedmuxSparkError(
                f"{place} cannot be read on this host: {error.strerror}. It must exist on the driver and on every"
                " executor"
            ) from None
        except UnicodeDecodeError:
            token = ""
        if not token:
            raise FeedmuxSparkError(f"{place} holds no token now. Replace the file as a whole, by renaming another")
        return token


@dataclass(frozen=True, slots=True)
class Call:
    """A call in flight."""

    future: Any
    response_type: Any
    leave: Callable[[], None]
    """Makes the next call use another connection."""

    def result(self) -> Any:
        """Raises FeedmuxError."""
        try:
            return self.response_type.FromString(self.future.result())
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                self.leave()
            raise error_from_call(error) from None

    def cancel(self) -> None:
        self.future.cancel()


@dataclass(frozen=True, slots=True)
class Located:
    """A position in a feed, and the feed's fingerprint."""

    feed_position: FeedPosition
    feed: bytes
    copied: int | None = None
    """How many documents have been copied, if the position is within a copy of existing documents."""


class Connection:
    """The connection to the server named in a query's options. Cheap to create: it opens nothing until the first
    call."""

    def __init__(self, options: Options, *, on_executor: bool = False) -> None:
        token: Token | None = TokenFile(options.token_file) if options.token_file else options.token
        self._target = Target(options.endpoint, token, options.tls_settings)
        self._consumer_name = options.consumer_name or ""
        self._call_s = options.call_timeout_ms / 1000
        self.retry_s = options.retry_timeout_ms / 1000
        self._on_executor = on_executor
        self.answered = False

    def start(self, service: str, method: str, request: Any, response_type: Any, wait_s: float = 0.0) -> Call:
        """Sends one unary call; `wait_s` is how long the request lets the server wait."""
        channel = self._channel()
        make: Any = channel.unary_unary(f"/feedmux.v1.{service}/{method}")
        timeout_s = self._call_s + wait_s
        future = make.future(request.SerializeToString(), timeout=timeout_s, metadata=self._metadata())
        return Call(future, response_type, partial(self._leave, channel))

    def unary(self, service: str, method: str, request: Any, response_type: Any, wait_s: float = 0.0) -> Any:
        """One unary call. Raises FeedmuxError."""
        return self.start(service, method, request, response_type, wait_s).result()

    def stream(self, method: str, request: Any, route: str) -> Iterator[bytes]:
        """Yields the messages of a ReadRange one by one, so that HTTP/2 throttles the server. Raises FeedmuxError.

        Closing the iterator cancels the call. So do three heartbeat intervals of silence, which also abandon the
        connection.
        """
        channel = self._channel()
        make: Any = channel.unary_stream(f"/feedmux.v1.ChangeFeed/{method}")
        call = make(request.SerializeToString(), metadata=self._metadata(route))
        listening = Listening(call.cancel)
        try:
            while True:
                with listening:
                    message = next(call, None)
                if message is None:
                    return
                yield message
        except grpc.RpcError as error:
            if listening.gave_up:
                self._leave(channel)
                raise Unavailable(f"the server sent nothing for {listening.most_s:g} s", status="UNAVAILABLE") from None
            raise error_from_call(error) from None
        finally:
            listening.stop()
            call.cancel()

    def resolve(self, options: Options, start: Start) -> FeedPosition:
        """Resolves a start to a position. Raises FeedmuxError."""
        return self.locate(options, start).feed_position

    def locate(self, options: Options, start: Start) -> Located:
        """Resolves a start to a position in the options' feed, with its fingerprint. Raises FeedmuxError."""
        return self.locate_in(requests.feed_message(options.feed, options.source), start)

    def locate_in(self, feed: feed_pb2.Feed, start: Start) -> Located:
        """Resolves a start to a position in any feed, with the feed's fingerprint. Raises FeedmuxError."""
        request = change_feed_pb2.ResolvePositionRequest(feed=feed, start=requests.start_message(start))
        answer = self.retrying(
            lambda: self.unary("ChangeFeed", "ResolvePosition", request, change_feed_pb2.ResolvePositionResponse),
            "resolving a position",
        )
        if not answer.feed_fingerprint:
            raise FeedmuxSparkError(
                "the server is older than this connector, and does not support feed fingerprints: update feedmux"
            )
        feed_position = FeedPosition(answer.position, time=(answer.cluster_time.seconds, answer.cluster_time.increment))
        if start.kind == "snapshot" and not answer.HasField("snapshot"):
            raise SnapshotUnsupported("names the present as its beginning")
        copied = answer.snapshot.documents if answer.HasField("snapshot") else None
        return Located(feed_position, answer.feed_fingerprint, copied)

    def retrying(self, attempt: Callable[[], T], what: str) -> T:
        """Runs `attempt` until it succeeds, fails permanently, or `retryTimeoutMs` has passed.

        Raises FeedmuxError.
        """
        patience = Patience(what, self)
        while True:
            try:
                answer = attempt()
            except FeedmuxError as error:
                patience.wait(error)
            else:
                self.answered = True
                return answer

    def may_be_mistyped(self, error: FeedmuxError) -> bool:
        """Whether `error` is the only thing that is known about the endpoint."""
        self.answered |= bool(error.reason)  # The server always adds a reason; gRPC and proxies have none.
        if self.answered:
            return False
        # The driver has just reached the server, so an executor may meet it while it restarts.
        return not self._on_executor or not _resolves(self._target.address)

    @contextmanager
    def explaining(self, *, restart_at: str = "") -> Iterator[None]:
        """Converts a FeedmuxError in the block to a FeedmuxSparkError with advice for the user (`explained`)."""
        try:
            yield
        except FeedmuxError as error:
            executor = socket.gethostname() if self._on_executor else ""
            raise explained(
                error,
                endpoint=self._target.address,
                consumer_name=self._consumer_name,
                executor=executor,
                restart_at=restart_at,
            ) from None

    def _metadata(self, route: str = "") -> Metadata:
        try:
            return self._target.metadata(route)
        except Unavailable as error:
            if isinstance(error.__cause__, FeedmuxSparkError):
                raise error.__cause__ from None  # A missing file is not an unavailable network.
            raise

    def _leave(self, channel: grpc.Channel) -> None:
        """Makes new calls use another connection: gRPC would reuse this one until keepalive fails. Other calls on it
        continue."""
        key = os.getpid(), self._target
        if key in _channels and _channels[key][0] is channel:
            del _channels[key]

    def _channel(self) -> grpc.Channel:
        key = os.getpid(), self._target
        known, files = _channels.get(key), self._target.tls_files()
        if known is None or files not in (None, known[1]):
            try:
                known = _channels[key] = self._target.blocking_channel(), files
            except OSError as error:
                raise FeedmuxSparkError(f"a TLS file cannot be read on this host: {error}") from None
        return known[0]


class Listening:
    """Calls `give_up` when a wait for a message (a `with` block) takes three heartbeats. Only waits count."""

    def __init__(self, give_up: Callable[[], object]) -> None:
        self.gave_up = False
        self._give_up = give_up
        self._silence = SilenceDetector(HEARTBEAT_S, time.monotonic())
        self._waiting = False
        self._stopped = threading.Event()
        threading.Thread(target=self._watch, name="feedmux-listening", daemon=True).start()

    @property
    def most_s(self) -> float:
        return self._silence.most_s

    def __enter__(self) -> None:
        self._silence.heard()
        self._waiting = True

    def __exit__(self, *_: object) -> None:
        self._waiting = False

    def stop(self) -> None:
        self._stopped.set()

    def _watch(self) -> None:
        while not self._stopped.wait(self._silence.tick_s):
            if not self._waiting:
                self._silence.heard()
            if self._silence.tick(time.monotonic()):
                self.gave_up = True
                self._give_up()
                return


def _resolves(address: str) -> bool:
    """Whether the host of an endpoint has an address, as far as this host has to know it."""
    parts = host_and_port(address)
    if parts is None or proxy_of(parts[0]) is not None:
        return True
    try:
        return bool(socket.getaddrinfo(*parts))
    except OSError:
        return False


class Patience:
    """Decides how long an operation is retried."""

    def __init__(self, what: str, connection: Connection) -> None:
        self._what = what
        self._connection = connection
        self._began_s = time.monotonic()
        self._backoff = Backoff(0.1, 5.0, random.random)

    def wait(self, error: FeedmuxError, *, has_other_credentials: bool = False) -> None:
        """Sleeps before the next attempt. Raises `error` if another attempt is useless. `has_other_credentials` is that
        of `next_step`."""
        # Our own earlier attempt, still in flight, may have caused Fenced.
        busy = isinstance(error, SubscriptionBusy | Fenced)
        most_s = self._connection.retry_s
        if busy:
            most_s = min(most_s, BUSY_S)
        elif self._connection.may_be_mistyped(error):
            most_s = min(most_s, FIRST_CONTACT_S)
        delay_s = self._backoff.next_s(error.retry_after_s)
        left_s = self._began_s + most_s - time.monotonic()
        step = next_step(error, has_other_credentials=has_other_credentials)
        if not (busy or step is Step.REOPEN) or left_s <= 0:
            raise error
        log.warning("%s failed, retrying for at most %.0f s: %s", self._what, left_s, error)
        time.sleep(min(delay_s, left_s))

    def restart(self) -> None:
        """Restarts the clock after a success: the next failure has the full time again."""
        self._connection.answered = True
        self._began_s = time.monotonic()
        self._backoff.reset()
