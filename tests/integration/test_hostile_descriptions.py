"""How somebody describes or names a collection stops nobody else's copies and explanations."""

from collections.abc import Iterator
from typing import Any

import bson
import pytest
from bson.datetime_ms import DatetimeMS
from bson.raw_bson import RawBSONDocument

from tests.documents import Documents
from tests.integration.servers import Here
from tests.integration.test_hostile_documents import raw
from tests.integration.test_snapshot import SNAPSHOT
from tests.integration.wire import feed

ODD: dict[str, Any] = {
    "date": {"d": {"$ne": DatetimeMS(10**15)}},
    "not UTF-8": {"d": {"$ne": raw(b"\3\0\0\0\xff\xfe\0", b"\x02")}},
    "large": {"a": {"$not": {"$in": [{}] * 400_000}}},
}


@pytest.mark.parametrize("validator", ODD)
async def test_a_validator(here: Here, database: Documents, validator: str) -> None:
    database.fine.insert_one({"n": 1})
    images = {"enabled": True}
    database.create_collection("odd", validator=ODD[validator], changeStreamPreAndPostImages=images)
    database.odd.insert_one({"n": 2})
    explained = await here.api.explain(feed=feed(database.name, full_document="whenAvailable"))
    assert [(each.collection, each.enabled) for each in explained.images] == [("fine", False), ("odd", True)]
    for collection, names in (("odd", ["odd"]), ("", ["fine", "odd"])):
        watch = here.api.watch(feed(database.name, collection), SNAPSHOT)
        events = [each.document for each in await watch.take(len(names))]
        assert [each["ns"]["coll"] for each in events] == names
        watch.cancel()


async def test_an_index_of_a_clustered_collection(here: Here, database: Documents) -> None:
    """MongoDB's plan quotes it."""
    database.create_collection("c", clusteredIndex={"key": {"_id": 1}, "unique": True})
    index = {"key": {"_id": 1, "a": 1}, "name": "odd", "partialFilterExpression": {"a": {"$gt": DatetimeMS(10**15)}}}
    database.command({"createIndexes": "c", "indexes": [index]})
    source = here.server.service.manager.source("main")
    assert not await source.scans(database.name, "c", [{"$match": {"_id": 1, "a": DatetimeMS(10**15 + 1)}}])


@pytest.fixture
def not_utf_8(database: Documents) -> Iterator[Documents]:
    """A database with a collection of such a name, in which the driver encodes none."""
    create = bson.encode({"create": "a€"}).replace("€".encode(), b"\xff\xfe\xfd")
    command = {"op": "c", "ns": f"{database.name}.$cmd", "o": RawBSONDocument(create)}
    database.client.admin.command({"applyOps": [command]})
    yield database
    database.client.drop_database(database.name)


async def test_a_name_that_is_not_utf_8(here: Here, not_utf_8: Documents) -> None:
    database = not_utf_8
    database.b.insert_one({"n": 1})
    source = here.server.service.manager.source("main")
    assert sorted(await source.names(database.name, most=9)) == ["a\ufffd\ufffd\ufffd", "b"]
    explained = await here.api.explain(feed=feed(database.name, full_document="whenAvailable"))
    assert "b" in [each.collection for each in explained.images]
    watch = here.api.watch(feed(database.name, "b"), SNAPSHOT)
    assert [each.document["ns"]["coll"] for each in await watch.take(1)] == ["b"]
    watch.cancel()
    end = await here.api.watch(feed(database.name), SNAPSHOT).end()
    assert (end.reason, end.metadata["kind"]) == ("SNAPSHOT_UNSUITABLE", "name")
