"""The server rejects a start that MongoDB has not reached, whatever its kind and in every call."""

from collections.abc import Awaitable
from typing import Any

import bson
import pytest
from google.protobuf import timestamp_pb2
from pymongo.database import Database

from feedmux.v1 import change_feed_pb2 as wire
from feedmux.v1 import feed_pb2
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.positions.resume_token import ResumeToken
from feedmux_server.core.positions.stored_order import order_bytes
from feedmux_server.source.source_clock import SourceClock
from tests.integration.servers import Here
from tests.integration.wire import EARLIEST, LATEST, Api, at, feed, refused

Documents = Database[dict[str, Any]]
AHEAD_S = 86_400
"""No test takes so long that MongoDB reaches such a start."""


@pytest.fixture
def tenant(here: Here) -> str:
    """Of the server without authentication."""
    [tenant] = here.server.service.access.grants
    return tenant


async def position_of(here: Here, tenant: str, wanted: feed_pb2.Feed, token: ResumeToken) -> bytes:
    """As the server itself would make it."""
    service = here.server.service
    key = service.access.key_of(await service.access.feed_of(wanted, tenant), tenant)
    return service.positions(key, tenant).encode(token)


def future_event(token: bytes) -> bytes:
    data = bytes.fromhex(bson.decode(token)["_data"])
    moved = data[:1] + (int.from_bytes(data[1:9]) + (AHEAD_S << 32)).to_bytes(8) + data[9:]
    return bson.encode({"_data": moved.hex().upper()})


async def mongodb_s(api: Api, wanted: feed_pb2.Feed) -> int:
    """MongoDB's clock, in seconds, as far as it has come at least."""
    return (await api.resolve(wanted, LATEST)).cluster_time.seconds


async def event_token(api: Api, wanted: feed_pb2.Feed, database: Documents) -> bytes:
    receiver = api.watch(wanted, LATEST)
    await receiver.opened()
    database.c.insert_one({"n": 0})
    [event] = await receiver.take(1)
    receiver.cancel()
    return bson.encode(event.document["_id"])


async def opened(api: Api, **fields: Any) -> None:
    session = await api.session(**fields)
    try:
        await session.opened()
    finally:
        session.cancel()


async def first_of(api: Api, **fields: Any) -> None:
    receiver = api.read_range(**fields)
    try:
        await receiver.message()
    finally:
        receiver.cancel()


async def explained(api: Api, wanted: feed_pb2.Feed, start: feed_pb2.Start) -> str:
    return (await api.explain(feed=wanted, start=start)).refusal.reason


def calls_with_start(api: Api, wanted: feed_pb2.Feed, name: str, start: feed_pb2.Start) -> dict[str, Awaitable[Any]]:
    return {
        "Watch": api.watch(wanted, start).opened(),
        "Subscribe": opened(api, feed=wanted, start=start),
        "ResolvePosition": api.resolve(wanted, start),
        "Create": api.create(f"{name}-new", wanted, start),
        "Seek": api.seek(name, start),
    }


async def test_every_kind_of_start_in_every_call(
    here: Here, tenant: str, api: Api, database: Documents, name: str
) -> None:
    wanted = feed(database.name, "c")
    token = await event_token(api, wanted, database)
    later = await mongodb_s(api, wanted) + AHEAD_S
    mark = ResumeToken.high_water_mark(later << 32)
    event = future_event(token)
    good = (await api.resolve(wanted, EARLIEST)).position
    await api.create(name, wanted, at(position=good))
    starts = {
        "position of a time": at(position=await position_of(here, tenant, wanted, mark)),
        "position of an event": at(position=await position_of(here, tenant, wanted, ResumeToken.decode(event))),
        "resume_after": at(resume_after=event),
        "resume_after a time": at(resume_after=mark.raw),
        "start_after": at(start_after=event),
        "start_at_operation_time": at(start_at_operation_time=feed_pb2.ClusterTime(seconds=later, increment=1)),
        "time": at(time=timestamp_pb2.Timestamp(seconds=later)),
    }
    found: dict[str, str] = {}
    for kind, start in starts.items():
        for call, asked in calls_with_start(api, wanted, name, start).items():
            found[f"{call} {kind}"] = (await refused(asked)).reason
        found[f"Explain {kind}"] = await explained(api, wanted, start)
    for kind in ("position of a time", "position of an event"):
        bad = starts[kind].position
        acked = wire.LastAcked(epoch=1 << 60, position=bad)
        ranges: dict[str, Awaitable[Any]] = {
            "last_acked": opened(api, subscription=name, instance_id="i", last_acked=acked),
            "PlanRange.after": api.plan(feed=wanted, after=bad),
            "PlanRange.until": api.plan(feed=wanted, after=good, until=bad),
            "PlanRange.processed": api.plan(subscription=name, instance_id="i", processed=bad),
            "ReadRange.after": first_of(api, feed=wanted, after=bad, until=good),
            "ReadRange.until": first_of(api, feed=wanted, after=good, until=bad),
        }
        for call, asked in ranges.items():
            found[f"{call} {kind}"] = (await refused(asked)).reason
    for what, raw in (("event", event), ("time", mark.raw)):
        acked = wire.LastAcked(epoch=1 << 60, resume_token=raw)
        asked = opened(api, subscription=name, instance_id="i", last_acked=acked)
        found[f"last_acked token of {what}"] = (await refused(asked)).reason
    assert {call: reason for call, reason in found.items() if reason != "START_IN_FUTURE"} == {}
    assert (await api.get(name)).position == good


async def test_a_stored_position_of_a_mongodb_that_was_restored(
    here: Here, tenant: str, api: Api, database: Documents, name: str
) -> None:
    """Its time is one that this MongoDB has not come to."""
    wanted = feed(database.name, "c")
    await api.create(name, wanted, LATEST)
    store = here.server.service.store
    mark = ResumeToken.high_water_mark(await mongodb_s(api, wanted) + AHEAD_S << 32)
    position = await position_of(here, tenant, wanted, mark)
    await store.seek(tenant, name, position=position, cluster_time=mark.cluster_time, order=order_bytes(mark))
    assert (await refused(opened(api, subscription=name))).reason == "START_IN_FUTURE"
    asked = api.plan(subscription=name, instance_id="i")
    assert (await refused(asked)).reason == "START_IN_FUTURE"
    await api.seek(name, LATEST)
    await opened(api, subscription=name, instance_id="i")


async def test_an_unreachable_clock_is_no_verdict(
    here: Here, api: Api, database: Documents, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the start lies in the future cannot be said: the client tries again."""

    async def away(clock: SourceClock) -> int:
        raise FeedmuxError(ErrorReason.SOURCE_UNAVAILABLE, "away", retry_after_s=1.0)

    later = await mongodb_s(api, feed(database.name)) + AHEAD_S
    monkeypatch.setattr(SourceClock, "latest_time", away)
    start = at(time=timestamp_pb2.Timestamp(seconds=later))
    assert (await refused(api.watch(feed(database.name), start).opened())).code == "UNAVAILABLE"
