"""What a source is asked for, and that it leaves nothing behind when it is closed."""

import asyncio
from contextlib import suppress
from random import Random
from typing import Any

import bson
import pytest
from pymongo.errors import AutoReconnect, ConnectionFailure

from feedmux_server.core.feeds.feed import FeedSpec, Scope
from feedmux_server.core.feeds.stream_key import stream_key
from feedmux_server.source.token_check import has_event
from tests.sim.events import event_token
from tests.sim.loop import SimLoop
from tests.sim.mongo import SimMongo, SimSource
from tests.virtual_time import in_virtual_time


@in_virtual_time
async def test_questions_about_the_time_end_with_the_source() -> None:
    """Such questions outlive the callers that asked them, because other callers may share the answer."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    mongo = SimMongo(loop, Random(0))
    source = SimSource(mongo)
    await source.connect()
    mongo.away = True
    for _ in range(2):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await source.clock.operation_time()
    assert len(asyncio.all_tasks()) == 3
    await source.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}


@in_virtual_time
async def test_a_question_that_does_not_end_is_not_waited_for() -> None:
    """pymongo may swallow the cancellation; a question that still runs fails once its client is closed."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    source = SimSource(SimMongo(loop, Random(0)))
    asking, answer = asyncio.Event(), asyncio.Event()

    async def ask() -> Any:
        asking.set()
        while not answer.is_set():
            with suppress(asyncio.CancelledError):
                await answer.wait()
        raise ConnectionFailure("closed")

    source.clock._ask = ask  # type: ignore[method-assign]
    asked = asyncio.create_task(source.clock.operation_time())
    await asking.wait()
    await source.close()
    assert not asked.done()
    answer.set()
    with pytest.raises(ConnectionFailure):
        await asked


HIDING = bson.encode({"pipeline": [{"$match": {"fullDocument.n": -1}}]})
KEY = stream_key(FeedSpec(Scope("main", "db", "a"), pipeline=HIDING, full_document="updateLookup"))


@in_virtual_time
async def test_a_hidden_event_is_there_and_a_lost_one_is_not() -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    mongo = SimMongo(loop, Random(0))
    source = SimSource(mongo)
    await source.connect()
    mongo.insert("db", "a", 0)
    place = mongo.entries[0].token
    never = event_token(place.cluster_time + 1, key=7)
    assert await has_event(source, KEY, place)
    await asyncio.sleep(5)
    mongo.insert("db", "a", 0)
    assert await has_event(source, KEY, place)
    assert not await has_event(source, KEY, never)
    assert await has_event(source, KEY, mongo.mark(never.cluster_time)), "no event has this position"
    assert mongo.open == {}
    mongo.away = True
    with pytest.raises(AutoReconnect):
        await has_event(source, KEY, never)
