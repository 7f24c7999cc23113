"""Events of collections, indexes and databases: create, modify, drop, rename, and what they end."""

import pytest
from pymongo.errors import OperationFailure

from tests.conformance.conftest import Site, on_both_versions
from tests.conformance.same import assert_same, scoped
from tests.conformance.statements import DRIVERS, EVENTS, SERVER, shows
from tests.documents import Documents
from tests.integration.wire import feed

FORMAT = "Response Format"
EXPANDED = "`showExpandedEvents`"


@shows(EVENTS, "drop Event", "a dropped collection: drop, with ns, then invalidate on its own stream")
@shows(EVENTS, "invalidate Event", "drop of the watched collection leads to invalidate, which closes the cursor")
async def test_drop(site: Site, database: Documents) -> None:
    def act() -> None:
        database.c.insert_one({"_id": 1})
        database.c.drop()
        database.c.insert_one({"_id": 2})

    seen = await assert_same(site, feed(database.name, "c"), act, kinds=["insert", "drop", "invalidate"])
    assert seen.documents[1]["ns"] == {"db": database.name, "coll": "c"}
    assert set(seen.documents[2]) == {"_id", "operationType", "clusterTime", "wallTime"}
    assert seen.ended


@shows(EVENTS, "rename Event", "ns is the old name, to the new one; the collection's stream is invalidated")
@shows(DRIVERS, FORMAT, "rename: to has the form of ns")
@pytest.mark.parametrize("watched", ["old", "new"])
@pytest.mark.parametrize("expanded", [False, True])
async def test_rename(site: Site, database: Documents, watched: str, expanded: bool) -> None:
    """Also on the stream of the name that the collection is given."""
    database.old.insert_one({"_id": 1})
    wanted = feed(database.name, watched, show_expanded_events=expanded)
    seen = await assert_same(site, wanted, lambda: database.old.rename("new"), kinds=["rename", "invalidate"])
    renamed = seen.documents[0]
    assert renamed["ns"] == {"db": database.name, "coll": "old"}
    assert renamed["to"] == {"db": database.name, "coll": "new"}
    assert ("operationDescription" in renamed) == expanded


@shows(EVENTS, "rename Event", "with expanded events operationDescription has to, and dropTarget where one was dropped")
@shows(EVENTS, "Change Events", "operationDescription.dropTarget is the UUID of what the rename dropped")
@pytest.mark.parametrize("scope", ["", "old", "new"])
async def test_rename_over_another(site: Site, database: Documents, scope: str) -> None:
    database.old.insert_one({"_id": 1})
    database.new.insert_one({"_id": 2})
    wanted = feed(database.name, scope, show_expanded_events=True)
    seen = await assert_same(site, wanted, lambda: database.old.rename("new", dropTarget=True))
    renamed = next(event for event in seen.documents if event["operationType"] == "rename")
    assert renamed["operationDescription"]["to"] == {"db": database.name, "coll": "new"}
    assert "dropTarget" in renamed["operationDescription"]


@shows(EVENTS, "rename Event", "a rename into another database reaches the streams of both")
async def test_rename_into_another_database(site: Site, database: Documents) -> None:
    there = site.client[database.name + "_too"]
    database.old.insert_one({"_id": 1})
    try:
        for wanted in (feed(database.name), feed(there.name)):
            source, target = f"{database.name}.old", f"{there.name}.new"

            def act(source: str = source, target: str = target) -> None:
                site.client.admin.command("renameCollection", source, to=target)
                site.client.admin.command("renameCollection", target, to=source)

            await assert_same(site, wanted, act)
    finally:
        site.client.drop_database(there)


@shows(EVENTS, "dropDatabase Event", "a drop for each collection, then dropDatabase without ns.coll")
@shows(EVENTS, "dropDatabase Event", "it leads to invalidate on the database's stream")
@shows(EVENTS, "Change Events", "ns.coll is left out in dropDatabase")
async def test_drop_database(site: Site, database: Documents) -> None:
    database.c.insert_one({"_id": 1})
    database.d.insert_one({"_id": 1})
    kinds = ["drop", "drop", "dropDatabase", "invalidate"]
    seen = await assert_same(site, feed(database.name), lambda: site.client.drop_database(database.name), kinds=kinds)
    assert seen.documents[2]["ns"] == {"db": database.name}


@shows(EVENTS, "create Event", "a new collection: operationDescription with its options and idIndex")
@shows(EVENTS, "createIndexes Event", "each index that was built")
@shows(EVENTS, "dropIndexes Event", "each index that was dropped")
@shows(EVENTS, "modify Event", "collMod on options and on indexes, with stateBeforeChange")
@shows(EVENTS, "Change Events", "collectionUUID is the collection's")
@shows(SERVER, EXPANDED, "set: events of definitions come as well, with collectionUUID and operationDescription")
@shows(DRIVERS, "Driver API", "showExpandedEvents adds create, createIndexes, dropIndexes, modify")
@pytest.mark.parametrize("scope", ["collection", "database", "cluster"])
@on_both_versions
async def test_expanded_events(site: Site, database: Documents, scope: str) -> None:
    def act() -> None:
        database.create_collection("c", validator={"n": {"$gt": 0}}, collation={"locale": "de"})
        collection = database.c
        collection.create_index("n")
        collection.create_index([("a", 1), ("b", -1)], unique=True, sparse=True, name="ä ö ü")
        collection.create_index([("$**", 1)])
        collection.insert_one({"_id": 1, "n": 1})
        database.command("collMod", "c", index={"name": "n_1", "hidden": True})
        database.command("collMod", "c", validator={}, validationLevel="off")
        database.command("collMod", "c", changeStreamPreAndPostImages={"enabled": True})
        collection.drop_index("n_1")
        collection.drop_indexes()
        collection.update_one({"_id": 1}, {"$set": {"n": 2}})
        collection.replace_one({"_id": 1}, {"n": 3})
        collection.delete_one({"_id": 1})

    seen = await assert_same(site, scoped(scope, database.name, show_expanded_events=True), act)
    kinds = {"create", "createIndexes", "modify", "dropIndexes", "insert", "update", "replace", "delete"}
    assert set(seen.kinds) == kinds
    assert all("collectionUUID" in event for event in seen.documents)
    created = seen.documents[0]["operationDescription"]
    assert created["idIndex"]["name"] == "_id_"
    modified = next(event for event in seen.documents if event["operationType"] == "modify")
    assert modified["operationDescription"]["index"] == {"name": "n_1", "hidden": True}
    assert modified["stateBeforeChange"]["indexOptions"]["hidden"] is False


@shows(SERVER, EXPANDED, "not set: no events of definitions, and no collectionUUID")
@shows(EVENTS, "createIndexes Event", "only with showExpandedEvents")
async def test_without_expanded_events(site: Site, database: Documents) -> None:
    def act() -> None:
        database.create_collection("c")
        database.c.create_index("n")
        database.c.insert_one({"_id": 1})
        database.command("collMod", "c", index={"name": "n_1", "hidden": True})
        database.c.drop_indexes()

    seen = await assert_same(site, feed(database.name, "c"), act, kinds=["insert"])
    assert "collectionUUID" not in seen.documents[0]


@shows(EVENTS, "modify Event", "views are created, changed and dropped in the database's stream")
@pytest.mark.parametrize("scope", ["database", "cluster"])
async def test_views_of_a_database(site: Site, database: Documents, scope: str) -> None:
    def act() -> None:
        database.create_collection("c")
        database.create_collection("seen", viewOn="c", pipeline=[{"$match": {"n": 1}}])
        database.command("collMod", "seen", viewOn="c", pipeline=[])
        database.seen.drop()

    seen = await assert_same(site, scoped(scope, database.name, show_expanded_events=True), act)
    assert [(event["operationType"], event["ns"]["coll"]) for event in seen.documents] == [
        ("create", "c"),
        ("create", "seen"),
        ("modify", "seen"),
        ("drop", "seen"),
    ]


@shows(DRIVERS, FORMAT, "events of types that a version adds are passed on untouched")
@on_both_versions
async def test_other_definitions(site: Site, database: Documents) -> None:
    """The events depend on the version of MongoDB."""

    def act() -> None:
        database.create_collection("capped", capped=True, size=4096, max=10)
        database.create_collection("timed", timeseries={"timeField": "t", "metaField": "m"}, expireAfterSeconds=60)
        database.timed.create_index("m")
        database.create_collection("clustered", clusteredIndex={"key": {"_id": 1}, "unique": True})
        database.clustered.insert_one({"_id": 1})
        for command in (
            {"convertToCapped": "clustered", "size": 4096},
            {"collMod": "capped", "cappedSize": 8192},
            {"collMod": "timed", "expireAfterSeconds": "off"},
        ):
            try:
                database.command(command)
            except OperationFailure as error:
                # Not of this version.
                assert error.code in (72, 5970, 59, 67, 20), error  # noqa: PT017 - which errors may pass
        database.timed.drop()

    await assert_same(site, feed(database.name, show_expanded_events=True), act)
