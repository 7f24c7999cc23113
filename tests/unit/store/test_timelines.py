"""What one server stores of a history, another reads."""

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
    await stored.write("one", record)
    assert await StoredTimelines(client).read("one") == record
    assert await stored.read("other") == TimelineRecord()
    redis.run(("SET", "feedmux:1:timeline:one", b"\xffgarbage"))
    assert await stored.read("one") == TimelineRecord()
    assert "cannot be read" in caplog.text
