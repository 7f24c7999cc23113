"""What a source learns about MongoDB's time. To wait for a position after the known time, a server reads from the known
time, so it would keep requesting a known time that has left the oplog."""

import asyncio
from random import Random

from tests.sim.loop import SimLoop
from tests.sim.mongo import SimMongo, SimSource
from tests.virtual_time import in_virtual_time


async def source_that_was_idle() -> tuple[SimMongo, SimSource]:
    """A source that knows a time which the oplog has passed."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    mongo = SimMongo(loop, Random(0))
    source = SimSource(mongo)
    await source.connect()
    await asyncio.sleep(3_000)
    mongo.insert("db", "a", 0)
    mongo.forget(mongo.latest - (10 << 32))
    assert source.clock.known_time < mongo.oldest
    return mongo, source


@in_virtual_time
async def test_the_oldest_entry_says_that_time_has_passed() -> None:
    mongo, source = await source_that_was_idle()
    assert await source.oplog.oldest_time() == mongo.oldest
    assert source.clock.known_time == mongo.oldest


@in_virtual_time
async def test_a_look_at_the_oplog_says_how_late_it_is() -> None:
    mongo, source = await source_that_was_idle()
    await source.oplog.state()
    assert source.clock.known_time == mongo.latest
