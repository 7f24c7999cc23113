"""What operators see of the streams that a replica reads."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from feedmux.v1 import operator_pb2 as wire
from feedmux_server.core.delivery.shared_stream import StreamState
from feedmux_server.core.delivery.taken import BSON
from feedmux_server.core.errors import ErrorReason
from feedmux_server.core.feeds.feed import FeedSpec, Scope
from feedmux_server.core.feeds.stream_key import stream_key
from feedmux_server.core.positions.join_point import JoinPoint
from feedmux_server.rpc import list_shared_streams
from feedmux_server.rpc.list_shared_streams import _STATES, ListSharedStreams
from tests.tables import over
from tests.unit.rpc.service_support import call, refused, served
from tests.unit.rpc.test_watch import watching
from tests.virtual_time import in_virtual_time, sim_loop


@over("count", [10, 100, 1_000])
@in_virtual_time
async def test_no_turn_of_the_event_loop_shows_many_subscribers(count: int) -> None:
    loop, shown = sim_loop(), Counter[int]()
    show = list_shared_streams._subscriber

    def counted(*of: Any) -> wire.Subscriber:
        shown[loop.steps] += 1
        return show(*of)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(list_shared_streams, "_subscriber", counted)
        patched.setattr(list_shared_streams, "SUBSCRIBERS_AT_ONCE", 20)
        async with served() as there:
            manager, key = there.service.manager, stream_key(FeedSpec(Scope("main", "db", "a")))
            for _ in range(count):
                at = JoinPoint(there.mongo.mark(there.mongo.latest + 1))
                manager.subscriber(key, "default", at, lambda: None, durable=False, payload_max=1, wire_format=BSON)
            response = wire.ListSharedStreamsResponse.FromString(
                await call(ListSharedStreams(there.service), wire.ListSharedStreamsRequest())
            )
            found = [len(each.subscribers) for each in response.shared_streams]
            assert sum(found) + len(response.detached_subscribers) == count
    assert max(shown.values()) <= 20


@in_virtual_time
async def test_a_stream_is_shown_with_its_subscribers_unless_they_are_omitted() -> None:
    async with served() as there, watching(there) as messages:
        there.mongo.insert("db", "a", 0)
        await messages.opened()
        there.mongo.insert("db", "a", 0)
        await messages.events(1)
        await asyncio.sleep(30.0)
        there.mongo.insert("db", "b", 0)
        for omitted in (False, True):
            request = wire.ListSharedStreamsRequest(source="main", omit_subscribers=omitted)
            response = wire.ListSharedStreamsResponse.FromString(await call(ListSharedStreams(there.service), request))
            (stream,) = response.shared_streams
            assert (stream.scope, stream.events_read, stream.subscriber_count) == ("db.a", 1, 1)
            assert stream.lag.seconds == 10, "a no-op each ten seconds says how far it is"
            shown = [(each.tenant, each.events_sent, each.lag_events) for each in stream.subscribers]
            assert shown == ([] if omitted else [("default", 1, 0)])


@in_virtual_time
async def test_an_unknown_source_is_rejected_with_those_there_are() -> None:
    async with served() as there:
        error = await refused(ListSharedStreams(there.service), wire.ListSharedStreamsRequest(source="mian"))
        assert (error.reason, error.field) == (ErrorReason.SOURCE_NOT_FOUND, "source")
        assert error.message.endswith("the sources are: main")


def test_every_state_is_shown() -> None:
    assert set(_STATES) == set(StreamState)
