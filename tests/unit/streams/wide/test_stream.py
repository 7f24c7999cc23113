"""What a wide stream passes to its attached views, and at which positions a view may attach."""

import asyncio
from typing import Any, cast

import bson
import pytest

from feedmux_server.core.events.chunk import Chunk, document_offsets
from feedmux_server.core.feeds.feed import FeedSpec, Scope
from feedmux_server.core.feeds.simple_filter import EVERYTHING
from feedmux_server.core.feeds.stream_key import stream_key
from feedmux_server.core.positions.resume_token import ResumeToken
from feedmux_server.source.reader import ChangeStreamReader
from feedmux_server.streams.wide.stream import WideStream, WideStreamLimits
from tests.tables import over

T0 = 1_700_000_000 << 32


class Open:
    """A reader that holds its cursor, and that nobody reads."""

    is_open = has_cursor = True


class Viewer:
    def __init__(self, collection: str) -> None:
        self.scope = Scope("main", "d", collection)
        self.simple_filter = EVERYTHING
        self.events: list[int] = []
        self.turned_at: ResumeToken | None = None

    def offer(self, data: bytes, read_time_s: float) -> None:
        self.events += [each["n"] for each in bson.decode_all(data)]

    def boundary(self, place: ResumeToken) -> None:
        self.turned_at = place

    def unavailable(self) -> None:
        raise AssertionError("MongoDB is available")

    def lost(self) -> None:
        raise AssertionError("the stream continues")


def mark(time: int) -> ResumeToken:
    return ResumeToken.high_water_mark(T0 + time)


def token(time: int) -> ResumeToken:
    """The token of the event at `time`: as MongoDB writes it, except for what follows the leading fields."""
    data = b"\x82" + (T0 + time).to_bytes(8) + b"\x2b\x02\x2c\x01\x00\x29\x6e\x04"
    return ResumeToken.from_key_string(data)


def event(time: int, operation: str, collection: str, **more: Any) -> bytes:
    namespace = {"db": "d", "coll": collection}
    _id = bson.decode(token(time).raw)
    return bson.encode({"_id": _id, "operationType": operation, "n": time, "ns": namespace, **more})


def chunk(start: ResumeToken, *events: bytes) -> Chunk:
    data = b"".join(events)
    offsets = document_offsets(data)
    end = ResumeToken.decode(bson.encode(bson.decode(events[-1])["_id"]))
    return Chunk(data, offsets, start, end, 0.0)


@pytest.fixture
def wide() -> WideStream:
    """Events 1 to 4: insert in a, update in b, drop of a, insert in a again."""
    stream = WideStream(
        stream_key(FeedSpec(Scope("main", "d"))), cast(ChangeStreamReader, Open()), mark(0), WideStreamLimits()
    )
    events = (event(1, "insert", "a"), event(2, "update", "b"), event(3, "drop", "a"), event(4, "insert", "a"))
    stream._publish([chunk(mark(0), *events)], None)
    return stream


def test_a_view_gets_what_lies_behind_its_place_and_all_that_comes(wide: WideStream) -> None:
    view = Viewer("b")
    assert wide.attach(view, mark(0))
    wide._publish([chunk(token(4), event(5, "insert", "a"), event(6, "delete", "b"))], None)
    assert view.events == [2, 6]


@pytest.mark.parametrize(
    ("at", "may", "why"),
    [
        (mark(0), False, "the drop comes after it"),
        (token(1), False, "the drop comes after it"),
        (token(3), False, "the invalidate that follows the drop is in no wide stream"),
        (mark(4), True, "according to MongoDB, no event of the feed lies between the drop and this position"),
        (token(4), True, "an insert"),
        (token(2), False, "an event that a feed of another collection cannot have seen, and a drop after it"),
        (token(5), False, "an event that does not exist yet: it may be a drop"),
        (mark(5), True, "a position that is not reached yet"),
        (mark(-1), False, "before the ring"),
    ],
)
def test_where_a_view_may_be_taken_on(wide: WideStream, at: ResumeToken, may: bool, why: str) -> None:
    assert wide.attach(Viewer("a"), at) is may, why


def test_a_view_ahead_of_the_stream_gets_what_lies_behind_its_own_place(wide: WideStream) -> None:
    view = Viewer("b")
    assert wide.attach(view, mark(6))
    wide._publish([chunk(token(4), event(5, "insert", "b"), event(6, "insert", "b"))], None)
    wide._publish([chunk(token(6), event(7, "insert", "b"))], None)
    assert view.events == [6, 7]


def test_at_a_turn_a_view_is_let_go_just_before_it(wide: WideStream) -> None:
    view, other = Viewer("a"), Viewer("b")
    assert wide.attach(view, token(4))
    assert wide.attach(other, mark(4))
    events = (event(5, "insert", "a"), event(6, "rename", "a", to={"db": "d", "coll": "c"}), event(7, "insert", "a"))
    wide._publish([chunk(token(4), *events)], None)
    assert view.events == [5]
    assert view.turned_at == mark(6)
    assert other.turned_at is None
    assert wide.view_count == 1


def test_a_name_that_is_not_utf_8_is_no_views_and_ends_nothing(wide: WideStream) -> None:
    view = Viewer("b")
    assert wide.attach(view, mark(4))
    odd = event(5, "insert", "b€").replace("€".encode(), b"\xff\xfe\xfd")
    wide._publish([chunk(mark(4), odd, event(6, "insert", "b"))], None)
    assert view.events == [6]


def test_progress_is_never_a_neighbours_token(wide: WideStream) -> None:
    assert wide.progress() == mark(4)
    wide._publish([], mark(9))
    assert wide.progress() == mark(9)


@over("count", [10, 100, 1_000])
def test_boundaries_look_at_no_view_of_other_collections(count: int) -> None:
    looked = list[str]()

    class Counted(str):
        __slots__ = ()

        def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
            looked.append(self)
            return super().encode(encoding, errors)

    stream = WideStream(
        stream_key(FeedSpec(Scope("main"))), cast(ChangeStreamReader, Open()), mark(0), WideStreamLimits()
    )
    views = [Viewer(f"c{number}") for number in range(count)]
    for view in views:
        view.scope = Scope("main", Counted("d"), view.scope.collection)
        assert stream.attach(view, mark(0))
    looked.clear()
    stream._publish([chunk(mark(0), *(event(time, "drop", f"c{time}") for time in range(1, 6)))], None)
    assert [view.scope.collection for view in views if view.turned_at is not None] == [f"c{n}" for n in range(1, 6)]
    assert len(looked) <= 20


@over("count", [10, 100, 1_000])
async def test_a_batch_is_read_in_turns_before_it_is_in_the_ring(count: int) -> None:
    wide = WideStream(
        stream_key(FeedSpec(Scope("main", "d"))), cast(ChangeStreamReader, Open()), mark(0), WideStreamLimits()
    )
    view = Viewer("a")
    assert wide.attach(view, mark(0))
    batch, turns = chunk(mark(0), *(event(time, "insert", "a") for time in range(1, count + 1))), 0
    reading = asyncio.create_task(wide._index_in_turns([batch]))
    while not reading.done():
        turns += 1
        await asyncio.sleep(0)
    assert count / 250 <= turns <= count / 250 + 3
    wide._publish([batch], None)
    assert view.events == list(range(1, count + 1))
    assert wide.ring.bytes == batch.size_bytes
