"""Long tokens: of a token with kilobytes of `_id`, positions contain the beginning and a digest.

A sharded cluster has several events at one cluster time. If their documents' keys begin alike, the digests do not say
which comes first: then nothing may be lost, and little may be repeated.
"""

from itertools import pairwise
from typing import Any

import bson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from feedmux_server.core.delivery.cached_range import CachedRange
from feedmux_server.core.delivery.taken import Delivery, Ended
from feedmux_server.core.events.chunk import Chunk, cut_batch, document_offsets
from feedmux_server.core.positions.join_point import JoinPoint
from feedmux_server.core.positions.position import (
    POSITION_BYTES_MAX,
    Position,
    PositionEncoder,
    decode_position,
    encode_position,
    scope_fingerprint,
)
from feedmux_server.core.positions.position_keys import PositionKeys
from feedmux_server.core.positions.resume_token import WHOLE_BYTES_MAX, Copied, Given, ResumeToken
from feedmux_server.core.positions.stored_order import order_bytes
from tests.sim.events import BEGIN, number
from tests.tables import over
from tests.unit.core.delivery.streams_support import Feed, error, opened

SCOPE, KEY = scope_fingerprint("acme", "rs0:65f0", "shop.orders"), b"streamky"
KEYS = PositionKeys([bytes([1]) * 32])
COLLECTION = "5A1004942584E96D514A63B59E7230E38388D7"
OPERATION = "463C6F7065726174696F6E54797065003C696E736572740046646F63756D656E744B657900"


def key_string(
    key: str, time: int = 0, *, version: int = 1, txn: int = 0, fragment: int | None = None, binary: bool = False
) -> bytes:
    """As MongoDB writes it for a document with a string as its `_id`."""
    value = f"5AFF{len(key):08X}00{key.encode().hex()}" if binary else f"3C{key.encode().hex()}00"
    document_key = f"46{value[:2]}5F696400{value}00"
    identifier = document_key if version == 1 else f"{OPERATION}{document_key}00"
    tail = "" if fragment is None else number(fragment)
    return bytes.fromhex(
        f"82{BEGIN + time:016X}{number(version)}{number(128)}{number(txn)}6E{COLLECTION}{identifier}{tail}04"
    )


def document(data: bytes, type_bits: bytes = b"") -> bytes:
    return bson.encode({"_data": data.hex().upper()} | ({"_typeBits": type_bits} if type_bits else {}))


def token(key: str, time: int = 0, **fields: Any) -> ResumeToken:
    return ResumeToken.decode(document(key_string(key, time, **fields)))


def through_position(place: ResumeToken) -> ResumeToken:
    data = encode_position(Position(SCOPE, KEY, place), KEYS)
    assert len(data) <= POSITION_BYTES_MAX
    return decode_position(data, SCOPE, KEYS).token


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("fragment", [None, 0, 1, 12])
@pytest.mark.parametrize("type_bits", [b"", b"@"])
@pytest.mark.parametrize("size", [5_000, 40_000, 5_000_000])
def test_a_position_has_the_very_event(version: int, fragment: int | None, type_bits: bytes, size: int) -> None:
    data = key_string("x" * size, version=version, fragment=fragment)
    long = ResumeToken.decode(document(data, type_bits))
    assert long.digest
    assert long.may_be_inside_event == (fragment is not None)
    assert len(long.raw) + len(long.key[4]) + len(order_bytes(long)) < 5_000
    back = through_position(long)
    assert back == long
    assert back.is_same(long)
    assert (back.given, back.digest) == (Given.AS_TIME, long.digest)
    assert through_position(back) == long
    other = token("x" * size + "y", version=version, fragment=fragment)
    assert not back.is_same(other)


@over("type_bits", [b"", b"@"])
def test_up_to_the_bound_a_position_has_the_whole_token(type_bits: bytes) -> None:
    """A server of an older version, and MongoDB, can read it."""
    rest = len(key_string("", fragment=None))
    size = (WHOLE_BYTES_MAX - 50) // 2 - rest if type_bits else WHOLE_BYTES_MAX - rest
    raw = document(key_string("x" * size), type_bits)
    whole = ResumeToken.decode(raw)
    assert (whole.raw, whole.digest) == (raw, b"")
    assert through_position(whole).raw == raw
    assert ResumeToken.decode(document(key_string("x" * (size + 51)), type_bits)).digest


def test_a_time_with_many_type_bits_is_no_token() -> None:
    mark = bson.decode(ResumeToken.high_water_mark(BEGIN).raw)
    with pytest.raises(ValueError, match="more than a time"):
        ResumeToken.from_client(bson.encode({**mark, "_typeBits": b"@" * 5_000}))


def test_many_type_bits_make_a_token_long() -> None:
    long = ResumeToken.decode(document(key_string("x"), b"@" * 50_000))
    assert through_position(long) == long
    assert long.is_same(ResumeToken.decode(document(key_string("x"), b"@" * 50_000)))


def test_a_server_of_an_older_version_reads_a_position_after_the_event() -> None:
    """It knows no digest: by its order, the event is passed, and a later document at this time is not."""
    long = through_position(token("x" * 10_000))
    older = ResumeToken.decode(long.raw)
    assert not older.digest
    assert older.key > (*older.key[:4], _tail("x" * 10_000))
    assert older.key < (*older.key[:4], _tail("y" * 10_000))


def _tail(key: str) -> bytes:
    data = key_string(key)
    return data[data.index(bytes.fromhex(COLLECTION)) : -1]


def test_a_client_gives_the_whole_token() -> None:
    raw = document(key_string("x" * 10_000))
    given_token = ResumeToken.from_client(raw)
    assert (given_token.raw, given_token.given) == (raw, Given.BY_CLIENT), "MongoDB is asked for it"
    assert given_token.is_same(token("x" * 10_000))
    kept = given_token.as_summary()
    assert kept == token("x" * 10_000) == through_position(given_token)
    assert kept.given is Given.AS_TIME
    with pytest.raises(ValueError, match="form"):
        ResumeToken.from_client(kept.raw)


@over("version, fragment, type_bits", [(1, None, b""), (2, 0, b""), (2, 200, b"@"), (2, None, b"@" * 9_000)])
def test_an_idle_feed_decodes_the_token_of_its_last_event_once(
    version: int, fragment: int | None, type_bits: bytes
) -> None:
    """MongoDB sends it again with each answer, and it may have megabytes."""
    raw = document(key_string("x" * 10_000, version=version, fragment=fragment), type_bits)
    last = ResumeToken.decode(raw)
    whole, copied = token("y"), Copied(documents=1)
    with pytest.MonkeyPatch.context() as patched:
        patched.delattr(ResumeToken, "decode")
        assert ResumeToken.decode_next(raw, last) == last
        assert ResumeToken.decode_next(whole.raw, whole) is whole
        found = ResumeToken.decode_next(raw, last.while_copying(copied).given_as(Given.BY_CLIENT))
    assert (found, found.given, found.copied) == (last, Given.AS_TIME, None)


@over(
    "other",
    [
        document(key_string("x" * 10_000, BEGIN + 2)),
        document(key_string("x" * 10_000, txn=1)),
        document(key_string("w" + "x" * 10_000)),
        document(key_string("x" * 10_000, version=2, fragment=1)),
        document(key_string("x" * 10_000, version=2, fragment=None)),
        document(key_string("x")),
        ResumeToken.high_water_mark(BEGIN + 2).raw,
    ],
)
def test_a_token_of_another_position_is_decoded(other: bytes) -> None:
    for last in (token("x" * 10_000), token("x" * 10_000, version=2, fragment=0), token("y")):
        found = ResumeToken.decode_next(other, last)
        assert (found, found.given) == (ResumeToken.decode(other), ResumeToken.decode(other).given)


def test_a_given_token_is_not_taken_for_one_that_mongodb_has_sent() -> None:
    raw = document(key_string("x"))
    for last in (ResumeToken.from_client(raw), token("x").while_copying(Copied(documents=1))):
        found = ResumeToken.decode_next(raw, last)
        assert (found.given, found.copied) == (Given.BY_MONGODB, None)


@over("digest", [b"", b"short", "x" * 16, 5])
def test_a_malformed_digest(digest: Any) -> None:
    raw = bson.encode({"_data": key_string("x").hex().upper(), "digest": digest})
    with pytest.raises(ValueError, match="digest"):
        ResumeToken.from_position(raw)


def test_an_idle_feed_encodes_its_position_once() -> None:
    keys = PositionKeys([bytes([1]) * 32])
    encoder = PositionEncoder(keys, SCOPE, KEY)
    long = token("x" * 10_000)
    first = encoder.encode(long)
    assert encoder.encode(long) is first
    keys.replace([bytes([2]) * 32])
    assert encoder.encode(long) != first, "another key signs"


BEGINNINGS = ["x" * 400, "x" * 1_500, "x" * 1_500 + "y", "x" * 8_000, "\x7f" * 8_000]
ENDS = ["", "a", "b", "c" * 9_000]
CHANGES = st.tuples(st.integers(0, 2), st.integers(0, 1), st.sampled_from(BEGINNINGS), st.sampled_from(ENDS))
HISTORIES = st.lists(CHANGES, min_size=2, max_size=10, unique=True).map(
    lambda found: sorted((key_string(begin + end, time, txn=txn) for time, txn, begin, end in found))
)
"""KeyStrings in MongoDB's order."""


@given(HISTORIES)
@settings(max_examples=100)
def test_no_order_is_made_up(history: list[bytes]) -> None:
    tokens = [ResumeToken.decode(document(data)) for data in history]
    for here, one in enumerate(tokens):
        for there, other in enumerate(tokens):
            assert one.is_after(other) <= (here > there)
            assert one.reaches(other) <= (here >= there)
            assert one.is_same(other) == (here == there)
            if one.key[0] != other.key[0] or here == there:
                assert one.reaches(other) == (not other.is_after(one)) == (here >= there)


def fragments(key: str) -> list[ResumeToken]:
    return [token(key, version=2, fragment=n) for n in range(4)]


def test_fragments_are_in_order() -> None:
    parts = fragments("x" * 9_000)
    assert all(later.is_after(earlier) and later.reaches(earlier) for earlier, later in pairwise(parts))
    assert not any(earlier.reaches(later) for earlier, later in pairwise(parts))
    orders = [order_bytes(each) for each in parts]
    assert orders == sorted(orders)


def test_before_and_after_all_fragments() -> None:
    parts, whole = fragments("x" * 9_000), token("x" * 9_000, version=2)
    after = parts[1].after_event()
    assert through_position(after) == after == whole.after_event() == after.after_event()
    assert not after.may_be_inside_event
    assert all(after.is_after(each) for each in (whole, *parts))
    assert parts[1].event_start() == ResumeToken.high_water_mark(BEGIN, 2)
    data = [key_string("x" * 9_000, version=2, fragment=n) for n in range(4)]
    data.append(key_string("y" * 9_000, version=2))
    whole_batch, start = b"".join(map(event, data, range(5))), parts[1].event_start()
    chunk = Chunk(whole_batch, document_offsets(whole_batch), start, token("y" * 9_000, version=2), 0.0)
    assert [chunk.first_after(each) for each in (start, parts[0], parts[2], after)] == [0, 1, 3, 4]


def event(data: bytes, n: int) -> bytes:
    return bson.encode({"_id": {"_data": data.hex().upper()}, "n": n})


def chunks_of(history: list[bytes], cuts: list[int]) -> list[Chunk]:
    found: list[Chunk] = []
    start, lengths = ResumeToken.high_water_mark(BEGIN), iter(cuts)
    at = 0
    while at < len(history):
        stop = min(at + next(lengths, len(history)), len(history))
        mark = ResumeToken.high_water_mark(BEGIN + 100) if stop == len(history) else None
        found += cut_batch(b"".join(event(history[n], n) for n in range(at, stop)), start, mark, 0.0, bytes_max=10**9)
        start, at = found[-1].end, stop
    return found


def numbers(parts: tuple[bytes, ...]) -> list[int]:
    return [each["n"] for each in bson.decode_all(b"".join(parts))]


CUTS = st.lists(st.integers(1, 5), max_size=8)


@given(HISTORIES, CUTS, st.data())
@settings(max_examples=100)
def test_nothing_is_lost_after_any_position(history: list[bytes], cuts: list[int], data: st.DataObject) -> None:
    """In a ring, and by a start at the cluster time."""
    here = data.draw(st.integers(0, len(history) - 1))
    place = through_position(ResumeToken.decode(document(history[here])))
    chunks = chunks_of(history, cuts)
    feed = Feed()
    stream = feed.stream_of(feed.subscriber(JoinPoint(ResumeToken.high_water_mark(BEGIN))))
    opened(stream)
    stream.append(chunks, chunks[-1].end)
    subscriber = feed.subscriber(JoinPoint(place), acks_max=100)
    delivered: list[int] = []
    while isinstance(taken := feed.take(subscriber), Delivery):
        delivered += numbers(taken.parts)
    by_time: list[int] = []
    for chunk in chunks:
        first = chunk.first_after(place) if not by_time else 0
        assert chunk.bson is not None
        by_time += numbers((chunk.bson.cut(first, chunk.count),)) if first < chunk.count else []
    for found in (delivered, by_time):
        assert set(found) >= set(range(here + 1, len(history))), "lost"
        assert found == sorted(set(found))
        repeated = {ResumeToken.decode(document(history[n])).cluster_time for n in found if n <= here}
        assert repeated <= {place.cluster_time}


def test_within_one_run_of_events_nothing_is_repeated() -> None:
    """Of one cluster time, with one beginning: the very event is found."""
    history = sorted(key_string("x" * 9_000 + end) for end in "abcdef")
    [*chunks] = chunks_of(history, [])
    whole = b"".join(chunk.bson.data for chunk in chunks if chunk.bson is not None)
    offsets = [0]
    for chunk in chunks:
        assert chunk.bson is not None
        offsets += [offsets[-1] + end for end in chunk.bson.offsets[1:]]
    run = Chunk(whole, offsets, chunks[0].start, chunks[-1].end, 0.0)
    for here, each in enumerate(history):
        assert run.first_after(through_position(ResumeToken.decode(document(each)))) == here + 1


@example([key_string("x" * 8_000), key_string("x" * 1_500 + "y"), key_string("x" * 1_500 + "yy")], [2], 2)
@given(HISTORIES, CUTS, st.integers(0, 9))
@settings(max_examples=100)
def test_ranges_that_meet_at_a_position(history: list[bytes], cuts: list[int], here: int) -> None:
    here %= len(history)
    place = through_position(ResumeToken.decode(document(history[here])))
    start, end = ResumeToken.high_water_mark(BEGIN), ResumeToken.high_water_mark(BEGIN + 100)
    deliveries = tuple(
        Delivery(1, chunk.count, (chunk.bson.data,), len(chunk.bson.data), len(chunk.bson.data), chunk.end, 0.0)
        for chunk in chunks_of(history, cuts)
        if chunk.bson is not None
    )
    kept = CachedRange(start, end, deliveries)
    first = [n for each in kept.read(start, place, 10**6) for n in numbers(each.parts)]
    second = [n for each in kept.read(place, end, 10**6) for n in numbers(each.parts)]
    assert set(first) | set(second) == set(range(len(history)))
    times = {ResumeToken.decode(document(history[n])).cluster_time for n in set(first) & set(second)}
    assert times <= {place.cluster_time}


def test_after_an_event_with_a_large_token_the_end_of_a_feed_needs_no_credit() -> None:
    chunks = chunks_of([key_string("x" * 5_000)], [])
    assert chunks[0].ends_delivery
    feed, subscriber = Feed.followed(JoinPoint(ResumeToken.high_water_mark(BEGIN)), events=1)
    stream = feed.stream_of(subscriber)
    opened(stream)
    stream.append(chunks, chunks[-1].end)
    assert isinstance(feed.take(subscriber), Delivery)
    assert subscriber.at_head
    assert feed.take(subscriber) is None
    stream.end(error())
    assert isinstance(feed.take(subscriber), Ended)


@pytest.mark.parametrize(
    ("size", "ends"), [(3_000, False), (4_000, False), (4_100, True), (40_000, True), (9_000_000, True)]
)
@pytest.mark.parametrize("moved", [True, False])
def test_a_large_token_is_seen_wherever_the_pipeline_has_put_it(size: int, ends: bool, moved: bool) -> None:
    large, small = ({"_id": {"_data": key_string("x" * each).hex().upper()}} for each in (size, 10))
    beside = {"documentKey": {"_id": {"a": "x" * size}}}
    documents = [beside | each if moved else each | beside for each in (small, large, small)]
    data = b"".join(map(bson.encode, documents))
    chunks = cut_batch(data, ResumeToken.high_water_mark(BEGIN), None, 0.0, bytes_max=10**9)
    assert [(chunk.count, chunk.ends_delivery) for chunk in chunks] == (
        [(2, True), (1, False)] if ends else [(3, False)]
    )


def test_an_evicted_chunk_keeps_no_long_token() -> None:
    class Payer:
        def pays(self, size: int) -> None:
            pass

    places = [token("y"), token("x" * 100_000, 1)]
    data = b"".join(
        bson.encode({"_id": bson.decode(document(key_string(key, time))), "n": 1})
        for key, time in (("y", 0), ("x" * 100_000, 1))
    )
    (chunk,) = cut_batch(data, token("a"), None, 0.0, bytes_max=1 << 20)
    chunk.hold(Payer())
    chunk.drop_bytes()
    assert chunk.size_bytes < 10_000
    assert [chunk.ack_place(index) for index in range(2)] == [each.as_summary() for each in places]
