"""Ranges meet without a gap, whatever is read of them and where the events come from."""

import bson
import pytest

from feedmux.v1 import change_feed_pb2 as wire
from feedmux.v1 import feed_pb2
from feedmux_server.core.feeds.feed import FeedSpec, Scope
from feedmux_server.core.limits.rates import Rates
from feedmux_server.core.positions.resume_token import Copied
from feedmux_server.rpc.plan_range import PlanRange
from feedmux_server.rpc.read_range import ReadRange
from tests.sim.mongo import SPLIT
from tests.unit.rpc.service_support import Context, Served, call, refused, served
from tests.virtual_time import in_virtual_time

FEED = feed_pb2.Feed(source="main", database="db", collection="a", batch_size=2)


async def events_of(there: Served, each: wire.RangeSlice) -> list[int]:
    context = Context()
    request = wire.ReadRangeRequest(feed=FEED, after=each.after, until=each.until)
    await call(ReadRange(there.service), request, context)
    messages = [wire.ReadRangeResponse.FromString(data) for data in context.written]
    found = [event for message in messages for event in bson.decode_all(message.batch.bson)]
    return [event["fullDocument"]["n"] for event in found]


@in_virtual_time
async def test_a_range_that_ends_before_it_begins_is_rejected() -> None:
    async with served() as there:
        first = await there.position()
        there.mongo.insert("db", "a", 0)
        second = await there.position()
        error = await refused(ReadRange(there.service), wire.ReadRangeRequest(feed=FEED, after=second, until=first))
        assert error.status == "INVALID_ARGUMENT"
        assert (await refused(ReadRange(there.service), wire.ReadRangeRequest(feed=FEED))).status == "INVALID_ARGUMENT"


@in_virtual_time
async def test_a_range_is_charged_by_its_plan_and_by_each_read_after_the_first() -> None:
    """So a bulk reader may read as much in a second as Watch."""
    async with served() as there:
        after = await there.position()
        there.mongo.transaction("db", "a", 20, 1_000)
        account = there.service.manager.accounts.of("default")
        charged: list[tuple[int, int]] = []

        def deliver(_: Rates, events: int, size: int, now_s: float) -> None:
            charged.append((events, size))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Rates, "deliver", deliver)
            request = wire.PlanRangeRequest(feed=FEED, after=after, events_max=20, bytes_max=1 << 20, slices=3)
            plan = wire.PlanRangeResponse.FromString(await call(PlanRange(there.service), request))
            whole = (20, plan.size_bytes)
            assert (sum(events for events, _ in charged), sum(size for _, size in charged)) == whole
            charged.clear()
            for each in plan.slices:
                await events_of(there, each)
            assert charged == []
            assert (account.events_sent, account.bytes_sent) == whole
            for each in plan.slices:  # now from MongoDB
                await events_of(there, each)
            assert (sum(events for events, _ in charged), sum(size for _, size in charged)) == whole


@in_virtual_time
async def test_a_range_within_a_copy_begins_before_an_event_that_another_feed_has_split() -> None:
    """As after a change of the grants. There, MongoDB has no event, and it has lost none."""
    async with served(token_version=2) as there:
        there.mongo.insert("db", "a", 0)
        there.mongo.insert("db", "other", 0)  # without an event after it, MongoDB cannot say that it has no such event
        entry, copied = there.mongo.entries[0], Copied(bson.encode({"_id": 9}), 1)
        feed = FeedSpec(Scope("main", "db", "a"), pipeline=bson.encode({"pipeline": [SPLIT]}))
        positions = there.service.starts(there.service.access.key_of(feed, "default"), "default").encoder()
        ends = entry.tokens(0), there.mongo.mark(there.mongo.latest + 1)
        after, until = (positions.encode(each.while_copying(copied)) for each in ends)
        assert await events_of(there, wire.RangeSlice(after=after, until=until)) == [entry.number]
