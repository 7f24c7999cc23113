"""The network side of a session: opens the stream, reads it, reopens it when it breaks, and ends it.

A stream here is one Subscribe call; the session object outlives it. One task per session object. Messages go through
`responses`, `window` and `delivery_tracker` to the session buffer; acks and credit go from the session buffer to the
server. Those modules, `connection_states` and `recovery` make the decisions; the clock, timers and calls are here.
"""

import asyncio
import logging
import random
from dataclasses import dataclass

import grpc.aio
from google.protobuf import duration_pb2

from feedmux import requests
from feedmux.connection_states import CONNECTING, FIRST_OPENING, TABLE, WITH_STREAM, Action, Event, State, transition
from feedmux.delivery_tracker import DeliveryTracker
from feedmux.errors import (
    FeedInvalidated,
    FeedmuxError,
    ProtocolError,
    SessionClosed,
    SnapshotUnsupported,
    Unavailable,
)
from feedmux.feeds import Start
from feedmux.notices import Disconnected, Draining, Rewound
from feedmux.options import SessionOptions
from feedmux.recovery import EVENTS, Backoff, next_step
from feedmux.responses import Committed, Delivery, Opened, Progress, Reader, Response
from feedmux.session_buffer import NEVER, Ended, QueuedNotice, SessionBuffer
from feedmux.silence_detector import SilenceDetector
from feedmux.status import error_from_call
from feedmux.transport import Stream, Transport
from feedmux.v1 import change_feed_pb2, feed_pb2
from feedmux.window import CreditWindow

_log = logging.getLogger("feedmux")


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


class _Attempt:
    """One stream: a Subscribe call from its beginning to its end."""

    __slots__ = ("ack_step", "ack_timer", "call", "cut_for", "silence", "watchdog")

    def __init__(self, call: Stream, silence: SilenceDetector) -> None:
        self.call = call
        self.silence = silence
        self.watchdog: asyncio.TimerHandle | None = None
        self.ack_timer: asyncio.TimerHandle | None = None
        self.ack_step = NEVER
        """This many unsent acks are sent at once."""
        self.cut_for = ""
        """Why the client ended the call."""

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


class Connection:
    """Drives one session until it is closed or an error ends it. Lives on one event loop."""

    def __init__(self, transport: Transport, opening: Opening, options: SessionOptions, buffer: SessionBuffer) -> None:
        self._transport = transport
        self._opening = opening
        self._options = options
        self._buffer = buffer
        self.loop = asyncio.get_running_loop()
        self._tracker = DeliveryTracker(opening.durable, options.window_bytes)
        self._window = CreditWindow(options.window_events, options.window_bytes)
        self._reader = Reader(options.format != "bson", options.codec_options)
        self._backoff = Backoff(options.backoff_first_s, options.backoff_most_s, random.random)
        self.opened: asyncio.Future[FeedmuxError | None] = self.loop.create_future()
        """Done when the session has been opened for the first time, or with the error because of which it never will
        be."""
        self._work = asyncio.Event()
        self._route = opening.route or transport.routes.get(opening.subscription, "")
        self._state = State.OPENING
        self._open_acked = 0
        self._ack_due = False
        self._sent_sequence = 0
        self._flushed = 0
        self._confirmed = 0
        """The ordinal up to which the server has stored the acks."""
        self._task: asyncio.Task[None] | None = None
        self._open_timeout: asyncio.Timeout | None = None
        """The timeout of the present attempt to open."""
        self._attempt: _Attempt | None = None
        self._opened_s = 0.0
        self._limit_bytes = options.message_bytes_max
        self._rewound: Rewound | None = None
        self._asked_for_copy = False
        """The present stream asked for `Start.snapshot`."""

    async def run(self) -> None:
        """Run until the session ends; the last item for the user is always an Ended."""
        ended = Ended(None)
        self._task = asyncio.current_task()
        self._transport.sessions[self] = None
        try:
            await self._keep_open()
        except FeedmuxError as error:
            ended = Ended(error)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - the user's loop must get any error
            _log.exception("the session ended by a defect of the client")
            ended = Ended(FeedmuxError(f"a defect of the client: {error!r}", status="INTERNAL"))
        finally:
            self._move(Event.ABANDON)
            self._transport.sessions.pop(self, None)
            self._buffer.alarm = self._buffer.refill_events_at = self._buffer.refill_bytes_at = NEVER
            self._buffer.put(ended)
            if not self.opened.done():
                self.opened.set_result(ended.error or self._buffer.ended_by or SessionClosed())

    async def end_with_client(self) -> None:
        """End the session as its user would, and make the user's loop raise SessionClosed."""
        buffer = self._buffer
        if not buffer.closing:
            buffer.ended_by = SessionClosed("the client was closed")
            buffer.closing = True
            buffer.put(Ended(buffer.ended_by))
            self.on_wake()
        if self._task is not None:
            await finish(self._task, self._options.close_timeout_s)

    def on_wake(self) -> None:
        """React to a call of the buffer: an ack or a taken batch reached its threshold, or the session is closing."""
        buffer = self._buffer
        if self._attempt is not None and buffer.broken is not None:
            self._attempt.cut("the server broke the protocol")
        if (
            buffer.closing
            and self._state in CONNECTING
            and self._open_timeout is not None
            and not self._open_timeout.expired()
            and self._move(self._close_event) is State.ENDED
        ):
            self._open_timeout.reschedule(self.loop.time())
        if self._attempt is None or self._state not in WITH_STREAM:
            self._work.set()
            return
        window = self._window
        if (
            buffer.closing
            or buffer.taken_events >= window.refill_events_at
            or buffer.taken_bytes >= window.refill_bytes_at
        ):
            self._work.set()
        else:
            self._set_refill()
        if self._opening.durable:
            self._on_ack(self._attempt)

    def _on_ack(self, attempt: _Attempt) -> None:
        # The side that triggers the alarm first sets it to NEVER, so that it triggers once; here it is set again.
        buffer = self._buffer
        at_once = self._flushed + attempt.ack_step
        if buffer.acked >= at_once:
            self._flush_acks()
        elif buffer.acked > self._flushed:
            if attempt.ack_timer is None:
                attempt.ack_timer = self.loop.call_later(self._options.ack_interval_s, self._flush_acks)
            buffer.alarm = at_once
        else:
            buffer.alarm = 0

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
            if self._buffer.broken is not None:
                error = self._buffer.broken
            elif self._buffer.closing:
                self._move(self._close_event)
            if self._state is State.ENDED:
                return
            was_open = self._state in WITH_STREAM
            step = next_step(error, has_other_credentials=was_open and self._transport.renews_token)
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
                self._buffer.put(QueuedNotice(Disconnected(error, delay_s)))
            was_closed = await self._pause(delay_s)
            if self._move(self._close_event if was_closed else Event.BACKOFF_OVER) is State.ENDED:
                return

    @property
    def _close_event(self) -> Event:
        has_acks = self._opening.durable and self._buffer.acked > self._confirmed
        return Event.CLOSE_WITH_ACKS if has_acks else Event.CLOSE

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
        while (
            not self._buffer.closing and self._buffer.broken is None and (left_s := deadline_s - self.loop.time()) > 0
        ):
            self._work.clear()
            try:
                async with asyncio.timeout(left_s):
                    await self._work.wait()
            except TimeoutError:
                break
        return self._buffer.closing

    async def _one_stream(self) -> None:
        self._reader.reset()
        async with self._transport.subscribe(self._route) as call:
            if self._buffer.broken is not None:  # Set while there was no call to cancel.
                raise self._buffer.broken
            attempt = self._attempt = _Attempt(call, SilenceDetector(self._options.heartbeat_s, self.loop.time()))
            self._watch(attempt)
            writer = asyncio.create_task(self._write(call, self._open_request()), name="feedmux-writer")
            try:
                await self._read(attempt)
            except grpc.aio.AioRpcError as error:
                raise error_from_call(error) from None
            except asyncio.CancelledError:
                if self._task is None or self._task.cancelling():
                    raise
                raise Unavailable(attempt.cut_for or "the connection was closed", status="UNAVAILABLE") from None
            finally:
                self._attempt = None
                attempt.stop_watchdog()
                attempt.stop_ack_timer()
                self._buffer.alarm = NEVER
                writer.cancel()

    async def _read(self, attempt: _Attempt) -> None:
        while (message := await attempt.call.read()) is not grpc.aio.EOF:
            attempt.silence.heard()
            if len(message) > self._limit_bytes:
                raise ProtocolError(f"a message of {len(message)} bytes, over the limit of {self._limit_bytes}")
            response = self._reader.read(message)
            if response is not None:
                self._receive(response)

    async def _write(self, call: Stream, first: bytes) -> None:
        # If a write fails, the stream is ending; the reader gets its status.
        try:
            await call.write(first)
            while True:
                await self._work.wait()
                self._work.clear()
                if self._state not in WITH_STREAM:
                    continue
                for message in self._outgoing():
                    await call.write(message)
                if self._state is State.CLOSING:
                    return
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return

    def _outgoing(self) -> list[bytes]:
        messages: list[bytes] = []
        buffer = self._buffer
        closing = buffer.closing  # Read once, before `acked`: acks made before the close are sent before it.
        if self._opening.durable and (self._ack_due or closing):
            self._ack_due = False
            self._flushed = buffer.acked
            sequence = self._tracker.acked_sequence(self._flushed)
            if sequence > self._sent_sequence:
                self._sent_sequence = sequence
                messages.append(requests.ack_bytes(sequence))
        if closing:
            self._move(self._close_event)
            return [*messages, requests.CLOSE]
        grant = self._window.refill(buffer.taken_events, buffer.taken_bytes)
        if grant is not None:
            messages.append(requests.credit_bytes(grant))
        self._set_refill()
        return messages

    def _set_refill(self) -> None:
        buffer, window = self._buffer, self._window
        buffer.refill_events_at = window.refill_events_at
        buffer.refill_bytes_at = window.refill_bytes_at
        # Compare only now: until the thresholds were set, the user's thread took batches without waking anybody, and it
        # may not take another before it gets more credit.
        if window.is_due(buffer.taken_events, buffer.taken_bytes):
            self._work.set()

    def _flush_acks(self) -> None:
        if self._attempt is not None:
            self._attempt.stop_ack_timer()
        # Set the alarm first, then read (in the writer): an ack in between triggers the alarm again and is not missed.
        self._buffer.alarm = 0
        self._ack_due = True
        self._work.set()

    def _open_request(self) -> bytes:
        opening, options, buffer = self._opening, self._options, self._buffer
        grant = self._window.open(buffer.taken_events, buffer.taken_bytes)
        message = change_feed_pb2.Open(
            format=requests.format_message(options.format),
            instance_id=opening.instance_id,
            credit=change_feed_pb2.Credit(events=grant.events, bytes=grant.size_bytes),
            takeover=opening.takeover and self._state in FIRST_OPENING,
            heartbeat_interval=_duration(options.heartbeat_s),
            message_bytes_max=options.message_bytes_max,
        )
        self._open_acked = buffer.acked
        start = opening.start
        if opening.feed is None:
            message.subscription = opening.subscription
            feed_position = self._tracker.acked_position(self._open_acked)
            if feed_position.position or feed_position.token:
                message.last_acked.CopyFrom(requests.last_acked_message(feed_position, buffer.epoch))
        else:
            message.feed.CopyFrom(opening.feed)
            if self._tracker.latest.position:
                start = Start.position(self._tracker.latest.position)
            self._asked_for_copy = start is not None and start.kind == "snapshot"
            if start is not None:
                message.start.CopyFrom(requests.start_message(start))
        return requests.open_bytes(message)

    def _receive(self, response: Response) -> None:
        event = Event.OPENED if isinstance(response, Opened) else Event.MESSAGE
        if (self._state, event) not in TABLE:
            raise ProtocolError("Opened came twice" if event is Event.OPENED else "the first message was not Opened")
        match response:
            case Delivery():
                self._deliver(response)
            case Progress():
                self._tracker.progress(response.feed_position)
                self._buffer.latest = self._tracker.received, self._tracker.latest
                self._backoff.reset()
            case Committed():
                self._buffer.committed = response.position
                if response.sequence >= self._sent_sequence and not self._tracker.expects_repeats:
                    self._confirmed = self._flushed
            case Opened():
                self._on_opened(response)
            case Draining():
                self._flush_acks()
                self._buffer.put(QueuedNotice(response))
            case Rewound():
                self._say_rewound(response)
            case _:
                self._buffer.put(QueuedNotice(response))

    def _deliver(self, delivery: Delivery) -> None:
        batch, buffer = delivery.batch, self._buffer
        events, size_bytes = len(batch), batch.size_bytes
        self._window.receive(events, size_bytes, lambda: len(batch.raw_event(events - 1)))
        repeats = self._tracker.expects_repeats
        for fresh in self._tracker.arrive(delivery.first_sequence, batch, buffer.acked):
            events -= len(fresh)
            size_bytes -= fresh.size_bytes
            buffer.put(fresh)
        buffer.latest = self._tracker.received, self._tracker.latest
        if repeats:
            self._window.discard(events, size_bytes)
            self._set_refill()
            # Only now do events from before the reconnect have a sequence that can be acked.
            self._ack_due = True
            self._work.set()

    def _on_opened(self, opened: Opened) -> None:
        buffer, tracker, attempt = self._buffer, self._tracker, self._attempt
        if self._asked_for_copy and opened.copying is None:
            raise SnapshotUnsupported("has opened the feed at the present")
        buffer.copying = opened.copying
        had_reached = tracker.acked_position(self._open_acked)
        is_first = self._state in FIRST_OPENING
        reopened = not is_first and self._opening.durable
        if reopened and not opened.at_last_acked and (0, 0) < opened.feed_position.time < had_reached.time:
            self._forget()
            self._say_rewound(Rewound(opened.feed_position.time, had_reached.time))
        tracker.begin(opened.feed_position, self._open_acked)
        self._window.limit(opened.credit_events_max, opened.credit_bytes_max)
        if opened.message_bytes_max:
            self._limit_bytes = min(self._options.message_bytes_max, opened.message_bytes_max)
        if opened.heartbeat_s > 0 and attempt is not None:
            attempt.silence.allow(opened.heartbeat_s)
            self._watch(attempt)
        self._route = opened.routing_key or self._route
        if self._opening.durable:
            self._transport.routes[self._opening.subscription] = self._route
        self._sent_sequence = 0
        buffer.epoch = opened.epoch
        if is_first:
            buffer.opened = opened.feed_position
        buffer.latest = tracker.received, tracker.latest
        self._move(Event.OPENED)
        if self._open_timeout is not None and not self._open_timeout.expired():
            self._open_timeout.reschedule(None)
        self._opened_s = self.loop.time()
        if self._opening.durable and attempt is not None:
            attempt.ack_step = max(1, opened.unacked_events_max // 2) if opened.unacked_events_max else NEVER
            buffer.alarm = 0
        self._set_refill()
        # Acks, taken batches and a close while there was no stream did not wake the connection.
        self._ack_due = True
        self._work.set()
        if not self.opened.done():
            self.opened.set_result(None)

    def _forget(self) -> None:
        self._tracker.forget()
        for item in self._buffer.drain():
            match item:
                case QueuedNotice() | Ended():
                    self._buffer.put(item)
                case batch:
                    self._window.discard(len(batch), batch.size_bytes)

    def _say_rewound(self, rewound: Rewound) -> None:
        # The server announces a change that the client may already have noticed.
        if self._rewound is None or self._rewound.begins_at != rewound.begins_at:
            self._buffer.put(QueuedNotice(rewound))
        self._rewound = rewound

    def _watch(self, attempt: _Attempt) -> None:
        attempt.stop_watchdog()
        attempt.watchdog = self.loop.call_later(attempt.silence.tick_s, self._tick, attempt)

    def _tick(self, attempt: _Attempt) -> None:
        if not attempt.silence.tick(self.loop.time()):
            self._watch(attempt)
            return
        # gRPC would put the next stream on the same connection until its keepalive gives up that connection.
        attempt.call.channel.leave()
        attempt.cut(f"the server sent nothing for {attempt.silence.most_s:g} s")

    def _located(self, error: FeedmuxError) -> FeedmuxError:
        if isinstance(error, FeedInvalidated):
            error.position = self._tracker.latest.position
            error.resume_token = self._tracker.latest.resume_token
        return error


def _duration(seconds: float) -> duration_pb2.Duration:
    whole = int(seconds)
    return duration_pb2.Duration(seconds=whole, nanos=int((seconds - whole) * 1e9))


async def finish(task: asyncio.Task[None], timeout_s: float) -> None:
    """Wait for the end of a closing session; cancel it after the timeout."""
    await asyncio.wait((task,), timeout=timeout_s)
    if not task.done():
        task.cancel()
        await asyncio.wait((task,), timeout=1.0)


def launch(
    transport: Transport, opening: Opening, options: SessionOptions, buffer: SessionBuffer
) -> tuple[Connection, asyncio.Task[None]]:
    """Start a session's connection on the running event loop."""
    connection = Connection(transport, opening, options, buffer)
    loop = asyncio.get_running_loop()

    def wake() -> None:
        try:
            loop.call_soon_threadsafe(connection.on_wake)
        except RuntimeError:
            return  # The loop is closed: nothing is left to notify.

    buffer.wake = wake
    return connection, asyncio.create_task(connection.run(), name="feedmux-session")
