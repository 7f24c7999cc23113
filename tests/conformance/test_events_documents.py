"""Events of documents: insert, update, replace, delete, as MongoDB sent them."""

import uuid
from collections.abc import Callable
from typing import Any

import bson
import pytest
from bson import Binary, Code, DBRef, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from bson.binary import UuidRepresentation
from bson.datetime_ms import DatetimeMS
from bson.raw_bson import RawBSONDocument

from tests.conformance.conftest import Document, Site, on_both_versions
from tests.conformance.same import assert_same
from tests.conformance.statements import DRIVERS, EVENTS, SERVER, UPDATES, shows
from tests.documents import Documents
from tests.integration.wire import feed

FORMAT = "Response Format"

ALL_TYPES: dict[str, Any] = {
    "double": 1.5,
    "not a number": float("nan"),
    "infinite": float("-inf"),
    "minus zero": -0.0,
    "string": "été 𝄞 \u0000 nul inside",
    "document": {"a": {"b": {}}},
    "array": [1, [2, [3]], {}],
    "binary": Binary(b"\x00\xff", 0),
    "old binary": Binary(b"\x01", 2),
    "uuid": Binary.from_uuid(uuid.UUID(int=7), UuidRepresentation.STANDARD),
    "user defined": Binary(b"", 0x80),
    "object id": ObjectId("65f000000000000000000001"),
    "true": True,
    "date": DatetimeMS(0),
    "far date": DatetimeMS(2**62),
    "date before": DatetimeMS(-(2**62)),
    "null": None,
    "regex": Regex("^a.*é", "imsux"),
    "dbref": DBRef("c", 1, "d"),
    "code": Code("function () { return 1 }"),
    "code with scope": Code("x", {"x": 1}),
    "int32": -(2**31),
    "timestamp": Timestamp(4294967295, 4294967295),
    "int64": Int64(-(2**63)),
    "decimal": Decimal128("-1.10E+6000"),
    "decimal nan": Decimal128("NaN"),
    "min key": MinKey(),
    "max key": MaxKey(),
}


@shows(DRIVERS, FORMAT, "insert: fullDocument is the inserted document, documentKey its _id")
@shows(EVENTS, "insert Event", "an insert is reported with the document at the time of the insert")
@shows(EVENTS, "Change Events", "each event has _id, operationType, ns, clusterTime and wallTime")
@shows(SERVER, "Generic Event layout", "_id, operationType, clusterTime, wallTime and ns stand in every event")
async def test_insert(site: Site, database: Documents) -> None:
    def act() -> None:
        database.c.insert_one({"_id": 1, "a": 1})
        database.c.insert_many([{"_id": n} for n in range(2, 200)])

    seen = await assert_same(site, feed(database.name, "c"), act, kinds=["insert"] * 199)
    event = seen.documents[0]
    assert set(event) == {"_id", "operationType", "clusterTime", "wallTime", "ns", "documentKey", "fullDocument"}
    assert event["fullDocument"] == {"_id": 1, "a": 1}
    assert event["documentKey"] == {"_id": 1}
    assert event["ns"] == {"db": database.name, "coll": "c"}


@shows(DRIVERS, FORMAT, "updatedFields has the new values by dotted paths, removedFields the names of removed fields")
@shows(EVENTS, "update Event", "updateDescription stands in update events, with the new values and not the operations")
@shows(UPDATES, "Description", "updatedFields: fields with their new values; removedFields: fields that are gone")
@shows(
    UPDATES, "Array Updates", "$push to an empty array reports the array; to another the new position; $pull the array"
)
async def test_update(site: Site, database: Documents) -> None:
    def act() -> None:
        collection = database.c
        collection.insert_one({"_id": 1, "scores": [], "a": {"b": [{"c": 1}], "pad": "x" * 200}, "gone": 1, "n": 1})
        for change in (
            {"$push": {"scores": 0.85}},
            {"$push": {"scores": 0.94}},
            {"$pull": {"scores": 0.94}},
            {"$inc": {"n": 41}},
            {"$set": {"a.b.0.c": 2}, "$unset": {"gone": ""}},
            {"$rename": {"n": "number"}},
            {"$set": {"a.b.3": 7}},
        ):
            collection.update_one({"_id": 1}, change)

    seen = await assert_same(site, feed(database.name, "c"), act, kinds=["insert"] + ["update"] * 7)
    described = [event["updateDescription"] for event in seen.documents[1:]]
    assert described[0]["updatedFields"] == {"scores": [0.85]}
    assert described[1]["updatedFields"] == {"scores.1": 0.94}
    assert described[2]["updatedFields"] == {"scores": [0.85]}
    assert described[3]["updatedFields"] == {"n": 42}
    assert (described[4]["updatedFields"], described[4]["removedFields"]) == ({"a.b.0.c": 2}, ["gone"])


@shows(DRIVERS, FORMAT, "truncatedArrays names a shortened array and its new size; elements stay in updatedFields")
@shows(EVENTS, "Change Events", "truncatedArrays records truncations by pipeline updates: field and newSize")
@shows(
    UPDATES, "Array Truncation", "a pipeline update that shortens an array is a truncation, one that adds is an update"
)
async def test_truncated_arrays(site: Site, database: Documents) -> None:
    def act() -> None:
        pad = "x" * 300
        database.c.insert_one({"_id": 1, "scores": [0.85, 0.94, 0.78], "deep": [{"list": list(range(8))}], "pad": pad})
        database.c.insert_one({"_id": 2, "list": ["foo", {"a": "bar"}, 1, 2, 3], "pad": pad})
        for stage in (
            {"$addFields": {"scores": [0.85, 0.94]}},
            {"$set": {"scores": [0.85, 0.94, 0.78]}},
            {"$set": {"deep": [{"list": [0, 1, 2, 3, 4]}]}},
        ):
            database.c.update_one({"_id": 1}, [stage])
        database.c.update_one({"_id": 2}, [{"$set": {"list": ["foo", {"a": "bar", "b": 3}]}}])

    seen = await assert_same(site, feed(database.name, "c"), act, kinds=["insert"] * 2 + ["update"] * 4)
    described = [event["updateDescription"] for event in seen.documents[2:]]
    assert described[0]["truncatedArrays"] == [{"field": "scores", "newSize": 2}]
    assert described[1]["updatedFields"] == {"scores.2": 0.78}
    assert described[2]["truncatedArrays"] == [{"field": "deep.0.list", "newSize": 5}]
    assert described[3]["updatedFields"] == {"list.1.b": 3}
    assert described[3]["truncatedArrays"] == [{"field": "list", "newSize": 2}]


@shows(DRIVERS, FORMAT, "disambiguatedPaths maps an ambiguous path to its parts: strings, and array indexes as int32")
@shows(UPDATES, "Path Disambiguation", "with showExpandedEvents, paths with dots or numeric names are spelt out")
@on_both_versions
async def test_disambiguated_paths(site: Site, database: Documents) -> None:
    database.c.insert_one(
        {"_id": 1, "a": {"0": 0}, "residences": [{"0": "Oxford"}, {"1": "Sunbury"}], "0": {"name": 1}}
    )

    def act() -> None:
        database.c.update_one({"_id": 1}, {"$inc": {"a.0": 1}})
        database.c.update_one({"_id": 1}, {"$set": {"residences.0.0": "London"}})
        database.c.update_one({"_id": 1}, {"$set": {"0.name": 2, "a.0001": 3}})
        set_dotted = {"$setField": {"field": "home.town", "input": "$$ROOT", "value": "London"}}
        database.c.update_one({"_id": 1}, [{"$replaceWith": set_dotted}])

    expanded = await assert_same(site, feed(database.name, "c", show_expanded_events=True), act, kinds=["update"] * 4)
    paths = [event["updateDescription"].get("disambiguatedPaths") for event in expanded.documents]
    if site.version >= (6, 1) or paths[0] is not None:
        assert paths[0] == {"a.0": ["a", "0"]}
        assert paths[1] == {"residences.0.0": ["residences", 0, "0"]}
        assert paths[3] == {"home.town": ["home.town"]}


@shows(DRIVERS, FORMAT, "replace: fullDocument is the new version of the document")
@shows(EVENTS, "replace Event", "a replace is reported with the document after it")
@shows(UPDATES, "Update Operations", "an update command may show as update, replace or (upsert) insert")
async def test_replace_and_upsert(site: Site, database: Documents) -> None:
    def act() -> None:
        database.c.update_one({"_id": 1}, {"$set": {"a": 1}}, upsert=True)
        database.c.replace_one({"_id": 1}, {"b": 1})
        database.c.replace_one({"_id": 2}, {"b": 2}, upsert=True)
        database.c.update_one({"_id": 1}, [{"$replaceWith": {"_id": 1, "other": "document"}}])
        database.c.find_one_and_replace({"_id": 2}, {"b": 3})

    kinds = ["insert", "replace", "insert", "replace", "replace"]
    seen = await assert_same(site, feed(database.name, "c"), act, kinds=kinds)
    assert seen.documents[1]["fullDocument"] == {"_id": 1, "b": 1}


@shows(DRIVERS, FORMAT, "delete: documentKey and no fullDocument")
@shows(EVENTS, "delete Event", "fullDocument is left out, as the document is gone")
async def test_delete(site: Site, database: Documents) -> None:
    def act() -> None:
        database.c.insert_many([{"_id": n} for n in range(3)])
        database.c.delete_one({"_id": 0})
        database.c.find_one_and_delete({"_id": 1})
        database.c.delete_many({})

    seen = await assert_same(site, feed(database.name, "c"), act, kinds=["insert"] * 3 + ["delete"] * 3)
    assert all("fullDocument" not in event for event in seen.documents[3:])


@shows(EVENTS, "Change Events", "documentKey holds the _id of the document, of whatever type it is")
@shows(SERVER, "Generic Event layout", "documentKey is the _id of the affected document")
async def test_every_type_as_id(site: Site, database: Documents) -> None:
    # Arrays, regular expressions and undefined cannot be an _id.
    ids = [value for name, value in ALL_TYPES.items() if name not in ("array", "regex")]

    def act() -> None:
        for each in ids:
            database.c.insert_one({"_id": each, "n": 1})
            database.c.update_one({"_id": each}, {"$set": {"n": 2}})
            database.c.replace_one({"_id": each}, {"n": 3})
            database.c.delete_one({"_id": each})

    kinds = ["insert", "update", "replace", "delete"] * len(ids)
    await assert_same(site, feed(database.name, "c"), act, kinds=kinds)


@shows(EVENTS, "Change Events", "documents hold every BSON type, as they were written")
async def test_every_type_in_documents(site: Site, database: Documents) -> None:
    def act() -> None:
        database.c.insert_one({"_id": 1, **ALL_TYPES})
        for name, value in ALL_TYPES.items():
            database.c.update_one({"_id": 1}, {"$set": {f"changed.{name}": value}})
            database.c.update_one({"_id": 1}, {"$unset": {name: 1}})

    await assert_same(site, feed(database.name, "c", full_document="updateLookup"), act, live=False)
    await assert_same(site, feed(database.name, "d"), lambda: database.d.insert_one(ALL_TYPES), kinds=["insert"])


def raw(*elements: bytes) -> RawBSONDocument:
    """A document of elements that no driver would write."""
    body = b"".join(elements) + b"\0"
    return RawBSONDocument((len(body) + 4).to_bytes(4, "little") + body)


ODD_BYTES = {
    "a name twice": raw(b"\x10_id\0\1\0\0\0", b"\x10a\0\1\0\0\0", b"\x10a\0\2\0\0\0"),
    "text that is no UTF-8": raw(b"\x10_id\0\1\0\0\0", b"\x02a\0\x03\0\0\0\xff\xfe\0"),
    "a name that is no UTF-8": raw(b"\x10_id\0\1\0\0\0", b"\x10\xff\xfe\0\1\0\0\0"),
    "undefined": raw(b"\x10_id\0\1\0\0\0", b"\x06a\0"),
    "symbol": raw(b"\x10_id\0\1\0\0\0", b"\x0ea\0\x02\0\0\0x\0"),
    "db pointer": raw(b"\x10_id\0\1\0\0\0", b"\x0ca\0\x02\0\0\0x\0" + b"\1" * 12),
    "array with odd keys": raw(
        b"\x10_id\0\1\0\0\0", b"\x04a\0" + bytes(raw(b"\x10x\0\1\0\0\0", b"\x107\0\1\0\0\0").raw)
    ),
}


@shows(DRIVERS, FORMAT, "what a consumer does not know, it gets as it is")
@pytest.mark.parametrize("case", ODD_BYTES)
async def test_odd_bytes(site: Site, database: Documents, case: str) -> None:
    """Outdated types, doubled names and broken text are MongoDB's to accept and the consumer's to read."""
    document = ODD_BYTES[case]
    seen = await assert_same(
        site,
        feed(database.name, "c"),
        lambda: database.c.with_options(codec_options=bson.CodecOptions(document_class=RawBSONDocument)).insert_one(
            document
        ),
        kinds=["insert"],
    )
    assert bytes(document.raw) in seen.events[0]


SIZES: dict[str, Callable[[int], Document]] = {
    "one field": lambda size: {"pad": "x" * size},
    "many fields": lambda size: {f"field {n}": n for n in range(size // 20)},
    "deep": lambda size: nested(min(size // 40, 90)),
}


def nested(depth: int) -> Document:
    return {"d": nested(depth - 1)} if depth else {"end": 1}


@shows(SERVER, "Consuming Events from a Change Stream", "a reply holds at most 16 MB; larger backlogs come in several")
@pytest.mark.parametrize("shape", SIZES)
async def test_large_documents(site: Site, database: Documents, shape: str) -> None:
    def act() -> None:
        for size in (1, 1_000, 100_000, 1_000_000, 1_500_000, 5_000_000, 9_000_000):
            database.c.insert_one(SIZES[shape](size))

    await assert_same(site, feed(database.name, "c"), act, kinds=["insert"] * 7)
