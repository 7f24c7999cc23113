"""One cursor: what a failure means for it, where it opens again, and what ends a long read."""

import asyncio
from dataclasses import replace
from typing import Any

import bson
import pytest
from pymongo.errors import OperationFailure, PyMongoError

from feedmux_server.core.errors import ErrorReason, FeedmuxError, FragmentsChanged
from feedmux_server.core.events.chunk import cut_batch
from feedmux_server.core.feeds.feed import FeedSpec, Scope
from feedmux_server.core.feeds.stream_key import stream_key
from feedmux_server.core.positions.join_point import JoinPoint
from feedmux_server.core.positions.resume_token import ResumeToken
from feedmux_server.source.cursor import RawBatch
from feedmux_server.source.read_limits import ReadLimits
from feedmux_server.source.read_pace import BACKLOG_BYTES
from feedmux_server.source.reader import ChangeStreamReader, Failed, _without_hidden
from feedmux_server.source.timed_reads import FIRST_EVENTS
from tests.sim.events import BEGIN, hex_of
from tests.sim.mongo import NOOP_S, SimCursor, SimMongo, SimSource
from tests.unit.core.delivery.group_events import ordered
from tests.unit.core.delivery.streams_support import mark, token
from tests.unit.core.positions.test_long_tokens import document, key_string
from tests.unit.simulated import connected
from tests.virtual_time import in_virtual_time

KEY = stream_key(FeedSpec(Scope("main", "db", "a")))


class Failing(SimSource):
    """Records how each cursor begins, and makes opening fail."""

    def __init__(self, mongo: SimMongo) -> None:
        super().__init__(mongo)
        self.fails: list[PyMongoError] = []
        self.starts: list[str] = []
        self.preferences: list[str] = []
        self.batch_events: list[int] = []

    async def open_cursor(self, spec: FeedSpec, stages: list[Any], *rest: Any) -> SimCursor:  # type: ignore[override]
        [start] = {"resumeAfter", "startAfter", "startAtOperationTime"} & set(stages[0]["$changeStream"])
        self.starts.append(start)
        self.preferences.append(spec.read_preference)
        self.batch_events.append(rest[0])
        if self.fails:
            raise self.fails.pop(0)
        return await super().open_cursor(spec, stages, *rest)


async def make_reader(is_watched: bool = True, **limits: int) -> tuple[ChangeStreamReader, Failing, SimMongo]:
    source, mongo = await connected(Failing, token_version=2)
    origin = JoinPoint(mongo.mark(mongo.latest), exact=True)
    return ChangeStreamReader(source, KEY, origin, ReadLimits(**limits), is_watched=lambda: is_watched), source, mongo


def failure(code: int) -> OperationFailure:
    return OperationFailure("a message of MongoDB", code, {"code": code})


@in_virtual_time
async def test_a_reader_that_is_not_open_cannot_read_and_one_that_is_cannot_move() -> None:
    reader, _, mongo = await make_reader()
    with pytest.raises(RuntimeError, match="is not open"):
        await reader.read()
    await reader.open()
    with pytest.raises(RuntimeError, match="is open"):
        reader.resume_from(mongo.mark(mongo.latest))
    await reader.close()


@in_virtual_time
async def test_a_token_that_mongodb_cannot_read_is_replaced_by_its_time_at_once() -> None:
    reader, source, _ = await make_reader()
    source.fails = [failure(280)]
    await reader.open()
    assert source.starts == ["resumeAfter", "startAtOperationTime"]
    await reader.close()
    source.fails = [failure(280)]
    with pytest.raises(FeedmuxError):
        await reader.open()


@in_virtual_time
async def test_a_fragment_that_mongodb_no_longer_has_ends_the_stream_and_is_no_fork() -> None:
    _, source, mongo = await make_reader()
    for _ in range(3):
        mongo.insert("db", "a", 0)
    splits = stream_key(replace(KEY.spec, pipeline=bson.encode({"pipeline": [{"$changeStreamSplitLargeEvent": {}}]})))
    reader = ChangeStreamReader(source, splits, JoinPoint(mongo.entries[0].tokens(0), exact=True), ReadLimits())
    await reader.open()
    with pytest.raises(FragmentsChanged):
        await reader.read()


LOST = [136, 286, 326]


@pytest.mark.parametrize("code", LOST)
@in_virtual_time
async def test_what_one_member_has_lost_is_read_from_the_primary(code: int) -> None:
    reader, source, _ = await make_reader()
    source.fails = [failure(code), failure(code)]
    with pytest.raises(Failed) as failed:
        await reader.open()
    assert not failed.value.at_once
    await reader.open()
    await reader.read()
    await reader.close()
    await reader.open()
    assert source.preferences == ["", "primary", "primary", ""]
    await reader.close()


@in_virtual_time
async def test_history_is_lost_when_the_primary_has_lost_it_and_not_before_it_has_answered() -> None:
    reader, source, mongo = await make_reader()
    source.fails = [failure(286), failure(286)]
    mongo.insert("db", "other", 0)
    mongo.forget(mongo.latest)
    mongo.away = True
    with pytest.raises(Failed):
        await reader.open()
    mongo.away = False
    with pytest.raises(FeedmuxError) as caught:
        await reader.open()
    assert caught.value.reason is ErrorReason.HISTORY_LOST
    assert "oldest_time" in caught.value.metadata


@pytest.mark.parametrize("sharded", [False, True])
@in_virtual_time
async def test_a_member_decides_where_the_oplog_of_the_primary_cannot_be_read(*, sharded: bool) -> None:
    reader, source, mongo = await make_reader()
    source.clock.is_mongos, mongo.oplog_readable, source.fails = sharded, sharded, [failure(286)]
    with pytest.raises(FeedmuxError) as caught:
        await reader.open()
    assert (caught.value.reason, caught.value.metadata.get("oldest_time")) == (ErrorReason.HISTORY_LOST, None)


@in_virtual_time
async def test_a_member_that_says_for_a_minute_that_history_is_lost_is_believed() -> None:
    reader, source, _ = await make_reader()
    loop = asyncio.get_running_loop()
    began_s, found = loop.time(), list[FeedmuxError]()
    while not found:
        source.fails = [failure(286)] * 2
        try:
            await reader.open()
        except Failed:
            await asyncio.sleep(5)
        except FeedmuxError as error:
            found.append(error)
    assert found[0].reason is ErrorReason.HISTORY_LOST
    assert "a member of the replica set" in found[0].message
    assert 60 <= loop.time() - began_s < 70


@in_virtual_time
async def test_events_that_are_too_large_together_are_read_singly(monkeypatch: pytest.MonkeyPatch) -> None:
    """MongoDB fills a batch up to 16 MB without its postBatchResumeToken, which may have megabytes."""
    reader, source, mongo = await make_reader()
    await reader.open()
    mongo.insert("db", "a", 0)
    read, fails = SimCursor.next_batch, [failure(10334)]

    async def next_batch(cursor: SimCursor) -> RawBatch:
        if fails:
            raise fails.pop()
        return await read(cursor)

    monkeypatch.setattr(SimCursor, "next_batch", next_batch)
    with pytest.raises(Failed) as failed:
        await reader.read()
    assert (failed.value.at_once, failed.value.reads_singly) == (True, True)
    await reader.open()
    assert source.batch_events == [FIRST_EVENTS, 1]
    fails.append(failure(10334))
    with pytest.raises(FeedmuxError) as caught:
        await reader.read()
    assert caught.value.reason is ErrorReason.EVENT_TOO_LARGE, "a single event is too large"
    await reader.close()


@in_virtual_time
async def test_the_token_of_an_event_is_decoded_once_however_often_mongodb_sends_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An idle change stream names its last event with each answer, and the event may have an `_id` of megabytes."""
    reader, _, _ = await make_reader()
    await reader.open()
    at = reader.at.place.cluster_time - BEGIN + 1
    raw = document(key_string("x" * 10_000, at, version=2))
    event = ordered({"_id": bson.decode(raw), "operationType": "insert"})
    batches, decoded, decode = [event, b"", b""], list[bytes](), ResumeToken.decode

    async def next_batch(_: SimCursor) -> RawBatch:
        return RawBatch(batches.pop(0), raw, exhausted=False)

    def counted(raw: bytes) -> ResumeToken:
        decoded.append(raw)
        return decode(raw)

    monkeypatch.setattr(SimCursor, "next_batch", next_batch)
    monkeypatch.setattr(ResumeToken, "decode", counted)
    places = [(await reader.read()).post_batch for _ in range(3)]
    assert places == [decode(raw)] * 3
    assert [len(each) for each in decoded if len(each) > 10_000] == [len(raw)]
    await reader.close()


@pytest.mark.parametrize("moved", [False, True])
@in_virtual_time
async def test_the_ids_of_a_chunk_at_a_time_are_searched_for(monkeypatch: pytest.MonkeyPatch, moved: bool) -> None:
    """A batch has hundreds of events of 8 KB, each of which may have hundreds of fields before its `_id`."""
    reader, _, _ = await make_reader(chunk_bytes_max=100_000)
    await reader.open()
    fields = {"_id": {"_data": hex_of(token(1))}, "pad": bytes(9_990)}
    event, counted, running = ordered(dict(sorted(fields.items(), reverse=moved))), 0, True

    async def next_batch(_: SimCursor) -> RawBatch:
        return RawBatch(event * 200, None, exhausted=False)

    async def count_turns() -> None:
        nonlocal counted
        while running:
            await asyncio.sleep(0)
            counted += 1

    monkeypatch.setattr(SimCursor, "next_batch", next_batch)
    counting = asyncio.create_task(count_turns())
    assert len((await reader.read()).chunks) >= 20
    running = False
    await counting
    assert (counted >= 20) is moved
    await reader.close()


@in_virtual_time
async def test_a_batch_is_no_larger_than_the_event_loop_should_cut_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the first one, nor one after a quiet time; and small events share batches."""
    monkeypatch.setattr("tests.sim.mongo.BATCH_BYTES", 16 << 20)
    reader, _, mongo = await make_reader()
    await reader.open()
    found = []
    for events, size in ((1, 10), (100, 250_000), (1_000, 10)):
        for _ in range(events):
            mongo.insert("db", "a", size)
        left = events
        while left:
            found.append(sum(each.count for each in (await reader.read()).chunks))
            left -= found[-1]
    assert found == [1, FIRST_EVENTS, *[9] * 10, 9, 991]
    await reader.close()


@in_virtual_time
async def test_interrupt_ends_a_long_read_and_the_next_one_does_not_wait() -> None:
    reader, source, _ = await make_reader(is_watched=False)
    source.cursors = 1_000
    await reader.open()
    await reader.read()
    loop = asyncio.get_running_loop()
    reading, began_s = asyncio.create_task(reader.read()), loop.time()
    await asyncio.sleep(3.0)
    assert not reading.done()
    reader.interrupt()
    assert (await reading).chunks == []
    assert loop.time() - began_s < 4.0
    assert (reader.has_cursor, reader.is_open) == (False, True)
    began_s = loop.time()
    await reader.read()
    assert loop.time() - began_s < 1.0
    await reader.close()


@in_virtual_time
async def test_a_cancelled_close_leaves_no_cursor() -> None:
    reader, _, mongo = await make_reader()
    for _ in range(3):
        mongo.insert("db", "a", BACKLOG_BYTES)
    await reader.open()
    await reader.read()
    assert reader.is_behind, "it reads the next batch already"
    closing = asyncio.create_task(reader.close())
    asyncio.get_running_loop().call_soon(closing.cancel)
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert not mongo.open


async def complete_times(reader: ChangeStreamReader, reads: int) -> list[int]:
    return [(await reader.read()).complete_time for _ in range(reads)]


@in_virtual_time
async def test_a_time_is_complete_only_when_nothing_follows_its_events() -> None:
    reader, _, mongo = await make_reader(batch_events=1)
    await reader.open()
    assert await complete_times(reader, 1) == [0], "the cursor may not have read anything"
    mongo.transaction("db", "a", 2, 0)
    time_ = mongo.latest
    assert await complete_times(reader, 3) == [0, 0, time_]
    mongo.insert("db", "other", 0)
    assert await complete_times(reader, 1) == [mongo.latest]
    await reader.close()


@in_virtual_time
async def test_the_start_after_an_invalidate_is_no_time_that_was_read() -> None:
    reader, source, mongo = await make_reader()
    await reader.open()
    mongo.drop("db", "a")
    assert (await reader.read()).exhausted
    await reader.close()
    by_time = ChangeStreamReader(source, KEY, JoinPoint(reader.at.place), ReadLimits())
    for resumed in (reader, by_time):
        await resumed.open()
        assert await complete_times(resumed, 1) == [0]
    await asyncio.sleep(NOOP_S)
    for resumed in (reader, by_time):
        assert await complete_times(resumed, 1) == [mongo.latest]
        await resumed.close()


@in_virtual_time
async def test_a_mongos_names_times_of_which_a_shard_may_have_more() -> None:
    reader, source, mongo = await make_reader()
    source.clock.is_mongos = True
    await reader.open()
    mongo.insert("db", "a", 0)
    assert await complete_times(reader, 3) == [0, 0, 0]
    await reader.close()


def test_a_position_of_a_hidden_event_is_not_shown() -> None:
    """Without a search for it in the events, which takes 14 ms for one of 16 MB."""
    shown = cut_batch(
        b"".join(bson.encode({"_id": bson.decode(token(n).raw)}) for n in (1, 2)), mark(0), None, 0.0, bytes_max=1
    )
    for place in (token(2), mark(3)):
        assert _without_hidden(place, shown) == place
    for chunks in (shown, shown[:1], []):
        assert _without_hidden(token(3), chunks) == ResumeToken.high_water_mark(token(3).cluster_time)
    assert _without_hidden(token(2), shown[:1]).is_high_water_mark
