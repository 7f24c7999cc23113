"""A range of a feed that has been read and is retained, so that several readers can read slices of it.

It holds the ring's own bytes, mostly whole chunks, so retaining costs no copy. Pure; `ranges.cache` fills and evicts
it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from feedmux_server.core.delivery.copy_range import is_behind, progress_of
from feedmux_server.core.delivery.taken import Delivery
from feedmux_server.core.events.chunk import Chunk, cut_batch, document_offsets
from feedmux_server.core.events.copy_chunks import ChangesChunk, DocumentsChunk
from feedmux_server.core.positions.resume_token import ResumeToken

_DELIVERY_BYTES = 700
"""Memory of a range in addition to its events, and of each of its chunks, measured with tracemalloc."""
_PART_BYTES = 60


@dataclass(frozen=True, slots=True)
class Slice:
    """The events in (after, until]."""

    after: ResumeToken
    until: ResumeToken
    count: int
    size: int


@dataclass(frozen=True, slots=True)
class CachedRange:
    """The events in (after, end], as they were delivered."""

    after: ResumeToken
    end: ResumeToken
    deliveries: Sequence[Delivery]
    planned: set[int] = field(default_factory=set)
    """Within a copy: hashes of the ends of each slice, and of the range."""

    @property
    def held_bytes(self) -> int:
        """The bytes that the range retains in memory."""
        return sum(map(held_bytes, self.deliveries))

    @property
    def count(self) -> int:
        return sum(each.count for each in self.deliveries)

    @property
    def size(self) -> int:
        return sum(each.size for each in self.deliveries)

    def covers(self, after: ResumeToken, until: ResumeToken) -> bool:
        if self.after.copied is not None:
            # Positions of another step of the copy may lie between those of this one, and documents may not. For
            # readers outside of the copy, the changes to documents that are copied later are missing.
            return _ends(after, until) in self.planned
        return after.copied is None and after.reaches(self.after) and self.end.reaches(until)

    def slices(self, wanted: int) -> Iterator[Slice]:
        """At most `wanted` consecutive slices of about equal bytes, cut between events. None of them is empty."""
        if self.after.copied is not None:
            self.planned.add(_ends(self.after, self.end))
        for each in self._whole(wanted):
            if self.after.copied is not None:
                self.planned.add(_ends(each.after, each.until))
            yield each

    def _whole(self, wanted: int) -> Iterator[Slice]:
        last: Slice | None = None
        if is_behind(self.end):
            wanted = 1
        for each in self._cut(wanted):
            if last is not None and is_behind(last.until):
                each = Slice(last.after, each.until, last.count + each.count, last.size + each.size)
            elif last is not None:
                yield last
            last = each
        if last is not None:
            yield replace(last, until=self.end)

    def _cut(self, wanted: int) -> Iterator[Slice]:
        """The slices, of which the last ends with its last event."""
        share = -(-self.size // wanted) if wanted else 0
        begin, count, size = self.after, 0, 0
        left = wanted - 1  # slices that may end before the last one
        for piece, start in self._pieces():
            first, rest = 0, piece.size
            if size + rest > share and left > 0:
                chunk = as_chunk(piece, start)
                assert chunk.bson is not None
                offsets = chunk.bson.offsets
                while first < chunk.count and size + rest > share and left > 0:
                    stop = chunk.bson.stop_within(first, max(0, share - size))
                    if stop == first and not count:
                        stop = first + 1
                    taken = offsets[stop] - offsets[first]
                    if stop > first:
                        start = chunk.place_after(stop - 1)
                    yield Slice(begin, start, count + stop - first, size + taken)
                    begin, count, size, left = start, 0, 0, left - 1
                    first, rest = stop, rest - taken
            count, size = count + piece.count - first, size + rest
        if count:
            yield Slice(begin, self.end, count, size)

    def read(self, after: ResumeToken, until: ResumeToken, payload_max: int) -> Iterator[Delivery]:
        """The events in (after, until], numbered from 1, in pieces of at most `payload_max` bytes or one event.

        The range must cover it. The last piece ends at `until` if no more events are before `until`.
        """
        sequence, last = 1, self.deliveries[-1].end if self.deliveries else self.end
        begun = False
        for piece, start in self._pieces():
            if not begun and after.reaches(piece.end):
                continue
            if start.reaches(until):
                break
            part = piece
            if not begun and after.is_after(start):
                chunk = as_chunk(piece, start)
                part = _part(piece, chunk, chunk.first_after(after), chunk.count)
                start = after
            if not part.count:
                continue
            # As a reader of MongoDB delivers everything after its first event: where long tokens do not say which of
            # two events of one time is later, `after` may lie beyond this piece, and does not end the range before.
            begun = True
            cut = trimmed(part, start, until)
            if cut is None:
                break
            for small in _pieces_of(cut, start, payload_max):
                end = until if small.end.is_same(last) and until.is_after(last) else small.end
                yield replace(small, first_sequence=sequence, end=end)
                sequence += small.count
            if cut is not part:
                break

    def _pieces(self) -> Iterator[tuple[Delivery, ResumeToken]]:
        """Each delivery with the position before it."""
        start = self.after
        for each in self.deliveries:
            yield each, start
            start = each.end


def _ends(after: ResumeToken, until: ResumeToken) -> int:
    return hash((after.key, progress_of(after), until.key, progress_of(until)))


def held_bytes(delivery: Delivery) -> int:
    """The memory that a retained delivery costs."""
    return delivery.size + _DELIVERY_BYTES + _PART_BYTES * len(delivery.parts)


def _pieces_of(delivery: Delivery, start: ResumeToken, payload_max: int) -> Iterator[Delivery]:
    if delivery.size <= payload_max or delivery.count == 1:
        yield delivery
        return
    chunk, first = as_chunk(delivery, start), 0
    view = chunk.bson
    assert view is not None
    while first < chunk.count:
        stop = max(first + 1, view.stop_within(first, payload_max))
        yield _part(delivery, chunk, first, stop)
        first = stop


def as_chunk(delivery: Delivery, start: ResumeToken) -> Chunk:
    """The events of a delivery with their offsets. `start` is the position before them."""
    data = b"".join(delivery.parts)
    copied = start.copied
    if copied is not None and delivery.are_documents:
        mark = delivery.end.outside_copy().while_copying(copied)
        return DocumentsChunk(data, document_offsets(data), mark, copied, delivery.read_time_s, False)
    (chunk,) = cut_batch(data, start, delivery.end, delivery.read_time_s, bytes_max=len(data))
    if copied is not None and delivery.end.copied is not None:
        # The position after an invalidate does not say how far the copy was before it.
        chunk = ChangesChunk.of(chunk, delivery.end.copied if delivery.end.copied.up_to else copied, None) or chunk
        chunk.end = delivery.end
    return chunk


def trimmed(delivery: Delivery, start: ResumeToken, until: ResumeToken) -> Delivery | None:
    """The part of a delivery at or before `until`; None if there is none."""
    if not delivery.count:
        return None
    if until.reaches(delivery.end):
        return delivery
    chunk = as_chunk(delivery, start)
    # The delivery's end may be after its last event, so compare the events, not the end.
    stop = chunk.first_after(until)
    if stop == 0:
        return None
    if stop == chunk.count and not delivery.end.is_after(until):
        return delivery  # of another token version: the position after it may be before or after `until`
    return replace(_part(delivery, chunk, 0, stop), end=until)


def _part(delivery: Delivery, chunk: Chunk, first: int, stop: int) -> Delivery:
    if first == 0 and stop == chunk.count:
        return delivery
    view = chunk.bson
    assert view is not None
    data = view.cut(first, stop)
    end = chunk.place_after(stop - 1) if stop > first else chunk.start
    parts, size = (data,) if data else (), len(data)
    sequence, read_time_s = delivery.first_sequence + first, delivery.read_time_s
    return Delivery(sequence, stop - first, parts, size, size, end, read_time_s, delivery.are_documents)
