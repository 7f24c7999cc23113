"""What a source is asked for, and that it leaves nothing behind when it is closed."""

import asyncio
from contextlib import suppress
from typing import Any, cast

import bson
import pytest
from pymongo.errors import AutoReconnect, ConnectionFailure, OperationFailure

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.feeds.feed import FeedSpec, Scope
from feedmux_server.core.feeds.stream_key import stream_key
from feedmux_server.dependencies import check_source
from feedmux_server.source.token_check import has_event
from tests.sim.events import event_token
from tests.sim.mongo import SimSource
from tests.unit.simulated import connected, sim_mongo
from tests.virtual_time import in_virtual_time


@in_virtual_time
async def test_questions_about_the_time_end_with_the_source() -> None:
    """Such questions outlive the callers that asked them, because other callers may share the answer."""
    source, mongo = await connected(SimSource)
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
    source = SimSource(sim_mongo())
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


async def asked_for_its_id(code: int) -> SimSource:
    """A source that answers the first question for the id of the replica set with an error."""
    source, failures = SimSource(sim_mongo()), [code]
    source._source_id, admin = "", cast(Any, source._client.admin)
    ask = admin.command

    async def command(name: str, **_: Any) -> Any:
        if name != "replSetGetConfig":
            return await ask(name)
        if failures:
            raise OperationFailure("no", failures.pop())
        return {"config": {"settings": {"replicaSetId": "own"}}}

    admin.command = command
    return source


@pytest.mark.parametrize("code", [8, 18, 50, 462, 11601])
@in_virtual_time
async def test_a_failure_that_passes_gives_a_source_no_other_id(code: int) -> None:
    source = await asked_for_its_id(code)
    with pytest.raises(FeedmuxError) as caught:
        await check_source(source)
    assert caught.value.reason is ErrorReason.SOURCE_UNAVAILABLE
    assert "source 'main'" in caught.value.message
    await check_source(source)
    assert source.source_id == "own"


@pytest.mark.parametrize("code", [13, 59, 115, 8000])
@in_virtual_time
async def test_the_name_of_a_replica_set_is_its_id_where_the_id_cannot_be_read(code: int) -> None:
    source = await asked_for_its_id(code)
    await check_source(source)
    assert source.source_id == "rs0"


HIDING = bson.encode({"pipeline": [{"$match": {"fullDocument.n": -1}}]})
KEY = stream_key(FeedSpec(Scope("main", "db", "a"), pipeline=HIDING, full_document="updateLookup"))


@in_virtual_time
async def test_a_hidden_event_is_there_and_a_lost_one_is_not() -> None:
    source, mongo = await connected(SimSource)
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
