"""Reading a range of a copy again; tests/integration/test_snapshot.py does it with MongoDB."""

from typing import Any

import bson
import pytest
from pymongo.errors import OperationFailure

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.events.chunk import cut_batch
from feedmux_server.core.positions.join_point import JoinPoint
from feedmux_server.core.positions.resume_token import Copied
from feedmux_server.source.cursor import RawBatch
from feedmux_server.source.read_limits import ReadLimits
from feedmux_server.source.reader import Batch, Failed
from feedmux_server.streams.copy_range_reader import CopyRangeReader
from tests.sim.events import event
from tests.sim.mongo import SimSource
from tests.unit.core.delivery.streams_support import mark, token
from tests.unit.simulated import sim_mongo
from tests.unit.streams.test_snapshot_reader import KEY, given, make
from tests.virtual_time import in_virtual_time


class Changes:
    """One change, and an invalidate that is not shown."""

    at = JoinPoint(mark(1))

    async def read(self) -> Batch:
        data = event(1, token(1)).data
        return Batch(cut_batch(data, mark(0), mark(1), 1.0, bytes_max=1000), mark(1), True)

    async def close(self) -> None:
        pass


@in_virtual_time
async def test_a_range_up_to_an_invalidate_that_is_not_shown_ends_at_its_end() -> None:
    until = mark(1).while_copying(Copied(b"", 5))
    origin = mark(0).while_copying(Copied(b"a", 5, until=until))
    reader: Any = CopyRangeReader(SimSource(sim_mongo()), KEY, JoinPoint(origin), ReadLimits(), str)
    reader._changes = Changes()
    batch = await reader.read()
    assert (batch.exhausted, batch.post_batch.copied) == (True, until.copied)
    assert [each.end.copied for each in batch.chunks] == [until.copied]


@in_virtual_time
async def test_a_drop_that_its_primary_loses_in_an_election_leaves_the_documents() -> None:
    """MongoDB has read the collection as empty, and no change will say why."""
    _, source, mongo = await make()
    mongo.insert("db", "a", 0)
    until = mongo.mark(mongo.latest + 1)
    origin = until.while_copying(Copied(until=until))
    reader = CopyRangeReader(source, KEY, JoinPoint(origin), ReadLimits(), str)
    there, source.ids = source.ids, []

    read = reader._documents.next_batch

    async def lose_an_election(tenant: str) -> RawBatch:
        batch = await read(tenant)
        if not source.ids:
            mongo.roll_back()
            source.ids = there
        return batch

    reader._documents.next_batch = lose_an_election  # type: ignore[method-assign]
    batches = list[Batch]()
    while not (batches and batches[-1].post_batch is until):
        try:
            if not reader.is_open:
                await reader.open()
            batches.append(await reader.read())
        except Failed:
            continue
    assert given(batches) == there


@in_virtual_time
async def test_a_time_that_is_never_right_is_tried_with_pauses() -> None:
    _, source, mongo = await make()
    until = mongo.mark(mongo.latest + 1)
    reader = CopyRangeReader(source, KEY, JoinPoint(until.while_copying(Copied(until=until))), ReadLimits(), str)
    source.opening_fails = [OperationFailure("old", 239)] * 10
    failures, batches = list[bool](), list[Batch]()
    while not (batches and batches[-1].post_batch is until):
        try:
            if not reader.is_open:
                await reader.open()
            batches.append(await reader.read())
        except Failed as error:
            failures.append(error.at_once)
    assert failures == [False] * 7
    assert given(batches) == source.ids


@in_virtual_time
async def test_a_range_of_a_history_that_is_lost_is_not_read_from_the_present_one() -> None:
    """Where the oplog cannot be read, nothing else says so."""
    _, source, mongo = await make()
    mongo.oplog_readable, common_time = False, mongo.latest
    mongo.insert("db", "a", 0)
    place, until = mongo.entries[-1].token, mongo.mark(mongo.latest + 1)
    mongo.restore(common_time)
    mongo.insert("db", "a", 0)
    copied = Copied(bson.encode({"_id": 2}), 3, until=until.while_copying(Copied(bson.encode({"_id": 2}), 3)))
    for exact in (True, False):
        origin = JoinPoint(place.while_copying(copied), exact=exact, of_mongodb=not exact)
        reader = CopyRangeReader(source, KEY, origin, ReadLimits(), str)
        with pytest.raises(FeedmuxError) as caught:
            await reader.open()
        assert caught.value.reason is ErrorReason.TIMELINE_FORKED
