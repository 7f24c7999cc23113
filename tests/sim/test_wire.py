"""The watcher of the store records what servers renew, and what Redis has lost."""

import asyncio
from random import Random

from feedmux_server.core.positions.position import PositionEncoder
from feedmux_server.core.positions.position_keys import PositionKeys
from feedmux_server.store.model import CommitRequest
from feedmux_server.store.store import SubscriptionStore
from tests.sim.events import BEGIN, event_token, hex_of
from tests.sim.records import Lost, Renewed
from tests.sim.redis import SimRedis, SimRedisClient
from tests.sim.wire import Recorder, StoreWatcher
from tests.virtual_time import in_virtual_time

TOKEN = event_token(BEGIN, key=0)


async def created() -> tuple[SimRedis, SubscriptionStore, Recorder]:
    """A subscription that is on disk."""
    loop = asyncio.get_running_loop()
    redis, recorder = SimRedis(loop, Random(0)), Recorder(loop.time)
    StoreWatcher(recorder, redis)
    store = SubscriptionStore(SimRedisClient(redis), lease_s=30.0)  # type: ignore[arg-type]
    position = PositionEncoder(PositionKeys([bytes(32)]), bytes(8), bytes(8)).encode(TOKEN)
    await store.create("t", "s", definition=b"", etag="e", position=position, cluster_time=1, order=b"")
    _, lease = await store.leases.open("t", "s", instance_id="one")
    for _ in range(2):  # what was written before is on disk then
        await asyncio.sleep(3.0)
        await store.leases.commit_many([CommitRequest(lease, None, 0)])
    assert recorder.records[1:] == [Renewed("s", lease.epoch)] * 2
    recorder.records.clear()
    return redis, store, recorder


@in_virtual_time
async def test_a_takeover_that_redis_loses_is_recorded() -> None:
    redis, store, recorder = await created()
    await store.leases.open("t", "s", instance_id="two", takeover=True)
    redis.lose_last_writes()
    assert recorder.records == [Lost("s", hex_of(TOKEN))]


@in_virtual_time
async def test_a_deletion_that_redis_loses_is_recorded() -> None:
    redis, store, recorder = await created()
    await store.delete("t", "s")
    redis.lose_last_writes()
    assert (await store.get("t", "s")).position
    redis.lose_everything()
    assert recorder.records == [Lost("s", hex_of(TOKEN)), Lost("s", "")]
