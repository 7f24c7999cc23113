"""Ordinals, acks and repeats, without a network."""

import random
import tracemalloc

import bson
import pytest
from bson import json_util
from bson.codec_options import CodecOptions

from feedmux.batches import Batch, BsonBatch, JsonBatch
from feedmux.delivery_tracker import DeliveryTracker
from feedmux.positions import FeedPosition, token_time
from tests.tables import over
from tests.unit.client.scripted_server import event, feed_position, token


def at(number: int) -> FeedPosition:
    made = feed_position(number)
    return FeedPosition(made["position"], made["resume_token"], (1000 + number, 1))


def events(*numbers: int) -> Batch:
    data = b"".join(event(number) for number in numbers)
    return BsonBatch(memoryview(data), len(numbers), at(numbers[-1]), 0, CodecOptions())


def numbers(batches: list[Batch]) -> list[int]:
    return [document["n"] for batch in batches for document in batch.documents]


@pytest.fixture(autouse=True, params=[1 << 40, 0], ids=["whole", "reduced"])
def whole_bytes_max(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything holds for batches that are retained whole and for those of which only the tokens are."""
    monkeypatch.setitem(KEEP, "whole_bytes_max", request.param)


KEEP = {"whole_bytes_max": 0}


def begun(durable: bool = True, whole_bytes_max: int | None = None) -> DeliveryTracker:
    tracker = DeliveryTracker(durable, KEEP["whole_bytes_max"] if whole_bytes_max is None else whole_bytes_max)
    tracker.begin(at(0), 0)
    return tracker


def test_progress_among_repeats_does_not_move_the_position() -> None:
    tracker = begun()
    tracker.arrive(1, events(1, 2, 3))
    tracker.begin(at(0), 0)
    tracker.arrive(1, events(1))
    tracker.progress(at(1))
    assert tracker.latest == at(3)


def test_time_of_a_token_is_none_for_what_is_not_understood() -> None:
    assert token_time(token(5)) == (1005, 1)
    assert token_time({"_data": "99"}) is None
    assert token_time({"_data": 7}) is None
    assert token_time(b"rubbish") is None


@over("seed", range(200))
def test_random_reconnects_give_every_event_once_in_order(seed: int) -> None:
    """The server begins after the event that was acked when the stream was asked for, as far as its last one had come:
    there could have been new events among what it had not repeated."""
    rng = random.Random(seed)
    tracker = begun()
    seen: list[int] = []
    acked = begin = 0
    while len(seen) < 60:
        sequence = 1
        for _ in range(rng.randint(0, 5)):
            first = begin + sequence
            chunk = range(first, first + rng.randint(1, 4))
            for fresh in tracker.arrive(sequence, events(*chunk)):
                assert fresh.first_sequence == len(seen) + 1
                seen += numbers([fresh])
            sequence += len(chunk)
            if rng.random() < 0.5:
                acked = rng.randint(acked, len(seen))
            # Sequence s of this stream is event begin + s: everything acked is covered, and nothing else.
            assert begin + tracker.acked_sequence(acked) == min(max(acked, begin), begin + sequence - 1)
        known = acked
        where = tracker.acked_position(known)
        came_to = begin + sequence - 1
        begin = int(where.position[1:]) if where.position else where.time[0] - 1000
        assert begin == min(known, came_to)
        acked = rng.randint(acked, len(seen))  # Acked between asking and Opened.
        tracker.begin(at(begin), known)
    assert seen == list(range(1, len(seen) + 1))


def test_where_a_token_is_missing_the_last_known_position_counts() -> None:
    tracker = begun()
    tracker.arrive(1, events(1, 2))
    stripped = bson.encode({"n": 3}) + event(4)
    first = BsonBatch(memoryview(stripped), 2, at(4), 0, CodecOptions()).part(0, 1)
    tracker.arrive(3, first)
    tracker.arrive(4, events(5))
    assert tracker.acked_position(3) == at(2), "nothing is made up"


def test_the_position_of_a_token_has_its_time() -> None:
    tracker = begun()
    tracker.arrive(1, events(1, 2).part(0, 1))
    tracker.arrive(2, events(2))
    acked = tracker.acked_position(1)
    assert (acked.resume_token, acked.time) == (token(1), (1001, 1))


def test_progress_past_all_repeats_ends_the_wait_for_them() -> None:
    tracker = begun()
    tracker.arrive(1, events(1, 2, 3))
    tracker.begin(at(5), 1)
    tracker.progress(at(3))
    assert (tracker.expects_repeats, tracker.latest) == (True, at(3))
    tracker.progress(at(5))
    assert (tracker.expects_repeats, tracker.latest) == (False, at(5)), (
        "the stored position was moved forward meanwhile"
    )


def test_what_is_unacked_takes_no_more_memory_than_its_tokens_and_a_bound() -> None:
    tracker = begun(whole_bytes_max=3 * 100_000)
    tracemalloc.start()
    try:
        for number in range(1, 201):
            data = event(number, pad=100_000)
            tracker.arrive(number, BsonBatch(memoryview(data), 1, at(number), 0, CodecOptions()))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 5 * 100_000
    tracker.begin(at(7), 7)
    (fresh,) = tracker.arrive(1, events(*range(8, 203)))
    assert numbers([fresh]) == [201, 202]


def test_what_was_acked_makes_room_for_whole_batches() -> None:
    size = events(1).size_bytes
    tracker = begun(whole_bytes_max=2 * size)
    for number in range(1, 101):
        tracker.arrive(number, events(number))
        if number % 5 == 0:
            tracker.acked_sequence(number)
        assert tracker._whole_bytes <= 2 * size
        assert tracker._whole_bytes == size * min(2, number % 5)
        assert len(tracker._whole) <= 2
    for number in range(101, 104):
        tracker.arrive(number, events(number), number - 1)
    assert tracker._whole_bytes == size
    tracker.forget()
    assert tracker._whole_bytes == 0


@over("seed", range(200))
def test_random_reconnects_under_a_growing_filter_lose_nothing(seed: int) -> None:
    """Whatever was received and is not acked comes again when the next process begins where this one would."""
    rng = random.Random(seed)
    tracker = begun()
    shown = sorted(rng.sample(range(1, 80), 20))
    received: list[int] = []
    acked = begin = 0
    for _ in range(12):
        shown = sorted({*shown, *rng.sample(range(1, 80), 5)})
        coming = [number for number in shown if number > begin][: rng.randint(0, 30)]
        sequence = 1
        while coming:
            count = rng.randint(1, 4)
            chunk, coming = coming[:count], coming[count:]
            for fresh in tracker.arrive(sequence, events(*chunk)):
                assert fresh.first_sequence == len(received) + 1
                received += numbers([fresh])
            sequence += len(chunk)
            if rng.random() < 0.5:
                acked = rng.randint(acked, len(received))
                tracker.acked_sequence(acked)
        assert len(set(received)) == len(received), "nothing is handed out twice"
        where = tracker.acked_position(acked)
        begin = int(where.position[1:]) if where.position else where.time[0] - 1000
        assert all(number > begin for number in received[acked:]), "what is not acked comes again"
        tracker.begin(at(begin), acked)


def test_an_event_that_cannot_be_read_ends_nothing() -> None:
    """Its `_id` is not the first field, so that the search for it meets a value of no known type before."""
    inner = bson.encode({"event": {"text": "abc", "_id": token(2)}})[4 + len(b"\x03event\0") : -1]
    broken = inner.replace(b"\x02text\0", b"\x99text\0")
    texts = ('{"_id": ' + json_util.dumps(token(1)) + "}", "no JSON")
    for batch in (
        BsonBatch(memoryview(event(1) + broken), 2, at(2), 0, CodecOptions()),
        JsonBatch(texts, at(2), 0, CodecOptions()),
    ):
        tracker = begun()
        tracker.arrive(1, batch)
        tracker.begin(at(0), 0)
        again = batch.part(0, 2)
        fresh = tracker.arrive(1, again)
        # It cannot be recognised, and comes again.
        assert [len(each) for each in fresh] == [1]
        assert tracker.acked_position(1).resume_token == token(1)
