"""A tenant whose pipelines are expensive to check delays no other tenant."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import bson
import pytest
from pymongo.database import Database

from feedmux.v1 import feed_pb2
from feedmux_embedded import RedisServer, ReplicaSet
from feedmux_server.workers import request_checks
from tests.integration.servers import KEY_A, KEY_B, serving, settings, tenants_file, until
from tests.integration.wire import feed

Documents = Database[dict[str, Any]]
COSTLY = 20
"""Requests, as many as the default quotas allow at once."""
EVENTS = 20


def costly(database: str, number: int) -> feed_pb2.Feed:
    """A feed with a pipeline of 59 KB of as many elements as that holds."""
    made = feed(database, "c")
    made.pipeline.bson = bson.encode({"pipeline": [{"$match": {"a": {"$in": [None] * 8_200 + [number]}}}]})
    return made


async def test_costly_pipelines_do_not_delay_a_neighbour(
    mongo: ReplicaSet, redis_server: RedisServer, tmp_path: Path, database: Documents, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that checks pipelines is stopped, so every check lasts longer than all that the neighbour does."""
    monkeypatch.setattr(request_checks, "ANSWER_TIMEOUT_S", 3600.0)
    configuration = settings(mongo.uri, redis_server.url)
    configuration["tenants_file"] = str(tenants_file(tmp_path))
    async with serving(configuration, key=KEY_A) as here, here.api.with_key(KEY_B) as neighbour:
        checks = here.server.service.checks
        first = here.api.watch(costly(database.name, 0))
        await first.opened()  # and the process has started
        pid = checks._process.pid
        assert pid is not None
        session = await neighbour.open(feed=feed(database.name, "quiet"))
        os.kill(pid, signal.SIGSTOP)
        try:
            receivers = [here.api.watch(costly(database.name, number)) for number in range(1, COSTLY)]
            opening = [asyncio.create_task(each.opened()) for each in receivers]
            await until(lambda: len(checks._coming) == len(opening))
            for number in range(EVENTS):
                database.quiet.insert_one({"n": number})
                assert await session.numbers(1) == [number]
            another = await neighbour.open(
                feed=feed(database.name, "other", '[{"$match": {"operationType": "insert"}}]')
            )
            assert len(checks._coming) == len(opening)
            assert not any(each.done() for each in opening)
        finally:
            os.kill(pid, signal.SIGCONT)
        await asyncio.gather(*opening)
        for each in (first, *receivers, session, another):
            each.cancel()
