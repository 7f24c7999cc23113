"""What one reader of a copy gives out, and what it does when MongoDB fails. The documents are given here;
tests/integration/test_snapshot.py has real ones, and tests/sim/copiers.py those of a model."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from typing import Any
from unittest.mock import AsyncMock

import bson
import pytest
from pymongo.errors import AutoReconnect, OperationFailure

from feedmux_server.clock import wall_s
from feedmux_server.core.delivery.replay_buffer import ReplayBuffer, RingLimits
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.feeds.feed import FeedSpec, Scope
from feedmux_server.core.feeds.stream_key import StreamKey, stream_key
from feedmux_server.core.positions.join_point import JoinPoint
from feedmux_server.core.positions.resume_token import Copied, ResumeToken
from feedmux_server.source.answers import CollectionInfo
from feedmux_server.source.cursor import RawBatch
from feedmux_server.source.read_limits import ReadLimits
from feedmux_server.source.reader import Batch, Failed
from feedmux_server.streams.snapshot_reader import ESTIMATE_EVERY_S, SnapshotReader
from feedmux_server.telemetry import metrics
from feedmux_server.telemetry.metrics import Metric
from feedmux_server.telemetry.observer import Observer
from tests.sim.mongo import SimCursor, SimMongo, SimSource
from tests.tables import over
from tests.unit.simulated import connected
from tests.virtual_time import in_virtual_time

KEY = stream_key(FeedSpec(Scope("main", "db", "a")))


class Documents:
    """A cursor of the documents that are left, two in each batch."""

    address, id = None, 1

    def __init__(self, source: "CopiedSource", stages: list[Any]) -> None:
        self._source = source
        self._event = next(stage["$replaceWith"] for stage in stages if "$replaceWith" in stage)
        read = bson.decode(bson.encode(stages[0])).get("$match", {"$expr": {"$and": []}})["$expr"]
        limits = {name: value[1]["$literal"] for each in read.get("$and", [read]) for name, value in each.items()}
        after, up_to = limits.get("$gt", -1), limits.get("$lte", 99)
        source.bounds.append((limits.get("$gt"), limits.get("$lte")))
        self._left = [number for number in source.ids if after < number <= up_to and number not in source.dropped]

    def ask_for(self, documents: int) -> None: ...

    async def next_batch(self) -> RawBatch:
        if self._source.fails:
            raise self._source.fails.pop(0)
        given, self._left = self._left[:2], self._left[2:]
        data = [{"_id": {**self._event["_id"], "snapshot": {"_id": number}}} for number in given]
        return RawBatch(b"".join(map(bson.encode, data)), None, not self._left)

    async def close(self) -> None:
        self._source.open_reads -= 1


class CopiedSource(SimSource):
    """Documents 0 to 4; changes pass whatever the gate says, by default."""

    def __init__(self, mongo: SimMongo) -> None:
        super().__init__(mongo)
        self.ids = list(range(5))
        self.exists = True
        self.gated = False
        self.fails: list[Exception] = []
        self.opening_fails: list[Exception] = []
        self.times: list[int] = []
        self.open_reads = 0
        self.counts: list[Any] = []
        """What MongoDB answers, one after the other; 0 after that."""
        self.counted = 0
        self.dropped: set[int] = set()
        """Documents that the pipeline drops."""
        self.bounds: list[tuple[int | None, int | None]] = []
        """After and up to which document each read was."""
        self.checked: list[int] = []
        """The times at which the collection was looked at."""

    async def open_cursor(self, spec: FeedSpec, stages: list[Any], *rest: Any) -> SimCursor:  # type: ignore[override]
        is_gate = any("$or" in each.get("$match", {}) for each in stages)
        return await super().open_cursor(spec, stages[:1] if is_gate and not self.gated else stages, *rest)

    async def open_documents(self, spec: FeedSpec, stages: list[Any], size: int, time: int, *opening: Any) -> Any:
        if self.opening_fails:
            raise self.opening_fails.pop(0)
        self.times.append(time)
        self.open_reads += 1
        return Documents(self, stages)

    async def estimated_count(self, database: str, name: str) -> int:
        self.counted += 1
        count = self.counts.pop(0) if self.counts else 0
        if isinstance(count, Exception):
            raise count
        return int(count)

    async def find_id(self, spec: FeedSpec, find: dict[str, Any], time: int) -> bytes:
        after = bson.decode(find["min"].raw)["_id"] if "min" in find else self.ids[0] if self.ids else 0
        found = [number for number in self.ids if number >= after][find["skip"] :]
        return bson.encode({"_id": found[0]}) if found else b""

    async def collection(self, database: str, name: str) -> CollectionInfo | None:
        self.checked.append(self._mongo.latest)
        return CollectionInfo("collection") if self.exists else None


async def make(key: StreamKey = KEY, **limits: Any) -> tuple[SnapshotReader, CopiedSource, SimMongo]:
    source, mongo = await connected(CopiedSource, token_version=2)
    origin = mongo.mark(mongo.latest + 1).while_copying(Copied())
    return SnapshotReader(source, key, JoinPoint(origin), ReadLimits(**limits), str), source, mongo


async def copy(reader: SnapshotReader, between: Callable[[Batch], Awaitable[None]] | None = None) -> list[Batch]:
    """All batches up to the end of the copy, with the reader opened again after each failure."""
    batches: list[Batch] = []
    while not (batches and batches[-1].copy_complete):
        try:
            if not reader.is_open:
                await reader.open()
            batches.append(await reader.read())
        except Failed:
            assert not reader.is_open
            continue
        if between is not None:
            await between(batches[-1])
    return batches


def given(batches: list[Batch]) -> list[int]:
    """The numbers of the documents, in order."""
    return [
        bson.decode(place.copied.up_to)["_id"]
        for batch in batches
        for chunk in batch.chunks
        if chunk.are_documents
        for index in range(chunk.count)
        if (place := chunk.token(index)).copied is not None
    ]


def changes(batches: list[Batch]) -> int:
    return sum(chunk.count for batch in batches for chunk in batch.chunks if not chunk.are_documents)


def check_order(batches: list[Batch]) -> None:
    places = [place for batch in batches for place in [*(each.end for each in batch.chunks), batch.post_batch] if place]
    assert all(later.reaches(earlier) for earlier, later in pairwise(places))


@in_virtual_time
async def test_an_opening_that_is_cancelled_leaves_no_cursor() -> None:
    reader, source, mongo = await make()
    source.timeline.verify = asyncio.Event().wait  # type: ignore[assignment]
    opening = asyncio.ensure_future(reader.open())
    await asyncio.sleep(1.0)
    assert mongo.open
    opening.cancel()
    await asyncio.wait([opening])
    assert not mongo.open


@in_virtual_time
async def test_a_step_lasts_for_as_long_as_it_may() -> None:
    reader, source, _ = await make(snapshot_step_s=2.0)
    assert given(await copy(reader)) == [0, 1, 2, 3, 4]
    assert len(source.times) == 1


class Recording(Observer):
    def __init__(self) -> None:
        self.read: list[tuple[str, int, int]] = []
        self.retries: list[str] = []

    def documents_read(self, source: str, documents: int, size: int) -> None:
        self.read.append((source, documents, size))

    def count(self, metric: Metric, number: int, *attributes: str) -> None:
        if metric is metrics.SNAPSHOT_RETRIES:
            self.retries.extend(attributes)


@in_virtual_time
async def test_documents_and_reads_in_vain_are_counted() -> None:
    reader, source, _ = await make()
    recording = source.observer = Recording()
    source.fails = [OperationFailure("old", 239), OperationFailure("unavailable", 246), AutoReconnect("closed")]
    batches = await copy(reader)
    assert [documents for _, documents, _ in recording.read] == [2, 2, 1]
    assert sum(size for *_, size in recording.read) == sum(
        len(chunk.bson.data) for batch in batches for chunk in batch.chunks if chunk.bson
    )
    assert recording.retries == ["main", "main"], "a lost connection is counted with those of streams"


@in_virtual_time
@over("retry", [False, True])
async def test_no_document_is_older_than_what_may_have_been_sent(retry: bool) -> None:
    """Before the reader began: a client hands out a change once. And before MongoDB could not read as of a time: it
    could not as of the same time again. A majority gets the write late, so that the changes read do not say it."""
    reader, source, mongo = await make()
    if retry:
        await reader.open()
        source.opening_fails = [OperationFailure("unavailable", 246)]
    mongo.lag_s = 1.0
    mongo.insert("db", "a", 0)
    now = mongo.latest
    assert mongo.visible < now
    assert given(await copy(reader)) == [0, 1, 2, 3, 4]
    assert min(source.times) >= now


@in_virtual_time
async def test_a_time_that_is_never_right_is_tried_with_pauses() -> None:
    reader, source, _ = await make()
    failures: list[bool] = []
    source.opening_fails = [OperationFailure("old", 239)] * 10
    while source.opening_fails:
        try:
            if not reader.is_open:
                await reader.open()
            await reader.read()
        except Failed as error:
            failures.append(error.at_once)
    assert failures == [False] * 7
    assert given(await copy(reader)) == [0, 1, 2, 3, 4]


@in_virtual_time
async def test_a_collection_that_does_not_exist_has_no_documents_as_of_a_time_when_it_did_not() -> None:
    reader, source, mongo = await make()
    source.exists, source.ids = False, []
    await copy(reader)
    assert source.times[0] >= source.checked[0] == mongo.latest


@in_virtual_time
@over(("dropped", "retry"), [(True, False), (True, True), (False, False), (False, True)])
async def test_a_collection_that_cannot_be_copied_may_have_taken_the_place_of_another(
    dropped: bool, retry: bool
) -> None:
    """Then the drop comes, as in any feed."""
    reader, source, mongo = await make()
    if retry:
        await reader.open()
        source.opening_fails = [OperationFailure("unavailable", 246)]
    if dropped:
        mongo.drop("db", "a")
    source.collection = AsyncMock(return_value=CollectionInfo("collection", capped=True))  # type: ignore[method-assign]
    if not retry:
        await reader.open()
    with nullcontext() if dropped else pytest.raises(FeedmuxError, match="is capped"):
        while not (await reader.read()).exhausted:
            pass
    assert not source.times


@in_virtual_time
async def test_it_says_how_many_documents_there_are_and_asks_seldom() -> None:
    _, source, mongo = await make()
    said: list[int] = []
    origin = mongo.mark(mongo.latest + 1).while_copying(Copied())
    reader = SnapshotReader(source, KEY, JoinPoint(origin), ReadLimits(snapshot_step_s=0), str, said.append)
    unavailable = FeedmuxError(ErrorReason.SOURCE_UNAVAILABLE, "no answer")
    source.counts, source.ids = [5, unavailable, 7], list(range(12))
    await reader.open()
    assert said == [5], "a session says it as soon as it is open"

    async def pause(batch: Batch) -> None:
        if batch.chunks:
            await asyncio.sleep(ESTIMATE_EVERY_S / 2)

    assert given(await copy(reader, pause)) == source.ids, "a copy needs no estimate"
    assert said == [5, 7]
    assert source.counted == 3


FILTER = bson.encode({"pipeline": [{"$match": {"fullDocument.n": 1}}]})
FILTERED = {"all": stream_key(replace(KEY.spec, pipeline=FILTER)), "granted": stream_key(KEY.spec, FILTER, False, True)}


@in_virtual_time
@pytest.mark.parametrize("key", FILTERED)
async def test_a_copy_passes_what_a_filter_drops(key: str) -> None:
    """Only a position that may say the `_id` of a dropped document does."""
    reader, source, mongo = await make(FILTERED[key], snapshot_step_s=0, batch_events=2)
    source.ids, source.dropped = list(range(9)), set(range(2, 9))
    places: list[ResumeToken] = []

    async def note(batch: Batch) -> None:
        mongo.insert("db", "a", 0)
        if batch.post_batch is not None and batch.post_batch.copied is not None:
            places.append(batch.post_batch)

    batches = await copy(reader, note)
    assert given(batches) == [0, 1]
    assert source.bounds == [(None, 1), (1, 5), (5, None)]
    up_to = [bson.decode(each.copied.up_to)["_id"] for each in places if each.copied and each.copied.up_to]
    assert (up_to == sorted(up_to), max(up_to)) == (True, 5 if key == "all" else 1)
    assert {each.copied.documents for each in places if each.copied} == {0, 2}
    assert source.counted == 0, "how many documents there are may be a secret"
    check_order(batches)


@in_virtual_time
async def test_the_next_stream_does_not_pass_again_what_is_not_granted() -> None:
    """Else copies that share a slot would each begin again where they were, and never end."""
    reader, source, mongo = await make(FILTERED["granted"], batch_events=2)
    source.ids, source.dropped = list(range(9)), set(range(9))
    ring = ReplayBuffer(mongo.mark(mongo.latest + 1).while_copying(Copied()), RingLimits())
    began = ring.newest
    await reader.open()
    while source.bounds != [(None, 1), (1, 5)]:
        batch = await reader.read()
        if batch.post_batch is not None:
            ring.advance(batch.post_batch)
    await reader.close()
    assert ring.newest.copied is not None
    assert (ring.newest.copied != began.copied, ring.newest.copied.up_to) == (True, b"")
    again = JoinPoint(ring.newest)
    await copy(SnapshotReader(source, FILTERED["granted"], again, ReadLimits(batch_events=2), str))
    assert source.bounds[2][0] == bson.decode(ring.newest.copied.passed)["_id"] > 0


@in_virtual_time
async def test_a_collection_that_was_dropped_after_its_last_document_is_not_complete() -> None:
    reader, _, mongo = await make()
    await reader.open()
    batch = await reader.read()
    while not (batch.copy_complete or batch.exhausted):
        if given([batch])[-1:] == [4]:
            mongo.drop("db", "a")
        batch = await reader.read()
    assert batch.exhausted


@in_virtual_time
@over("gated", [False, True])
async def test_the_last_write_of_all_is_known_to_be_read_without_another_one(gated: bool) -> None:
    """It is at the position, so MongoDB has no later time to say. What is before the position does not come again."""
    _, source, mongo = await make()
    source.gated = gated
    mongo.insert("db", "a", 0)
    place = mongo.mark(mongo.latest + 1)
    mongo.insert("db", "a", 0)
    assert mongo.latest == place.cluster_time
    reader, began_s = SnapshotReader(source, KEY, JoinPoint(place.while_copying(Copied())), ReadLimits(), str), wall_s()
    batches = await copy(reader)
    assert given(batches) == source.ids
    assert changes(batches) == (not gated)
    assert wall_s() - began_s < 1, "MongoDB writes a no-op every 10 s"


@in_virtual_time
async def test_what_invalidated_the_feed_before_the_position_does_not_end_its_copy() -> None:
    """MongoDB is asked for the time before the position, and ends its cursor there."""
    _, source, mongo = await make()
    mongo.rename("db", "b", "a")
    place = mongo.mark(mongo.latest + 1)
    mongo.insert("db", "a", 0)

    async def check(batch: Batch) -> None:
        assert not batch.exhausted

    reader = SnapshotReader(source, KEY, JoinPoint(place.while_copying(Copied())), ReadLimits(), str)
    assert given(await copy(reader, check)) == source.ids


@in_virtual_time
async def test_a_position_whose_event_mongodb_does_not_have_is_of_a_lost_history() -> None:
    """Where the oplog cannot be read, nothing else says so."""
    source, mongo = await connected(CopiedSource)
    mongo.oplog_readable, common_time = False, mongo.latest
    mongo.insert("db", "a", 0)
    place = mongo.entries[-1].token.while_copying(Copied(bson.encode({"_id": 2}), 3))
    mongo.restore(common_time)
    mongo.insert("db", "a", 0)
    for origin in (JoinPoint(place, exact=True), JoinPoint(place, of_mongodb=True)):
        with pytest.raises(FeedmuxError) as caught:
            await SnapshotReader(source, KEY, origin, ReadLimits(), str).open()
        assert caught.value.reason is ErrorReason.TIMELINE_FORKED


@in_virtual_time
@over("scope", [KEY.spec.scope, Scope("main", "db")])
async def test_a_drop_that_its_primary_loses_in_an_election_leaves_the_documents(scope: Scope) -> None:
    """MongoDB has read the collection as empty, and no change will say why."""
    reader, source, mongo = await make(stream_key(FeedSpec(scope)))
    mongo.insert("db", "a", 0)
    there, source.ids = source.ids, []

    async def elect(batch: Batch) -> None:
        if source.times and not source.ids:
            mongo.roll_back()
            source.ids = there

    assert given(await copy(reader, elect)) == there


@in_virtual_time
async def test_a_read_that_is_too_long_for_its_time_is_followed_by_a_shorter_one() -> None:
    reader, source, _ = await make(FILTERED["all"], batch_events=4)
    source.fails = [OperationFailure("old", 239)]
    assert given(await copy(reader)) == [0, 1, 2, 3, 4]
    assert source.bounds[:2] == [(None, 3), (None, 0)]


@in_virtual_time
async def test_a_long_list_of_names_is_no_part_of_a_step() -> None:
    """Otherwise a copy of many collections would list all of them for each one."""
    names, lists = [f"c{number}" for number in range(20)], 0
    reader, source, _ = await make(stream_key(FeedSpec(Scope("main", "db"))), snapshot_step_s=2.0)

    async def collection_names(_: str, first: str, *__: object) -> tuple[list[str], int]:
        nonlocal lists
        lists += 1
        await asyncio.sleep(3.0)
        return sorted(name for name in names if name >= first), len(names)

    source.collection_names = collection_names  # type: ignore[assignment, method-assign]
    assert len(given(await copy(reader))) == 5 * len(names)
    assert lists < 5
    await reader.close()
