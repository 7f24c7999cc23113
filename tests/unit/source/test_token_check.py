"""The event of a token is found whatever the feed shows, and one that never was is not."""

import asyncio
from random import Random

import bson
import pytest
from pymongo.errors import AutoReconnect

from feedmux_server.core.feeds.feed import FeedSpec, Scope
from feedmux_server.core.feeds.stream_key import stream_key
from feedmux_server.source.token_check import has_event
from tests.sim.events import event_token
from tests.sim.loop import SimLoop
from tests.sim.mongo import SimMongo, SimSource
from tests.virtual_time import in_virtual_time

HIDING = bson.encode({"pipeline": [{"$match": {"fullDocument.n": -1}}]})
KEY = stream_key(FeedSpec(Scope("main", "db", "a"), pipeline=HIDING, full_document="updateLookup"))


@in_virtual_time
async def test_a_hidden_event_is_there_and_a_lost_one_is_not() -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    mongo = SimMongo(loop, Random(0))
    source = SimSource(mongo)
    await source.connect()
    mongo.insert("db", "a", 0)
    place = mongo.entries[0].token
    never = event_token(place.cluster_time + 1, key=7)
    assert await has_event(source, KEY, place)
    await asyncio.sleep(5)
    mongo.insert("db", "a", 0)
    assert await has_event(source, KEY, place)
    assert not await has_event(source, KEY, never)
    assert await has_event(source, KEY, mongo.mark(never.cluster_time)), "no event has this position"
    assert mongo.open == {}
    mongo.away = True
    with pytest.raises(AutoReconnect):
        await has_event(source, KEY, never)
