"""A restore is found although nobody reads MongoDB, soon after the connection was lost."""

import asyncio
from random import Random

from feedmux_server.core.positions.timeline import Fork
from feedmux_server.jobs.timeline_monitor import watch_timeline
from tests.sim.loop import SimLoop
from tests.sim.mongo import SimMongo, SimSource
from tests.virtual_time import in_virtual_time


@in_virtual_time
async def test_it_looks_from_time_to_time_and_after_a_doubt() -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    mongo, found = SimMongo(loop, Random(0)), list[Fork]()
    source = SimSource(mongo)
    await source.connect()
    source.timeline.listeners.append(found.append)
    task = asyncio.create_task(watch_timeline(source, 60.0))
    await asyncio.sleep(65)
    mongo.restore(mongo.latest - (30 << 32))
    await asyncio.sleep(30)
    assert found == []
    await asyncio.sleep(40)
    assert len(found) == 1
    mongo.restore(mongo.latest - (30 << 32))
    mongo.away = True
    source.timeline.doubt()
    await asyncio.sleep(10)
    mongo.away = False
    source.timeline.doubt()
    await asyncio.sleep(5)
    assert len(found) == 2
    task.cancel()
