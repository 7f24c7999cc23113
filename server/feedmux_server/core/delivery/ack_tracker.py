"""Tracks which events sent in a session are acknowledged, and which position may therefore be stored.

Fed by `Subscriber.cut` with what was sent; asked by the session on each Ack. Holds chunks from sending until
acknowledgement. One of a chunk's holders pays for what the chunk costs after its ring has evicted it
(`Chunk.held_bytes`).
"""

from collections import deque
from collections.abc import Callable

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.events.chunk import Chunk
from feedmux_server.core.positions.resume_token import ResumeToken

ENTRIES_AT_ONCE = 1_000
"""The most chunks, deliveries or events whose acknowledgement or release takes one turn of the event loop: 3 ms."""
TRACKED_BYTES = 450
"""What a chunk costs each tracker that awaits acknowledgement of its events, in addition to the chunk."""


class AckTracker:
    """Delivery sequences count from 1 within a session."""

    __slots__ = ("_sent", "acked", "outstanding_max", "pays", "place", "sent")

    def __init__(self, place: ResumeToken, outstanding_max: int, pays: Callable[[int], None] = lambda _: None) -> None:
        """`pays` receives by how many bytes the memory of this tracker changes, and what it retains outside all
        rings."""
        self._sent: deque[tuple[int, Chunk, int, int]] = deque()  # first sequence, chunk, first, stop
        self.pays = pays
        self.outstanding_max = outstanding_max
        self.sent = 0
        self.acked = 0
        self.place = place.as_summary()
        """Everything at or before this position is acknowledged. Store it only after it has moved: a session may begin
        inside a split event."""

    @property
    def outstanding(self) -> int:
        return self.sent - self.acked

    @property
    def room(self) -> int:
        """Events that may be sent before delivery pauses."""
        return self.outstanding_max - self.outstanding

    def record(self, chunk: Chunk, first: int, stop: int) -> None:
        """Record that events `first` to `stop - 1` of `chunk` have been sent."""
        if self._sent and self._sent[-1][1] is chunk and self._sent[-1][3] == first:
            # The messages of one chunk are acknowledged together; `batch_events_max` makes many of them.
            sequence, _, first_of_all, _ = self._sent[-1]
            self._sent[-1] = sequence, chunk, first_of_all, stop
        else:
            chunk.hold(self)
            self.pays(TRACKED_BYTES)
            self._sent.append((self.sent + 1, chunk, first, stop))
        self.sent += stop - first

    def part_of_ack(self, sequence: int) -> int:
        """How far an ack up to `sequence` may go in one turn of the event loop."""
        if len(self._sent) <= ENTRIES_AT_ONCE or sequence > self.sent:
            return sequence
        return min(sequence, self._sent[ENTRIES_AT_ONCE][0] - 1)

    def ack(self, sequence: int) -> bool:
        """Record that everything up to `sequence` is processed. Returns whether `place` moved.

        Raises ACK_OUT_OF_RANGE for a sequence that was never delivered, and RESUME_TOKEN_MODIFIED if the pipeline has
        moved the `_id` of an event out of reach.
        """
        check_sequence(sequence, self.sent)
        if sequence <= self.acked:
            return False
        self.acked = sequence
        before, passed = self.place, list[tuple[Chunk, int, int]]()
        try:
            while self._sent:
                first_sequence, chunk, first, stop = self._sent[0]
                done = sequence - first_sequence + 1
                if done < stop - first:
                    if done > 0:
                        self._move_to(chunk, first, first + done)
                    break
                self._sent.popleft()
                passed.append((chunk, first, stop))
            # The newest position counts. A chunk without one is a part of a split event.
            for chunk, first, stop in reversed(passed):
                if self.place is not before or self._move_to(chunk, first, stop):
                    break
        finally:  # `release` no longer knows them
            for chunk, _, _ in passed:
                chunk.let_go(self)
            if passed:
                self.pays(-TRACKED_BYTES * len(passed))
        return self.place is not before

    def progress(self, place: ResumeToken) -> bool:
        """Record that everything up to `place` was delivered. Returns whether nothing is outstanding and the stored
        position moved there. It does not move into a split event."""
        if self.outstanding or self.place.reaches(place) or place.may_be_inside_event:
            return False
        self.place = place
        return True

    def move_back(self, place: ResumeToken) -> None:
        """Continue at an earlier position, after `release`. What was sent before counts as acknowledged, and moves
        nothing."""
        assert not self._sent, "release first"
        self.acked = self.sent
        self.place = place

    def release(self) -> bool:
        """Release chunks at the end of the session, or before it moves back: as many as fit into one turn of the event
        loop. Returns whether there are more."""
        count = min(len(self._sent), ENTRIES_AT_ONCE)
        for _ in range(count):
            self._sent.popleft()[1].let_go(self)
        if count:
            self.pays(-TRACKED_BYTES * count)
        return bool(self._sent)

    def _move_to(self, chunk: Chunk, first: int, stop: int) -> bool:
        """Move `place` to the newest storable position among these events, if it is later. Returns whether there is
        one."""
        for index in range(stop - 1, first - 1, -1):
            place = chunk.ack_place(index)
            if place is not None:
                if not self.place.reaches(place):
                    self.place = place
                return True
        return False


def check_sequence(sequence: int, sent: int) -> None:
    """Raises ACK_OUT_OF_RANGE for the ack of an event that was never delivered."""
    if not 0 <= sequence <= sent:
        raise FeedmuxError(
            ErrorReason.ACK_OUT_OF_RANGE,
            f"the ack names delivery {sequence}, but this session has delivered only {sent}",
            field="ack.delivery_sequence",
        )
