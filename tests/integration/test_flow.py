"""Acks and subscriptions on the wire: what the server stores, and what it delivers again."""

from typing import Any

import pytest
from pymongo.database import Database

from feedmux.v1 import feed_pb2
from tests.integration.wire import MANY, Api, at, feed

Documents = Database[dict[str, Any]]


def insert(database: Documents, numbers: range, pad: int = 0) -> None:
    database.c.insert_many([{"n": n, "pad": "x" * pad} for n in numbers])


# --- Acks on an inline feed.


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


# --- Durable subscriptions.


async def test_acked_never_comes_again_and_unacked_all_does(api: Api, database: Documents, name: str) -> None:
    await api.create(name, feed(database.name, "c"))
    insert(database, range(10))
    session = await api.open(name)
    await session.take(10)
    await session.ack_and_wait(4)
    stored = await api.get(name)
    assert stored.position == session.committed[-1].position
    assert stored.active
    await session.close()
    assert not (await api.get(name)).active
    again = await api.open(name)
    assert await again.numbers(6) == [4, 5, 6, 7, 8, 9]
    # A lower ack changes nothing; an ack of everything does.
    await again.ack(2)
    await again.ack(1)
    await again.ack_and_wait(6)
    await again.close()
    last = await api.open(name)
    insert(database, range(10, 11))
    assert await last.numbers(1) == [10]
    await last.close()


# --- The control service.
