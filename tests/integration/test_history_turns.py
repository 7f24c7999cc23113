"""Readers of history take turns at MongoDB, and keep none while they wait for events."""

from typing import Any

import pytest
from pymongo.database import Database

from feedmux_embedded import RedisServer, ReplicaSet
from feedmux_server.source import catchup_limiter, read_pace
from tests.integration.servers import serving, settings, until
from tests.integration.wire import LATEST, at, feed

Documents = Database[dict[str, Any]]


def now_s(database: Documents) -> int:
    """MongoDB's clock, which only writes move."""
    database.marks.insert_one({})
    return int(database.client.admin.command("hello")["operationTime"].time)


async def test_idle_feeds_take_a_turn_for_a_moment_each(
    mongo: ReplicaSet, redis_server: RedisServer, database: Documents, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an outage all their positions are old. Each has nothing to read, and would wait for events in its turn."""
    monkeypatch.setattr(catchup_limiter, "PERMIT_MAX_S", 3600.0)
    monkeypatch.setattr(read_pace, "HISTORY_S", 1)
    async with serving(settings(mongo.uri, redis_server.url, max_await_ms=60_000)) as here:
        api, manager = here.api, here.server.service.manager
        old = (await api.resolve(feed(database.name, "c"), LATEST)).position
        begin_s = now_s(database)
        await until(lambda: now_s(database) > begin_s + 2)
        await api.resolve(feed(database.name, "c"), LATEST)  # the server has seen the time
        # Pipelines that change nothing: feeds that no merged stream reads for them.
        pipelines = [f'[{{"$match": {{"fullDocument.n": {{"$ne": "{n}"}}}}}}]' for n in range(20)]
        idle = [api.watch(feed(database.name, "c", pipeline), at(position=old)) for pipeline in pipelines]

        def have_all_read() -> bool:
            streams = [each for keyed in manager.keyed() for each in keyed.streams.open]
            return len(streams) == len(idle) and all(each.batches_read for each in streams)

        await until(have_all_read)
        database.c.insert_one({"n": 1})
        for receiver in idle:
            assert [event.n for event in await receiver.take(1)] == [1]
            receiver.cancel()
