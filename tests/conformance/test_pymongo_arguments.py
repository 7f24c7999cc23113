"""Arguments of `watch`, and the objects it is a method of: feedmux accepts and rejects what pymongo does."""

import asyncio
import inspect
import uuid
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pymongo.asynchronous.change_stream
import pymongo.asynchronous.collection
import pymongo.asynchronous.database
import pymongo.asynchronous.mongo_client
import pymongo.change_stream
import pymongo.collection
import pymongo.database
import pymongo.mongo_client
import pytest
from bson import Timestamp
from bson.binary import UuidRepresentation
from bson.codec_options import CodecOptions, TypeEncoder, TypeRegistry
from bson.decimal128 import Decimal128
from pymongo import ReadPreference
from pymongo.client_session import ClientSession
from pymongo.collation import Collation
from pymongo.errors import ConfigurationError
from pymongo.read_concern import ReadConcern
from pymongo.read_preferences import Nearest, Secondary
from pymongo.write_concern import WriteConcern

import feedmux
from feedmux.async_watch import AsyncCollection, AsyncDatabase
from feedmux.watch import Collection, Database
from tests.conformance.pymongo_support import (
    ASYNC_FEEDMUX,
    ASYNC_PYMONGO,
    FEEDMUX,
    PYMONGO,
    Action,
    Lockstep,
    Site,
)
from tests.conformance.statements import PYMONGO as DOCUMENT
from tests.conformance.statements import shows
from tests.tables import over


@shows(DOCUMENT, "watch", "takes the same arguments by the same names, in the same order, with the same defaults")
@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (pymongo.collection.Collection, Collection),
        (pymongo.database.Database, Database),
        (pymongo.mongo_client.MongoClient, feedmux.Client),
        (pymongo.asynchronous.collection.AsyncCollection, AsyncCollection),
        (pymongo.asynchronous.database.AsyncDatabase, AsyncDatabase),
        (pymongo.asynchronous.mongo_client.AsyncMongoClient, feedmux.AsyncClient),
    ],
)
def test_the_signature(theirs: Any, ours: Any) -> None:
    def parameters(function: Any) -> list[tuple[str, Any, Any]]:
        return [(each.name, each.kind, each.default) for each in inspect.signature(function).parameters.values()]

    assert parameters(ours.watch) == parameters(theirs.watch)
    assert inspect.iscoroutinefunction(ours.watch) == inspect.iscoroutinefunction(theirs.watch)
    for name in ("with_options", "get_collection", "get_database"):
        if theirs.__dict__.get(name) is not None:
            assert parameters(getattr(ours, name)) == parameters(getattr(theirs, name))


@shows(DOCUMENT, "ChangeStream", "has the same public attributes")
@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (pymongo.change_stream.ChangeStream, feedmux.ChangeStream),
        (pymongo.asynchronous.change_stream.AsyncChangeStream, feedmux.AsyncChangeStream),
    ],
)
def test_a_change_stream_has_the_same_attributes(theirs: type, ours: type) -> None:
    def public(kind: type) -> set[str]:
        return {name for name in dir(kind) if not name.startswith("_")}

    assert public(ours) == public(theirs)
    for protocol in ("iter", "next", "enter", "exit", "aiter", "anext", "aenter", "aexit"):
        assert hasattr(ours, f"__{protocol}__") == hasattr(theirs, f"__{protocol}__")


def watching(**arguments: Any) -> Action:
    return lambda collection: collection.watch(**arguments)


@shows(DOCUMENT, "watch", "rejects what pymongo rejects with the same exception and words")
@over(
    "arguments",
    [
        {"pipeline": {"$match": {}}},
        {"pipeline": ()},
        {"pipeline": [{"$match": {"a": uuid.UUID(int=1)}}]},
        {"full_document": 1},
        {"batch_size": -1},
        {"batch_size": "many"},
        {"batch_size": 1.5},
        {"max_await_time_ms": "long"},
        {"max_await_time_ms": 10.5},
        {"collation": 5},
    ],
)
async def test_rejected_arguments(collection: Lockstep, arguments: dict[str, Any]) -> None:
    await collection.refused(watching(**arguments))


@shows(DOCUMENT, "watch", "rejects what MongoDB rejects with the same exception")
@over(
    "arguments",
    [
        {"pipeline": [{}]},
        {"pipeline": [{"$match": {}, "$project": {"a": 1}}]},
        {"pipeline": [1, {"$match": {}}]},
        {"pipeline": [{"$nope": 1}]},
        {"pipeline": [{"$group": {"_id": 1}}]},
        {"pipeline": [{"$limit": 1}]},
        {"pipeline": [{"$out": "x"}]},
        {"pipeline": [{"$match": {}}, {"$sort": {"a": 1}}]},
        {"pipeline": [{"$facet": {"a": []}}]},
        {"pipeline": [{"$match": {"$nope": 1}}]},
        {"pipeline": [{"$match": {"$where": "1"}}]},
        {"pipeline": [{"$project": {}}]},
        {"pipeline": [{"$addFields": {"a": {"$divide": [1, 0]}}}]},
        *({"full_document": each} for each in ("nonsense", "")),
        *({"full_document_before_change": each} for each in (1, "nonsense", "")),
        *({"show_expanded_events": each} for each in ("yes", 1)),
        *({"start_at_operation_time": each} for each in (5, 2**40, "now", datetime(2026, 1, 1, tzinfo=UTC))),
        {"start_at_operation_time": {}},
        {"resume_after": "token"},
        {"start_after": 5},
        *({name: token} for name in ("resume_after", "start_after")
          for token in ({"_data": "no hex"}, {"_data": ""}, {"_data": 5}, {"data": "82"})),
        {"session": 5},
    ],
)  # fmt: skip
async def test_arguments_that_mongodb_rejects(collection: Lockstep, arguments: dict[str, Any]) -> None:
    await collection.refused(watching(**arguments), code=False)


@shows(DOCUMENT, "watch", "a bool for the batch size is rejected as MongoDB rejects it")
@over("wrong", [True, False])
async def test_a_bool_for_the_batch_size(collection: Lockstep, wrong: bool) -> None:
    raised = await collection.refused(watching(batch_size=wrong), words=False)
    assert raised.code == 14


@shows(DOCUMENT, "watch", "what pymongo cannot encode is rejected with the same exception")
@over("arguments", [{"comment": object()}, {"pipeline": [{"$match": {"a": object()}}]}])
async def test_what_bson_cannot_hold(collection: Lockstep, arguments: dict[str, Any]) -> None:
    await collection.refused(watching(**arguments), words=False)


@shows(DOCUMENT, "watch", "takes what pymongo takes: empty values, numbers as text, Collation, any comment")
@over(
    "arguments",
    [
        {"pipeline": None},
        {"pipeline": []},
        *({"batch_size": each} for each in ("3", 0, 2**40)),
        {"max_await_time_ms": 0},
        *({"show_expanded_events": each} for each in (True, "")),
        *({"collation": each} for each in (Collation("de"), {"locale": "de"})),
        *({"comment": each} for each in ("words", {"ticket": 5}, 5)),
        {"start_after": {}},
        {"start_at_operation_time": Timestamp(1, 1)},
        {"full_document": "default", "full_document_before_change": "off"},
    ],
)
async def test_accepted_arguments(collection: Lockstep, arguments: dict[str, Any]) -> None:
    stream = await collection.make(watching(**arguments))
    assert await stream.same(lambda each: each.alive) is True


@shows(DOCUMENT, "watch", "of several starts one is sent: start_after, then resume_after, then the operation time")
async def test_several_starts(both: Site, collection: Lockstep) -> None:
    watched = both.mongo[(await collection.same(lambda each: each.database.name))]["c"]
    with watched.watch() as direct:
        watched.insert_many([{"n": n} for n in range(3)])
        first, second, third = (direct.next() for _ in range(3))
    starts: list[tuple[dict[str, Any], Any]] = [
        ({"start_after": second["_id"], "resume_after": first["_id"]}, third),
        ({"resume_after": first["_id"], "start_at_operation_time": first["clusterTime"]}, second),
        ({"start_after": {}, "resume_after": first["_id"]}, second),
        ({"start_at_operation_time": second["clusterTime"]}, second),
    ]
    for arguments, expected in starts:
        stream = await collection.make(watching(**arguments))
        assert await stream.same(lambda each: each.next()) == expected


@shows(DOCUMENT, "watch", "internal databases, system collections and views are rejected with the same exception")
@pytest.mark.parametrize("name", ["admin", "local", "config"])
async def test_what_cannot_be_watched(both: Site, collection: Lockstep, name: str) -> None:
    await both.clients.refused(lambda client: client[name].watch(), code=False)
    await both.clients.refused(lambda client: client[name]["c"].watch(), code=False)
    database = await collection.make(lambda each: each.database)
    await database.refused(lambda each: each["system.views"].watch(), code=False)
    both.mongo[(await database.same(lambda each: each.name))].create_collection("v", viewOn="c", pipeline=[])
    raised = await database.refused(lambda each: each["v"].watch())
    assert raised.code == 166


@shows(DOCUMENT, "Names", "names that cannot be are rejected with pymongo's exceptions and words")
@pytest.mark.parametrize(
    "name", ["", 5, ".a", "a.", "a..b", "$a", "a$b", "a\0b", "a b", "a/b", 'a"b', "$external"], ids=repr
)
async def test_no_names(both: Site, name: Any) -> None:
    for action in (
        lambda client: client[name].name,
        lambda client: client.get_database(name).name,
        lambda client: client.shop[name].name,
        lambda client: client.shop.get_collection(name).name,
        lambda client: client.shop.orders[name].name,
    ):
        outcomes = await both.clients.each(action)
        assert len(set(outcomes.values())) == 1, outcomes
    await both.clients.refused(lambda client: client.get_database())


@shows(DOCUMENT, "Names", "attributes, brackets and get_collection lead to the same names; sub-collections have dots")
@over(
    "way",
    [
        lambda client: client.shop.orders,
        lambda client: client["shop"]["orders"],
        lambda client: client.get_database("shop").get_collection("orders"),
        lambda client: client.shop.orders.archive["2026"],
        lambda client: client.shop.orders.with_options().archive,
    ],
)
async def test_ways_to_a_collection(both: Site, way: Action) -> None:
    await both.clients.same(lambda client: (way(client).name, way(client).full_name))
    await both.clients.same(lambda client: way(client).database == client.shop)
    await both.clients.same(lambda client: hash(way(client).database) == hash(client["shop"]))
    await both.clients.same(lambda client: way(client).database.client is client)
    await both.clients.same(lambda client: (way(client) == client.shop.orders, way(client) != client.shop.orders))
    await both.clients.same(lambda client: (way(client) == client.other.orders, way(client) == "orders"))
    await both.clients.same(lambda client: hash(way(client)) == hash(way(client)))


@shows(DOCUMENT, "Names", "collections and databases cannot be called, iterated or tested for truth")
@over(
    "misuse",
    [
        lambda client: client.shop._orders,
        lambda client: client.shop.orders._archive,
        lambda client: client.shop.insert_one({}),
        lambda client: client.shop.orders.insert_anything({}),
        lambda client: iter(client),
        lambda client: iter(client.shop),
        lambda client: iter(client.shop.orders),
        lambda client: next(client.shop),
        lambda client: next(client.shop.orders),
        lambda client: bool(client.shop),
        lambda client: not client.shop.orders,
        lambda client: len(client.shop.orders),
    ],
)
async def test_misuse(both: Site, misuse: Action) -> None:
    await both.clients.refused(misuse, words=False)


@shows(DOCUMENT, "Names", "an underscore in front is no name of a database but by brackets")
async def test_underscores(both: Site) -> None:
    await both.clients.refused(lambda client: client._orders, words=False)
    assert await both.clients.same(lambda client: client["_orders"].name) == "_orders"


OPTIONS = ("codec_options", "read_preference", "write_concern", "read_concern")
AWARE: CodecOptions[Any] = CodecOptions(tz_aware=True)
PREFERRED = ReadPreference.SECONDARY_PREFERRED


@shows(DOCUMENT, "Options", "with_options and get_collection set options and keep the others")
@over(
    "way",
    [
        lambda client: client.shop,
        lambda client: client.shop.orders,
        lambda client: client.get_database("shop", codec_options=AWARE).orders.archive,
        lambda client: client.shop.with_options(read_preference=PREFERRED).orders,
        lambda client: client.shop.get_collection("c", AWARE, PREFERRED, WriteConcern(1), ReadConcern("majority")),
        lambda client: client.shop.orders.with_options(AWARE).with_options(read_concern=ReadConcern("majority")),
        lambda client: client.shop.orders.with_options(write_concern=WriteConcern(2)).archive,
    ],
)
async def test_options(both: Site, way: Action) -> None:
    await both.clients.same(lambda client: [getattr(way(client), name) for name in OPTIONS])


@shows(DOCUMENT, "Options", "options of a wrong type are rejected with pymongo's words")
@over("name", OPTIONS)
async def test_options_of_a_wrong_type(both: Site, name: str) -> None:
    wrong: dict[str, Any] = {name: 5}
    await both.clients.refused(lambda client: client.get_database("shop", **wrong))
    await both.clients.refused(lambda client: client.shop.with_options(**wrong))
    await both.clients.refused(lambda client: client.shop.orders.with_options(**wrong))
    await both.clients.refused(lambda client: client.shop.get_collection("c", **wrong))


@shows(DOCUMENT, "Options", "a read concern other than majority is rejected by MongoDB")
async def test_read_concern(collection: Lockstep) -> None:
    async def having(level: str) -> Lockstep:
        return await collection.make(lambda each: each.with_options(read_concern=ReadConcern(level)))

    for level in ("local", "nonsense"):
        await (await having(level)).refused(lambda each: each.watch())
    await (await having("majority")).make(lambda each: each.watch())


@shows(DOCUMENT, "Options", "a read preference's mode is taken")
@pytest.mark.parametrize("preference", [ReadPreference.PRIMARY, ReadPreference.PRIMARY_PREFERRED, Nearest()], ids=repr)
async def test_read_preference(collection: Lockstep, preference: Any) -> None:
    chosen = await collection.make(lambda each: each.with_options(read_preference=preference))
    await chosen.make(lambda each: each.watch())


@shows(DOCUMENT, "Differences", "tag sets and max_staleness of a read preference raise ConfigurationError")
@pytest.mark.parametrize("preference", [Secondary(tag_sets=[{"dc": "east"}]), Secondary(max_staleness=120)], ids=repr)
async def test_read_preference_beyond_its_mode(collection: Lockstep, preference: Any) -> None:
    ours = Lockstep({name: collection.sides[name] for name in (FEEDMUX, ASYNC_FEEDMUX)}, [])
    outcomes = await ours.each(lambda each: each.with_options(read_preference=preference).watch())
    assert {outcome.kind for outcome in outcomes.values()} == {ConfigurationError.__name__}


class CentsEncoder(TypeEncoder):
    """Decimal as Decimal128."""

    python_type = Decimal

    def transform_python(self, value: Any) -> Any:
        return Decimal128(value)


@shows(DOCUMENT, "Options", "values in the pipeline are encoded with the collection's codec options")
async def test_values_in_the_pipeline(both: Site, collection: Lockstep) -> None:
    options: CodecOptions[Any] = CodecOptions(
        uuid_representation=UuidRepresentation.STANDARD, type_registry=TypeRegistry([CentsEncoder()])
    )
    chosen = await collection.make(lambda each: each.with_options(codec_options=options))
    key = uuid.uuid4()
    pipeline = [{"$match": {"fullDocument.key": key, "fullDocument.price": Decimal("1.50")}}]
    stream = await chosen.make(watching(pipeline=pipeline))
    pipeline.clear()
    pymongo_side = chosen.sides[PYMONGO]
    pymongo_side.insert_many(
        [{"key": key, "price": Decimal("1.49")}, {"key": uuid.uuid4()}, {"key": key, "price": Decimal("1.50"), "it": 1}]
    )
    event = await stream.same(lambda each: each.next())
    assert event["fullDocument"]["it"] == 1


@shows(DOCUMENT, "Sessions", "a session is taken; what was written in it before comes not as an event, what after does")
@shows(DOCUMENT, "Sessions", "ended sessions, transactions and snapshots are rejected with the same exceptions")
async def test_sessions(both: Site, collection: Lockstep) -> None:
    client: Any = both.clients.sides[PYMONGO]
    async_client: Any = both.clients.sides[ASYNC_PYMONGO]
    written = both.mongo[(await collection.same(lambda each: each.database.name))]["c"]

    def given(make: Any) -> Action:
        def watch(each: Any) -> Any:
            if inspect.iscoroutinefunction(type(each).watch):
                return each.watch(session=make(async_client))
            return each.watch(session=make(client))

        return watch

    with client.start_session(causal_consistency=True) as session:
        written.insert_one({"n": 1}, session=session)
        streams = await collection.make(given(lambda side: session if side is client else side.start_session()))
        written.insert_one({"n": 2}, session=session)
        assert (await streams.same(lambda each: each.next()))["fullDocument"]["n"] == 2

    await collection.refused(given(lambda side: ended(side)))
    await collection.refused(given(lambda side: side.start_session(snapshot=True)), words=False)
    transaction = client.start_session()
    transaction.start_transaction()
    sides = {name: collection.sides[name] for name in (PYMONGO, FEEDMUX)}
    outcomes = await Lockstep(sides, []).each(watching(session=transaction))
    assert outcomes[FEEDMUX].code == outcomes[PYMONGO].code == 263
    await asyncio.to_thread(transaction.end_session)


def ended(client: Any) -> Any:
    session = client.start_session()
    if isinstance(session, ClientSession):
        session.end_session()
    else:
        session._server_session = None
    return session
