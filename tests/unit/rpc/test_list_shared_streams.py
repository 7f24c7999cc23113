"""What operators see of the streams that a replica reads."""

from feedmux.v1 import operator_pb2 as wire
from feedmux_server.core.delivery.shared_stream import StreamState
from feedmux_server.core.errors import ErrorReason
from feedmux_server.rpc.list_shared_streams import _STATES, ListSharedStreams
from tests.unit.rpc.service_support import call, refused, served
from tests.unit.rpc.test_watch import watching
from tests.virtual_time import in_virtual_time


@in_virtual_time
async def test_a_stream_is_shown_with_its_subscribers_unless_they_are_omitted() -> None:
    async with served() as there, watching(there) as messages:
        there.mongo.insert("db", "a", 0)
        await messages.opened()
        there.mongo.insert("db", "a", 0)
        await messages.events(1)
        request = wire.ListSharedStreamsRequest(source="main")
        response = wire.ListSharedStreamsResponse.FromString(await call(ListSharedStreams(there.service), request))
        (stream,) = response.shared_streams
        assert (stream.source, stream.scope, stream.events_read, stream.cursor_open) == ("main", "db.a", 1, True)
        assert stream.state in (wire.SharedStream.STATE_READING, wire.SharedStream.STATE_PAUSED)
        (subscriber,) = stream.subscribers
        assert (subscriber.tenant, subscriber.events_sent, subscriber.lag_events) == ("default", 1, 0)
        assert subscriber.peer == "ipv4:10.0.0.1:5"
        totals = response.totals
        assert (totals.shared_streams, totals.cursors, totals.subscribers) == (1, 1, 1)
        request.omit_subscribers = True
        response = wire.ListSharedStreamsResponse.FromString(await call(ListSharedStreams(there.service), request))
        (stream,) = response.shared_streams
        assert (stream.subscriber_count, list(stream.subscribers)) == (1, [])


@in_virtual_time
async def test_an_unknown_source_is_rejected_with_those_there_are() -> None:
    async with served() as there:
        error = await refused(ListSharedStreams(there.service), wire.ListSharedStreamsRequest(source="mian"))
        assert (error.reason, error.field) == (ErrorReason.SOURCE_NOT_FOUND, "source")
        assert error.message.endswith("the sources are: main")


def test_every_state_is_shown() -> None:
    assert set(_STATES) == set(StreamState)
