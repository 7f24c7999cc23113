"""The server rejects a start that MongoDB has not reached, whatever its kind and in every call."""

import bson
import pytest
from google.protobuf import timestamp_pb2

from feedmux.v1 import change_feed_pb2 as wire
from feedmux.v1 import feed_pb2
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.positions.resume_token import ResumeToken
from feedmux_server.core.positions.stored_order import order_bytes
from feedmux_server.source.source_clock import SourceClock
from tests.documents import Documents
from tests.integration.servers import Here
from tests.integration.test_forged_positions import give_everywhere, moved, opened, start_everywhere
from tests.integration.wire import EARLIEST, LATEST, Api, at, feed, refused

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


async def test_every_kind_of_start_in_every_call(
    here: Here, tenant: str, api: Api, database: Documents, name: str
) -> None:
    wanted = feed(database.name, "c")
    token = await event_token(api, wanted, database)
    later = await mongodb_s(api, wanted) + AHEAD_S
    mark = ResumeToken.high_water_mark(later << 32)
    event = moved(token, AHEAD_S)
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
        everywhere = give_everywhere(api, wanted, name, start.position, good) if start.position else None
        reasons = await (everywhere or start_everywhere(api, wanted, name, start))
        found |= {f"{call} {kind}": reason for call, reason in reasons.items()}
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
