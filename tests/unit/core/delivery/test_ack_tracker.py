"""Acks: which events are outstanding, which position the acks allow the server to store, and when chunks are
released."""

import random

import pytest

from feedmux_server.core.delivery.ack_tracker import ENTRIES_AT_ONCE, TRACKED_BYTES, AckTracker
from feedmux_server.core.errors import FeedmuxError
from feedmux_server.core.events.chunk import Chunk, cut_batch
from feedmux_server.core.positions.resume_token import ResumeToken
from tests.sim.events import BEGIN, event, event_token, without_reachable_id
from tests.tables import over

START = ResumeToken.high_water_mark(BEGIN)


def chunk_of(first: int, count: int, start: ResumeToken = START) -> Chunk:
    """A chunk whose end is a mark after its last event."""
    data = b"".join(event(n, token(n)).data for n in range(first, first + count))
    end = ResumeToken.high_water_mark(BEGIN + 10 * (first + count))
    (chunk,) = cut_batch(data, start, end, 0.0, bytes_max=10**9)
    return chunk


def token(n: int) -> ResumeToken:
    return event_token(BEGIN + 10 * n + 5, key=n)


def test_a_place_inside_a_split_event_is_never_stored() -> None:
    """The model found this: the heartbeat between two batches stored the position after a first fragment."""
    start = ResumeToken.high_water_mark(BEGIN, 2)
    parts = [event(n, event_token(BEGIN + 1, key=7, fragment=n), part=(n + 1, 3)) for n in range(3)]
    first, rest = (
        cut_batch(b"".join(each.data for each in some), start, None, 0.0, bytes_max=10**6, split=True)[0]
        for some in (parts[:1], parts[1:])
    )
    acks = AckTracker(start, 10)
    acks.record(first, 0, 1)
    assert not acks.ack(1)
    assert not acks.progress(first.end)
    assert acks.place == start
    acks.record(rest, 0, 2)
    assert acks.ack(3)
    assert acks.place == parts[2].token
    assert acks.progress(ResumeToken.high_water_mark(BEGIN + 9, 2))


def test_progress_after_a_split_event_moves_a_session_that_began_inside() -> None:
    acks = AckTracker(event_token(BEGIN + 1, key=7, fragment=1), 10)
    assert not acks.progress(event_token(BEGIN + 1, key=7, fragment=2))
    assert acks.progress(ResumeToken.high_water_mark(BEGIN + 2, 2))


def test_a_release_of_many_chunks_has_parts() -> None:
    paid = list[int]()
    acks, count = AckTracker(START, 10**6, paid.append), 2 * ENTRIES_AT_ONCE + 10
    chunks = [chunk_of(0, 2), chunk_of(2, 2)]
    for number in range(count):
        acks.record(chunks[number % 2], 0, 2)
    paid.clear()
    assert [acks.release() for _ in range(4)] == [True, True, False, False]
    assert paid == [-TRACKED_BYTES * ENTRIES_AT_ONCE] * 2 + [-TRACKED_BYTES * 10]
    assert [chunk.holders for chunk in chunks] == [0, 0]


@over("seed", range(25))
def test_like_a_naive_tracker(seed: int) -> None:
    rng = random.Random(seed)
    acks = AckTracker(START, 10**6)
    naive: list[ResumeToken] = []
    chunks: list[Chunk] = []
    first = 0
    for _ in range(rng.randint(1, 6)):
        chunk = chunk_of(first, rng.randint(1, 5), chunks[-1].end if chunks else START)
        chunks.append(chunk)
        at = rng.randint(0, chunk.count - 1) if not naive else 0
        while at < chunk.count:
            stop = rng.randint(at + 1, chunk.count)
            acks.record(chunk, at, stop)
            naive += [chunk.end if n == chunk.count - 1 else token(first + n) for n in range(at, stop)]
            at = stop
        first += chunk.count
    sequence = 0
    while sequence < len(naive):
        if rng.random() < 0.3:
            rng.choice(chunks).drop_bytes()
        sequence = rng.randint(sequence, len(naive))
        acks.ack(sequence)
        assert acks.place == (naive[sequence - 1] if sequence else START)
        assert acks.outstanding == len(naive) - sequence
    assert [chunk.holders for chunk in chunks] == [0] * len(chunks)


def test_an_ack_over_many_chunks_asks_for_the_newest_place_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0
    ack_place = Chunk.ack_place

    def counting(chunk: Chunk, index: int) -> ResumeToken | None:
        nonlocal asked
        asked += 1
        return ack_place(chunk, index)

    monkeypatch.setattr(Chunk, "ack_place", counting)
    acks, paid = AckTracker(START, 1000, lambda size: paid.append(size)), list[int]()
    chunks = [chunk_of(number, 1) for number in range(200)]
    for chunk in chunks:
        acks.record(chunk, 0, 1)
    paid.clear()
    assert acks.ack(150)
    assert acks.place == chunks[149].end
    assert (asked, len(paid)) == (1, 1)
    assert [chunk.holders for chunk in chunks] == [0] * 150 + [1] * 50


def test_an_ack_that_fails_retains_nothing() -> None:
    """A pipeline has moved the `_id` of an event within a chunk out of reach."""
    paid = list[int]()
    acks = AckTracker(START, 1000, paid.append)
    data = event(1, token(1)).data + without_reachable_id(event(2, token(2)).data) + event(3, token(3)).data
    whole, (odd,) = chunk_of(0, 1), cut_batch(data, token(0), None, 0.0, bytes_max=10**9)
    acks.record(whole, 0, 1)
    acks.record(odd, 0, 3)
    with pytest.raises(FeedmuxError, match="_id"):
        acks.ack(3)
    odd.retain_whole()
    assert not acks.release()
    assert (whole.holders, odd.holders, sum(paid)) == (0, 0, 0)


def test_an_ack_over_many_chunks_has_parts() -> None:
    acks, count = AckTracker(START, 10**6), 2 * ENTRIES_AT_ONCE + 10
    chunks = [chunk_of(0, 2), chunk_of(2, 2)]
    for number in range(count):
        acks.record(chunks[number % 2], 0, 2)
    assert acks.part_of_ack(7) == 7
    assert acks.part_of_ack(2 * count + 1) == 2 * count + 1, "it is rejected as a whole"
    parts = list[int]()
    while not parts or parts[-1] != 2 * count - 1:
        parts.append(acks.part_of_ack(2 * count - 1))
        acks.ack(parts[-1])
    assert parts == [2 * ENTRIES_AT_ONCE, 4 * ENTRIES_AT_ONCE, 2 * count - 1]


def test_after_a_move_back_former_acks_move_nothing_and_later_ones_do() -> None:
    acks = AckTracker(START, 1000)
    acks.record(chunk_of(7, 2), 0, 2)
    assert acks.ack(1)
    assert not acks.release()
    acks.move_back(START)
    assert (acks.place, acks.outstanding) == (START, 0)
    assert not acks.ack(2)
    acks.record(earlier := chunk_of(3, 1), 0, 1)
    assert acks.ack(3)
    assert acks.place == earlier.end
