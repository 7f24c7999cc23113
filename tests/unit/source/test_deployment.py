"""A closed source leaves nothing behind, whatever it was doing."""

import asyncio
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from pymongo.errors import ConnectionFailure

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
