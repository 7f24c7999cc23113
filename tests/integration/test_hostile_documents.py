"""A document that somebody writes stops neither the server nor, for good, a feed that shows it."""

from collections.abc import Callable
from typing import Any

import bson
import pytest
from bson.datetime_ms import DatetimeMS
from bson.raw_bson import RawBSONDocument

from tests.documents import Documents
from tests.integration.servers import Here
from tests.integration.wire import Api, feed
from tests.unit.streams.manager_support import rings_of

MOVED = '[{"$replaceWith": {"value": "$fullDocument.value", "n": "$fullDocument.n", "_id": "$_id"}}]'
"""The resume token is the last field."""
LONG = {"spaces": " " * 1_000_000, "quotations": "First element: " * 70_000}
"""Texts that MongoDB quotes in its error."""


def raw(value: bytes, kind: bytes) -> RawBSONDocument:
    """A document with a `value` that the driver would not encode."""
    fields = kind + b"value\0" + value + bson.encode({"n": 0})[4:-1]
    return RawBSONDocument((len(fields) + 5).to_bytes(4, "little") + fields + b"\0")


VALUES: dict[str, Callable[[], Any]] = {
    "date": lambda: {"value": DatetimeMS(10**15), "n": 0},
    "early date": lambda: {"value": DatetimeMS(-(10**15)), "n": 0},
    "not UTF-8": lambda: raw(b"\3\0\0\0\xff\xfe\0", b"\x02"),
    "reference": lambda: raw(b"\2\0\0\0c\0" + bytes(12), b"\x0c"),
    "array": lambda: {"value": [{}] * 80_000, "n": 0},
}


@pytest.mark.parametrize("name_of_value", VALUES)
async def test_what_python_has_no_type_for_stands_before_the_token(
    api: Api, database: Documents, name: str, name_of_value: str
) -> None:
    await api.create(name, feed(database.name, "c", MOVED))
    session = await api.open(name)
    database.c.insert_one(VALUES[name_of_value]())
    database.c.insert_many([{"n": n} for n in range(1, 5)])
    found = [await session.take(1) for _ in range(5)]
    assert len({event.data for (event,) in found}) == 5
    await session.ack_and_wait(1)
    await session.ack_and_wait(3)
    session.cancel()
    session = await api.open(name, takeover=True)
    (event,) = await session.take(1)
    assert bson.decode(event.data)["n"] == 3
    session.cancel()


async def test_events_whose_token_was_moved_are_evicted_while_they_await_acks(
    here: Here, database: Documents, name: str
) -> None:
    """Whoever needs memory evicts them. The acks that come afterwards are stored."""
    api = here.api
    await api.create(name, feed(database.name, "c", MOVED))
    session = await api.open(name)
    database.c.insert_many([VALUES["date"](), *({"n": n} for n in range(1, 20))])
    found = 0
    while found < 20:
        found += len(await session.take(1))
    for ring in rings_of(here.server.service.manager):
        while len(ring):
            ring.drop_oldest()
    await session.ack_and_wait(10)
    session.cancel()
    session = await api.open(name, takeover=True)
    (event,) = await session.take(1)
    assert bson.decode(event.data)["n"] == 10
    session.cancel()


@pytest.mark.parametrize("text", LONG)
async def test_mongodb_quotes_a_long_text(api: Api, database: Documents, text: str) -> None:
    """Of the pipeline, or of a document that a pipeline converts."""
    converted = '[{"$set": {"number": {"$convert": {"input": "$fullDocument.text", "to": "objectId"}}}}]'
    failing = api.watch(feed(database.name, "c", converted))
    await failing.opened()
    database.c.insert_one({"text": LONG[text]})
    outcome = await failing.end()
    assert (outcome.code, outcome.reason) == ("FAILED_PRECONDITION", "PIPELINE_FAILED")
    assert len(outcome.message) < 1_500
    to = LONG[text][:20_000]
    asked = feed(database.name, "c", f'[{{"$set": {{"a": {{"$convert": {{"input": 1, "to": "q{to}q"}}}}}}}}]')
    explained = await api.explain(feed=asked)
    assert explained.refusal.reason == "OPTION_REFUSED"
    assert len(explained.refusal.message) < 1_500
