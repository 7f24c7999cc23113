"""What a source learns of MongoDB's time. A place after the known one is waited for at the present, so a present that
has left the oplog would be asked for again and again."""

import asyncio
from random import Random

from tests.sim.loop import SimLoop
from tests.sim.mongo import SimMongo, SimSource
from tests.virtual_time import in_virtual_time


async def source_that_was_idle() -> tuple[SimMongo, SimSource]:
    """It knows a time that the oplog has passed."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    mongo = SimMongo(loop, Random(0))
    source = SimSource(mongo)
    await source.connect()
    await asyncio.sleep(3_000)
    mongo.insert("db", "a", 0)
    mongo.forget(mongo.latest - (10 << 32))
    assert source.known_time < mongo.oldest
    return mongo, source


@in_virtual_time
async def test_the_oldest_entry_says_that_time_has_passed() -> None:
    mongo, source = await source_that_was_idle()
    assert await source.oldest_time() == mongo.oldest
    assert source.known_time == mongo.oldest


@in_virtual_time
async def test_a_look_at_the_oplog_says_how_late_it_is() -> None:
    mongo, source = await source_that_was_idle()
    await source.oplog()
    assert source.known_time == mongo.latest
