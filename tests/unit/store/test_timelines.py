"""What one server stores of a history, another reads."""

import asyncio
from typing import Any

import pytest

from feedmux_server.core.positions.timeline import Fork, OplogEntry, TimelineRecord
from feedmux_server.store.timelines import StoredTimelines
from tests.sim.redis import SimRedisClient
from tests.unit.store.store_support import redis_and_store
from tests.virtual_time import in_virtual_time


@in_virtual_time
async def test_it_is_stored_by_source_and_replaced_if_it_cannot_be_read(caplog: pytest.LogCaptureFixture) -> None:
    redis, _ = redis_and_store()
    client: Any = SimRedisClient(redis)
    stored, record = StoredTimelines(client), TimelineRecord(OplogEntry(7, 1), (Fork(3, 5, True),))
    assert await stored.read("one") == TimelineRecord()
    assert await stored.add("one", record) == record
    assert await StoredTimelines(client).read("one") == record
    assert await stored.read("other") == TimelineRecord()
    redis.run(("SET", "feedmux:1:timeline:one", b"\xffgarbage"))
    assert await stored.read("one") == TimelineRecord()
    assert "cannot be read" in caplog.text
    await stored.add("one", record)
    assert await stored.read("one") == record


@in_virtual_time
async def test_servers_that_write_at_the_same_time_lose_nothing_of_each_other() -> None:
    redis, _ = redis_and_store()
    client: Any = SimRedisClient(redis)
    forks = [Fork(10 * n, 10 * n + 5, True) for n in range(1, 6)]
    records = [TimelineRecord(OplogEntry(1_000 + n, 1), (fork,)) for n, fork in enumerate(forks)]
    await asyncio.gather(*(StoredTimelines(client).add("one", record) for record in records))
    found = await StoredTimelines(client).read("one")
    assert (found.forks, found.known in [each.known for each in records]) == (tuple(forks), True)
