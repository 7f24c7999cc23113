"""The ring of chunks of one SharedStream, bounded in events and bytes.

Filled by the stream's pump alone; read by any number of subscribers by index. Chunks have consecutive sequence
numbers. Invariant: the ring covers exactly the positions from `oldest` to `newest`.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from feedmux_server.core.events.chunk import Chunk
from feedmux_server.core.limits.rings import EVICTED_AT_ONCE, NOT_HELD, Rings
from feedmux_server.core.positions.resume_token import ResumeToken

_LEFT_AT_ONCE = 4 * 1024 * 1024
"""Bytes of a closed ring that are freed without a pause."""
_CHUNK_COST = 4 * 1024
"""For a chunk to leave takes as long as to free so many bytes."""
_READERS_AT_ONCE = 50
"""Of a chunk that is evicted, so many readers copy their unsettled events at once: 200 groups that read in small
portions have 2,000 readers in one chunk."""
_TOKENS_COST = 8
"""To evict a small chunk takes as long as the copy of one reader, or as to extract so many tokens."""

NO_CHUNK: Final = 1 << 62
"""Greater than the number of every chunk."""


@dataclass(frozen=True, slots=True)
class RingLimits:
    """Bounds of one ring. Larger rings let slow subscribers stay on the shared read for longer."""

    events_max: int = 500_000
    bytes_max: int = 64 * 1024 * 1024


class ReplayBuffer:
    """Chunks between `oldest` and `newest`."""

    __slots__ = (
        "_chunks", "_dropped_to", "_limits", "_rings", "bytes", "closed", "cum_bytes", "cum_events", "events",
        "first_awaited", "first_seq", "grown", "newest", "next_seq", "oldest", "size_class", "trims",
    )  # fmt: skip

    def __init__(self, start: ResumeToken, limits: RingLimits, rings: Rings | None = None) -> None:
        """`rings` holds all rings of the process."""
        self._chunks: dict[int, Chunk] = {}
        self._limits = limits
        self._rings = rings or Rings()
        self.size_class = NOT_HELD
        self.grown = 0
        """`size_class` and `grown` are for `Rings`."""
        self.first_awaited: Callable[[], int] = _none
        """The first chunk that a subscriber could take and has had no time to take."""
        self.trims = False
        """More chunks must leave than fit into one turn of the event loop. Its reader waits meanwhile."""
        self._dropped_to = 0
        self.closed = False
        self.first_seq = 0
        self.next_seq = 0
        self.oldest = self.newest = start.as_summary()
        self.events = 0
        self.bytes = 0
        self.cum_bytes = 0
        """Bytes appended since the beginning; with `Chunk.cum_bytes` it gives the lag of a reader."""
        self.cum_events = 0

    def __len__(self) -> int:
        return len(self._chunks)

    def __getitem__(self, seq: int) -> Chunk:
        return self._chunks[seq]

    def restart_at(self, place: ResumeToken) -> None:
        """Set the position of a ring that is still empty."""
        if self.next_seq:
            raise RuntimeError("a ring that was filled keeps its start")
        self.oldest = self.newest = place.as_summary()

    def append(self, chunk: Chunk) -> None:
        """Append the next chunk. `trim` applies the bounds."""
        chunk.cum_bytes, chunk.cum_events = self.cum_bytes, self.cum_events
        self._chunks[self.next_seq] = chunk
        self.next_seq += 1
        self.newest = chunk.end
        self.events += chunk.count
        size = chunk.size_bytes
        self.bytes += size
        self.cum_bytes += size
        self.cum_events += chunk.count
        self._rings.changed(self, size)

    def trim(self, keep_seq: int) -> None:
        """Drop the oldest chunks until the bounds hold, up to `keep_seq`.

        The newest batch is retained whole, however large, and the batch before it until a subscriber had time to take
        it. Without this rule, subscribers would read dropped events again and again without end. So a ring exceeds its
        bound by at most two batches of MongoDB (16 MiB each), and by what leaves in the next turns of the event loop:
        for a large event, 15,000 chunks of one event each may have to leave.
        """
        self._dropped_to = keep_seq
        if not self.trims and self.first_seq < keep_seq and self.is_full:
            self.trims = True
            self._rings.in_parts(self._trim_on)

    def _trim_on(self) -> bool:
        self.trims = False
        self.trims = self._drop(self._dropped_to, if_full=True)
        return self.trims

    def drop_to(self, seq: int) -> None:
        """Drop all chunks before `seq`, a part in each turn of the event loop."""
        self._rings.in_parts(partial(self._drop, seq, if_full=False))

    def _drop(self, seq: int, *, if_full: bool) -> bool:
        """Drop as many chunks before `seq` as fit into one turn of the event loop; `if_full`: until the bounds hold.
        Returns whether there are more."""
        cost = 0
        while self.first_seq < seq and (self.is_full or not if_full):
            if cost >= EVICTED_AT_ONCE:
                return True
            cost += self.oldest_cost()
            self.drop_oldest()
        return False

    @property
    def is_full(self) -> bool:
        """Whether the ring exceeds its bounds."""
        return self.bytes > self._limits.bytes_max or self.events > self._limits.events_max

    def advance(self, place: ResumeToken) -> None:
        """Record that there is no further event up to `place`."""
        if place.is_further(self.newest):
            self.newest = place

    def close(self) -> None:
        """Release all chunks, after the stream has ended and has no reader any more. There may be 50,000, which takes
        the event loop 40 ms, so they leave in parts. Their bytes count until they have left."""
        leaving = deque(self._chunks.values())
        self._chunks.clear()
        self.first_seq, self.oldest = self.next_seq, self.newest
        self.events = 0
        self.closed = True
        self.first_awaited = _none
        self._rings.changed(self, 0)  # nothing can be evicted from it any more
        self._rings.in_parts(partial(_leave, self, leaving))

    def unawaited(self) -> int:
        return self.first_awaited() - self.first_seq

    def oldest_cost(self) -> int:
        chunk = self._chunks[self.first_seq]
        tokens = chunk.count // _TOKENS_COST if chunk.holders else 0
        return 1 + tokens + (min(len(chunk.readers), _READERS_AT_ONCE) if chunk.readers else 0)

    def drop_oldest(self) -> int:
        """Drop one chunk and return the freed bytes. One with many readers stays until all of them have copied what
        they need, a part of them with each call."""
        if self._chunks[self.first_seq].evicts_from_readers(_READERS_AT_ONCE):
            return 0
        chunk = self._chunks.pop(self.first_seq)
        self.first_seq += 1
        size, before = chunk.size_bytes, self.bytes
        self.bytes = max(0, before - size) if self._chunks else 0
        self._rings.changed(self, self.bytes - before)
        self.events -= chunk.count
        self.oldest = chunk.end
        chunk.drop_bytes()
        return size - chunk.held_bytes

    def grew(self, size: int) -> None:
        """Count another rendering of `size` bytes of a chunk in the ring."""
        self.bytes += size
        self._rings.changed(self, size)

    def covers(self, place: ResumeToken) -> bool:
        return place.reaches(self.oldest) and not place.is_after(self.newest)

    def bytes_from(self, seq: int) -> int:
        """Bytes between the beginning of chunk `seq` and the newest position."""
        return self.cum_bytes - self._chunks[seq].cum_bytes if seq < self.next_seq else 0

    def locate(self, place: ResumeToken) -> tuple[int, int]:
        """Return chunk and event index of the first event after `place`; the head when there is none yet.

        `place` must not be before `oldest`.
        """
        chunks, seqs = self._chunks, range(self.first_seq, self.next_seq)
        seq = self.first_seq + bisect_left(seqs, True, key=lambda n: not place.reaches(chunks[n].end))
        if seq == self.next_seq:
            return seq, 0
        chunk = self._chunks[seq]
        return seq, 0 if not place.is_after(chunk.start) else chunk.first_after(place)

    def is_near_head(self, seq: int, bytes_max: int) -> bool:
        """Whether fewer than `bytes_max` bytes, and fewer than half of the ring's events, follow from chunk `seq`."""
        return self.bytes_from(seq) < bytes_max and 2 * self._events_from(seq) < self._limits.events_max

    def in_newer_half(self, place: ResumeToken) -> bool:
        """Whether `place` is covered and at least half of the ring's size must be read before it is evicted."""
        if not self.covers(place):
            return False
        seq, _ = self.locate(place)
        behind = self.bytes_from(seq)
        return behind <= self._limits.bytes_max // 2 and self._events_from(seq) <= self._limits.events_max // 2

    def events_behind(self, seq: int, index: int) -> int:
        """Events between an index and the newest position."""
        if seq < self.first_seq:
            return self.events
        return self._events_from(seq) - index

    def _events_from(self, seq: int) -> int:
        return self.cum_events - self._chunks[seq].cum_events if seq < self.next_seq else 0


def _leave(ring: ReplayBuffer, chunks: deque[Chunk]) -> bool:
    """Let some chunks leave a closed ring. Returns whether there are more."""
    cost, before = 0, ring.bytes
    while chunks and cost < _LEFT_AT_ONCE:
        chunk = chunks.popleft()
        cost += chunk.size_bytes + _CHUNK_COST
        ring.bytes = max(0, ring.bytes - chunk.size_bytes)
        chunk.retain_whole()
    if not chunks:
        ring.bytes = 0
    ring._rings.changed(ring, ring.bytes - before)
    return bool(chunks)


def _none() -> int:
    return NO_CHUNK
