"""Cursors beside the leading one of a feed: how many a tenant may have, and that idle ones keep nobody else waiting."""

import bson
import pytest

from feedmux.v1 import feed_pb2
from feedmux_server.core.positions.resume_token import ResumeToken
from tests.documents import Documents
from tests.integration.servers import Here, Limited, until
from tests.integration.wire import LATEST, feed
from tests.integration.wire import at as start_at

MANY = 40


async def newest_of(here: Here, wanted: feed_pb2.Feed, database: Documents) -> bytes:
    """The token of the feed's newest event, which no ring has any more."""
    receiver = here.api.watch(wanted, LATEST)
    await receiver.opened()
    database[wanted.collection].insert_one({"n": 0})
    [event] = await receiver.take(1)
    receiver.cancel()
    await until(lambda: not here.server.service.manager.cursors)
    return bson.encode(event.document["_id"])


def ahead(token: bytes, number: int) -> ResumeToken:
    """A time of the same second as the token's, which MongoDB does not come to within it."""
    second = ResumeToken.decode(token).cluster_time >> 32
    return ResumeToken.high_water_mark(second << 32 | (1 << 30) + number)


def made_up(token: bytes, number: int) -> bytes:
    """A token of an event that there was not, of the same second."""
    data = bytes.fromhex(bson.decode(token)["_data"])
    moved = data[:1] + ahead(token, number).cluster_time.to_bytes(8) + data[9:]
    return bson.encode({"_data": moved.hex().upper()})


def starts_of(kind: str, newest: bytes) -> list[feed_pb2.Start]:
    match kind:
        case "times":
            return [start_at(resume_after=ahead(newest, number).raw) for number in range(MANY)]
        case "events that were not":
            return [start_at(resume_after=made_up(newest, number)) for number in range(MANY)]
    return [start_at(start_after=newest)] * MANY


@pytest.mark.parametrize("kind", ["times", "events that were not", "events"])
async def test_an_idle_feed_has_no_more_cursors_than_the_quotas(
    limited: Limited, database: Documents, kind: str
) -> None:
    async with limited({"shared_streams": 2, "catch_up_streams": 3}) as here:
        wanted = feed(database.name, "c")
        newest = await newest_of(here, wanted, database)
        manager = here.server.service.manager
        receivers = [here.api.watch(wanted, start) for start in starts_of(kind, newest)]
        await until(lambda: len(here.server.service.sessions) == MANY)
        # Later than all of them: one more stream of another feed has been opened and read.
        other = here.api.watch(feed(database.name, "d"), LATEST)
        await other.opened()
        database["d"].insert_one({"n": 0})
        assert await other.numbers(1) == [0]
        assert manager.cursors <= 1 + 1 + 3 + 1  # both live streams, slots, and the room of `shared_streams`
        assert manager.slots.may_catch_up("b")
        for receiver in (*receivers, other):
            receiver.cancel()
