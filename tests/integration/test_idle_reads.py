"""Many feeds without events: each read waits for longer, until an event comes or somebody asks how far it has come."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from pymongo import MongoClient

from feedmux_embedded import RedisServer, ReplicaSet
from feedmux_server.source import read_pace
from feedmux_server.source.reader import ChangeStreamReader
from feedmux_server.streams.wide.view_reader import ViewReader
from tests.documents import Documents
from tests.integration.servers import Here, cursors, settings, until
from tests.integration.tenancy import configuration, entry, tenancy
from tests.integration.wire import LATEST, feed

MANY = 1_000_000


@pytest_asyncio.fixture(params=[True, False], ids=["may be views", "no wide streams"])
async def here(
    request: pytest.FixtureRequest,
    mongo: ReplicaSet,
    redis_server: RedisServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Here]:
    """A server that counts a million cursors, so that idle reads wait for an hour. Its tenant has two feeds at most."""
    monkeypatch.setattr(read_pace, "IDLE_S", 3600.0)
    tenant = entry("a", "key-a-canary", quotas={"shared_streams": 2})
    made = {**configuration(mongo, redis_server, tmp_path, tenant), "wide": {"enabled": request.param}}
    made["limits"] = {**settings("", "")["limits"], "unused_stream_s": 3600.0}
    async with tenancy(made, "key-a-canary") as site:
        site.here.server.service.manager.source("main").cursors = MANY
        yield site.here


def readers(here: Here) -> list[ChangeStreamReader]:
    found = [pump.reader for keyed in here.server.service.manager.keyed() for pump in keyed.pumps.values()]
    own = (each._narrow if isinstance(each, ViewReader) else each for each in found)
    return [each for each in own if isinstance(each, ChangeStreamReader)]


async def waiting(here: Here) -> None:
    """Until a read waits for an hour."""
    await until(lambda: sum(each._interrupt is not None for each in readers(here)) == 1)


async def test_who_asks_how_far_it_has_come_hears_it(
    here: Here, database: Documents, mongo_client: MongoClient[dict[str, Any]]
) -> None:
    wanted = feed(database.name, "c")
    receiver = here.api.watch(wanted, LATEST)
    await receiver.opened()
    for n in range(3):
        await waiting(here)
        before = cursors(mongo_client, f"{database.name}.c")
        # Something newer than the read that waits: only another one can tell that it is not of this feed.
        database.other.insert_one({})
        after = (await here.api.resolve(wanted, LATEST)).position
        plan = await here.api.plan(feed=wanted, after=after, wait=0)
        assert plan.caught_up
        assert plan.event_count == 0
        # The range's reader waits for the next plan and so keeps the reads short; without it they get long again.
        ranges = here.server.service.ranges
        for key, tenant in [(key, tenant) for tenant, key in ranges._waiting]:
            ranges._leave(here.server.service.manager.accounts.of(tenant), key)
        database.c.insert_one({"n": n})
        assert await receiver.numbers(1) == [n], "nothing is lost with the cursor"
        assert cursors(mongo_client, f"{database.name}.c").isdisjoint(before), "another cursor, and the old one is gone"
    (stream,) = [stream for keyed in here.server.service.manager.keyed() for stream in keyed.streams.open]
    assert stream.resumes == 0
    receiver.cancel()
