"""Odd names, and collections of other kinds."""

from datetime import UTC, datetime

import pytest

from tests.conformance.conftest import Document, Site
from tests.conformance.same import assert_refused_alike, assert_same
from tests.conformance.statements import DRIVERS, EVENTS, SERVER, UPDATES, shows
from tests.documents import Documents
from tests.integration.wire import feed

COLLECTIONS = {
    "emoji": "📦🚚",
    "unicode": "Größe-日本語-עברית",
    "combining": "e\u0301 is not é",
    "dots": "a.b.c",
    "dots that drivers refuse": "a..b.",
    "spaces": " a  b ",
    "quotes": 'it\'s "quoted" `so` \\ / {}[]()',
    "pattern": "^a.*(b|c)+[d-e]?$".replace("$", "£"),
    "number": "0",
    "not quite system": "systems.views",
    "control": "a\tb\nc\x7f",
}


@shows(EVENTS, "Change Events", "ns holds the names as they are")
@shows(SERVER, "Change Stream Namespace Scopes", "a collection's stream has that very collection's events only")
@pytest.mark.parametrize("name", COLLECTIONS)
async def test_collection_names(site: Site, database: Documents, name: str) -> None:
    """Names that look like patterns select nothing but themselves."""
    collection = COLLECTIONS[name]

    def insert(into: str, number: int) -> None:
        # pymongo would reject some of the names that MongoDB accepts.
        database.command({"insert": into, "documents": [{"_id": number}]})

    def act() -> None:
        insert(collection, 1)
        for other in (collection + "x", "x" + collection, "abd", "e\u00e9", "a.b", collection.upper() + "2"):
            insert(other, 2)
        insert(collection, 3)

    seen = await assert_same(site, feed(database.name, collection), act, kinds=["insert"] * 2)
    assert seen.documents[0]["ns"] == {"db": database.name, "coll": collection}
    await assert_same(site, feed(database.name), lambda: insert(collection, 4), kinds=["insert"])


async def test_the_longest_names(site: Site) -> None:
    database = site.client["d" * 63]
    collection = "c" * (255 - 64)
    try:
        seen = await assert_same(
            site, feed(database.name, collection), lambda: database[collection].insert_one({"_id": 1}), kinds=["insert"]
        )
        assert seen.documents[0]["ns"] == {"db": database.name, "coll": collection}
    finally:
        site.client.drop_database(database)


@shows(SERVER, "Change Stream Namespace Scopes", "a database's stream has that very database's events only")
async def test_database_names(site: Site, database: Documents) -> None:
    """Names that differ in case cannot both exist; those that begin alike or look like a pattern can."""
    name = database.name + "-é+(x)^[y]|"
    others = [site.client[each] for each in (name + "2", "2" + name, database.name)]
    try:

        def act() -> None:
            site.client[name].c.insert_one({"_id": 1})
            for each in others:
                each.c.insert_one({"_id": 2})

        seen = await assert_same(site, feed(name), act, kinds=["insert"])
        assert seen.documents[0]["ns"]["db"] == name
    finally:
        for each in (name, *(other.name for other in others)):
            site.client.drop_database(each)


FIELDS: dict[str, Document] = {
    "dots": {"a.b": 1, "c.d.e": {"f.g": [1]}},
    "dollars": {"$price": 1, "a$b": 1, "x": {"$ref": 1, "$date": 2, "$oid": "no"}},
    "empty": {"": 1, "x": {"": {"": 2}}},
    "unicode": {"é": 1, "📦": 2, "日本": {"עברית": 3}, "\u202e": 4},
    "long": {"x" * 100_000: 1},
    "words of events": {"operationType": "delete", "ns": 1, "fullDocument": 2, "clusterTime": 3, "_data": 4},
    "numbers": {"0": 1, "-1": 2, "list": {"0": 1, "00": 2}},
    "prototype": {"__proto__": 1, "constructor": 2, "hasOwnProperty": 3},
}


@shows(EVENTS, "Change Events", "fields of any name stand in fullDocument as they were written")
@shows(UPDATES, "Path Disambiguation", "names with dots and dollars in updates and replacements")
@pytest.mark.parametrize(("name", "expanded"), [*((name, False) for name in FIELDS), ("dots", True)])
async def test_field_names(site: Site, database: Documents, name: str, expanded: bool) -> None:
    document = FIELDS[name]

    def act() -> None:
        database.c.insert_one({"_id": 1, **document})
        for field_name in document:
            changed = {"$setField": {"field": {"$literal": field_name}, "input": "$$ROOT", "value": "changed"}}
            database.c.update_one({"_id": 1}, [{"$replaceWith": changed}])
        for field_name in document:
            gone = {"$unsetField": {"field": {"$literal": field_name}, "input": "$$ROOT"}}
            database.c.update_one({"_id": 1}, [{"$replaceWith": gone}])
        database.c.delete_one({"_id": 1})

    seen = await assert_same(site, feed(database.name, "c", show_expanded_events=expanded), act)
    assert seen.kinds[-1] == "delete"


@shows(EVENTS, "insert Event", "capped collections too; what an insert pushes out is a delete")
async def test_capped(site: Site, database: Documents) -> None:
    database.create_collection("c", capped=True, size=4096, max=3)

    def act() -> None:
        for n in range(10):
            database.c.insert_one({"_id": n})
        database.c.update_one({"_id": 9}, {"$set": {"n": 1}})

    kinds = ["insert"] * 3 + ["insert", "delete"] * 7 + ["update"]
    await assert_same(site, feed(database.name, "c"), act, kinds=kinds)


@shows(SERVER, "Change Stream Namespace Scopes", "no stream on a view, nor on a time-series collection")
@shows(DRIVERS, "Helper Method", "what the server does not support, the server rejects")
@pytest.mark.parametrize("kind", ["view", "time series", "view of a view"])
async def test_views_and_time_series_are_rejected(site: Site, database: Documents, kind: str) -> None:
    match kind:
        case "view":
            database.create_collection("c", viewOn="base", pipeline=[])
        case "view of a view":
            database.create_collection("between", viewOn="base", pipeline=[])
            database.create_collection("c", viewOn="between", pipeline=[])
        case _:
            database.create_collection("c", timeseries={"timeField": "t"})
    outcome = await assert_refused_alike(site, feed(database.name, "c"))
    assert outcome.metadata["code_name"] == "CommandNotSupportedOnView"


@shows(SERVER, "Change Stream Namespace Scopes", "measurements of a time series do not show in a wider stream")
@pytest.mark.parametrize("expanded", [False, True])
async def test_time_series_seen_by_the_database(site: Site, database: Documents, expanded: bool) -> None:
    def act() -> None:
        database.create_collection("timed", timeseries={"timeField": "t", "metaField": "m"})
        database.timed.insert_many([{"t": datetime.now(UTC), "m": n, "v": n} for n in range(5)])
        database.timed.delete_many({"m": 1})
        database.plain.insert_one({"_id": 1})
        database.timed.drop()

    seen = await assert_same(site, feed(database.name, show_expanded_events=expanded), act)
    of_documents = [event["ns"]["coll"] for event in seen.documents if event["operationType"] in ("insert", "delete")]
    assert of_documents == ["plain"]
    definitions = [event["operationType"] for event in seen.documents if event["ns"]["coll"] == "timed"]
    assert definitions == (["create", "drop"] if expanded else [])


@shows(SERVER, "Change Stream Namespace Scopes", "a collection that does not exist is waited for")
async def test_a_collection_to_come(site: Site, database: Documents) -> None:
    await assert_same(
        site, feed(database.name, "later"), lambda: database.later.insert_one({"_id": 1}), kinds=["insert"]
    )
