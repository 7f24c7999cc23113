"""The network side of a session: what it sends, and what it does with the messages of the server.

`stream_keeper` opens, reopens and ends the streams. Messages go through `responses`, `window` and `delivery_tracker` to
the session buffer; acks and credit go from the session buffer to the server.
"""

from feedmux import requests
from feedmux.batches import Batch
from feedmux.connection_states import FIRST_OPENING
from feedmux.delivery_tracker import DeliveryTracker
from feedmux.errors import FeedInvalidated, FeedmuxError, SnapshotUnsupported
from feedmux.feeds import SnapshotStatus, Start
from feedmux.notices import Draining, Gap, Rewound, Skipped, SnapshotComplete, SnapshotProgress
from feedmux.options import SessionOptions
from feedmux.positions import NO_POSITION, FeedPosition
from feedmux.responses import Committed, Delivery, Message, Opened, Progress
from feedmux.session_buffer import NEVER, Ended, QueuedNotice, SessionBuffer
from feedmux.stream_keeper import Attempt, Opening, StreamKeeper, duration
from feedmux.transport import Transport
from feedmux.v1 import change_feed_pb2
from feedmux.window import CreditWindow


class Connection(StreamKeeper):
    """Drives one session until it is closed or an error ends it. Lives on one event loop."""

    def __init__(self, transport: Transport, opening: Opening, options: SessionOptions, buffer: SessionBuffer) -> None:
        super().__init__(transport, opening, options, buffer)
        self._buffer = buffer
        self._tracker = DeliveryTracker(opening.durable, options.window_bytes)
        self._window = CreditWindow(options.window_events, options.window_bytes)
        self._open_acked = 0
        self._ack_due = False
        self._sent_sequence = 0
        self._confirmed_sequence = 0
        self._flushed = 0
        buffer.confirmed = 0 if opening.durable else NEVER
        self._rewound: Rewound | None = None
        """What this stream began with, if it did."""
        self._begins = NO_POSITION
        self._moved_from: FeedPosition | None = None
        """What was acked when the server said that the stored position was moved; None once a stream was opened after
        that."""
        self._asked_for_copy = False
        """The present stream asked for `Start.snapshot`."""
        self._generation = 0
        """Of the copy that was announced last."""
        self._completing = False
        """The end of that copy has come."""

    @property
    def _must_report(self) -> bool:
        return self._buffer.acked > self._buffer.confirmed

    def _woken(self, attempt: Attempt) -> None:
        # The user's side calls because an ack or a taken batch has reached its threshold, or to close.
        buffer, window = self._buffer, self._window
        if (
            buffer.closing
            or buffer.taken_events >= window.refill_events_at
            or buffer.taken_bytes >= window.refill_bytes_at
        ):
            self._work.set()
        else:
            self._set_refill()
        if self._opening.durable:
            self._on_ack(attempt)

    def _on_ack(self, attempt: Attempt) -> None:
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
            else:
                self._settle_acks()
        if closing:
            self._move(self._close_event)
            return [*messages, requests.CLOSE]
        grant = self._window.refill(buffer.taken_events, buffer.taken_bytes)
        if grant is not None:
            messages.append(requests.credit_bytes(grant))
        self._set_refill()
        return messages

    def _settle_acks(self) -> None:
        # Acks of events that the server does not deliver again, because it was moved past them, are never sent.
        if self._confirmed_sequence >= self._sent_sequence and not self._tracker.owes_acks(self._flushed):
            self._buffer.confirmed = max(self._buffer.confirmed, self._flushed)

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
            heartbeat_interval=duration(options.heartbeat_s),
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

    def _on_message(self, response: Message) -> None:
        match response:
            case Delivery():
                self._deliver(response)
            case Progress():
                self._tracker.progress(response.feed_position)
                self._buffer.latest = self._tracker.received, self._tracker.latest
                self._backoff.reset()
            case Committed():
                self._buffer.committed = response.position
                self._confirmed_sequence = response.sequence
                self._settle_acks()
            case Draining():
                self._flush_acks()
                self._buffer.tell(response)
            case Gap(reason="TIMELINE_FORKED"):
                # Events from before the gap come once more after it, and are no repeats. For the server, what it has
                # sent before counts as acknowledged.
                self._tracker.forget()
                self._buffer.put(QueuedNotice(response))
            case Rewound():
                if self._rewound is None:  # otherwise the client has noticed what the server announces
                    self._rewind(response)
                    self._tracker.begin(self._begins, self._open_acked)
                    self._set_refill()
                    self._work.set()
            case SnapshotProgress(status):
                self._tracker.within_copy = True
                if status.generation != self._generation:
                    self._begin_copy(status)
                self._buffer.put(QueuedNotice(response))
            case SnapshotComplete():
                self._tracker.within_copy = False
                self._generation, self._completing = response.generation, True
                self._buffer.completion = response
                self._buffer.put(QueuedNotice(response))
            case _:
                self._buffer.tell(response)

    def _deliver(self, delivery: Delivery) -> None:
        batch, buffer = delivery.batch, self._buffer
        events, size_bytes = len(batch), batch.size_bytes
        self._window.receive(events, size_bytes, lambda: len(batch.raw_event(events - 1)))
        batch.generation = self._generation
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
        if opened.copying:
            self._begin_copy(opened.copying)
            self._withdraw(SnapshotComplete)
        elif not self._completing:
            buffer.completion = None  # one that was withdrawn does not come again
        moved_from, self._moved_from = self._moved_from, None
        had_reached = moved_from or tracker.acked_position(self._open_acked)
        is_first = self._state in FIRST_OPENING
        begins = self._begins = opened.feed_position
        self._rewound = None
        if not is_first and self._opening.durable and not opened.at_last_acked:
            if (0, 0) < begins.time < had_reached.time:
                self._rewind(Rewound(begins.time, had_reached.time))
            elif moved_from is not None and (0, 0) < had_reached.time < begins.time and not opened.copying:
                # The Open had no last_acked, so the server cannot tell. A copy leaves nothing out.
                skipped = Skipped(had_reached.time, begins.time, had_reached.position, begins.position)
                buffer.put(QueuedNotice(skipped))
        self._withdraw(SnapshotProgress, also_before_documents=opened.copying is not None)
        if not self._completing:  # otherwise the user sees the end of the copy when he has taken its documents
            buffer.copying = opened.copying
        tracker.begin(opened.feed_position, self._open_acked)
        tracker.within_copy = opened.copying is not None
        self._window.limit(opened.credit_events_max, opened.credit_bytes_max)
        self._sent_sequence = self._confirmed_sequence = 0
        buffer.epoch = opened.epoch
        if is_first or moved_from is not None:
            self._begin()
        buffer.latest = tracker.received, tracker.latest
        if self._opening.durable and attempt is not None:
            attempt.ack_step = max(1, opened.unacked_events_max // 2) if opened.unacked_events_max else NEVER
            buffer.alarm = 0
        self._ack_due = True
        self._mark_opened(opened)
        self._set_refill()

    def _begin_copy(self, status: SnapshotStatus) -> None:
        self._generation, self._completing = status.generation, False

    def _begin(self) -> None:
        """The session begins where this stream does, for the first time or because it was moved there."""
        self._buffer.opened = self._buffer.latest = self._tracker.received, self._begins

    def _forget(self) -> None:
        if self._moved_from is None:  # otherwise it was moved twice before a stream was open
            self._moved_from = self._tracker.acked_position(self._buffer.acked)
        self._forget_received()

    def _forget_received(self) -> None:
        tracker, buffer = self._tracker, self._buffer
        tracker.forget()
        self._completing = False
        buffer.latest = tracker.received, NO_POSITION
        # Acks of what came before have no meaning any more: the server need not confirm them.
        buffer.confirmed = tracker.received
        self._withdraw(SnapshotComplete)
        buffer.completion = None
        for item in buffer.withdraw(tracker.received):
            match item:
                case QueuedNotice() | Ended():
                    self._buffer.put(item)
                case batch:
                    self._window.discard(len(batch), batch.size_bytes)

    def _withdraw(self, kind: type[SnapshotProgress | SnapshotComplete], *, also_before_documents: bool = True) -> None:
        """Drop notices of a copy that have not been delivered. Of its end: its documents are forgotten, or come again
        before another end. Of how far it is: a new stream says it again, if it is within a copy; outside, a notice
        before documents stays, because it tells of which copy they are."""
        items, kept = self._buffer.drain(), 0
        if not also_before_documents:
            documents = (i for i, item in enumerate(items) if isinstance(item, Batch) and item.snapshot)
            kept = max(documents, default=0)
        for i, item in enumerate(items):
            if i < kept or not (isinstance(item, QueuedNotice) and isinstance(item.notice, kind)):
                self._buffer.put(item)

    def _rewind(self, rewound: Rewound) -> None:
        """The stream begins before what was acknowledged. What was delivered comes again, acknowledged or not."""
        self._forget_received()
        self._begin()
        self._buffer.put(QueuedNotice(rewound))
        self._rewound = rewound

    def _detached(self) -> None:
        buffer = self._buffer
        buffer.alarm = buffer.refill_events_at = buffer.refill_bytes_at = NEVER

    def _located(self, error: FeedmuxError) -> FeedmuxError:
        if isinstance(error, FeedInvalidated):
            error.position = self._tracker.latest.position
            error.resume_token = self._tracker.latest.resume_token
        return error
