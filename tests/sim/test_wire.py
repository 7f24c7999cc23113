"""The watcher of the store records what Redis has lost."""

import asyncio
from random import Random

from feedmux_server.core.positions.position import PositionEncoder
from feedmux_server.core.positions.position_keys import PositionKeys
from feedmux_server.store.model import CommitRequest
from feedmux_server.store.store import SubscriptionStore
from tests.sim.events import BEGIN, event_token, hex_of
from tests.sim.records import Lost, Sought
from tests.sim.redis import SimRedis, SimRedisClient
from tests.sim.wire import Recorder, StoreWatcher
from tests.virtual_time import in_virtual_time


@in_virtual_time
async def test_a_lost_takeover_is_recorded_as_lost() -> None:
    loop, token = asyncio.get_running_loop(), event_token(BEGIN, key=0)
    redis, recorder = SimRedis(loop, Random(0)), Recorder(loop.time)
    StoreWatcher(recorder, redis)
    store = SubscriptionStore(SimRedisClient(redis), lease_s=30.0)  # type: ignore[arg-type]
    position = PositionEncoder(PositionKeys([bytes(32)]), bytes(8), bytes(8)).encode(token)
    await store.create("t", "s", definition=b"", etag="e", position=position, cluster_time=1, order=b"")
    _, first = await store.leases.open("t", "s", instance_id="one")
    for _ in range(2):  # what was written before is on disk then
        await asyncio.sleep(3.0)
        await store.leases.commit_many([CommitRequest(first, None)])
    await store.leases.open("t", "s", instance_id="two", takeover=True)
    redis.lose_last_writes()
    assert (await store.get("t", "s")).epoch == first.epoch
    created, lost = recorder.records
    assert isinstance(created, Sought)
    assert lost == Lost("s", hex_of(token))
