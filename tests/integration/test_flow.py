"""Sessions of inline feeds on the wire: their acks, and clients that end their messages at once."""

import pytest

from feedmux.v1 import feed_pb2
from tests.documents import Documents, insert
from tests.integration.wire import MANY, Api, at, feed


async def test_acks_of_an_inline_feed_are_accepted_and_stored_nowhere(api: Api, database: Documents) -> None:
    session = await api.open(feed=feed(database.name, "c"))
    insert(database, range(5))
    await session.take(5)
    await session.ack(3)
    # The server reads Close after the ack, and ends after it has stored what there is to store.
    await session.close()
    assert not session.committed


@pytest.mark.parametrize("wire_format", [feed_pb2.FORMAT_BSON, feed_pb2.FORMAT_EXTENDED_JSON_RELAXED])
async def test_a_tool_that_half_closes_at_once_gets_what_is_there(
    api: Api, database: Documents, wire_format: feed_pb2.Format
) -> None:
    """As `grpcurl -d` does."""
    watching = api.watch(feed(database.name, "c"))
    await watching.opened()
    insert(database, range(5))
    await watching.take(5)
    watching.cancel()
    start = at(position=watching.batches[0].position)
    left = 5 - watching.batches[0].event_count
    insert(database, range(5, 8))
    session = await api.session(feed=feed(database.name, "c"), start=start, format=wire_format, credit=MANY)
    await session.call.done_writing()
    await session.opened()
    assert len(await session.rest()) == left + 3
