"""Tracks the delivered events: their numbers, which are acked, and which must not be delivered twice.

The client numbers events with ordinals that never restart; the server's delivery sequences restart with every stream.
The ledger maps one to the other by ranges, retains the unacked batches of a durable subscription, and after a reconnect
recognizes their events by `_id` when they are repeated. Beyond `whole_bytes_max` bytes it retains only those `_id`s.
Pure; `runner` owns a ledger and feeds it in the order of arrival.

Invariant: `kept` begins with the first unacked event in stream order, and holds all events received after that event,
in stream order. Stream order is the order of ordinals, unless new events arrived among repeats because the filter was
widened. `ranges` hold the sequences of the present stream that no ack covers yet, in sequence order.
"""

from array import array
from collections import deque
from copy import copy
from itertools import accumulate

from bson.errors import BSONError

from feedmux.batches import Batch
from feedmux.errors import ProtocolError
from feedmux.places import NOWHERE, Place, token_place, token_time


def _token(batch: Batch, index: int) -> bytes:
    """Return the event's resume token. Empty for an unreadable event, which fails later, when the user decodes it."""
    try:
        return batch.event_key(index)
    except (BSONError, ProtocolError):
        return b""


class _Kept:
    """A batch that is not fully acked: whole, because that costs nothing, or reduced to its resume tokens."""

    __slots__ = ("_batch", "_ends", "_tokens", "count", "first_sequence", "place", "size_bytes")

    def __init__(self, batch: Batch) -> None:
        self.first_sequence = batch.first_sequence
        self.count = len(batch)
        self.place = batch.place
        self.size_bytes = batch.size_bytes
        """Size of the events; 0 when reduced."""
        self._batch: Batch | None = batch.twin()
        self._tokens = b""
        self._ends: array[int] = array("Q")

    @property
    def last_sequence(self) -> int:
        return self.first_sequence + self.count - 1

    def token(self, index: int) -> bytes:
        """Return an event's resume token, as `_token` does."""
        if self._batch is not None:
            return _token(self._batch, index)
        return self._tokens[self._ends[index - 1] if index else 0 : self._ends[index]]

    def reduce(self) -> None:
        """Evict everything except the tokens."""
        if self._batch is None:
            return
        tokens = [_token(self._batch, index) for index in range(self.count)]
        self._tokens = b"".join(tokens)
        self._ends = array("Q", accumulate(map(len, tokens)))
        self.drop()

    def drop(self) -> None:
        """Evict the batch."""
        self._batch = None
        self.size_bytes = 0

    def split(self, at: int) -> "_Kept":
        """Keep the first `at` events and return the rest. Only for a reduced batch."""
        rest = copy(self)
        cut = self._ends[at - 1]
        rest.first_sequence, rest.count = self.first_sequence + at, self.count - at
        rest._tokens, rest._ends = self._tokens[cut:], array("Q", (end - cut for end in self._ends[at:]))
        self.count, self.place = at, NOWHERE
        self._tokens, self._ends = self._tokens[:cut], self._ends[:at]
        return rest


class Ledger:
    """Bookkeeping of one session object.

    `durable` means that acks matter and that a reopened stream may repeat events. An inline feed continues after the
    last event received, so nothing is retained for it.
    """

    def __init__(self, durable: bool, whole_bytes_max: int) -> None:
        self._durable = durable
        self._whole_bytes_max = whole_bytes_max
        self._whole_bytes = 0
        self._whole: deque[_Kept] = deque()
        """The whole batches of `kept`, oldest first, including batches that were dropped meanwhile."""
        self._received = 0
        self._next_sequence = 1
        self._acked_sequence = 0
        self._floor = 0
        self._ranges: deque[tuple[int, int, int]] = deque()
        self._kept: deque[_Kept] = deque()
        self._repeats: dict[bytes, int] = {}
        self._repeats_until: tuple[int, int] | None = None
        self._passed = 0
        self._passed_events = 0
        """While repeats are expected: how many batches of `kept`, and events of the next batch, the stream has
        passed."""
        self._acked_place = NOWHERE
        self._latest = NOWHERE

    @property
    def received(self) -> int:
        """The highest ordinal assigned."""
        return self._received

    @property
    def latest(self) -> Place:
        """The position up to which everything has been received."""
        return self._latest

    @property
    def whole_bytes(self) -> int:
        """Bytes of the unacked events that are retained whole."""
        return self._whole_bytes

    @property
    def expects_repeats(self) -> bool:
        """Whether events delivered earlier may still be repeated."""
        return bool(self._repeats)

    def acked_place(self, acked: int) -> Place:
        """The position up to which everything is acked, where a new stream has to begin. NOWHERE at the start."""
        acked = max(acked, self._floor)
        if acked >= self._received and not self._repeats:
            return self._latest
        settled = self._settle(acked)
        key = self._kept[0].token(settled - 1) if settled else b""
        return token_place(key) if key else self._acked_place

    def forget(self) -> None:
        """Forget the unacked events, which may be delivered again: the stored position was moved on purpose."""
        self._floor = self._received
        self._kept.clear()
        self._whole.clear()
        self._whole_bytes = 0
        self._repeats.clear()
        self._acked_place = self._latest = NOWHERE

    def begin(self, opened: Place, acked: int) -> None:
        """Begin a stream at `opened`, with sequences from 1. Acks up to `acked` were known when it was requested."""
        self._next_sequence = 1
        self._acked_sequence = 0
        self._ranges.clear()
        settled = self._settle(max(acked, self._floor))
        self._repeats.clear()
        if not self._kept:
            self._acked_place = self._latest = opened
            return
        key = b""
        self._passed, self._passed_events = 0, settled
        for kept in self._kept:
            for index in range(settled, kept.count):
                key = kept.token(index)
                if key:
                    self._repeats[key] = kept.first_sequence + index
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
                self._keep(batch, acked)
            self._latest = batch.place
            return [batch]
        fresh = self._sift(first_sequence, batch)
        if not self._repeats:
            self._latest = batch.place
        return fresh

    def progress(self, place: Place) -> None:
        """Record that everything at or before `place` has been delivered, so that no earlier repeats follow."""
        if self._repeats_until and place.time > self._repeats_until:
            self._repeats.clear()
        if not self._repeats:
            self._latest = place

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

    def _keep(self, batch: Batch, acked: int) -> None:
        kept = _Kept(batch)
        self._kept.append(kept)
        self._whole.append(kept)
        self._whole_bytes += kept.size_bytes
        if self._whole_bytes > self._whole_bytes_max:
            self._settle(acked)
        while self._whole_bytes > self._whole_bytes_max:
            self._reduce(self._whole.popleft())

    def _let_go(self) -> None:
        kept = self._kept.popleft()
        self._whole_bytes -= kept.size_bytes
        kept.drop()
        while self._whole and not self._whole[0].size_bytes:
            self._whole.popleft()

    def _take(self, sequence: int, batch: Batch) -> None:
        batch.first_sequence = self._received + 1
        self._received += len(batch)
        self._map(sequence, batch.first_sequence, len(batch))

    def _pass(self, ordinal: int) -> None:
        """Record that an event of `kept` was repeated. Repeats come in stream order."""
        for index in range(self._passed, len(self._kept)):
            kept = self._kept[index]
            if kept.first_sequence <= ordinal <= kept.last_sequence:
                self._passed, self._passed_events = index, ordinal + 1 - kept.first_sequence
                return

    def _insert(self, batch: Batch) -> None:
        """Insert new events that arrived among repeats, where the stream is now."""
        cut = self._passed_events
        if cut:
            around = self._kept[self._passed]
            if cut < around.count:
                self._reduce(around)
                self._kept.insert(self._passed + 1, around.split(cut))
            self._passed += 1
        # A part of a message would retain the memory of the whole message.
        kept = _Kept(batch)
        kept.reduce()
        self._kept.insert(self._passed, kept)
        self._passed_events = kept.count

    def _reduce(self, kept: _Kept) -> None:
        self._whole_bytes -= kept.size_bytes
        kept.reduce()

    def _sift(self, first_sequence: int, batch: Batch) -> list[Batch]:
        fresh: list[Batch] = []
        start = 0
        for index in range(len(batch)):
            ordinal = self._repeats.pop(_token(batch, index), None)
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
        first_time = token_time(_token(batch, 0))
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

    def _settle(self, acked: int) -> int:
        """Evict acked batches before the first unacked event. Return how many events of the first batch left are acked.

        While repeats are expected, stop where the stream is: new events may arrive before the next repeat.
        """
        while self._kept:
            kept = self._kept[0]
            done = min(kept.count, max(0, acked + 1 - kept.first_sequence))
            if self._repeats and not self._passed:
                done = min(done, self._passed_events)
            if done < kept.count:
                return done
            last = b"" if kept.place.position else kept.token(kept.count - 1)
            self._let_go()
            if self._passed:
                self._passed -= 1
            else:
                self._passed_events = 0
            if kept.place.position:
                self._acked_place = kept.place
            elif last:
                self._acked_place = token_place(last)
        return 0
