"""The ring: its bounds, what it counts, which positions it covers, and where a position is in it."""

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedmux_server.core.delivery.ack_tracker import AckTracker
from feedmux_server.core.delivery.replay_buffer import ReplayBuffer, RingLimits
from feedmux_server.core.events.chunk import Rendition, cut_batch
from feedmux_server.core.limits.rings import EVICTED_AT_ONCE, Rings
from feedmux_server.core.positions.resume_token import ResumeToken
from tests.sim.events import BEGIN, Event, event, event_token
from tests.tables import over

START = ResumeToken.high_water_mark(BEGIN)


class Filler:
    """A ring, and all events that were ever appended to it."""

    def __init__(self, events_max: int = 10**6, bytes_max: int = 10**9) -> None:
        self.ring = ReplayBuffer(START, RingLimits(events_max, bytes_max))
        self.events: list[Event] = []

    def append(self, count: int, padding: int = 0) -> None:
        base = len(self.events)
        run = [event(n, event_token(BEGIN + 10 * n + 5, key=n), padding) for n in range(base, base + count)]
        data = b"".join(each.data for each in run)
        (chunk,) = cut_batch(data, self.ring.newest, None, 0.0, bytes_max=10**9)
        first_seq = self.ring.next_seq
        self.ring.append(chunk)
        self.ring.trim(first_seq)
        self.events.extend(run)

    def held(self) -> list[ResumeToken]:
        ring = self.ring
        return [ring[seq].token(i) for seq in range(ring.first_seq, ring.next_seq) for i in range(ring[seq].count)]


@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(0, 300)), min_size=1, max_size=15),
    st.integers(1, 20),
    st.integers(500, 8000),
)
@settings(max_examples=60, derandomize=True)
def test_bounds_and_counts(batches: list[tuple[int, int]], events_max: int, bytes_max: int) -> None:
    filler = Filler(events_max, bytes_max)
    ring = filler.ring
    for count, padding in batches:
        filler.append(count, padding)
        chunks = [ring[seq] for seq in range(ring.first_seq, ring.next_seq)]
        assert ring.events == sum(chunk.count for chunk in chunks)
        assert ring.bytes == sum(chunk.size_bytes for chunk in chunks)
        assert len(ring) == len(chunks) >= 1
        assert len(chunks) == 1 or (ring.events <= events_max and ring.bytes <= bytes_max)
        held = filler.held()
        assert held == [each.token for each in filler.events[-len(held) :]]
        dropped = len(filler.events) - len(held)
        assert ring.oldest == (filler.events[dropped - 1].token if dropped else START)
        assert ring.newest == filler.events[-1].token
        for seq, chunk in zip(range(ring.first_seq, ring.next_seq), chunks, strict=True):
            rest = chunks[seq - ring.first_seq :]
            assert ring.bytes_from(seq) == sum(each.size_bytes for each in rest)
            assert ring.events_behind(seq, 1) == sum(each.count for each in rest) - 1
            assert chunk.cum_events == ring.cum_events - sum(each.count for each in rest)


def test_what_is_covered() -> None:
    filler = Filler()
    filler.append(2)
    filler.append(2)
    ring = filler.ring
    ring.drop_oldest()
    assert not ring.covers(filler.events[0].token)
    assert ring.covers(filler.events[1].token)
    assert ring.covers(ring.newest)
    later = ResumeToken.high_water_mark(BEGIN + 500)
    assert not ring.covers(later)
    ring.advance(later)
    assert ring.covers(later)
    assert ring.locate(later) == (ring.next_seq, 0)
    ring.advance(filler.events[0].token)
    assert ring.newest == later


def test_a_place_behind_the_last_event_of_a_chunk_that_ends_later() -> None:
    ring = ReplayBuffer(START, RingLimits())
    only = event(0, event_token(BEGIN + 1))
    (chunk,) = cut_batch(only.data, START, ResumeToken.high_water_mark(BEGIN + 9), 0.0, bytes_max=10**6)
    ring.append(chunk)
    assert ring.locate(only.token) == (0, 1)
    assert ring.events_behind(0, 1) == 0


def test_an_empty_ring_takes_another_start() -> None:
    ring = ReplayBuffer(START, RingLimits())
    earlier = ResumeToken.high_water_mark(BEGIN - 1)
    ring.restart_at(earlier)
    assert (ring.oldest, ring.newest) == (earlier, earlier)
    filler = Filler()
    filler.append(1)
    with pytest.raises(RuntimeError):
        filler.ring.restart_at(earlier)


def test_renderings_are_counted_and_set_free() -> None:
    filler = Filler()
    filler.append(1)
    filler.append(1)
    ring = filler.ring
    before = ring.bytes
    rendition = Rendition(b"12345", [0, 5])
    ring[0].rendered["text"] = rendition
    ring.grew(5 + 2 * 8)
    assert ring.bytes == before + 21
    size = ring[0].size_bytes
    assert ring.drop_oldest() == size
    assert ring.bytes == ring[1].size_bytes
    ring.drop_oldest()
    assert (ring.bytes, ring.events, len(ring)) == (0, 0, 0)
    assert ring.oldest == ring.newest


def test_the_newer_half() -> None:
    filler = Filler(events_max=8)
    for _ in range(8):
        filler.append(1)
    ring = filler.ring
    tokens = [each.token for each in filler.events]
    assert [ring.in_newer_half(token) for token in tokens] == [False] * 3 + [True] * 5
    assert not ring.in_newer_half(ResumeToken.high_water_mark(BEGIN + 10**6))
    assert not ring.in_newer_half(ResumeToken.high_water_mark(BEGIN - 1))


def test_the_newer_half_in_bytes() -> None:
    sizes = Filler()
    sizes.append(1, 100)
    filler = Filler(bytes_max=4 * sizes.ring.bytes + 100)
    for _ in range(4):
        filler.append(1, 100)
    assert [filler.ring.in_newer_half(each.token) for each in filler.events] == [False, True, True, True]


def test_a_reader_that_fell_out_is_behind_by_the_whole_ring() -> None:
    filler = Filler()
    filler.append(2)
    filler.append(3)
    filler.ring.drop_oldest()
    assert filler.ring.events_behind(0, 1) == 3


@over(("count", "padding"), [(10, 0), (3_000, 0), (20, 1_000_000)])
def test_the_chunks_of_a_closed_ring_leave_in_parts(count: int, padding: int) -> None:
    """A ring may have 50,000 chunks, and a tenant may end many feeds at once. What has not left yet still counts."""
    rings, steps = Rings(), list[Callable[[], bool]]()
    rings.in_parts = steps.append
    filler = Filler()
    ring = filler.ring = ReplayBuffer(START, RingLimits(10**6, 10**9), rings)
    for _ in range(count):
        filler.append(1, padding)
    chunks = [ring[seq] for seq in range(count)]
    ring.close()
    assert (len(ring), ring.closed) == (0, True)
    left = [count]
    (step,) = steps
    more = True
    while more:
        assert ring.bytes == rings.bytes == sum(chunk.size_bytes for chunk in chunks if not chunk.evicted)
        more = step()
        left.append(sum(not chunk.evicted for chunk in chunks))
    assert (left[-1], ring.bytes, rings.bytes) == (0, 0, 0)
    most = 1_000 if padding == 0 else 5
    assert max(before - after for before, after in pairwise(left)) <= most


@over("count", [10, 100, 1_000])
def test_few_chunks_leave_a_full_ring_at_once(count: int) -> None:
    """One event of 15 MB displaces 15,000 chunks with one event each."""
    rings, steps = Rings(), list[Callable[[], bool]]()
    rings.in_parts = lambda step: steps.append(step) if step() else None
    filler = Filler()
    ring = filler.ring = ReplayBuffer(START, RingLimits(count), rings)
    for _ in range(count):
        filler.append(1)
        ring[ring.next_seq - 1].hold(AckTracker(START, 1))
    filler.append(count)
    left = [count + 1, len(ring)]
    while ring.trims:
        assert len(steps) == 1
        assert ring.covers(filler.events[count - left[-1] + 1].token), "what has not left yet is delivered"
        assert ring.bytes == rings.bytes == sum(ring[seq].size_bytes for seq in range(ring.first_seq, ring.next_seq))
        if not steps[0]():
            steps.clear()
        left.append(len(ring))
    assert left[-1] == 1
    assert max(before - after for before, after in pairwise(left)) <= EVICTED_AT_ONCE


@over("count", [10, 100, 1_000])
def test_few_readers_copy_their_events_at_once(count: int) -> None:
    class Reader:
        def __init__(self) -> None:
            self.copies = 0

        def evicting(self) -> None:
            self.copies += 1

        def retaining(self) -> None:
            raise AssertionError

    filler = Filler()
    filler.append(3)
    ring, chunk = filler.ring, filler.ring[0]
    readers = [Reader() for _ in range(count)]
    chunk.readers = dict.fromkeys(readers)
    size, freed, copied = chunk.size_bytes, 0, 0
    while not chunk.evicted:
        assert ring.bytes == size
        assert filler.held() == [each.token for each in filler.events], "the chunk can be read until then"
        freed += ring.drop_oldest()
        before, copied = copied, sum(each.copies for each in readers)
        assert copied - before <= 50
    assert [each.copies for each in readers] == [1] * count
    assert (freed, ring.bytes, len(ring)) == (size, 0, 0)
