"""A view and its inbox: how much the inbox holds, and that nothing is missing when the inbox has to be dropped."""

import asyncio
from dataclasses import dataclass, field
from typing import cast

import bson
import pytest
from pymongo.errors import AutoReconnect

from feedmux_server.core.events.chunk import Chunk
from feedmux_server.core.feeds.feed import FeedSpec, Scope
from feedmux_server.core.feeds.simple_filter import EVERYTHING
from feedmux_server.core.feeds.stream_key import StreamKey, stream_key
from feedmux_server.core.limits.memory import Memory
from feedmux_server.core.positions.join_point import JoinPoint
from feedmux_server.core.positions.resume_token import ResumeToken
from feedmux_server.source.read_limits import ReadLimits
from feedmux_server.source.read_pace import IDLE_S
from feedmux_server.source.reader import Batch, ChangeStreamReader, Failed
from feedmux_server.streams.wide.stream import WideStream, WideStreamLimits
from feedmux_server.streams.wide.view_reader import ViewReader
from tests.unit.streams.wide.test_stream import Open, chunk, event, mark, token
from tests.virtual_time import in_virtual_time

INBOX_BYTES = 2_000
AWAIT_S = 0.5


@dataclass
class Narrow:
    """The view's own cursor."""

    at: JoinPoint = field(default_factory=lambda: JoinPoint(mark(0)))
    is_open: bool = False
    is_behind: bool = False
    opened_at: list[ResumeToken] = field(default_factory=list)

    @property
    def has_cursor(self) -> bool:
        return self.is_open

    def interrupt(self) -> None: ...

    async def open(self) -> None:
        self.is_open = True
        self.opened_at.append(self.at.place)

    async def read(self) -> Batch:
        return Batch([], None, exhausted=False)

    async def close(self) -> None:
        self.is_open = False

    def resume_from(self, place: ResumeToken) -> None:
        self.at = JoinPoint(place, exact=True)


class Known:
    """The wide streams: only the one that views are to use now."""

    wide: WideStream | None = None

    def enter(self, key: StreamKey) -> None: ...

    def leave(self, key: StreamKey) -> None: ...

    def of(self, name: StreamKey) -> WideStream | None:
        return self.wide


@dataclass
class Place:
    memory: Memory = field(default_factory=lambda: Memory(1 << 30))
    known: Known = field(default_factory=Known)
    narrow: Narrow = field(default_factory=Narrow)
    events: list[int] = field(default_factory=list)
    watched: bool = False

    def __post_init__(self) -> None:
        self.known.wide = self.wide()
        self.view = ViewReader(
            stream_key(FeedSpec(Scope("main", "d", "a"))),
            EVERYTHING,
            cast(ChangeStreamReader, self.narrow),
            ReadLimits(max_await_ms=int(AWAIT_S * 1000)),
            INBOX_BYTES,
            self.known,
            self.memory.rings,
            lambda: self.watched,
        )

    def wide(self) -> WideStream:
        return WideStream(
            stream_key(FeedSpec(Scope("main", "d"))),
            cast(ChangeStreamReader, Open()),
            mark(0),
            WideStreamLimits(),
            memory=self.memory,
        )

    def publish(self, *numbers: int, padding: int = 0, wide: WideStream | None = None) -> None:
        wide = wide or self.known.wide
        assert wide is not None
        for number in numbers:
            wide._publish([large(number, padding)], None)

    async def read(self) -> None:
        batch = await self.view.read()
        for each in batch.chunks:
            assert each.bson is not None
            self.events += [one["n"] for one in bson.decode_all(each.bson.data)]


def large(number: int, padding: int) -> Chunk:
    return chunk(token(number - 1), event(number, "insert", "a", pad="x" * padding))


async def viewing() -> Place:
    """A view that has just been attached to its wide stream."""
    place = Place()
    await place.view.open()
    await place.read()
    assert place.view.view_of is place.known.wide
    assert not place.narrow.is_open
    return place


@pytest.fixture
async def place() -> Place:
    return await viewing()


async def test_what_waits_is_counted_until_it_is_taken(place: Place) -> None:
    before = place.memory.rings.bytes
    place.publish(1, 2, padding=100)
    assert place.known.wide is not None
    in_inbox = place.memory.rings.bytes - before - place.known.wide.ring.bytes
    assert 400 < in_inbox < 1000
    await place.read()
    assert place.events == [1, 2]
    assert place.memory.rings.bytes == before + place.known.wide.ring.bytes


async def test_an_inbox_that_is_full_is_given_up_and_comes_again_from_mongodb(place: Place) -> None:
    place.publish(1, padding=100)
    await place.read()
    place.publish(2, 3, padding=1_200)
    assert place.view.view_of is None
    assert place.known.wide is not None
    assert place.memory.rings.bytes == place.known.wide.ring.bytes
    assert place.known.wide.view_count == 0
    await place.read()
    await place.read()
    assert place.narrow.opened_at == [mark(0), token(1)]
    assert place.events == [1]


async def test_an_inbox_is_given_up_when_the_memory_is_needed(place: Place) -> None:
    place.publish(1, padding=1_000)
    wide = place.known.wide
    assert wide is not None
    wide.ring.drop_oldest()
    place.publish(2, padding=10)
    place.memory.rings.evict(1)
    assert place.view.view_of is None
    assert place.memory.rings.bytes == wide.ring.bytes
    await place.read()
    await place.read()
    assert place.narrow.opened_at == [mark(0), mark(0)]


async def test_no_view_of_a_stream_that_has_more_than_its_inbox_holds(place: Place) -> None:
    place.view._detach()
    place.publish(1, 2, 3, padding=900)
    await place.read()
    wide = place.known.wide
    assert wide is not None
    assert wide.view_count == 0
    assert place.view.view_of is None
    assert place.narrow.is_open
    assert place.memory.rings.bytes == wide.ring.bytes


@in_virtual_time
async def test_an_idle_view_says_how_far_it_is_when_somebody_waits_for_that() -> None:
    loop, place = asyncio.get_running_loop(), await viewing()

    async def took() -> float:
        began_s = loop.time()
        await place.read()
        return loop.time() - began_s

    assert [await took() for _ in range(3)] == pytest.approx([AWAIT_S, IDLE_S, IDLE_S])
    place.watched = True
    assert await took() == pytest.approx(AWAIT_S)
    place.watched = False
    reading = asyncio.create_task(took())
    await asyncio.sleep(1)
    place.view.interrupt()
    assert await reading == pytest.approx(1)
    place.publish(1, padding=10)
    assert [await took() for _ in range(4)] == pytest.approx([0, AWAIT_S, IDLE_S, IDLE_S])
    assert place.events == [1]


async def test_steps_over_to_the_next_wide_stream_or_lets_go_of_both(place: Place) -> None:
    first, second, third = place.known.wide, place.wide(), place.wide()
    assert first is not None
    place.known.wide = second
    await place.read()
    assert (first.view_count, second.view_count) == (0, 1)
    place.publish(1, 2, 3, padding=900, wide=third)
    place.known.wide = third
    await place.read()
    assert (second.view_count, third.view_count) == (0, 0)
    assert place.view.view_of is None
    await place.read()
    assert place.narrow.is_open


@in_virtual_time
async def test_a_read_looks_before_it_waits() -> None:
    loop, place = asyncio.get_running_loop(), await viewing()
    began_s = loop.time()
    place.view.interrupt()
    await place.read()
    assert loop.time() == began_s
    wide = place.known.wide
    assert wide is not None
    wide._upstream.failure, wide.unavailable_since_s = Failed(AutoReconnect(), at_once=False), began_s - 60
    place.view.unavailable()
    with pytest.raises(Failed):
        await place.read()
    assert loop.time() == began_s


async def test_a_view_knows_what_its_wide_stream_has_read(place: Place) -> None:
    wide = place.known.wide
    assert wide is not None
    wide._publish([large(1, 0)], None)
    wide._publish([], None, 7)
    assert (await place.view.read()).complete_time == 7
    place.view.boundary(mark(2))
    assert (await place.view.read()).complete_time == 0
