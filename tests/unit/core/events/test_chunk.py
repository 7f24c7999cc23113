"""Cut batches into chunks, and find positions in chunks."""

from itertools import pairwise
from typing import Any

import bson
import pytest
from bson.datetime_ms import DatetimeMS
from bson.int64 import Int64
from hypothesis import given, settings
from hypothesis import strategies as st

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.events.chunk import (
    CHUNK_OVERHEAD_BYTES,
    Chunk,
    Rendition,
    cut_batch,
    document_offsets,
    event_id,
    read_token,
)
from feedmux_server.core.positions.resume_token import ResumeToken
from tests.sim.events import BEGIN, Event, event, event_token, hex_of
from tests.tables import over

START = ResumeToken.high_water_mark(BEGIN)


class Payer:
    """A holder that pays for a chunk."""

    def __init__(self) -> None:
        self.paid = 0

    def pays(self, size: int) -> None:
        self.paid += size


def events(count: int, padding: int = 0) -> list[Event]:
    return [event(n, event_token(BEGIN + n, key=n), padding) for n in range(count)]


def joined(run: list[Event]) -> bytes:
    return b"".join(each.data for each in run)


def chunk_of(run: list[Event], *, split: bool = False) -> Chunk:
    (chunk,) = cut_batch(joined(run), START, None, 0.0, bytes_max=10**9, split=split)
    return chunk


def test_offsets_are_where_documents_begin() -> None:
    documents = [bson.encode({"n": n, "x": "y" * n}) for n in range(4)]
    offsets = list(document_offsets(b"".join(documents)))
    assert [end - begin for begin, end in pairwise(offsets)] == [len(document) for document in documents]
    assert list(document_offsets(b"")) == [0]


@over(
    "data", [b"\x05\0\0", b"\x04\0\0\0\0", b"\0\0\0\0\0\0\0\0", b"\xff\xff\xff\xff\0", b"\x06\0\0\0\0", b"\5\0\0\0\0x"]
)
def test_lengths_that_do_not_add_up(data: bytes) -> None:
    with pytest.raises(ValueError, match="do not add up"):
        document_offsets(data)


UNREADABLE: dict[str, Any] = {
    "date": DatetimeMS(10**15),
    "array": [{}] * 80_000,
    "nested": {"_id": {"_data": "00"}},
    "text": "\u00e9" * 9,
}
"""Values that Python has no type for, or that take long to decode."""


def moved(token: ResumeToken, before: dict[str, Any], after: dict[str, Any] | None = None) -> bytes:
    """An event whose pipeline has moved `_id`, and with text that is not UTF-8."""
    fields = b"".join(
        bson.encode(part)[4:-1] for part in (before, {"_id": {"_data": hex_of(token)}}, after or {})
    ).replace("\u00e9".encode(), b"\xff\xff")
    return (len(fields) + 5).to_bytes(4, "little") + fields + b"\0"


def test_the_token_need_not_be_the_first_field() -> None:
    token = event_token(BEGIN)
    document = moved(token, {"n": 1, **UNREADABLE}, {"z": 2})
    assert event_id(b"before" + document, 6) == token.raw
    assert event_id(moved(token, {str(n): None for n in range(255)}), 0) == token.raw


@over("document", [{"n": 1}, {"_id": 5, "n": 1}, {str(n): None for n in range(256)} | {"_id": {"_data": "00"}}])
def test_an_event_without_its_token_or_with_too_much_before_it(document: dict[str, object]) -> None:
    # The encoder would put `_id` first.
    fields = b"".join(bson.encode({name: value})[4:-1] for name, value in document.items())
    with pytest.raises(FeedmuxError) as caught:
        event_id((len(fields) + 5).to_bytes(4, "little") + fields + b"\0", 0)
    assert caught.value.reason is ErrorReason.RESUME_TOKEN_MODIFIED


def test_an_unknown_token_layout_is_an_error_to_act_on() -> None:
    with pytest.raises(FeedmuxError) as caught:
        read_token(bson.encode({"_data": "00"}))
    assert caught.value.reason is ErrorReason.SOURCE_UNSUITABLE


@given(st.lists(st.integers(1, 9), min_size=1, max_size=20), st.data())
@settings(max_examples=40, derandomize=True)
def test_stop_within(sizes: list[int], data: st.DataObject) -> None:
    offsets = [0]
    for size in sizes:
        offsets.append(offsets[-1] + size)
    rendition = Rendition(bytes(offsets[-1]), offsets)
    first = data.draw(st.integers(0, len(sizes) - 1))
    room = data.draw(st.integers(1, offsets[-1] + 2))
    stop = rendition.stop_within(first, room)
    assert first <= stop <= len(sizes)
    assert offsets[stop] - offsets[first] <= room
    assert stop == len(sizes) or offsets[stop + 1] - offsets[first] > room
    framed = Rendition(rendition.data, [5 * at + offset for at, offset in enumerate(offsets)], offsets)
    for each in (rendition, framed):
        over = each.stop_with_credit(first, room)
        assert first < over <= len(sizes)
        assert offsets[over - 1] - offsets[first] < room, "only the last event may overdraw"
        assert over == len(sizes) or offsets[over] - offsets[first] >= room


def test_a_whole_view_is_not_copied() -> None:
    rendition = chunk_of(events(3)).bson
    assert rendition is not None
    assert rendition.cut(0, 3) is rendition.data
    assert bson.decode(rendition.cut(1, 2))["n"] == 1


@given(st.lists(st.integers(0, 400), min_size=1, max_size=30), st.integers(1, 3000), st.booleans())
@settings(max_examples=40, derandomize=True)
def test_a_batch_is_cut_at_event_boundaries(paddings: list[int], bytes_max: int, marked: bool) -> None:
    run = [event(n, event_token(BEGIN + n, key=n), padding) for n, padding in enumerate(paddings)]
    mark = ResumeToken.high_water_mark(BEGIN + 1000) if marked else None
    chunks = cut_batch(joined(run), START, mark, 1.5, bytes_max=bytes_max)
    assert b"".join(chunk.bson.data for chunk in chunks if chunk.bson) == joined(run)
    place, n = START, 0
    for chunk in chunks:
        assert chunk.bson is not None
        assert chunk.count == len(chunk.bson.offsets) - 1 >= 1
        assert chunk.count == 1 or len(chunk.bson.data) <= bytes_max
        assert chunk.start == place
        for index in range(chunk.count):
            assert chunk.token(index) == run[n].token
            n += 1
        place = chunk.end
    assert place == (mark or run[-1].token)
    assert [chunk.end for chunk in chunks[:-1]] == [chunk.token(chunk.count - 1) for chunk in chunks[:-1]]


def test_an_empty_batch_has_no_chunks() -> None:
    assert cut_batch(b"", START, None, 0.0, bytes_max=10) == []


def test_a_mark_before_the_last_event_moves_no_place_back() -> None:
    """As mongos 9.0.0 sends (SERVER-135099): with the mark as its end, the stream would repeat the last events."""
    run = events(3)
    (chunk,) = cut_batch(joined(run), START, ResumeToken.high_water_mark(BEGIN + 1), 0.0, bytes_max=10**6)
    assert chunk.end == event_token(BEGIN + 2, key=2)


def fragments(n: int, count: int) -> list[Event]:
    return [event(n + i, event_token(BEGIN + n, key=n, fragment=i), part=(i + 1, count)) for i in range(count)]


@over("dropped", [False, True])
def test_no_ack_place_inside_a_split_event(dropped: bool) -> None:
    run = [event(0, event_token(BEGIN, fragment=0)), *fragments(1, 3), *fragments(4, 2)[:1]]
    chunk = chunk_of(run, split=True)
    if dropped:
        chunk.hold(Payer())
        chunk.drop_bytes()
    assert [chunk.ack_place(index) for index in range(5)] == [run[0].token, None, None, run[3].token, None]


@over("whole", [False, True])
def test_an_evicted_chunk_is_paid_for_once_until_nobody_holds_it(whole: bool) -> None:
    run = events(30, padding=200)
    chunk, payers = chunk_of(run), [Payer(), Payer(), Payer()]
    for payer in payers:
        chunk.hold(payer)
    chunk.hold(payers[0])
    assert chunk.held_bytes == 0
    in_ring = chunk.size_bytes
    chunk.rendered["text"] = Rendition(bytes(1000), [0, *[1000] * 30])
    if whole:
        chunk.retain_whole()
        assert chunk.held_bytes == in_ring
    else:
        chunk.drop_bytes()
        tokens = sum(len(each.token.raw) for each in run)
        assert tokens < chunk.held_bytes < tokens + 8 * 31 + CHUNK_OVERHEAD_BYTES + 1
    for holder in (0, 1, 2, 0):
        assert sum(payer.paid for payer in payers) == chunk.held_bytes == chunk.size_bytes
        assert [chunk.ack_place(index) for index in range(30)] == [each.token for each in run]
        chunk.let_go(payers[holder])
    assert [payer.paid for payer in payers] == [0, 0, 0]
    assert (chunk.held_bytes, chunk.bson, chunk.size_bytes) == (0, None, CHUNK_OVERHEAD_BYTES)


def test_eviction_reads_no_event_whose_token_was_moved() -> None:
    """An eviction runs in another tenant's task: it must neither fail nor search."""
    tokens = [event_token(BEGIN + n, key=n) for n in range(3)]
    without = bson.encode({"n": 1})
    data = moved(tokens[0], UNREADABLE) + without + moved(tokens[2], UNREADABLE)
    (chunk,) = cut_batch(data, START, None, 0.0, bytes_max=10**9)
    payer = Payer()
    chunk.hold(payer)
    size = chunk.size_bytes
    chunk.drop_bytes()
    assert chunk.evicted
    assert payer.paid == chunk.held_bytes == size
    assert [chunk.ack_place(index) for index in (0, 2)] == [tokens[0], tokens[2]]
    with pytest.raises(FeedmuxError):
        chunk.ack_place(1)
    chunk.let_go(payer)
    assert (payer.paid, chunk.bson) == (0, None)


IN_TRANSACTION: dict[str, Any] = {"txnNumber": Int64(1), "lsid": {"id": bytes(16), "uid": bytes(32)}}
"""What MongoDB writes before the `_id` of an event in a transaction."""


@over("before", [{}, IN_TRANSACTION])
def test_eviction_keeps_the_tokens_alone_as_mongodb_writes_them(before: dict[str, Any]) -> None:
    tokens = [event_token(BEGIN, n) for n in range(9)]
    data = b"".join(moved(each, before, {"pad": bytes(1000)}) for each in tokens)
    (chunk,) = cut_batch(data, START, None, 0.0, bytes_max=10**9)
    chunk.hold(Payer())
    chunk.drop_bytes()
    assert chunk.bson is None
    assert [chunk.ack_place(index) for index in range(9)] == tokens


@over("before", [{}, IN_TRANSACTION])
def test_a_document_that_looks_like_a_large_token_ends_no_chunk(before: dict[str, Any]) -> None:
    event = moved(event_token(BEGIN), before, {"fullDocument": {"_id": {"_data": "00" * 9_000}}})
    chunks = cut_batch(event + event, START, None, 0.0, bytes_max=10**9)
    assert [(each.count, each.ends_delivery) for each in chunks] == [(2, False)]


@over("value", [b"\x03_id\x00\xff\xff\xff\x00\x02_data\x00", {"_id": {"_data": "00" * 9_000}}, "x" * 9_000])
def test_no_value_looks_like_a_large_token_if_the_pipeline_has_moved_the_id(value: Any) -> None:
    """A search for its bytes takes 20 ms for a megabyte of such values."""
    event = moved(event_token(BEGIN), {"fullDocument": value, "pad": bytes(9_000)})
    chunks = cut_batch(event + event, START, None, 0.0, bytes_max=10**9)
    assert [(each.count, each.ends_delivery) for each in chunks] == [(2, False)]


@over("changed", [{"txnNumber": 1, "lsid": {}}, {"txnNumber": Int64(1)}, {"txnNumber": Int64(1), "lsid": {}, "n": 1}])
def test_fields_that_only_look_like_those_of_a_transaction(changed: dict[str, Any]) -> None:
    token = event_token(BEGIN)
    assert event_id(moved(token, changed, {"n": 2}), 0) == token.raw


@over(
    "second",
    [{"splitEvent": "text"}, {"splitEvent": {"a": [{}] * 9}}, {"splitEvent": {}}, {"other": 1, "splitEvent": 1}, {}],
)
def test_fields_that_only_look_like_those_of_a_fragment(second: dict[str, Any]) -> None:
    token = event_token(BEGIN, fragment=0)
    document = bson.encode({"_id": {"_data": hex_of(token)}, **second})
    (chunk,) = cut_batch(document, START, None, 0.0, bytes_max=10**9, split=True)
    assert chunk.ack_place(0) == token


def test_a_whole_event_that_a_pipeline_calls_a_fragment() -> None:
    """The token says that it is none, and no pipeline changes the token."""
    run = [event(n, event_token(BEGIN + n, key=n), part=(1, 2)) for n in range(3)]
    chunk = chunk_of(run, split=True)
    assert [chunk.ack_place(index) for index in range(3)] == [each.token for each in run]
    assert all(chunk.ends_event(index) for index in range(3))
    chunk.hold(Payer())
    chunk.drop_bytes()
    assert [chunk.ack_place(index) for index in range(3)] == [each.token for each in run]


def test_without_first() -> None:
    run = events(4)
    rest = chunk_of(run).without_first(2, run[1].token)
    assert rest.count == 2
    assert rest.start == run[1].token
    assert [rest.token(index) for index in range(2)] == [run[2].token, run[3].token]
    assert rest.bson is not None
    assert rest.bson.data == joined(run[2:])
