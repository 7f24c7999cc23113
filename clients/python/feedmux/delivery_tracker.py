"""Tracks the delivered events: their numbers, which are acked, and which must not be delivered twice.

The client numbers events with ordinals that never restart; the server's delivery sequences restart with every stream
(one Subscribe call). The tracker maps one to the other by ranges, retains the unacked batches of a durable
subscription, and recognizes their events by `_id` when they are repeated after a reconnect. Beyond `whole_bytes_max`
bytes it retains only those `_id`s. Pure; `connection` owns a tracker and feeds it in the order of arrival.

Invariant: `unacked` begins with the first unacked event in stream order, and holds all events received after it, in
stream order. Stream order is the order of ordinals, unless new events arrived among repeats because the filter was
widened. `ranges` hold the sequences of the present stream that no ack covers yet, in sequence order.
"""

from array import array
from collections import deque
from copy import copy
from itertools import accumulate

from bson.errors import BSONError

from feedmux.batches import Batch
from feedmux.errors import ProtocolError
from feedmux.positions import NO_POSITION, FeedPosition, token_position, token_time


def token_of(batch: Batch, index: int) -> bytes:
    """Return the event's resume token. Empty for an unreadable event, which fails later, when the user decodes it."""
    try:
        return batch.event_key(index)
    except (BSONError, ProtocolError):
        return b""


class _UnackedBatch:
    """A batch that is not fully acked: whole, because that costs nothing, or reduced to its resume tokens."""

    __slots__ = ("_batch", "_ends", "_tokens", "count", "feed_position", "first_sequence", "size_bytes")

    def __init__(self, batch: Batch) -> None:
        self.first_sequence = batch.first_sequence
        self.count = len(batch)
        self.feed_position = batch.feed_position
        self.size_bytes = batch.size_bytes
        """Size of the events; 0 when reduced."""
        self._batch: Batch | None = batch.twin()
        self._tokens = b""
        self._ends: array[int] = array("Q")

    @property
    def last_sequence(self) -> int:
        return self.first_sequence + self.count - 1

    def token(self, index: int) -> bytes:
        """Return an event's resume token, as `token_of` does."""
        if self._batch is not None:
            return token_of(self._batch, index)
        return self._tokens[self._ends[index - 1] if index else 0 : self._ends[index]]

    def reduce(self) -> None:
        """Evict everything except the tokens."""
        if self._batch is None:
            return
        tokens = [token_of(self._batch, index) for index in range(self.count)]
        self._tokens = b"".join(tokens)
        self._ends = array("Q", accumulate(map(len, tokens)))
        self.drop()

    def drop(self) -> None:
        """Evict the batch."""
        self._batch = None
        self.size_bytes = 0

    def split(self, at: int) -> "_UnackedBatch":
        """Keep the first `at` events and return the rest. Only for a reduced batch."""
        rest = copy(self)
        cut = self._ends[at - 1]
        rest.first_sequence, rest.count = self.first_sequence + at, self.count - at
        rest._tokens, rest._ends = self._tokens[cut:], array("Q", (end - cut for end in self._ends[at:]))
        self.count, self.feed_position = at, NO_POSITION
        self._tokens, self._ends = self._tokens[:cut], self._ends[:at]
        return rest


class DeliveryTracker:
    """Bookkeeping of one session object.

    `durable` means that acks matter and that a reopened stream may repeat events. An inline feed continues after the
    last event received, so nothing is retained for it.
    """

    def __init__(self, durable: bool, whole_bytes_max: int) -> None:
        self._durable = durable
        self._whole_bytes_max = whole_bytes_max
        self._whole_bytes = 0
        self._whole: deque[_UnackedBatch] = deque()
        """The whole batches of `unacked`, oldest first, including batches that were dropped meanwhile."""
        self.within_copy = False
        """Whether what arrives belongs to a copy of existing documents: its documents, and changes until its end."""
        self._copied_until = 0
        """The last ordinal within a copy. A resume token does not name the copy: only a whole position does."""
        self._received = 0
        self._next_sequence = 1
        self._acked_sequence = 0
        self._floor = 0
        self._ranges: deque[tuple[int, int, int]] = deque()
        self._unacked: deque[_UnackedBatch] = deque()
        self._repeats: dict[bytes, int] = {}
        self._repeats_until: tuple[int, int] | None = None
        self._passed = 0
        self._passed_events = 0
        """While repeats are expected: how many batches of `unacked`, and events of the next batch, the stream has
        passed."""
        self._acked_position = NO_POSITION
        self._latest = NO_POSITION

    @property
    def received(self) -> int:
        """The highest ordinal assigned."""
        return self._received

    @property
    def latest(self) -> FeedPosition:
        """The position up to which everything has been received."""
        return self._latest

    @property
    def expects_repeats(self) -> bool:
        """Whether events delivered earlier may still be repeated."""
        return bool(self._repeats)

    def owes_acks(self, acked: int) -> bool:
        """Whether acks up to an ordinal are neither sent nor in the Open of the stream: those of events that may come
        again. Within a copy, the Open may name an earlier position than the last ack."""
        if self._unacked and self._unacked[0].first_sequence <= self._copied_until:
            return self.expects_repeats
        return any(ordinal <= acked for ordinal in self._repeats.values())

    def acked_position(self, acked: int) -> FeedPosition:
        """The position up to which everything is acked, where a new stream has to begin. NO_POSITION at the start."""
        acked = max(acked, self._floor)
        if acked >= self._received and not self._repeats:
            return self._latest
        settled = self._settle(acked)
        key = self._token(self._unacked[0], settled - 1) if settled else b""
        return token_position(key) if key else self._acked_position

    def forget(self) -> None:
        """Forget the unacked events, which may be delivered again: the stored position was moved on purpose, or to
        what is left of the history."""
        self._floor = self._received
        self._unacked.clear()
        self._whole.clear()
        self._whole_bytes = 0
        self._repeats.clear()
        self._acked_position = self._latest = NO_POSITION

    def begin(self, opened: FeedPosition, acked: int) -> None:
        """Begin a stream at `opened`, with sequences from 1. Acks up to `acked` were known when it was requested."""
        self._next_sequence = 1
        self._acked_sequence = 0
        self._ranges.clear()
        settled = self._settle(max(acked, self._floor))
        self._repeats.clear()
        if not self._unacked:
            self._acked_position = self._latest = opened
            return
        key = b""
        self._passed, self._passed_events = 0, settled
        for unacked in self._unacked:
            for index in range(settled, unacked.count):
                key = unacked.token(index)
                if key:
                    self._repeats[key] = unacked.first_sequence + index
            settled = 0
        self._repeats_until = token_time(key) if key else None

    def arrive(self, first_sequence: int, batch: Batch, acked: int = 0) -> list[Batch]:
        """Number an arrived batch, and return its new events. Raises ProtocolError at a gap in the sequence.

        `acked` is the highest ordinal acked: acked events need not be retained.
        """
        if first_sequence != self._next_sequence:
            raise ProtocolError(f"delivery {first_sequence} came where {self._next_sequence} was due")
        self._next_sequence += len(batch)
        if self._repeats:
            self._stop_at_news(batch)
        if not self._repeats:
            self._take(first_sequence, batch)
            if self._durable:
                self._retain(batch, acked)
            self._latest = batch.feed_position
            return [batch]
        fresh = self._sift(first_sequence, batch)
        if not self._repeats:
            self._latest = batch.feed_position
        return fresh

    def progress(self, feed_position: FeedPosition) -> None:
        """Record that everything at or before `feed_position` has been delivered, so that no earlier repeats follow."""
        if self._repeats_until and feed_position.time > self._repeats_until:
            self._repeats.clear()
        if not self._repeats:
            self._latest = feed_position

    def acked_sequence(self, acked: int) -> int:
        """Return the delivery sequence of the present stream up to which everything is acked; 0 for nothing.

        After a rewind, older events come before the events delivered earlier: then the first unacked one decides.
        """
        self._settle(acked)
        while self._ranges:
            sequence, ordinal, count = self._ranges[0]
            done = min(acked - ordinal + 1, count)
            if done <= 0:
                break
            self._acked_sequence = sequence + done - 1
            if done < count:
                break
            self._ranges.popleft()
        return self._acked_sequence

    def _retain(self, batch: Batch, acked: int) -> None:
        unacked = _UnackedBatch(batch)
        self._unacked.append(unacked)
        self._whole.append(unacked)
        self._whole_bytes += unacked.size_bytes
        if self._whole_bytes > self._whole_bytes_max:
            self._settle(acked)
        while self._whole_bytes > self._whole_bytes_max:
            self._reduce(self._whole.popleft())

    def _evict_first(self) -> None:
        unacked = self._unacked.popleft()
        self._whole_bytes -= unacked.size_bytes
        unacked.drop()
        while self._whole and not self._whole[0].size_bytes:
            self._whole.popleft()

    def _take(self, sequence: int, batch: Batch) -> None:
        batch.first_sequence = self._received + 1
        self._received += len(batch)
        if self.within_copy:
            self._copied_until = self._received
        self._map(sequence, batch.first_sequence, len(batch))

    def _pass(self, ordinal: int) -> None:
        """Record that an event of `unacked` was repeated. Repeats come in stream order."""
        for index in range(self._passed, len(self._unacked)):
            unacked = self._unacked[index]
            if unacked.first_sequence <= ordinal <= unacked.last_sequence:
                self._passed, self._passed_events = index, ordinal + 1 - unacked.first_sequence
                return

    def _insert(self, batch: Batch) -> None:
        """Insert new events that arrived among repeats, where the stream is now."""
        cut = self._passed_events
        if cut:
            around = self._unacked[self._passed]
            if cut < around.count:
                self._reduce(around)
                self._unacked.insert(self._passed + 1, around.split(cut))
            self._passed += 1
        # A part of a message would retain the memory of the whole message.
        unacked = _UnackedBatch(batch)
        unacked.reduce()
        self._unacked.insert(self._passed, unacked)
        self._passed_events = unacked.count

    def _reduce(self, unacked: _UnackedBatch) -> None:
        self._whole_bytes -= unacked.size_bytes
        unacked.reduce()

    def _sift(self, first_sequence: int, batch: Batch) -> list[Batch]:
        fresh: list[Batch] = []
        start = 0
        for index in range(len(batch)):
            ordinal = self._repeats.pop(token_of(batch, index), None)
            if ordinal is None:
                continue
            if index > start:
                fresh.append(self._take_part(first_sequence, batch, start, index))
            self._map(first_sequence + index, ordinal, 1)
            self._pass(ordinal)
            start = index + 1
        if start < len(batch):
            fresh.append(self._take_part(first_sequence, batch, start, len(batch)))
        return fresh

    def _take_part(self, first_sequence: int, batch: Batch, start: int, end: int) -> Batch:
        part = batch.part(start, end)
        self._take(first_sequence + start, part)
        self._insert(part)
        return part

    def _stop_at_news(self, batch: Batch) -> None:
        first_time = token_time(token_of(batch, 0))
        if first_time and self._repeats_until and first_time > self._repeats_until:
            self._repeats.clear()

    def _map(self, sequence: int, ordinal: int, count: int) -> None:
        if not self._durable:
            return
        if self._ranges:
            last_sequence, last_ordinal, last_count = self._ranges[-1]
            if sequence - last_sequence == ordinal - last_ordinal == last_count:
                self._ranges[-1] = (last_sequence, last_ordinal, last_count + count)
                return
        self._ranges.append((sequence, ordinal, count))

    def _token(self, unacked: _UnackedBatch, index: int) -> bytes:
        """The token of an event, if a new stream may begin after the event alone."""
        return unacked.token(index) if unacked.first_sequence > self._copied_until else b""

    def _settle(self, acked: int) -> int:
        """Evict acked batches before the first unacked event. Return how many events of the first batch left are acked.

        While repeats are expected, stop where the stream is: new events may arrive before the next repeat.
        """
        while self._unacked:
            unacked = self._unacked[0]
            done = min(unacked.count, max(0, acked + 1 - unacked.first_sequence))
            if self._repeats and not self._passed:
                done = min(done, self._passed_events)
            if done < unacked.count:
                return done
            last = b"" if unacked.feed_position.position else self._token(unacked, unacked.count - 1)
            self._evict_first()
            if self._passed:
                self._passed -= 1
            else:
                self._passed_events = 0
            if unacked.feed_position.position:
                self._acked_position = unacked.feed_position
            elif last:
                self._acked_position = token_position(last)
        return 0
