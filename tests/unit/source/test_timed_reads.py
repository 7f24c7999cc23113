"""How long MongoDB may compute on an event for a pipeline, in addition to what the stages of its policy take."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import bson
import pytest
from pymongo.errors import ExecutionTimeout

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.feeds.feed import FeedSpec, Scope
from feedmux_server.core.feeds.stream_key import stream_key
from feedmux_server.source.cursor import RawBatch, RawChangeStreamCursor
from feedmux_server.source.deployment import Source
from feedmux_server.source.read_limits import ReadLimits
from feedmux_server.source.read_watch import Address, Operation, ReadWatch
from feedmux_server.source.timed_reads import _CAREFUL_READS, TimedReads
from tests.virtual_time import in_virtual_time, sim_loop

STAGES = bson.encode({"pipeline": [{"$set": {"x": 1}}]})
KEY = replace(stream_key(FeedSpec(Scope("main", "db", "a"), pipeline=STAGES)), policy=STAGES)
LIMIT_S = 5.0
LONG_S = 300.0
ROUND_TRIP_S = 0.01
DELIVERED = bson.encode({})


@dataclass(frozen=True, slots=True)
class Event:
    """How long the stages take for it, and how long MongoDB searches before it."""

    policy_s: float = 0.0
    own_s: float = 0.0
    searched_s: float = 0.0
    is_dropped: bool = False
    """By the user's stages."""


DROPPED = Event(is_dropped=True)


class Mongo:
    """Has these events. It yields while it searches, and it notices only between two events that an operation
    was killed."""

    def __init__(self, events: list[Event], *, shows_all: bool = True) -> None:
        """`shows_all`: `$currentOp` has the reads without the user's stages, too."""
        self.events = events
        self.shows_all = shows_all
        self.read_watch = ReadWatch(self)
        self.delivered = 0
        """The number of events up to the last that was delivered."""
        self.waited_s = 0.0
        """The longest wait for a read without the user's stages."""
        self.cursors: list[Cursor] = []

    async def open_cursor(
        self,
        events: int,
        opening: Callable[[bytes], None] | None = None,
        *,
        has_policy: bool = True,
        has_pipeline: bool = True,
    ) -> RawChangeStreamCursor:
        cursor = Cursor(self, events, has_policy, has_pipeline)
        if opening is not None:
            opening(cursor.session)
        return cast(RawChangeStreamCursor, cursor)

    async def operations(self, address: Address | None, sessions: list[bytes]) -> list[Operation]:
        now_s = sim_loop().time()
        return [
            {"opid": number, "active": True, "numYields": min(now_s, each.searches_until_s)}
            | {"lsid": {"id": each.session}, "cursor": {"cursorId": each.id}}
            for number, each in enumerate(self.cursors)
            if now_s < each.works_until_s and each.session in sessions and (each.has_pipeline or self.shows_all)
        ]

    async def kill_operation(self, address: Address | None, operation: Any) -> None:
        pass


class Cursor:
    address = None

    def __init__(self, mongo: Mongo, events: int, has_policy: bool, has_pipeline: bool) -> None:
        mongo.cursors.append(self)
        self.id = len(mongo.cursors)
        self.session = str(self.id).encode()
        self.has_pipeline = has_pipeline
        self.searches_until_s = self.works_until_s = 0.0
        self._mongo, self._has_policy, self._at_once, self._at = mongo, has_policy, events, mongo.delivered

    def ask_for(self, events: int) -> None:
        self._at_once = events

    async def next_batch(self) -> RawBatch:
        mongo, found = self._mongo, 0
        loop = sim_loop()
        began_s = loop.time()
        try:
            await asyncio.sleep(ROUND_TRIP_S)
            while found < self._at_once and self._at < len(mongo.events):
                event = mongo.events[self._at]
                searched_s, policy_s = (event.searched_s, event.policy_s) if self._has_policy else (0.0, 0.0)
                self.searches_until_s = loop.time() + searched_s
                self.works_until_s = self.searches_until_s + policy_s + (event.own_s if self.has_pipeline else 0.0)
                if self.works_until_s > loop.time():
                    await asyncio.sleep(self.works_until_s - loop.time())
                self._at += 1
                found += not (self.has_pipeline and event.is_dropped)
        finally:
            if not self.has_pipeline:
                mongo.waited_s = max(mongo.waited_s, loop.time() - began_s)
        if self.has_pipeline:
            mongo.delivered = self._at
        return RawBatch(DELIVERED * found, None, False)

    async def close(self) -> None:
        pass


class Feed:
    """Reads events as a reader does."""

    def __init__(self, mongo: Mongo, **limits: Any) -> None:
        self._mongo = mongo
        self._reads = TimedReads(cast(Source, mongo), KEY, ReadLimits(**limits), mongo.open_cursor)
        self._cursor: RawChangeStreamCursor | None = None

    @property
    def allowed_s(self) -> float:
        assert self._reads._read is not None
        return self._reads._read.event_time_s

    async def take(self, events: int) -> None:
        """Raises FeedmuxError if the feed ends before so many events."""
        await asyncio.sleep(1.0)  # no read begins at 0
        watch = asyncio.create_task(self._mongo.read_watch.run())
        try:
            while events > 0:
                try:
                    if self._cursor is None:
                        self._cursor = await self._reads.open()
                    self._reads.count()
                    batch = await self._reads.next_batch(self._cursor)
                except ExecutionTimeout:
                    self._cursor = None
                else:
                    events -= len(batch.data) // len(DELIVERED)
        finally:
            assert not watch.done()
            watch.cancel()


@pytest.mark.parametrize(
    ("before", "more_s"),
    [
        pytest.param([replace(DROPPED, policy_s=0.5)] * 30, 0.1, id="slow events"),
        # By what the watch sees, the event may have begun and ended up to a second before and after a check.
        pytest.param([*[DROPPED] * 25, replace(DROPPED, policy_s=0.5, searched_s=300.0)], 2.2, id="a search"),
    ],
)
@in_virtual_time
async def test_a_pipeline_gets_what_the_policy_takes_for_one_event(before: list[Event], more_s: float) -> None:
    """Not for several, nor what MongoDB searches before it."""
    feed = Feed(Mongo([*before, Event(own_s=LONG_S)]), event_time_s=1.0)
    with pytest.raises(FeedmuxError) as ended:
        await feed.take(1)
    assert ended.value.reason is ErrorReason.PIPELINE_FAILED
    assert 2.0 <= feed.allowed_s <= 2.0 + 2 * more_s


@pytest.mark.parametrize(
    ("policy_s", "searched_s"), [(0.4, 0.0), (2.0, 0.0), (40.0, 0.0), (300.0, 0.0), (2.0, 100.0), (40.0, 100.0)]
)
@in_virtual_time
async def test_a_policy_that_is_slow_ends_no_feed(policy_s: float, searched_s: float) -> None:
    """Also where the event follows thousands that the pipeline drops."""
    slow = Event(policy_s, 0.9 * LIMIT_S, searched_s)
    mongo = Mongo([*[DROPPED] * 5_000, *[replace(DROPPED, policy_s=0.05)] * 25, slow])
    await Feed(mongo, event_time_s=LIMIT_S).take(1)


@pytest.mark.parametrize("shows_all", [True, False])
@in_virtual_time
async def test_a_read_of_the_policy_is_stopped_when_it_shows_enough(shows_all: bool) -> None:
    mongo = Mongo([Event(policy_s=LONG_S)], shows_all=shows_all)
    await Feed(mongo).take(1)
    assert 0 < mongo.waited_s < LONG_S


@pytest.mark.parametrize("batch_events", [1, 100])
@in_virtual_time
async def test_later_events_get_no_more_than_the_limit(batch_events: int) -> None:
    feed = Feed(
        Mongo([Event(4.0, 4.0), *[Event()] * 2 * _CAREFUL_READS]), event_time_s=LIMIT_S, batch_events=batch_events
    )
    await feed.take(1)
    assert feed.allowed_s > LIMIT_S
    await feed.take(_CAREFUL_READS)
    assert feed.allowed_s == LIMIT_S
