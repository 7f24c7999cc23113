"""Whether a pipeline is too slow for MongoDB, or MongoDB itself is slow: a probe without the pipeline decides it."""

import asyncio
from random import Random
from typing import Any

import bson
import pytest
from pymongo.errors import AutoReconnect, OperationFailure, PyMongoError

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.feeds.feed import FeedSpec, Scope
from feedmux_server.core.feeds.stream_key import stream_key
from feedmux_server.core.positions.join_point import JoinPoint
from feedmux_server.source.read_limits import ReadLimits
from feedmux_server.source.reader import ChangeStreamReader, Failed
from tests.sim.loop import SimLoop
from tests.sim.mongo import SPLIT, SimCursor, SimMongo, SimSource
from tests.virtual_time import in_virtual_time

MATCH = {"$match": {"fullDocument.g": 1}}


class Probed(SimSource):
    """Records the stages of the probes without the pipeline, and makes the probes fail."""

    def __init__(self, mongo: SimMongo, fails: PyMongoError | None) -> None:
        super().__init__(mongo)
        self.fails = fails
        self.looks: list[list[Any]] = []

    async def open_cursor(  # type: ignore[override]
        self, spec: FeedSpec, stages: list[Any], *rest: Any
    ) -> SimCursor:
        if rest[-1] is None:  # a probe: a reader's own cursor is watched
            self.looks.append(bson.decode(bson.encode({"stages": stages[1:]}))["stages"])
            if self.fails is not None:
                raise self.fails
        return await super().open_cursor(spec, stages, *rest)


async def read_until_it_fails(pipeline: list[Any], fails: PyMongoError | None) -> tuple[Probed, BaseException]:
    """Read an event on which the pipeline computes for two minutes."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    mongo = SimMongo(loop, Random(0), token_version=2)
    source = Probed(mongo, fails)
    await source.connect()
    begin = mongo.mark(mongo.latest)
    mongo.insert("db", "a", 0, g=1)
    mongo.costs.event_s = 120.0
    key = stream_key(FeedSpec(Scope("main", "db", "a"), pipeline=bson.encode({"pipeline": pipeline})))
    reader = ChangeStreamReader(source, key, JoinPoint(begin), ReadLimits(event_time_s=5.0))
    watching = asyncio.create_task(source.read_watch.run())
    error: BaseException | None = None
    while not source.looks:
        error = None
        try:
            await reader.open()
            while True:
                await reader.read()
        except (FeedmuxError, Failed) as failed:
            error = failed
    watching.cancel()
    await reader.close()
    assert error is not None
    return source, error


TOO_LARGE = OperationFailure("too large", 10334, {"codeName": "BSONObjectTooLarge", "code": 10334})


@in_virtual_time
@pytest.mark.parametrize("pipeline", [[MATCH], [MATCH, SPLIT]])
@pytest.mark.parametrize("fails", [None, TOO_LARGE])
async def test_a_pipeline_is_too_slow_where_mongodb_answers_without_it(
    pipeline: list[Any], fails: PyMongoError | None
) -> None:
    """An event may be too large without the stages that shrink it: MongoDB reached it all the same."""
    source, error = await read_until_it_fails(pipeline, fails)
    assert isinstance(error, FeedmuxError)
    assert error.reason is ErrorReason.PIPELINE_FAILED
    assert source.looks == [pipeline[1:]], "a position within a split event is only found with the split stage"


@in_virtual_time
async def test_a_mongodb_that_is_away_is_no_pipeline_that_is_slow() -> None:
    source, error = await read_until_it_fails([MATCH], AutoReconnect("connection closed"))
    assert isinstance(error, Failed)
    assert source.looks == [[]]
