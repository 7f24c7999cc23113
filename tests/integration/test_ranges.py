"""PlanRange and ReadRange: exact, repeatable, one pass over MongoDB."""

import asyncio
from typing import Any

import bson
import pytest
from pymongo.write_concern import WriteConcern

from feedmux.v1 import change_feed_pb2 as wire
from feedmux_server.core.delivery.taken import Delivery
from feedmux_server.ranges.cache import RangeCache
from feedmux_server.ranges.reader import RangeReader
from feedmux_server.rpc import read_range
from feedmux_spark.options import parse_options
from feedmux_spark.ranges import Slice, read_slice
from tests.documents import Documents, insert
from tests.integration.servers import Here
from tests.integration.wire import FIXED_WINDOW, LATEST, Api, Event, feed, refused


async def start(api: Api, database: Documents) -> bytes:
    """A position before everything that comes."""
    return (await api.resolve(feed(database.name, "c"), LATEST)).position


async def read(api: Api, plan: wire.PlanRangeResponse, **fields: Any) -> list[list[Event]]:
    """The events of each slice, read at the same time."""
    slices = [api.read_range(after=each.after, until=each.until, **fields) for each in plan.slices]
    return await asyncio.gather(*(each.rest() for each in slices))


def of(events: list[list[Event]]) -> list[int]:
    return [event.n for each in events for event in each]


async def test_a_backlog_in_ranges_and_slices(api: Api, database: Documents) -> None:
    wanted, after = feed(database.name, "c"), await start(api, database)
    insert(database, range(1000))
    got: list[int] = []
    while True:
        plan = await api.plan(feed=wanted, after=after, events_max=300, slices=4)
        assert plan.after == after
        assert plan.event_count == sum(each.event_count for each in plan.slices) <= 300
        assert [each.after for each in plan.slices[1:]] == [each.until for each in plan.slices[:-1]]
        parts = await read(api, plan, feed=wanted)
        assert [len(part) for part in parts] == [each.event_count for each in plan.slices]
        assert sum(len(event.data) for part in parts for event in part) == plan.size_bytes
        got += of(parts)
        after = plan.end
        if plan.caught_up:
            break
    assert got == list(range(1000))
    # Nothing new: the range is empty, and its end is still a position to continue from.
    empty = await api.plan(feed=wanted, after=after)
    assert (empty.event_count, list(empty.slices)) == (0, [])
    insert(database, range(1000, 1010))
    plan = await api.plan(feed=wanted, after=empty.end, wait=10)
    assert of(await read(api, plan, feed=wanted))[:1] == [1000]


async def test_what_a_reader_does_not_take_is_not_sent(here: Here, api: Api, database: Documents) -> None:
    """Flow by HTTP/2: the server writes what the reader's window takes, and holds no more than a message or two."""
    wanted, after = feed(database.name, "c"), await start(api, database)
    insert(database, range(4000), pad=10_000)
    plan = await api.plan(feed=wanted, after=after)
    assert plan.size_bytes > 32 << 20
    account = here.server.service.manager.accounts.of("default")
    async with Api(api.data_port, api.operator_port, api.health_port, options=FIXED_WINDOW) as reader:
        for _ in range(2):  # kept, then from MongoDB
            before, reading = account.bytes_sent, reader.read_range(feed=wanted, after=plan.after, until=plan.end)
            await reading.take(1)
            last = -1
            while account.bytes_sent != last:  # it has stopped
                last = account.bytes_sent
                await asyncio.sleep(0.5)
            assert account.bytes_sent - before <= 3 << 20
            assert [event.n for event in await reading.rest()] == list(range(1, 4000))


async def test_a_subscription_stores_what_was_processed(api: Api, database: Documents, name: str) -> None:
    wanted = feed(database.name, "c")
    await api.create(name, wanted)
    insert(database, range(100))
    plan = await api.plan(subscription=name, instance_id="one", events_max=60)
    assert of(await read(api, plan, subscription=name)) == list(range(60))
    # Nothing was said of it yet.
    same = await api.plan(subscription=name, instance_id="one", events_max=60)
    assert (same.after, same.end) == (plan.after, plan.end)
    plan = await api.plan(subscription=name, instance_id="one", after=plan.end, processed=plan.end)
    assert (await api.get(name)).position == plan.after
    assert of(await read(api, plan, subscription=name)) == list(range(60, 100))
    busy = await refused(api.plan(subscription=name, instance_id="two"))
    assert (busy.code, busy.reason) == ("FAILED_PRECONDITION", "SUBSCRIPTION_BUSY")
    # An older position changes nothing.
    await api.plan(subscription=name, instance_id="one", after=plan.end, processed=same.after)
    assert (await api.get(name)).position == plan.after


@pytest.mark.parametrize("events_max", [5, 1000])
async def test_ranges_go_on_behind_an_invalidate(api: Api, database: Documents, events_max: int) -> None:
    """Also behind a range that ends with it, whose reader has not met the end of its stream."""
    wanted, after = feed(database.name, "c"), await start(api, database)
    insert(database, range(3))
    database.c.drop()
    insert(database, range(3, 5))
    got: list[str] = []
    async with asyncio.timeout(60):
        while len(got) < 7:
            plan = await api.plan(feed=wanted, after=after, events_max=events_max, wait=1)
            got += [event.document["operationType"] for part in await read(api, plan, feed=wanted) for event in part]
            after = plan.end
    assert got == ["insert"] * 3 + ["drop", "invalidate"] + ["insert"] * 2


async def test_a_range_ends_where_it_is_to_end_before_a_hidden_invalidate(api: Api, database: Documents) -> None:
    """The stream that has met the invalidate is read by another plan, so that its end is there from the beginning."""
    wanted = feed(database.name, "c", '[{"$match": {"operationType": "insert"}}]')
    database.create_collection("c")
    after = await start(api, database)
    database.other.insert_one({})
    end = (await api.resolve(wanted, LATEST)).position
    database.c.drop()
    beyond = await api.plan(feed=wanted, after=after, wait=10)
    assert (beyond.event_count, beyond.end != end) == (0, True)
    plan = await api.plan(feed=wanted, after=after, until=end)
    assert (plan.event_count, plan.end, plan.caught_up) == (0, end, True)


async def test_what_ends_the_feed_comes_behind_what_was_read(api: Api, database: Documents) -> None:
    broken = '[{"$set": {"half": {"$divide": [1, "$fullDocument.n"]}}}]'
    wanted, after = feed(database.name, "c", broken), await start(api, database)
    insert(database, range(5, 0, -1))
    plan = await api.plan(feed=wanted, after=after)
    assert of(await read(api, plan, feed=wanted)) == [5, 4, 3, 2, 1]
    insert(database, range(1))
    refusal = await refused(api.plan(feed=wanted, after=plan.end, wait=10))
    assert (refusal.code, refusal.reason) == ("FAILED_PRECONDITION", "PIPELINE_FAILED")


async def test_a_read_that_waits_says_that_it_is_there(
    api: Api, database: Documents, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty message, so that a reader can tell a long search from a dead connection."""
    monkeypatch.setattr(read_range, "HEARTBEAT_S", 0.0)
    wanted, after = feed(database.name, "c"), await start(api, database)
    insert(database, range(3))
    plan = await api.plan(feed=wanted, after=after)
    waits = [True, True, False]
    find = RangeReader.next

    async def finding(reader: RangeReader, *args: Any, **fields: Any) -> Delivery | None:
        return None if waits and waits.pop(0) else await find(reader, *args, **fields)

    monkeypatch.setattr(RangeReader, "next", finding)
    monkeypatch.setattr(RangeCache, "read", lambda *_: None)
    request = wire.ReadRangeRequest(feed=wanted, after=plan.after, until=plan.end)
    kinds = [message.WhichOneof("message") async for message in api.feeds.ReadRange(request, metadata=api.metadata)]
    assert kinds == [None, None, "batch"]
    waits += [True, True]
    place = {"endpoint": f"127.0.0.1:{api.data_port}", "database": database.name, "collection": "c"}
    options = parse_options(place)
    (batch,) = await asyncio.to_thread(lambda: list(read_slice(options, Slice(plan.after, plan.end))))
    assert [each["fullDocument"]["n"] for each in bson.decode_all(batch)] == [0, 1, 2]


async def test_a_plan_is_not_caught_up_before_a_write_acknowledged_before_it(api: Api, database: Documents) -> None:
    """The first write after `latest` gets the very time of that position, within the same second."""
    wanted, majority = feed(database.name, "c"), WriteConcern("majority")
    for number in range(20):
        after = await start(api, database)
        database.get_collection("c", write_concern=majority).insert_one({"n": number})
        got: list[int] = []
        while True:
            # With the write, the plan may not know yet that nothing else has its time.
            plan = await api.plan(feed=wanted, after=after)
            got += of(await read(api, plan, feed=wanted))
            after = plan.end
            if plan.caught_up:
                break
        assert got == [number]
