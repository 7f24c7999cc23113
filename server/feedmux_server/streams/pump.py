"""The one task that fills a SharedStream: it reads MongoDB while a subscriber can take more, and rests otherwise.

The stream manager spawns a pump when `FeedStreams` opens a stream; the pump ends when the stream has ended or nobody
needs it. It never awaits a subscriber. Up the data path: `source.reader`; down: `core.delivery.shared_stream`.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from feedmux_server.core.delivery.feed_streams import FeedStreams
from feedmux_server.core.delivery.shared_stream import SharedStream, StreamState
from feedmux_server.core.delivery.slots import Slots
from feedmux_server.core.delivery.stream_steps import RestLimits, Step, after_rest, rest_s
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.limits.account import Accounts
from feedmux_server.core.limits.memory import Memory
from feedmux_server.source.reader import Batch, Failed
from feedmux_server.streams.in_turns import wait_in_turns
from feedmux_server.streams.upstream import Reader, TraceContext, Upstream
from feedmux_server.streams.wakeup import Wakeup
from feedmux_server.telemetry.log import correlation_id
from feedmux_server.telemetry.observer import Observer, Trace

log = logging.getLogger(__name__)

SMALL_BATCH_BYTES = 64 * 1024
_MESSAGE_MAX_S = 250e-6
"""An upper bound for the time that one message to one subscriber takes."""
_TURNS_TO_WRITE = 2
"""Turns of the event loop after which the woken subscribers have taken and written their events."""
_TURNS_MAX = 6
"""A stream without progress keeps its slot for so many turns while others wait."""


@dataclass(frozen=True, slots=True)
class PumpLimits:
    """The times of a pump."""

    coalesce_s: float = 0.005
    """How long a new stream waits for more subscribers, so that it can begin at the earliest of their positions."""
    rest: RestLimits = field(default_factory=RestLimits)
    pace_max_s: float = 0.02
    """The longest pause after a small batch. Each batch costs a message for each subscriber, so the next read waits for
    as long as the batch's fan-out took: events that arrive meanwhile share their messages. That leaves the event loop
    half of its time for everything else. A longer pause would save CPU and add to the latency of a busy feed; the first
    event after a quiet time never waits."""


@dataclass(frozen=True, slots=True)
class PumpHost:
    """What all pumps of a process share."""

    memory: Memory
    slots: Slots
    accounts: Accounts
    """The tenants' accounts, which limit reads and count them."""
    observer: Observer


class Pump:
    """Runs one SharedStream."""

    def __init__(
        self,
        stream: SharedStream,
        streams: FeedStreams,
        reader_at: Callable[[SharedStream], Reader],
        limits: PumpLimits,
        host: PumpHost,
        source: str,
        cause: Trace,
    ) -> None:
        """`cause` is the trace of the work for which the stream was opened."""
        self.stream = stream
        self._streams = streams
        self._reader_at = reader_at
        self._limits = limits
        self._host = host
        self._trace = TraceContext(source, {"feedmux.stream.id": stream.id}, cause)
        self._demand = Wakeup()
        self._upstream: Upstream | None = None
        self._not_before_s = 0.0
        self._began_s = 0.0
        self._began_at = stream.ring.newest
        stream.demand_changed = self._demand_changed

    @property
    def reader(self) -> Reader | None:
        """The reader; None before the first read of MongoDB."""
        return self._upstream.reader if self._upstream is not None else None

    async def run(self) -> None:
        stream = self.stream
        try:
            await asyncio.sleep(self._limits.coalesce_s)
            self._began_s, self._began_at = asyncio.get_running_loop().time(), stream.ring.newest
            while (step := self._next_step()) is not Step.END:
                if step is Step.READ:
                    await self._advance()
                elif step is Step.GIVE_WAY:
                    self._host.slots.give_way(self._streams, stream)
                    await self._let_subscribers_finish()
                    break
                elif await self._rest() is Step.END:
                    break
        except FeedmuxError as error:
            if not stream.ended:  # as by a fork that this task has found
                stream.end(error)
            await self._let_subscribers_finish()
        except Exception:
            reference = correlation_id()
            log.exception("a stream failed unexpectedly", extra={"correlation_id": reference, "stream": stream.id})
            stream.end(FeedmuxError(ErrorReason.INTERNAL, "internal error", {"correlation_id": reference}))
            await self._let_subscribers_finish()
        finally:
            stream.demand_changed = lambda: None  # the pump is gone
            if stream in self._streams.open:
                self._streams.close(stream)
            await self._close_reader()

    def _next_step(self) -> Step:
        return self._host.slots.next_step(self._streams, self.stream, turn_over=self._is_turn_over())

    def _is_turn_over(self) -> bool:
        """Whether the stream has read for as long as it may while others wait for slots. One without progress would
        begin again where it is, and never end, so it may read for longer."""
        stream, began, newest = self.stream, self._began_at, self.stream.ring.newest
        read_s, turn_s = asyncio.get_running_loop().time() - self._began_s, self._limits.rest.slot_turn_s
        if read_s < turn_s:
            return False
        # A copy that has read changes has to read those that come meanwhile, before any document.
        has_progress = newest.copied != began.copied if stream.copies else newest != began
        return has_progress or bool(stream.resumes) or read_s >= _TURNS_MAX * turn_s

    async def _advance(self) -> None:
        """Take one step: open the cursor if there is none, then do one getMore."""
        stream = self.stream
        if self._upstream is None:
            # From now on the stream's start is fixed: until now, a subscriber could move it back.
            self._upstream = Upstream(self._reader_at(stream), self._host.observer, self._trace)
        upstream = self._upstream
        try:
            if not upstream.reader.is_open:
                if stream.copies:
                    await self._pace(upstream.reader)  # it may count the documents of a thousand collections
                    if not stream.subscribers:
                        return
                stream.move_to(StreamState.OPENING)
                try:
                    await upstream.open()
                finally:
                    stream.trace = upstream.trace
                self._check_ended()
                stream.opened = True
                stream.wake_all()
            if stream.state is not StreamState.READING:
                stream.move_to(StreamState.READING)
            await self._pace(upstream.reader)
            batch = await upstream.reader.read()
            self._check_ended()
            upstream.answered()
        except Failed as failure:
            self._check_ended()
            await self._recover(upstream, failure)
            return
        stream.unavailable = False
        await self._publish(batch)
        if batch.copy_complete:
            # Its subscribers continue on the live stream.
            self._host.slots.give_way(self._streams, stream)
            await self._let_subscribers_finish()
            return
        if batch.exhausted:
            raise FeedmuxError(
                ErrorReason.FEED_INVALIDATED,
                "the feed ended with an invalidate event (drop, rename or dropDatabase). To continue,"
                " acknowledge it and open the subscription again, or open the feed with its position as start_after."
                " A subscription with on_invalidate CONTINUE continues by itself",
            )

    def _check_ended(self) -> None:
        """Raise the error with which a fork has ended the stream that this task has found itself, when the stream's
        own position was not lost."""
        if self.stream.end_error is not None:
            raise self.stream.end_error

    async def _pace(self, reader: Reader) -> None:
        """Pause after a small batch (`PumpLimits.pace_max_s`), and wait until a tenant of the stream may cause a read.

        Each read costs the event loop about a millisecond, whatever it returns, and a tenant with fifty feeds of one
        busy collection causes fifty reads for each event.
        """
        left_s = 0.0
        if self._not_before_s:
            left_s, self._not_before_s = self._not_before_s - asyncio.get_running_loop().time(), 0.0
        if reader.has_cursor or self.stream.copies:  # a copy has none between two collections
            accounts, tenants = self._host.accounts, self.stream.account.tenants
            left_s = max(left_s, accounts.read_wait_s(tenants))
            accounts.read(tenants)
        if left_s > 0:
            await asyncio.sleep(left_s)

    async def _publish(self, batch: Batch) -> None:
        stream, before = self.stream, self.stream.ring.cum_bytes
        was_catch_up = self._streams.open.is_catch_up(stream)
        stream.append(batch.chunks, batch.post_batch, batch.complete_time)
        if was_catch_up and not self._streams.open.is_catch_up(stream):
            self._host.slots.admit()
        if batch.chunks:
            size = stream.ring.cum_bytes - before
            self._host.memory.grew(size)
            if not batch.gathered_s:
                self._host.observer.batch_in_ring(self._trace.source, batch.chunks[0].read_time_s)
            takers = stream.wake_takers()
            if size < SMALL_BATCH_BYTES and takers * _MESSAGE_MAX_S > batch.gathered_s:
                await self._measure_fan_out(takers)
            await wait_in_turns(lambda: stream.ring.trims or self._host.memory.evicting)

    async def _measure_fan_out(self, takers: int) -> None:
        """Set the time of the next read: after a pause as long as the sessions take to write this batch."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        for _ in range(_TURNS_TO_WRITE):
            await asyncio.sleep(0)
        now_s = loop.time()
        # This stream does not wait for the work that other tasks did in those turns.
        took_s = min(now_s - began_s, takers * _MESSAGE_MAX_S)
        self._not_before_s = now_s + min(self._limits.pace_max_s, took_s)

    async def _recover(self, upstream: Upstream, failure: Failed) -> None:
        """Wait before the next attempt, for as long as a subscriber waits."""
        stream = self.stream
        stream.resumes += 1
        delay_s = upstream.retry_delay_s(failure)
        stream.move_to(StreamState.RECOVERING)
        stream.wake_all()
        cause = failure.__cause__
        log.warning(
            "a batch is too large for MongoDB, and its events are read singly"
            if failure.reads_singly
            else "a change stream is resumed after an error",
            extra={"stream": stream.id, "error": type(cause).__name__, "code": getattr(cause, "code", None)},
        )
        if not delay_s:
            return
        stream.unavailable = True
        stream.wake_all()
        await asyncio.sleep(delay_s)
        if not stream.subscribers:
            await self._demand.wait(self._limits.rest.unused_stream_s)

    async def _rest(self) -> Step:
        """Rest while no subscriber can take more."""
        stream, limits = self.stream, self._limits.rest
        if stream.state is StreamState.READING:
            stream.move_to(StreamState.PAUSED)
        demand_changed = await self._demand.wait(rest_s(stream, limits))
        step = after_rest(stream, demand_changed=demand_changed)
        if step is Step.CLOSE_CURSOR and self._upstream is not None and self._upstream.reader.is_open:
            await self._upstream.reader.close()
            stream.move_to(StreamState.IDLE)
        return step

    def _demand_changed(self) -> None:
        self._demand.set()
        stream = self.stream
        if self._upstream is not None and (stream.watching or stream.unwanted):
            self._upstream.reader.interrupt()

    async def _close_reader(self) -> None:
        if self._upstream is not None:
            await self._upstream.reader.close()

    async def _let_subscribers_finish(self) -> None:
        """Wait until the subscribers of an ended stream have read the ring to the end, or have left."""
        self._host.memory.grew(0)
        self._host.slots.admit()
        await self._close_reader()
        while self.stream.subscribers:
            await self._demand.wait(self._limits.rest.idle_close_s)
