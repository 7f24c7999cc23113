"""A source that is closed leaves nothing behind, whatever it was asked for."""

import asyncio
from random import Random

import pytest

from tests.sim.loop import SimLoop
from tests.sim.mongo import SimMongo, SimSource
from tests.virtual_time import in_virtual_time


@in_virtual_time
async def test_questions_about_the_time_end_with_the_source() -> None:
    """They outlive those who asked, because others may share the answer."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    mongo = SimMongo(loop, Random(0))
    source = SimSource(mongo)
    await source.connect()
    mongo.away = True
    for _ in range(2):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await source.operation_time()
    assert len(asyncio.all_tasks()) == 3
    await source.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}
