"""The network side of a member of a group: what it sends, and what it does with the messages of the server.

`stream_keeper` opens, reopens and ends the streams. Events go through `settlements` to the member buffer, and what
became of them goes back.
"""

import asyncio
from dataclasses import replace
from typing import Final

from feedmux import requests
from feedmux.errors import FeedmuxError, GroupsUnsupported
from feedmux.member_buffer import MemberBuffer, current_worker
from feedmux.notices import Draining
from feedmux.options import SessionOptions
from feedmux.recovery import Step
from feedmux.responses import Committed, Delivery, Message, Opened, Progress
from feedmux.stream_keeper import Attempt, Opening, StreamKeeper, duration
from feedmux.transport import Stream, Transport
from feedmux.v1 import change_feed_pb2

_BACKOFF_MOST_S: Final = 1.0
"""The longest delay between two attempts: a host that follows a lost one waits for its members only for some
seconds."""
_POLL_S: Final = 0.02
"""How often the close of a client looks whether handlers are in progress."""
_LAST_REPORT_S: Final = 0.1
"""What the last report may take to the server, where the stream then ends without Close. To cancel a call can overtake
what was written, and nothing confirms it."""


class MemberConnection(StreamKeeper):
    """Drives one member until it is closed or an error ends it. Lives on one event loop."""

    def __init__(self, transport: Transport, opening: Opening, options: SessionOptions, buffer: MemberBuffer) -> None:
        first_s, most_s = (min(each, _BACKOFF_MOST_S) for each in (options.backoff_first_s, options.backoff_most_s))
        options = replace(options, backoff_first_s=first_s, backoff_most_s=most_s)
        super().__init__(transport, opening, options, buffer)
        self._buffer = buffer
        self._sent_s = float("-inf")
        self._epoch = 0
        """Of the last stream that was open."""
        self._asked_to_end = False
        """The last stream sends Close."""
        self._leaves = False

    @property
    def _must_report(self) -> bool:
        with self._buffer.lock:
            return self._buffer.settlements.holds_any

    def _step(self, error: FeedmuxError, *, has_other_credentials: bool) -> Step:
        if isinstance(error, GroupsUnsupported):
            return Step.REOPEN  # Another server may be newer.
        return super()._step(error, has_other_credentials=has_other_credentials)

    def _stream_failed(self, call: Stream, error: FeedmuxError) -> None:
        if isinstance(error, GroupsUnsupported):
            call.channel.leave()
        elif error.reason == "GROUP_ELSEWHERE":
            # The route concerns new connections: this one leads to a server that does not host the group.
            self._route = error.metadata.get("route") or self._route
            call.channel.leave()
            # If the host was lost, the next one soon takes its place, and waits for its members for some seconds.
            self._backoff.reset()

    def _stream_ended(self) -> None:
        if self._asked_to_end:
            with self._buffer.lock:
                self._buffer.settlements.all_stored()

    async def _stop_work(self) -> None:
        buffer, worker = self._buffer, current_worker.get()
        buffer.stop()
        until_s = self.loop.time() + self._options.close_timeout_s
        while not buffer.closing and buffer.is_at_work(worker) and self.loop.time() < until_s:  # noqa: ASYNC110 - threads
            await asyncio.sleep(_POLL_S)
        if buffer.is_at_work(None):
            buffer.keeps = True

    def _woken(self, attempt: Attempt) -> None:
        """Report what is settled: at once if it is much or if nothing else is in hand, else when `ack_interval_s` have
        passed since the last report."""
        buffer, settlements = self._buffer, self._buffer.settlements
        with buffer.lock:
            unsent = settlements.unsent
            buffer.begin_work(reports_soon=unsent > 0)
            wait_s = self._sent_s + self._options.ack_interval_s - self.loop.time()
            at_once = buffer.closing or settlements.must_report or (unsent > 0 and wait_s <= 0)
        if at_once:
            self._report()
        elif unsent and attempt.ack_timer is None:
            attempt.ack_timer = self.loop.call_later(wait_s, self._report)

    def _report(self) -> None:
        if self._attempt is not None:
            self._attempt.stop_ack_timer()
        self._work.set()

    def _outgoing(self) -> list[bytes]:
        buffer = self._buffer
        with buffer.lock:
            buffer.begin_work(reports_soon=False)
            closing, keeps = buffer.closing, buffer.keeps  # What was settled before the close is sent before it.
            settled = buffer.settlements.outgoing()
            must_wait = buffer.settlements.awaits_repeats
        if settled:
            self._sent_s = self.loop.time()
        messages = [requests.settle_bytes(each) for each in settled]
        if closing:
            self._move(self._close_event)
            if must_wait:
                return messages
            if not keeps:
                self._asked_to_end = True
                messages.append(requests.CLOSE)
            elif not self._leaves and self._task is not None:  # the stream ends without Close
                self._leaves = True
                self.loop.call_later(_LAST_REPORT_S, self._task.cancel)
        return messages

    def _open_request(self) -> bytes:
        options, settlements = self._options, self._buffer.settlements
        with self._buffer.lock:
            settlements.tell(told=True)
            held, settled = settlements.held, settlements.settled
        return requests.open_bytes(
            change_feed_pb2.Open(
                subscription=self._opening.subscription,
                join=True,
                format=requests.format_message(options.format),
                instance_id=self._opening.instance_id,
                credit=change_feed_pb2.Credit(events=options.window_events, bytes=options.window_bytes),
                heartbeat_interval=duration(options.heartbeat_s),
                message_bytes_max=options.message_bytes_max,
                held=held,
                settled=settled,
                epoch=self._epoch,
            )
        )

    def _on_opened(self, opened: Opened) -> None:
        if not opened.members:
            raise GroupsUnsupported("does not know groups: it would deliver all events to each member")
        with self._buffer.lock:
            self._buffer.settlements.limit(opened.credit_events_max)
            if self._epoch <= opened.seek_epoch:
                self._buffer.settlements.forget()
            if opened.epoch == self._epoch:
                self._buffer.settlements.tell(told=False)
        self._epoch = opened.epoch
        self._mark_opened(opened)

    def _on_message(self, response: Message) -> None:
        buffer = self._buffer
        match response:
            case Delivery():
                self._deliver(response)
            case Progress():
                with buffer.lock:
                    buffer.settlements.progress(response.feed_position.time)
                    buffer.cluster_time = response.feed_position.time
                self._backoff.reset()
                if buffer.closing:
                    self._report()
            case Committed():
                with buffer.lock:
                    buffer.settlements.committed(response.sequence)
            case _:
                if isinstance(response, Draining):
                    self._report()
                buffer.tell(response)

    def _deliver(self, delivery: Delivery) -> None:
        buffer = self._buffer
        delivery.batch.check()
        with buffer.lock:
            settlements = buffer.settlements
            ready, unsent = settlements.ready, settlements.unsent
            settlements.arrive(delivery.first_sequence, delivery.batch, delivery.runs, delivery.attempts)
            if settlements.ready > ready:
                buffer.notify(settlements.ready - ready)
            has_settled_repeats = settlements.unsent > unsent
        if has_settled_repeats or buffer.closing:
            self._report()

    def _detached(self) -> None:
        with self._buffer.lock:
            self._buffer.begin_work(reports_soon=False)
            self._buffer.settlements.lose()

    def _forget(self) -> None:
        with self._buffer.lock:
            self._buffer.settlements.forget()
