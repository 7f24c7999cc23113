"""Opens the stream of a session, reads it, reopens it when it breaks, and ends it.

A stream here is one Subscribe call; the session object outlives it. One task per session object. What a session and a
member of a group do differently is in `connection` and `member_connection`: their messages, and what they do with those
of the server. `connection_states` and `recovery` make the decisions; the clock, timers and calls are here.
"""

import asyncio
import logging
import random
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

import grpc.aio
from google.protobuf import duration_pb2

from feedmux import requests
from feedmux.connection_states import CONNECTING, FIRST_OPENING, TABLE, WITH_STREAM, Action, Event, State, transition
from feedmux.errors import FeedmuxError, ProtocolError, SessionClosed, Unavailable
from feedmux.feeds import Start
from feedmux.notices import Disconnected
from feedmux.options import SessionOptions
from feedmux.recovery import EVENTS, Backoff, Step, next_step
from feedmux.responses import Message, Opened, Reader, Response
from feedmux.session_buffer import NEVER, Ended, UserSide
from feedmux.silence_detector import SilenceDetector
from feedmux.status import error_from_call
from feedmux.transport import Stream, Transport
from feedmux.v1 import feed_pb2

_log = logging.getLogger("feedmux")

B = TypeVar("B", bound=UserSide)

_CANCELLED = "the session was cancelled, or its opening: open or join again"


@dataclass(frozen=True, slots=True)
class Opening:
    """What to open: a durable subscription by name, or a feed with a start."""

    subscription: str = ""
    feed: feed_pb2.Feed | None = None
    start: Start | None = None
    takeover: bool = False
    instance_id: str = ""
    route: str = ""
    """The route of a feed; the route of a subscription is the one that the server reported."""

    @property
    def durable(self) -> bool:
        return self.feed is None


class Attempt:
    """One stream: a Subscribe call from its beginning to its end."""

    __slots__ = ("ack_step", "ack_timer", "call", "cut_for", "defect", "silence", "watchdog")

    def __init__(self, call: Stream, silence: SilenceDetector) -> None:
        self.call = call
        self.silence = silence
        self.watchdog: asyncio.TimerHandle | None = None
        self.ack_timer: asyncio.TimerHandle | None = None
        self.ack_step = NEVER
        """This many unsent acks are sent at once."""
        self.cut_for = ""
        """Why the client ended the call."""
        self.defect: Exception | None = None
        """The error of the writer, if it has failed by a defect of the client."""

    def cut(self, why: str) -> None:
        self.cut_for = why
        self.call.cancel()

    def stop_ack_timer(self) -> None:
        if self.ack_timer is not None:
            self.ack_timer.cancel()
            self.ack_timer = None

    def stop_watchdog(self) -> None:
        if self.watchdog is not None:
            self.watchdog.cancel()


class StreamKeeper(ABC):
    """Keeps the stream of one session open until it is closed or an error ends it. Lives on one event loop."""

    def __init__(self, transport: Transport, opening: Opening, options: SessionOptions, user: UserSide) -> None:
        self._transport = transport
        self._opening = opening
        self._options = options
        self._user = user
        self.loop = asyncio.get_running_loop()
        self._reader = Reader(options.format != "bson", options.codec_options)
        self._backoff = Backoff(options.backoff_first_s, options.backoff_most_s, random.random)
        self.opened: asyncio.Future[FeedmuxError | None] = self.loop.create_future()
        """Done when the session has been opened for the first time, or with the error because of which it never will
        be."""
        self._work = asyncio.Event()
        self._route = opening.route or transport.routes.get(opening.subscription, "")
        self._state = State.OPENING
        self._task: asyncio.Task[None] | None = None
        self._open_timeout: asyncio.Timeout | None = None
        """The timeout of the present attempt to open."""
        self._attempt: Attempt | None = None
        self._opened_s = 0.0
        self._limit_bytes = options.message_bytes_max

    @property
    @abstractmethod
    def _must_report(self) -> bool:
        """Whether the server may not have all that the user has acked."""

    @abstractmethod
    def _woken(self, attempt: Attempt) -> None:
        """The user's side has called, and there is a stream."""

    @abstractmethod
    def _outgoing(self) -> list[bytes]:
        """Return what to send now; CLOSE is the last message of a stream."""

    @abstractmethod
    def _open_request(self) -> bytes:
        """Return the first message of a stream."""

    @abstractmethod
    def _on_opened(self, opened: Opened) -> None:
        """The server has opened the stream. Calls `_mark_opened`."""

    @abstractmethod
    def _on_message(self, response: Message) -> None:
        """The server has sent any other message."""

    @abstractmethod
    def _detached(self) -> None:
        """The stream has ended."""

    @abstractmethod
    def _forget(self) -> None:
        """The stored position was moved: forget the events of earlier streams."""

    def _located(self, error: FeedmuxError) -> FeedmuxError:
        """Return the error that ends the session, with what the session knows about it."""
        return error

    def _step(self, error: FeedmuxError, *, has_other_credentials: bool) -> Step:
        return next_step(error, has_other_credentials=has_other_credentials)

    def _stream_failed(self, call: Stream, error: FeedmuxError) -> None:  # noqa: B027 - most errors change nothing
        """The stream ends with the error."""

    def _stream_ended(self) -> None:  # noqa: B027 - Committed says so to a session
        """The server has ended the stream with OK."""

    async def _stop_work(self) -> None:  # noqa: B027 - the user of a session works by himself
        """The client is being closed: wait, not for long, for what the user's side has begun."""

    def launch(self, owner: object) -> asyncio.Task[None]:
        """Run in a task on the running event loop, which ends if `owner` is dropped without `close()`."""
        self._user.wake = self._wake
        self._task = asyncio.create_task(self.run(), name="feedmux-session")
        weakref.finalize(owner, _abandon, self.loop, self._task).atexit = False
        return self._task

    async def wait_opened(self) -> None:
        """Wait until the server has opened the session; again, if asked again. Raises FeedmuxError."""
        try:
            error = await asyncio.shield(self.opened)
        except asyncio.CancelledError:
            if self._task is not None:
                self._task.cancel()
            if self.opened.done():  # in the same turn of the event loop
                self.opened = self.loop.create_future()
            self.opened.set_result(SessionClosed(_CANCELLED))
            raise
        if error is not None:
            raise error

    async def run(self) -> None:
        """Run until the session ends; the last item for the user is always an Ended."""
        ended = Ended(None)
        self._transport.sessions[self] = None
        try:
            await self._keep_open()
        except FeedmuxError as error:
            ended = Ended(error)
        except asyncio.CancelledError:
            if not self._user.closing:
                ended = Ended(SessionClosed(_CANCELLED))
            raise
        except Exception as error:  # noqa: BLE001 - the user's loop must get any error
            _log.exception("the session ended by a defect of the client")
            ended = Ended(FeedmuxError(f"a defect of the client: {error!r}", status="INTERNAL"))
        finally:
            self._move(Event.ABANDON)
            self._transport.sessions.pop(self, None)
            self._detached()
            self._user.put(ended)
            if not self.opened.done():
                self.opened.set_result(ended.error or self._user.ended_by or SessionClosed())

    async def end_with_client(self) -> None:
        """End the session as its user would, and make the user's loop raise SessionClosed."""
        user = self._user
        if not user.closing:
            user.ended_by = SessionClosed("the client was closed")
            await self._stop_work()
        if not user.closing:
            user.closing = True
            user.put(Ended(user.ended_by))
            self.on_wake()
        if self._task is not None:
            await finish(self._task, self._options.close_timeout_s)
            user.close_ended()

    def _wake(self) -> None:
        with suppress(RuntimeError):  # The loop is closed: nothing is left to notify.
            self.loop.call_soon_threadsafe(self.on_wake)

    def on_wake(self) -> None:
        """React to a call of the user's side: it has work for the connection, or the session is closing."""
        user = self._user
        if self._attempt is not None and user.broken is not None:
            self._attempt.cut("the server broke the protocol")
        if (
            user.closing
            and self._state in CONNECTING
            and self._open_timeout is not None
            and not self._open_timeout.expired()
            and self._move(self._close_event) is State.ENDED
        ):
            self._open_timeout.reschedule(self.loop.time())
        if self._attempt is None or self._state not in WITH_STREAM:
            self._work.set()
        else:
            self._woken(self._attempt)

    async def _keep_open(self) -> None:
        wait_s: float | None = self._options.open_timeout_s
        give_up_s: float | None = self.loop.time() + self._options.open_timeout_s
        last: FeedmuxError | None = None
        while True:
            is_late = False  # Set by the timer, which may fire a moment early.
            try:
                async with asyncio.timeout_at(give_up_s) as self._open_timeout:
                    await self._one_stream()
                error: FeedmuxError = Unavailable("the server ended the stream", status="UNAVAILABLE")
            except TimeoutError:
                late = f"the server has not opened the session within {wait_s or 0:g} s"
                error, is_late = last or Unavailable(late, status="DEADLINE_EXCEEDED"), True
            except FeedmuxError as failure:
                # Otherwise a reference to the error would retain its frames, and through them the call and the
                # connection.
                error = failure.with_traceback(None)
                error.__context__ = None
            self._open_timeout, last = None, error
            if self._user.broken is not None:
                error = self._user.broken
            elif self._user.closing:
                self._move(self._close_event)
            if self._state is State.ENDED:
                return
            was_open = self._state in WITH_STREAM
            step = self._step(error, has_other_credentials=was_open and self._transport.renews_token)
            if self._move(Event.TIME_OVER if is_late else EVENTS[step], error) is State.ENDED:
                return
            if was_open:
                self._backoff.lived(self.loop.time() - self._opened_s)
                wait_s = self._options.reconnect_timeout_s
                give_up_s = None if wait_s is None else self.loop.time() + wait_s
            delay_s = self._backoff.next_s(error.retry_after_s)
            if give_up_s is not None and self.loop.time() + delay_s >= give_up_s:
                self._move(Event.TIME_OVER, error)
            _log.info("reconnecting in %.2f s: %s", delay_s, error)
            if self._state not in FIRST_OPENING:
                self._user.tell(Disconnected(error, delay_s))
            was_closed = await self._pause(delay_s)
            if self._move(self._close_event if was_closed else Event.BACKOFF_OVER) is State.ENDED:
                return

    @property
    def _close_event(self) -> Event:
        return Event.CLOSE_WITH_ACKS if self._must_report else Event.CLOSE

    def _move(self, event: Event, error: FeedmuxError | None = None) -> State:
        """Change the state as the table says, and do what it says about the error. Return the state."""
        self._state, action = transition(self._state, event)
        if action is Action.FORGET:
            self._forget()
        elif action is Action.RAISE and error is not None:
            raise self._located(error)
        return self._state

    async def _pause(self, delay_s: float) -> bool:
        """Wait, unless the session is closed or broken meanwhile. Return whether it was closed."""
        deadline_s = self.loop.time() + delay_s
        while not self._user.closing and self._user.broken is None and (left_s := deadline_s - self.loop.time()) > 0:
            self._work.clear()
            try:
                async with asyncio.timeout(left_s):
                    await self._work.wait()
            except TimeoutError:
                break
        return self._user.closing

    async def _one_stream(self) -> None:
        self._reader.reset()
        async with self._transport.subscribe(self._route) as call:
            if self._user.broken is not None:  # Set while there was no call to cancel.
                raise self._user.broken
            attempt = self._attempt = Attempt(call, SilenceDetector(self._options.heartbeat_s, self.loop.time()))
            self._watch(attempt)
            writer = asyncio.create_task(self._write(attempt, self._open_request()), name="feedmux-writer")
            try:
                await self._read(attempt)
                self._stream_ended()
            except grpc.aio.AioRpcError as failure:
                error = error_from_call(failure)
                self._stream_failed(call, error)
                raise error from None
            except FeedmuxError as error:
                self._stream_failed(call, error)
                raise
            except asyncio.CancelledError:
                if self._task is None or self._task.cancelling():
                    raise
                if attempt.defect is not None:
                    raise RuntimeError(repr(attempt.defect)) from attempt.defect
                raise Unavailable(attempt.cut_for or "the connection was closed", status="UNAVAILABLE") from None
            finally:
                self._attempt = None
                attempt.stop_watchdog()
                attempt.stop_ack_timer()
                self._detached()
                writer.cancel()

    async def _read(self, attempt: Attempt) -> None:
        while (message := await attempt.call.read()) is not grpc.aio.EOF:
            attempt.silence.heard()
            if len(message) > self._limit_bytes:
                raise ProtocolError(f"a message of {len(message)} bytes, over the limit of {self._limit_bytes}")
            response = self._reader.read(message)
            if response is not None:
                self._receive(response)

    def _receive(self, response: Response) -> None:
        event = Event.OPENED if isinstance(response, Opened) else Event.MESSAGE
        if (self._state, event) not in TABLE:
            raise ProtocolError("Opened came twice" if event is Event.OPENED else "the first message was not Opened")
        if isinstance(response, Opened):
            self._on_opened(response)
        else:
            self._on_message(response)

    async def _write(self, attempt: Attempt, first: bytes) -> None:
        # If a write fails, the stream is ending; the reader gets its status.
        call = attempt.call
        try:
            await call.write(first)
            while True:
                await self._work.wait()
                self._work.clear()
                if self._state not in WITH_STREAM:
                    continue
                for message in self._outgoing():
                    await call.write(message)
                    if message is requests.CLOSE:
                        return
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return
        except Exception as error:  # noqa: BLE001 - raised by the reader
            attempt.defect = error
            attempt.cut("a defect of the client")

    def _mark_opened(self, opened: Opened) -> None:
        attempt = self._attempt
        if opened.message_bytes_max:
            self._limit_bytes = min(self._options.message_bytes_max, opened.message_bytes_max)
        if opened.heartbeat_s > 0 and attempt is not None:
            attempt.silence.allow(opened.heartbeat_s)
            self._watch(attempt)
        self._route = opened.routing_key or self._route
        if self._opening.durable:
            self._transport.routes[self._opening.subscription] = self._route
        self._move(Event.OPENED)
        if self._open_timeout is not None and not self._open_timeout.expired():
            self._open_timeout.reschedule(None)
        self._opened_s = self.loop.time()
        # What the user did while there was no stream has woken nobody.
        self._work.set()
        if not self.opened.done():
            self.opened.set_result(None)

    def _watch(self, attempt: Attempt) -> None:
        attempt.stop_watchdog()
        attempt.watchdog = self.loop.call_later(attempt.silence.tick_s, self._tick, attempt)

    def _tick(self, attempt: Attempt) -> None:
        if not attempt.silence.tick(self.loop.time()):
            self._watch(attempt)
            return
        # gRPC would put the next stream on the same connection until its keepalive gives up that connection.
        attempt.call.channel.leave()
        attempt.cut(f"the server sent nothing for {attempt.silence.most_s:g} s")


def duration(seconds: float) -> duration_pb2.Duration:
    """Return a duration's message."""
    whole = int(seconds)
    return duration_pb2.Duration(seconds=whole, nanos=int((seconds - whole) * 1e9))


async def finish(task: asyncio.Task[None], timeout_s: float | None) -> None:
    """Wait for the end of a closing session; cancel it after the timeout."""
    await asyncio.wait((task,), timeout=timeout_s)
    if not task.done():
        task.cancel()
        await asyncio.wait((task,), timeout=1.0)


async def finish_for(user: UserSide, task: asyncio.Task[None], timeout_s: float | None) -> None:
    """The same for a user in another thread."""
    await finish(task, timeout_s)
    user.close_ended()


async def open_stream(
    kind: Callable[[Transport, Opening, SessionOptions, B], StreamKeeper],
    owner: object,
    transport: Transport,
    opening: Opening,
    options: SessionOptions,
    user: B,
) -> asyncio.Task[None]:
    """Start a session's connection on the running event loop; return when the server has opened it. Raises
    FeedmuxError."""
    keeper = kind(transport, opening, options, user)
    task = keeper.launch(owner)
    await keeper.wait_opened()
    return task


def _abandon(loop: asyncio.AbstractEventLoop, task: asyncio.Task[None]) -> None:
    with suppress(RuntimeError):  # The loop is closed.
        loop.call_soon_threadsafe(task.cancel)
