"""Authorised: every event passed the tenant's grant, its forced match and its hidden fields; on both versions."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio
from bson import decode, encode
from bson.raw_bson import RawBSONDocument
from pymongo import MongoClient

from feedmux_embedded import RedisServer, ReplicaSet
from feedmux_server.core.grants.grant import make_grant
from feedmux_server.core.positions.resume_token import ResumeToken
from tests.documents import Documents
from tests.integration.conftest import on_one_that_splits
from tests.integration.grants_support import granted, key_of, now, see, with_images
from tests.integration.servers import Here
from tests.integration.wire import EARLIEST, LATEST, Api, at, feed, refused

GRANTS: dict[str, list[dict[str, Any]] | None] = {
    "all": None,
    "none": [],
    "everything": [{"database": "*"}],
    "orders": [{"source": "main", "database": "test_*", "collection": "orders"}],
    "whole": [{"database": "test_*"}],
    "some": [
        {"database": "test_*", "collection": "orders"},
        {"database": "test_*", "collection": "team-?"},
    ],
    "hiding": [{"database": "test_*", "collection": "orders", "hide": ["secret", "items.price", "address.geo.lat"]}],
    "hiding-too": [
        {
            "source": "m*",
            "database": "test_*",
            "collection": "orders",
            "hide": ["address.geo.lat", "items.price", "secret"],
        }
    ],
    "team-a": [{"database": "test_*", "collection": "orders", "match": {"owner": "a"}, "hide": ["secret"]}],
    "teams-and-all": [
        {"database": "test_*", "collection": "team-?"},
        {"database": "test_*"},
    ],
    "items-a": [{"database": "test_*", "collection": "orders", "match": {"items.owner": "a"}, "hide": ["secret"]}],
    "mixed": [
        {"database": "test_*", "collection": "orders", "match": {"owner": "a"}},
        {"database": "test_*", "collection": "team-?", "hide": ["secret"]},
    ],
}


@pytest_asyncio.fixture(scope="session")
async def both(
    version: ReplicaSet, redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[ReplicaSet, Here]]:
    folder = tmp_path_factory.mktemp("grants")
    async with granted(version.uri, redis_server.url, folder, GRANTS, unused_stream_s=0.2) as here:
        yield version, here


@pytest.fixture
def here(both: tuple[ReplicaSet, Here]) -> Here:
    return both[1]


@pytest.fixture
def database(both: tuple[ReplicaSet, Here]) -> Iterator[Documents]:
    with MongoClient[dict[str, Any]](both[0].uri) as client:
        name = f"test_{uuid.uuid4().hex[:12]}"
        yield client[name]
        client.drop_database(name)


@pytest_asyncio.fixture
async def tenant(here: Here) -> AsyncIterator[Any]:
    """The client of a tenant, by its name."""
    apis: dict[str, Api] = {}

    async def client(name: str) -> Api:
        if name not in apis:
            apis[name] = await here.api.with_key(key_of(name)).__aenter__()
        return apis[name]

    yield client
    for api in apis.values():
        await api.__aexit__()


def rename(database: Documents, old: str, new: str, **options: Any) -> None:
    database[old].rename(new, **options)


# Namespaces


async def test_an_ungranted_namespace_is_denied_whether_it_exists_or_not(tenant: Any, database: Documents) -> None:
    database["private"].insert_one({})
    api = await tenant("orders")
    outcomes = []
    for scope in ((database.name, "private"), (database.name, "nowhere"), ("bank", ""), ("bank", "x")):
        for source in ("main", "unknown") if scope[0] == "bank" else ("main",):
            asked = feed(*scope, source=source)
            outcomes.append(await refused(api.resolve(asked, LATEST)))
            outcomes.append(await refused(api.create("s", asked)))
            outcomes.append(await api.watch(asked).end())
            outcomes.append(await (await api.session(feed=asked)).end())
    assert {(each.code, each.reason) for each in outcomes} == {("PERMISSION_DENIED", "NAMESPACE_DENIED")}
    assert len({each.message for each in outcomes}) == 1
    # One grant names its source.
    other = await refused(api.resolve(feed(database.name, "orders", source="other"), LATEST))
    assert other.reason == "NAMESPACE_DENIED"


async def test_no_grants_see_all_and_an_empty_list_nothing(tenant: Any, database: Documents) -> None:
    since = now(database)
    database["private"].insert_one({"_id": 1})
    for name in ("all", "everything"):
        seen = await see(await tenant(name), database, feed(database.name, "private"), since)
        assert seen.kinds == ["insert"]
    for scope in ((), (database.name,), (database.name, "orders")):
        assert (await refused((await tenant("none")).resolve(feed(*scope), LATEST))).reason == "NAMESPACE_DENIED"


@pytest.mark.parametrize("scope", ["database", "cluster"])
async def test_a_wider_feed_shows_just_what_is_granted(tenant: Any, database: Documents, scope: str) -> None:
    since = now(database)
    canary = "private-canary"
    for name in ("orders", "team-x", "team-xy", "Orders", canary, "orders2"):
        database[name].insert_one({"_id": f"{name}-key"})
        database[name].create_index("field")
    rename(database, canary, f"{canary}-2")
    rename(database, "team-x", "team-y")
    database["orders"].drop()
    database[f"{canary}-2"].drop()
    asked = feed(database.name if scope == "database" else "", show_expanded_events=True)
    seen = await see(await tenant("some"), database, asked, since)
    names = [(each["operationType"], each["ns"]["coll"]) for each in seen.events]
    both_of = ["create", "insert", "createIndexes"]
    assert names == [
        *((kind, "orders") for kind in both_of),
        *((kind, "team-x") for kind in both_of),
        ("rename", "team-x"),
        ("drop", "orders"),
    ]
    assert seen.events[-2]["to"]["coll"] == "team-y"
    assert canary not in seen
    assert "orders2" not in seen


@pytest.mark.parametrize("scope", ["database", "cluster"])
async def test_a_name_that_is_not_utf_8_ends_no_feed_with_patterns(
    tenant: Any, database: Documents, scope: str
) -> None:
    """Neither those of a grant nor those of a pipeline."""
    since = now(database)
    name = database.name
    run_not_utf_8(database, name, {"create": "team-€"})
    run_not_utf_8(database, name, {"renameCollection": f"{name}.team-€", "to": f"{name}.team-2"})
    database["team-1"].insert_one({"_id": 2})
    database["other"].insert_one({"_id": 3})
    run_not_utf_8(database, name, {"renameCollection": f"{name}.other", "to": f"{name}.team-€"})

    async def collections(tenant_name: str, *stages: dict[str, Any]) -> list[str]:
        asked = feed(database.name if scope == "database" else "", pipeline=json.dumps(stages))
        seen = await see(await tenant(tenant_name), database, asked, since)
        assert seen.end is None
        names = [each["ns"] for each in seen.events]
        return [each["coll"] for each in names if each["db"] == name and each["coll"] != "clock"]

    assert await collections("some") == ["team-1"]
    assert await collections("teams-and-all") == ["team-1", "other"]
    inserts = {"$match": {"operationType": "insert"}}

    def begins(path: str) -> dict[str, Any]:
        return {"$match": {path: {"$regex": "^team-1"}}}

    for stages, expected in (
        ([{"$match": {"ns.coll": {"$regex": "^team-"}}}], ["team-1"]),
        ([{"$match": {"ns.coll": {"$not": {"$regex": "^team-"}}}}, inserts], ["other"]),
        ([begins("to.coll")], []),
        ([{"$set": {"n": "$ns"}}, begins("n.coll")], ["team-1"]),
        ([{"$unset": "to"}, {"$set": {"m.m": "$ns"}}, {"$set": {"n": "$m"}}, begins("n.m.coll")], ["team-1"]),
        # MongoDB takes none of these for a rename of a field, and compares on the event.
        ([{"$set": {"n": "$$ROOT"}}, begins("n.ns.coll")], ["team-1"]),
        ([{"$replaceWith": {"_id": "$_id", "n": "$$ROOT"}}, begins("n.ns.coll"), {"$replaceWith": "$n"}], ["team-1"]),
        ([{"$set": {"n": {"$let": {"vars": {"r": "$$ROOT"}, "in": "$$r.ns"}}}}, begins("n.coll")], ["team-1"]),
    ):
        assert await collections("all", *stages) == expected


def run_not_utf_8(database: Documents, name: str, command: dict[str, Any]) -> None:
    """Run a command of the database `name` with bytes in the place of `€` that are not UTF-8. The driver encodes none,
    and MongoDB takes them."""
    operation = encode({"op": "c", "ns": f"{name}.$cmd", "o": command}).replace("€".encode(), b"\xff\xfe\xfd")
    database.client.admin.command({"applyOps": [RawBSONDocument(operation)]})


@pytest.mark.parametrize("expanded", [False, True])
async def test_renames_across_the_border_name_only_the_granted_side(
    tenant: Any, database: Documents, expanded: bool
) -> None:
    database["orders"].insert_one({"_id": 1})
    database["canary-in"].insert_one({"_id": "foreign-key"})
    since = now(database)
    rename(database, "orders", "canary-out")
    rename(database, "canary-in", "orders")
    database["orders"].insert_one({"_id": 2})
    seen = await see(await tenant("orders"), database, feed(database.name, show_expanded_events=expanded), since)
    assert seen.kinds == ["rename", "rename", "insert"]
    out, into, _ = seen.events
    assert out["ns"]["coll"] == "orders"
    assert "ns" not in into
    assert into["to"]["coll"] == "orders"
    assert {"to", "operationDescription"}.isdisjoint(out)
    assert "operationDescription" not in into
    assert "canary" not in seen


async def test_a_collection_feed_ends_at_a_rename_without_the_new_name(tenant: Any, database: Documents) -> None:
    since = now(database)
    database["orders"].insert_one({"_id": 1})
    rename(database, "orders", "canary-out")
    seen = await see(await tenant("orders"), database, feed(database.name, "orders"), since)
    assert seen.kinds == ["insert", "rename", "invalidate"]
    assert seen.end is not None
    assert seen.end.reason == "FEED_INVALIDATED"
    assert "canary" not in seen
    # And begins again after it.
    database["orders"].insert_one({"_id": 2})
    api = await tenant("orders")
    receiver = api.watch(feed(database.name, "orders"), at(position=seen.receiver.position))
    assert [each.document["documentKey"]["_id"] for each in await receiver.take(1)] == [2]
    receiver.cancel()


@on_one_that_splits
async def test_tokens_of_version_2_hold_a_renames_target(
    tenant: Any, both: tuple[ReplicaSet, Here], database: Documents
) -> None:
    since = now(database)
    database["orders"].insert_one({"_id": 1})
    rename(database, "orders", "canary-out")
    split = '[{"$changeStreamSplitLargeEvent": {}}]'
    for scope in ("", "orders"):
        seen = await see(await tenant("orders"), database, feed(database.name, scope, split), since)
        assert seen.kinds == ["insert"]
        assert "canary" not in seen
    assert seen.end is not None
    assert seen.end.reason == "FEED_INVALIDATED"
    place = ResumeToken.decode(seen.receiver.resume_token)
    assert place.is_high_water_mark
    database["orders"].insert_one({"_id": 2})
    receiver = (await tenant("orders")).watch(feed(database.name, "orders", split), at(position=seen.receiver.position))
    assert [each.document["documentKey"]["_id"] for each in await receiver.take(1)] == [2]
    receiver.cancel()
    # Without grants it is there, or this test would show nothing.
    assert "canary" in await see(await tenant("all"), database, feed(database.name, "orders", split), since)


async def test_drop_database_shows_where_the_whole_database_is_granted(tenant: Any, database: Documents) -> None:
    since = now(database)
    database["orders"].insert_one({"_id": 1})
    database["private-canary"].insert_one({"_id": 1})
    database.client.drop_database(database.name)
    seen = await see(await tenant("orders"), database, feed(database.name), since)
    assert seen.kinds == ["insert", "drop", "invalidate"]
    assert "canary" not in seen
    cluster = await see(await tenant("orders"), database, feed(), since)
    assert cluster.kinds == ["insert", "drop"]
    everything = await see(await tenant("everything"), database, feed(database.name), since)
    assert everything.kinds[-2:] == ["dropDatabase", "invalidate"]
    whole = await see(await tenant("whole"), database, feed(), since)
    assert whole.kinds.count("dropDatabase") == 1
    assert whole.kinds.count("drop") > 1


async def test_a_view_is_not_shown_by_its_description(tenant: Any, database: Documents) -> None:
    since = now(database)
    database.create_collection("orders", viewOn="private-canary", pipeline=[])
    seen = await see(await tenant("orders"), database, feed(database.name, show_expanded_events=True), since)
    assert seen.kinds == []
    assert "canary" not in seen


async def test_a_collation_cannot_widen_a_grant(tenant: Any, database: Documents) -> None:
    insensitive = {"locale": "en", "strength": 1}
    asked = feed(database.name)
    asked.collation = encode(insensitive)
    outcome = await refused((await tenant("orders")).resolve(asked, LATEST))
    assert (outcome.code, outcome.reason) == ("INVALID_ARGUMENT", "OPTION_REFUSED")
    # Nor can the collection's own.
    database.create_collection("orders", collation=insensitive, changeStreamPreAndPostImages={"enabled": True})
    since = now(database)
    database["orders"].insert_many([{"_id": 1, "owner": "A", "x": "canary"}, {"_id": 2, "owner": "a"}])
    seen = await see(await tenant("team-a"), database, feed(database.name, "orders"), since)
    assert [each["documentKey"]["_id"] for each in seen.events] == [2]


# Hidden fields

DOCUMENT = {
    "_id": 1,
    "secret": "canary",
    "items": [{"price": "canary", "n": 1}, [{"price": "canary", "n": 2}], 3],
    "address": {"geo": {"lat": "canary", "lon": 1}, "zip": 1},
    "plain": 1,
}
SHOWN = {
    "_id": 1,
    "items": [{"n": 1}, [{"n": 2}], 3],
    "address": {"geo": {"lon": 1}, "zip": 1},
    "plain": 1,
}
UPDATES: list[tuple[Any, Any]] = [
    # the change, and what is shown of it: updatedFields, removedFields, truncatedArrays; None: nothing
    ({"$set": {"secret": "canary"}}, None),
    ({"$set": {"secret": {"a": "canary"}, "plain": None}}, ({"plain": None}, [], [])),
    ({"$set": {"secret.a": "canary", "new.deep": 1}}, ({"new": {"deep": 1}}, [], [])),
    ({"$set": {"items.0.price": {"deep": "canary"}}}, None),
    ({"$set": {"items.0.price.deep": "canary"}}, None),
    ({"$set": {"items.0": {"price": "canary", "n": 5}}}, ({"items.0": {"n": 5}}, [], [])),
    ({"$set": {"items.1": [[{"price": "canary", "n": 6}]]}}, ({"items.1": [[{"n": 6}]]}, [], [])),
    ({"$set": {"items.1.0.0.price": "canary"}}, None),
    ({"$push": {"items": {"price": "canary"}}}, ({"items.3": {}}, [], [])),
    ({"$set": {"address.geo.lat": "canary"}}, None),
    ({"$set": {"address.geo": {"lat": "canary", "lon": 2}}}, ({"address.geo": {"lon": 2}}, [], [])),
    (
        {"$set": {"address": [{"geo": [{"lat": "canary"}]}, "x"]}},
        ({"address": [{"geo": [{}]}, "x"]}, [], []),
    ),
    ({"$set": {"address": {"zip": 2, "geo": {"lat": "canary"}}}}, ({"address": {"zip": 2, "geo": {}}}, [], [])),
    ({"$unset": {"secret": 1}}, None),
    ({"$unset": {"address.geo.lat": 1, "plain": 1}}, ({}, ["plain"], [])),
    ({"$unset": {"address": 1}}, ({}, ["address"], [])),
    ([{"$set": {"items": {"$slice": ["$items", 2]}}}], ({}, [], [{"field": "items", "newSize": 2}])),
    ({"$set": {"secret": [{"x": 1}, {"x": 2}, {"x": "canary"}]}}, None),
    ([{"$set": {"secret": {"$slice": ["$secret", 1]}}}], None),
    ({"$set": {"secretive": 1, "items2": {"price": 1}}}, ({"items2": {"price": 1}, "secretive": 1}, [], [])),
]


@pytest.mark.parametrize("scope", ["orders", ""])
async def test_hidden_fields_are_hidden_everywhere(tenant: Any, database: Documents, scope: str) -> None:
    with_images(database, "orders")
    orders, since = database["orders"], now(database)
    orders.insert_one(DOCUMENT)
    for change, _ in UPDATES:
        orders.update_one({"_id": 1}, change)
    orders.replace_one({"_id": 1}, DOCUMENT)
    orders.delete_one({"_id": 1})
    asked = feed(
        database.name,
        scope,
        full_document="whenAvailable",
        full_document_before_change="whenAvailable",
        show_expanded_events=True,
    )
    seen = await see(await tenant("hiding"), database, asked, since)
    assert "canary" not in seen
    updates = [each["updateDescription"] for each in seen.events if each["operationType"] == "update"]
    shown = [({**each["updatedFields"]}, each["removedFields"], each["truncatedArrays"]) for each in updates]
    # What an update leaves of a field it did not touch is MongoDB's to say; only what is left of it counts here.
    assert shown == [expected for _, expected in UPDATES if expected is not None]
    first, last = seen.events[0], seen.events[-1]
    assert first["fullDocument"] == SHOWN
    assert last["operationType"] == "delete"
    assert last["fullDocumentBeforeChange"] == SHOWN
    assert "canary" in await see(await tenant("all"), database, asked, since)


def named_twice(*fields: dict[str, Any]) -> RawBSONDocument:
    """A document with the fields of all of these, which the driver would not encode: names come twice."""
    body = b"".join(encode(each)[4:-1] for each in fields)
    return RawBSONDocument((len(body) + 5).to_bytes(4, "little") + body + b"\0")


async def test_a_name_that_comes_twice_shows_nothing_hidden(tenant: Any, database: Documents) -> None:
    """MongoDB stores such documents, and `$unset` removes one of the fields."""
    with_images(database, "orders")
    orders, since = database["orders"], now(database)
    prices = named_twice({"n": 1}, {"price": "canary"}, {"price": "canary"})
    lat = {"lat": "canary"}
    secrets = named_twice({"_id": 2}, {"secret": "canary"}, {"secret": "canary"}, {"plain": 1})
    orders.insert_many([{"_id": 1, "items": [{"price": "canary", "n": 0}, prices], "plain": 1}, secrets])
    orders.insert_one({"_id": 3, "address": named_twice({"geo": lat}, {"geo": lat}, {"geo": 1})})
    address = named_twice({"geo": 1}, {"geo": lat})
    orders.update_one({"_id": 1}, {"$set": {"items.0": prices, "address": address, "plain": 2}})
    orders.delete_many({})
    mode = "whenAvailable"
    asked = feed(database.name, "orders", full_document=mode, full_document_before_change=mode)
    seen = await see(await tenant("hiding"), database, asked, since)
    assert "canary" not in seen
    assert [each.get("fullDocument") for each in seen.events[:3]] == [
        {"_id": 1, "items": [{"n": 0}], "plain": 1},
        {"_id": 2, "plain": 1},
        {"_id": 3},
    ]
    assert seen.events[3]["updateDescription"]["updatedFields"] == {"plain": 2}


async def test_a_document_of_many_parts_costs_no_more_than_its_size(tenant: Any, database: Documents) -> None:
    """Computed in a time that grows with the square of their number, each of these events would take minutes."""
    with_images(database, "orders")
    orders, since = database["orders"], now(database)
    orders.insert_one({"_id": 1, "items": [{"owner": "b"}] * 300_000 + [{"owner": "a"}]})
    orders.insert_one({"_id": 2, "items": [{"owner": "a"}], "padding": "x" * 4_000_000})
    name = ".".join("a" * 1_500_000)
    set_name = {"$setField": {"field": {"$literal": name}, "input": "$$ROOT", "value": 1}}
    orders.update_one({"_id": 2}, [{"$replaceWith": set_name}])
    seen = await see(await tenant("items-a"), database, feed(database.name, "orders"), since)
    assert seen.kinds == ["insert", "insert", "update"]
    assert seen.events[2]["updateDescription"]["updatedFields"] == {name: 1}


@pytest.mark.parametrize("name", ["hiding", "team-a"])
async def test_definitions_that_could_name_hidden_fields_are_withheld(
    tenant: Any, database: Documents, name: str
) -> None:
    since = now(database)
    database.create_collection("orders", validator={"secret": {"$ne": "canary"}})
    database["orders"].create_index("secret", partialFilterExpression={"secret": "canary"})
    database.command("collMod", "orders", validator={"secret": {"$ne": "canary2"}})
    database["orders"].drop_index("secret_1")
    database["orders"].insert_one({"_id": 1, "owner": "a"})
    for scope in ("orders", ""):
        asked = feed(database.name, scope, show_expanded_events=True)
        seen = await see(await tenant(name), database, asked, since)
        assert seen.kinds == ["insert"]
        assert "canary" not in seen
        plain = await see(await tenant("orders"), database, asked, since)
        assert plain.kinds == ["create", "createIndexes", "modify", "dropIndexes", "insert"]


@on_one_that_splits
async def test_hidden_fields_of_an_event_that_is_split(
    tenant: Any, both: tuple[ReplicaSet, Here], database: Documents
) -> None:
    with_images(database, "orders")
    since = now(database)
    database["orders"].insert_one({"_id": 1, "owner": "a", "big": "x" * (9 << 20), "secret": "canary"})
    database["orders"].update_one({"_id": 1}, {"$set": {"secret": "canary-2", "n": 1}})
    asked = feed(
        database.name,
        "orders",
        '[{"$changeStreamSplitLargeEvent": {}}]',
        full_document="whenAvailable",
        full_document_before_change="whenAvailable",
    )
    for name in ("hiding", "team-a"):
        seen = await see(await tenant(name), database, asked, since, message_bytes_max=64 << 20)
        assert seen.end is None
        parts = seen.events[1:]
        assert [each["splitEvent"]["fragment"] for each in parts] == list(range(1, len(parts) + 1))
        assert len(parts) > 1
        whole = {field: value for each in parts for field, value in each.items()}
        assert (whole["operationType"], whole["fullDocument"]["n"]) == ("update", 1)
        assert "secret" not in whole["fullDocumentBeforeChange"]
        assert "canary" not in seen


# Forced matches


async def test_a_forced_match_shows_the_changes_of_the_tenants_view(tenant: Any, database: Documents) -> None:
    with_images(database, "orders")
    orders, since = database["orders"], now(database)
    orders.insert_many([{"_id": "mine", "owner": "a"}, {"_id": "canary-theirs", "owner": "b"}])
    orders.update_one({"_id": "mine"}, {"$set": {"n": 1}})
    orders.update_one({"_id": "canary-theirs"}, {"$set": {"n": "canary"}})
    orders.update_one({"_id": "mine"}, {"$set": {"owner": "canary-b"}})
    orders.update_one({"_id": "mine"}, {"$set": {"note": "canary"}})
    orders.update_one({"_id": "mine"}, {"$set": {"owner": "a"}, "$unset": {"note": 1}})
    orders.replace_one({"_id": "mine"}, {"owner": "a", "n": 2})
    orders.replace_one({"_id": "mine"}, {"owner": "b", "n": "canary"})
    orders.replace_one({"_id": "mine"}, {"owner": "a", "n": 3})
    orders.delete_one({"_id": "mine"})
    orders.delete_one({"_id": "canary-theirs"})
    seen = await see(await tenant("team-a"), database, feed(database.name, "orders"), since)
    assert seen.kinds == ["insert", "update", "delete", "insert", "replace", "delete", "insert", "delete"]
    assert "canary" not in seen
    assert all("fullDocumentBeforeChange" not in each for each in seen.events)
    assert ["fullDocument" in each for each in seen.events] == [kind in ("insert", "replace") for kind in seen.kinds]
    images = feed(database.name, "orders", full_document="whenAvailable", full_document_before_change="whenAvailable")
    seen = await see(await tenant("team-a"), database, images, since)
    assert "canary" not in seen
    assert [each.get("fullDocument", {}).get("n") for each in seen.events] == [None, 1, None, 1, 2, None, 3, None]
    before = [each.get("fullDocumentBeforeChange", {}).get("n") for each in seen.events]
    assert before == [None, None, 1, None, 1, 2, None, 3]


async def test_without_images_only_what_shows_itself_passes(tenant: Any, database: Documents) -> None:
    orders, since = database["orders"], now(database)
    orders.insert_many([{"_id": 1, "owner": "a"}, {"_id": "canary", "owner": "b"}])
    orders.update_one({"_id": 1}, {"$set": {"n": 1}})
    orders.replace_one({"_id": 1}, {"owner": "a"})
    orders.delete_many({})
    seen = await see(await tenant("team-a"), database, feed(database.name, "orders"), since)
    assert seen.kinds == ["insert"]
    assert "canary" not in seen


async def test_each_namespace_of_a_wider_feed_has_its_own_grant(tenant: Any, database: Documents) -> None:
    with_images(database, "orders", "team-x", "private")
    since = now(database)
    for name in ("orders", "team-x", "private"):
        database[name].insert_one({"_id": f"{name}-1", "owner": "a", "secret": "s1"})
        database[name].update_one({"_id": f"{name}-1"}, {"$set": {"owner": "b", "secret": "s2"}})
        database[name].delete_one({})
    seen = await see(await tenant("mixed"), database, feed(database.name), since)
    assert [(each["ns"]["coll"], each["operationType"]) for each in seen.events] == [
        ("orders", "insert"),
        ("orders", "delete"),
        ("team-x", "insert"),
        ("team-x", "update"),
        ("team-x", "delete"),
    ]
    assert seen.events[0]["fullDocument"]["secret"] == "s1"
    assert "secret" not in seen.events[2]["fullDocument"]
    assert seen.events[3]["updateDescription"]["updatedFields"] == {"owner": "b"}
    assert all("fullDocument" not in each for each in seen.events if each["operationType"] != "insert")


async def test_errors_hold_nothing_of_mongodbs(tenant: Any, database: Documents) -> None:
    since = now(database)
    database["orders"].insert_one({"_id": 1, "secret": "canary", "note": "visible-text"})
    database["orders"].update_one({"_id": 1}, {"$set": {"secret": "canary-2", "note": "visible-text"}})
    for name, scope, options, reason in (
        ("orders", "", {"full_document": "required"}, "IMAGE_UNAVAILABLE"),
        ("hiding", "orders", {"pipeline": TO_INT}, "PIPELINE_FAILED"),
        ("team-a", "orders", {"pipeline": '[{"$unset": "_id"}]'}, "RESUME_TOKEN_MODIFIED"),
    ):
        database["orders"].insert_one({"owner": "a", "note": "visible-text"})
        seen = await see(await tenant(name), database, feed(database.name, scope, **options), since)
        assert seen.end is not None
        assert seen.end.reason == reason
        assert "withheld" in seen.end.message
        assert "canary" not in seen
        assert "visible-text" not in repr(seen.end)
        assert set(seen.end.metadata) == set()
    # Error text about the pipeline itself contains only the user's own text.
    outcome = (
        await (await tenant("hiding")).watch(feed(database.name, "orders", '[{"$set": {"x": {"$nope": 1}}}]')).end()
    )
    assert outcome.reason == "OPTION_REFUSED"
    assert "$nope" in outcome.message


TO_INT = '[{"$set": {"x": {"$toInt": "$fullDocument.note"}}}]'
QUESTIONS = (
    '{"$divide": [1, "$fullDocument.secret"]}',
    '{"$toInt": "$fullDocument.secret"}',
    '{"$toInt": "$updateDescription.updatedFields.secret"}',
    '{"$divide": [1, {"$getField": {"field": "secret", "input": "$e.fullDocument"}}]}',
    '{"$toObjectId": "$fullDocumentBeforeChange.secret"}',
    '{"$arrayToObject": "$fullDocument.secret"}',
    '{"$dateFromString": {"dateString": "$fullDocument.secret"}}',
)
"""Each fails on some value of a hidden field, or of another's document."""


@pytest.mark.parametrize("name", ["team-a", "hiding"])
async def test_no_pipeline_fails_on_what_is_withheld(tenant: Any, database: Documents, name: str) -> None:
    """Whether it fails, and how, would answer a question about it; so would a missing image, or an event's size."""
    with_images(database, "orders")
    since, orders = now(database), database["orders"]
    orders.insert_many([{"_id": "mine", "owner": "a", "n": 1, "secret": 0}])
    for secret in ("canary", {"canary": 1}, ["canary"], 0, None):
        orders.update_one({"_id": "mine"}, {"$set": {"secret": secret}})
        if name == "team-a":
            orders.replace_one({"_id": "canary"}, {"owner": "b", "n": secret, "secret": secret}, upsert=True)
    private = database["private"]  # it has no images
    private.insert_one({"_id": "canary", "secret": "canary"})
    private.update_one({}, {"$set": {"secret": 0}})
    mode, api = "whenAvailable", await tenant(name)
    asked = [
        feed(database.name, scope, stages % question, full_document=mode, full_document_before_change=mode)
        for question in QUESTIONS
        for stages in ('[{"$set": {"x": %s}}]', '[{"$match": {"$expr": %s}}]')
        for scope in ("orders", "")
    ]
    for one, seen in zip(
        asked, await asyncio.gather(*(see(api, database, each, since) for each in asked)), strict=True
    ):
        assert seen.end is None, (one, seen.end)
        assert "canary" not in seen


@pytest.mark.parametrize("option", ["full_document", "full_document_before_change"])
async def test_a_missing_image_of_what_is_withheld_ends_nothing(tenant: Any, database: Documents, option: str) -> None:
    with_images(database, "orders")
    since = now(database)
    database["orders"].insert_one({"_id": 1, "n": 1})
    database["private"].insert_one({"_id": "canary"})
    database["private"].update_one({}, {"$set": {"n": "canary"}})
    database["private"].delete_one({})
    database["orders"].update_one({"_id": 1}, {"$set": {"n": 2}})
    seen = await see(await tenant("orders"), database, feed(database.name, **{option: "required"}), since)
    assert seen.end is None
    assert seen.kinds == ["insert", "update"]
    outcome = await refused(
        (await tenant("hiding")).resolve(feed(database.name, "orders", **{option: "required"}), LATEST)
    )
    assert (outcome.reason, "hides fields" in outcome.message) == ("OPTION_REFUSED", True)


async def test_the_size_of_what_is_withheld_ends_nothing(tenant: Any, database: Documents) -> None:
    """An event of over 16 MB, most of it hidden or another's, is no larger than what is shown of it."""
    with_images(database, "orders")
    since, orders = now(database), database["orders"]
    large = "canary" * 1_500_000
    orders.insert_many([{"_id": 1, "owner": "a", "secret": large}, {"_id": 2, "owner": "b", "secret": large}])
    orders.update_many({}, {"$set": {"secret": large + "x"}})
    orders.update_many({}, {"$set": {"secret": large, "n": 1}})
    orders.insert_one({"_id": 3, "owner": "a"})
    mode = "whenAvailable"
    asked = feed(database.name, "orders", full_document=mode, full_document_before_change=mode)
    for name in ("team-a", "hiding"):
        seen = await see(await tenant(name), database, asked, since)
        assert seen.end is None, seen.end
        assert "canary" not in seen
        assert seen.events[-1]["documentKey"]["_id"] == 3


async def test_a_token_cannot_be_used_to_ask_for_a_change(tenant: Any, database: Documents) -> None:
    """The server treats tokens of withheld events and of events that never existed alike: both are positions."""
    with_images(database, "orders")
    since = now(database)
    database["orders"].insert_one({"_id": "theirs", "owner": "b"})
    theirs = (await see(await tenant("all"), database, feed(database.name, "orders"), since)).events[0]["_id"]
    database["orders"].insert_one({"_id": "mine", "owner": "a"})
    forged = dict(theirs, _data=theirs["_data"].replace(b"theirs".hex().upper(), b"others".hex().upper()))
    assert forged != theirs
    api = await tenant("team-a")
    for token in (theirs, forged):
        raw = encode(token)
        for start in (at(resume_after=raw), at(start_after=raw)):
            receiver = api.watch(feed(database.name, "orders"), start)
            assert [each.document["documentKey"]["_id"] for each in await receiver.take(1)] == ["mine"]
            receiver.cancel()


@pytest.mark.parametrize("documents", [0, 1])
async def test_progress_holds_times_and_not_keys(tenant: Any, database: Documents, documents: int) -> None:
    with_images(database, "orders")
    since = now(database)
    database["orders"].insert_many([{"_id": f"mine-{n}", "owner": "a"} for n in range(documents)] or [{"owner": "b"}])
    database["orders"].insert_many([{"_id": f"canary-{n}", "owner": "b"} for n in range(50)])
    seen = await see(await tenant("team-a"), database, feed(database.name, "orders"), since)
    assert len(seen.events) == documents
    assert "canary" not in seen
    assert ResumeToken.decode(seen.receiver.resume_token).is_high_water_mark


MATCHES: list[dict[str, Any]] = [
    {"a": 1},
    {"a": {"$ne": 1}},
    {"a": {"$in": [1, "x", True]}},
    {"a": {"$nin": [1, "x"]}},
    {"a.b": 1},
    {"a.b": {"$ne": 1}},
    {"a.b.c": {"$in": [1, 2]}},
    {"$or": [{"a": "x"}, {"a.b": 2}]},
    {"$nor": [{"a": 1}, {"a.b": 1}]},
    {"$and": [{"a": {"$ne": 2}}, {"b": "y"}]},
    {"a": 1, "b": {"$ne": "y"}},
]
VALUES: list[Any] = [
    1, 2, 1.0, "x", "X", "y", None, True, [], [1], [2], ["x", 1], [[1]], {"b": 1}, {"b": [1]}, {"b": [[1]]}, [{"b": 1}],
    [{"b": 2}, {"b": [3, 1]}], [[{"b": 1}]], {"b": {"c": 2}}, [{"b": [{"c": 1}]}], {"b": [{"c": 3}, {"c": 2}]},
]  # fmt: skip


def test_a_match_means_what_mongodbs_query_means(database: Documents) -> None:
    from feedmux_server.core.grants.match import match_expression

    documents = [{"_id": n, "a": value} for n, value in enumerate(VALUES)]
    documents += [{"_id": 100 + n, "a": value, "b": "y"} for n, value in enumerate(VALUES)]
    documents += [{"_id": 200}, {"_id": 201, "b": "y"}]
    database["values"].insert_many(documents)
    for match in MATCHES:
        wanted = [each["_id"] for each in database["values"].find(match).sort("_id", 1)]
        expression = match_expression(make_grant("*", "*", "*", match).match, "$$ROOT")
        found = [each["_id"] for each in database["values"].find({"$expr": expression}).sort("_id", 1)]
        assert found == wanted, match


# Sharing, and grants that change


async def test_a_subscriptions_feed_is_checked_at_every_turn(
    tenant: Any, here: Here, database: Documents, name: str
) -> None:
    api = await tenant("orders")
    service, before = here.server.service, here.server.service.access.grants
    await api.create(name, feed(database.name, "orders"))
    database["orders"].insert_one({"_id": 1})
    session = await api.open(name)
    await session.take(1)
    assert await service.sessions.change_grants({**before, "orders": ()}) == 1
    try:
        assert (await session.end()).reason == "NAMESPACE_DENIED"
        assert (await (await api.session(name)).end()).reason == "NAMESPACE_DENIED"
        assert (await refused(api.seek(name, EARLIEST))).reason == "NAMESPACE_DENIED"
        changed = feed(database.name, "orders", '[{"$match": {"x": 1}}]')
        assert (await refused(api.update(["feed"], name=name, feed=changed))).reason == "NAMESPACE_DENIED"
        await api.delete(name)
    finally:
        await service.sessions.change_grants(before)


def test_the_biggest_policy_is_one_that_mongodb_takes(database: Documents) -> None:
    from feedmux_server.core.feeds.feed import FeedSpec, Scope
    from feedmux_server.core.grants.stages import apply_grants

    deep: dict[str, Any] = {".".join(["part"] * 20): 1}
    for operator in ("$and", "$or", "$nor", "$and"):
        deep = {operator: [deep]}
    grants = tuple(
        make_grant("*", "test_*", f"c{n}*", deep, [f"{'deep.' * 19}field{k}" for k in range(20)]) for n in range(20)
    )
    policy = apply_grants(grants, FeedSpec(Scope("main", database.name))).policy
    with database.watch(decode(policy)["pipeline"]) as stream:
        database["c1"].insert_one({"part": 1})
        stream.try_next()  # fails if it cannot be run
