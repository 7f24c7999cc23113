"""Rows of events: the envelope, typed columns and errors. `test_convert.py` compares typed columns with a reference."""

import json
import pickle
from collections.abc import Mapping
from datetime import UTC, datetime
from struct import pack
from typing import Any

import bson
import pyarrow as pa
import pytest
from bson import Binary, Int64, ObjectId, Regex
from bson.datetime_ms import DatetimeMS
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from feedmux_spark.rows import (
    SchemaRefused,
    TypeMismatch,
    default_schema,
    documents_batch,
    row_maker,
    typed_schema,
)
from tests.tables import over
from tests.unit.spark.events import WALL, event, stream, token
from tests.unit.spark.rows.test_columns import struct


def rows(mode: str, events: bytes, schema: StructType | None = None, mismatch: str = "fail") -> list[dict[str, Any]]:
    schema = schema or default_schema(mode)
    batches = row_maker(mode, schema, mismatch).record_batches(events)
    for batch in batches:
        batch.validate(full=True)
        assert batch.schema.equals(to_arrow_schema(schema, timezone="UTC"))
    return [row for batch in batches for row in batch.to_pylist()]


def test_the_envelope_holds_the_event_and_says_where_it_belongs() -> None:
    first = event(3, documentKey={"_id": 3, "shard": "x"})
    second = event(4, "drop", fullDocument=None, documentKey=None)
    one, two = rows("envelope", stream(first, second))
    assert one == {
        "resume_token": bson.encode(first["_id"]),
        "sort_key": bytes.fromhex("6553f10000000003000000000000000000"),
        "cluster_time": datetime.fromtimestamp(1_700_000_000, UTC),
        "cluster_time_increment": 3,
        "wall_time": WALL,
        "operation": "insert",
        "database": "shop",
        "collection": "orders",
        "document_key": bson.encode({"_id": 3, "shard": "x"}),
        "event": bson.encode(first),
    }
    assert (two["operation"], two["document_key"], two["event"]) == ("drop", None, bson.encode(second))


def test_events_are_laid_over_the_batch_without_a_copy() -> None:
    events = stream(*(event(number) for number in range(1, 100)))
    (batch,) = row_maker("envelope", default_schema("envelope"), "fail").record_batches(events)
    data = batch.column("event").buffers()[2]
    assert data.address == pa.py_buffer(events).address
    assert data.size == len(events)


@over(
    ("shape", "found"),
    [
        ({"operationType": None}, {"operation": None}),
        ({"operationType": "aNewOne"}, {"operation": "aNewOne"}),
        ({"operationType": 7, "wallTime": "noon", "documentKey": 1, "ns": []}, {"operation": None, "database": None}),
        ({"ns": {"db": "shop"}}, {"database": "shop", "collection": None}),
        ({"ns": None, "clusterTime": None}, {"database": None, "cluster_time_increment": 1}),
        (
            {"documentKey": {"_id": {"a": [1, Regex("x")]}}},
            {"document_key": bson.encode({"_id": {"a": [1, Regex("x")]}})},
        ),
    ],
)
def test_what_an_event_lacks_or_has_of_another_type_is_null(shape: dict[str, Any], found: dict[str, Any]) -> None:
    shaped = event(1, **shape)
    (row,) = rows("envelope", stream(shaped))
    assert row | found == row
    assert row["event"] == bson.encode(shaped)


def test_the_token_may_stand_anywhere() -> None:
    first = event(1)
    moved = {name: first[name] for name in reversed(first)}
    # The encoder puts `_id` first, as MongoDB does; after $replaceRoot it need not.
    raw = b"".join(bson.encode({name: value})[4:-1] for name, value in moved.items())
    moved_raw = (len(raw) + 5).to_bytes(4, "little") + raw + b"\0"
    one, two = rows("envelope", stream(first) + moved_raw)
    assert one | {"event": None} == two | {"event": None}


def test_rows_of_any_shapes_mixed_are_those_of_each_alone() -> None:
    events = [
        event(
            number,
            fullDocument={f"f{other}": other for other in range(number % 7)},
            extra=[number] * (number % 3) or None,
        )
        if number % 5
        else event(number, "delete", fullDocument=None, lsid={"id": Binary(bytes(16), 4)}, txnNumber=Int64(number))
        for number in range(1, 400)
    ]
    together = rows("envelope", stream(*events))
    assert together == [rows("envelope", stream(each))[0] for each in events]


def test_no_events_make_no_batch() -> None:
    assert row_maker("envelope", default_schema("envelope"), "fail").record_batches(b"") == []


def test_a_maker_can_be_sent_to_a_worker_before_and_after_its_use() -> None:
    maker = row_maker("json", default_schema("json"), "fail")
    events = stream(event(1), event(2))
    made = pickle.loads(pickle.dumps(maker)).record_batches(events)
    assert maker.record_batches(events) == made == pickle.loads(pickle.dumps(maker)).record_batches(events)


def test_a_typed_schema_takes_its_columns_in_any_order_and_any_part() -> None:
    schema = struct(
        operation=StringType(),
        document=struct(name=StringType(), _id=LongType()),
        document_key=struct(_id=LongType()),
        document_before=struct(name=StringType()),
        update_description=struct(removedFields=ArrayType(StringType())),
        event=StringType(),
    )
    inserted = event(1, fullDocument={"_id": 1, "name": "a"})
    removed = event(2, "delete", fullDocument=None, documentKey={"_id": 1}, fullDocumentBeforeChange={"name": "a"})
    updated = event(3, "update", fullDocument={"name": None}, updateDescription={"removedFields": ["x"]})
    one, two, three = rows("typed", stream(inserted, removed, updated), schema)
    assert (one["operation"], one["document"], one["document_key"]) == ("insert", {"name": "a", "_id": 1}, {"_id": 1})
    assert (two["document"], two["document_key"], two["document_before"]) == (None, {"_id": 1}, {"name": "a"})
    assert (three["document"], three["update_description"]) == ({"name": None, "_id": None}, {"removedFields": ["x"]})
    assert json.loads(three["event"])["updateDescription"] == {"removedFields": ["x"]}


def test_nothing_of_events_that_newer_versions_add_is_lost() -> None:
    described = {"updatedFields": {"a.0": 1}, "removedFields": [], "disambiguatedPaths": {"a.0": ["a", "0"]}}
    updated = event(1, "update", nsType="collection", commitTimestamp=Timestamp(5, 6), updateDescription=described)
    session: dict[str, Any] = {"operationDescription": {"txnNumber": Int64(7)}, "lsid": {"id": Binary(bytes(16), 4)}}
    ended = event(2, "endOfTransaction", fullDocument=None, ns=None, documentKey=None, **session)
    moved = event(3, "placementChange", fullDocument=None, documentKey=None, ns={"db": "shop"})
    schema = struct(
        operation=StringType(),
        database=StringType(),
        document=struct(_id=LongType()),
        update_description=struct(disambiguatedPaths=struct(**{"a.0": ArrayType(StringType())})),
        event=BinaryType(),
    )
    found = rows("typed", stream(updated, ended, moved), schema)
    assert [row["event"] for row in found] == [bson.encode(each) for each in (updated, ended, moved)]
    assert [(row["operation"], row["database"]) for row in found] == [
        ("update", "shop"),
        ("endOfTransaction", None),
        ("placementChange", "shop"),
    ]
    assert found[0]["update_description"] == {"disambiguatedPaths": {"a.0": ["a", "0"]}}


HAS_DOCUMENT = struct(document=struct(_id=LongType())).add("has_document", BooleanType(), nullable=False)


@pytest.mark.parametrize("mode", [None, "whenAvailable", "updateLookup"])
def test_a_document_that_was_looked_up_in_vain_is_not_one_that_was_not_asked_for(mode: Any) -> None:
    in_vain = {"fullDocument": None}
    events = (
        event(1),
        event(2, "update") | in_vain,
        event(3, "update", fullDocument=None),
        event(4, "replace") | in_vain,
        event(5, "update", fullDocument=5),
        event(6, "delete", fullDocument=None),
    )
    (batch,) = row_maker("typed", HAS_DOCUMENT, "null", mode).record_batches(stream(*events))
    assert batch["document"].to_pylist() == [{"_id": 1}, *[None] * 5]
    assert batch["has_document"].to_pylist() == [True, mode == "updateLookup", *[False] * 4]


@over(
    ("description", "deleted"),
    [
        ({"updatedFields": {"n": 1, "areas": 1, "at.y": 1}, "removedFields": ["m"]}, True),
        ({"updatedFields": {"area": 1}, "removedFields": []}, False),
        ({"updatedFields": {}, "removedFields": ["area"]}, False),
        ({"updatedFields": {"at": {"x": 1}}, "removedFields": []}, False),
        ({"updatedFields": {"at.x.z": 1}, "removedFields": []}, False),
        ({"updatedFields": {}}, False),
        (None, False),
    ],
)
def test_a_document_is_not_found_by_a_shard_key_that_the_update_changes(description: Any, deleted: bool) -> None:
    key = {"area": "x", "at.x": 1, "_id": 1}
    update = event(1, "update", documentKey=key, updateDescription=description) | {"fullDocument": None}
    (batch,) = row_maker("typed", HAS_DOCUMENT, "fail", "updateLookup").record_batches(stream(update))
    assert batch["has_document"].to_pylist() == [deleted]


def test_a_mismatch_names_the_field_the_types_and_the_event_but_no_value() -> None:
    schema = struct(document=struct(items=ArrayType(struct(price=IntegerType()))))
    events = stream(event(1), event(2, fullDocument={"items": [{"price": 1}, {"price": "secret"}]}), event(3))
    with pytest.raises(TypeMismatch) as raised:
        rows("typed", events, schema)
    message = str(raised.value)
    for part in (
        "document.items[].price",
        "BSON string",
        "INT",
        "onTypeMismatch",
        token(1_700_000_000, 2)["_data"],
        "orders",
    ):
        assert part in message
    assert "secret" not in message
    found = rows("typed", events, schema, "null")
    assert [row["document"]["items"] for row in found] == [None, [{"price": 1}, {"price": None}], None]


def test_far_dates_are_kept_as_far_as_microseconds_reach() -> None:
    furthest = ((1 << 63) - 1) // 1000
    dates = [253_402_300_800_000, -furthest, furthest, furthest + 1, -(1 << 63)]
    events = stream(*(event(n, fullDocument={"at": DatetimeMS(each)}) for n, each in enumerate(dates, 1)))
    schema = struct(document=struct(at=TimestampType()))
    (batch,) = row_maker("typed", schema, "null").record_batches(events)
    column = batch.column("document").field(0)
    assert column.view(pa.int64()).to_pylist() == [
        253_402_300_800_000_000,
        -furthest * 1000,
        furthest * 1000,
        None,
        None,
    ]
    with pytest.raises(TypeMismatch):
        row_maker("typed", schema, "fail").record_batches(events)


@over("mismatch", ["fail", "null"])
def test_a_column_that_may_not_be_null_fails_where_it_would_be(mismatch: str) -> None:
    inner = StructType([StructField("name", StringType(), nullable=False)])
    schema = struct(document=inner)
    present, absent = event(1, fullDocument={"name": "a"}), event(2, "delete", fullDocument=None)
    assert [row["document"] for row in rows("typed", stream(present, absent), schema)] == [{"name": "a"}, None]
    with pytest.raises(TypeMismatch, match=r"document\.name is declared NOT NULL"):
        rows("typed", stream(present, event(3, fullDocument={"name": None})), schema, mismatch)
    elements = struct(document=struct(tags=ArrayType(StringType(), containsNull=False)))
    with pytest.raises(TypeMismatch, match=r"document\.tags\[\] is declared NOT NULL"):
        rows("typed", stream(event(1, fullDocument={"tags": ["a", None]})), elements, mismatch)


def test_an_unknown_mismatch_rule_is_refused() -> None:
    with pytest.raises(SchemaRefused, match="neither fail nor null"):
        row_maker("json", default_schema("json"), "ignore")


def test_a_key_is_never_null_because_it_does_not_fit() -> None:
    document = struct(_id=LongType())
    schema = typed_schema(document, document_key=document)
    unfit = stream(event(1), event(2, fullDocument={"_id": "two"}, documentKey={"_id": "two"}))
    with pytest.raises(
        TypeMismatch,
        match=r"document_key\._id: a BSON string .* BIGINT .*, or take document_key as BINARY\. The event",
    ):
        rows("typed", unfit, schema, "null")
    with pytest.raises(TypeMismatch, match=r"document_key\._id"):
        documents_batch(bson.encode({"_id": "two"}), document, "null")
    (row,) = rows("typed", stream(event(1, documentKey={"_id": None})), schema, "null")
    assert row["document_key"] == {"_id": None}


@pytest.mark.parametrize(
    "key", [{"region": 1}, {}, pytest.param(RawBSONDocument(pack("<i", 10) + b"\x06_id\0\0"), id="undefined")]
)
def test_a_key_without_its_id_is_an_error(key: Mapping[str, Any]) -> None:
    document = struct(_id=LongType())
    with pytest.raises(TypeMismatch, match=r"document_key\._id is missing"):
        rows(
            "typed", stream(event(1), event(2, documentKey=key)), typed_schema(document, document_key=document), "null"
        )
    with pytest.raises(TypeMismatch, match=r"document_key\._id is missing"):
        documents_batch(bson.encode({"_id": 1}) + bson.encode(key), document)
    shard = struct(region=LongType())
    changes = stream(event(1, documentKey={"region": 1}), event(2, "drop", documentKey=None, fullDocument=None))
    found = rows("typed", changes, typed_schema(document, document_key=shard))
    assert [row["document_key"] for row in found] == [{"region": 1}, None]


def test_a_mismatch_is_a_column_where_it_is_asked_for() -> None:
    """Only the rows with a value that does not fit are without their documents, however deep it is."""
    document = StructType([
        StructField("n", LongType()),
        StructField("l", ArrayType(LongType(), containsNull=False)),
        StructField("o", StructType([StructField("must", LongType(), nullable=False)])),
    ])  # fmt: skip
    schema = typed_schema(document, document_key=struct(_id=LongType())).add("type_mismatch", StringType())
    good = {"n": 1, "l": [1], "o": {"must": 1}}
    shapes: list[tuple[dict[str, Any], dict[str, Any], str | None]] = [
        ({"_id": 1}, good, None),
        ({"_id": "one"}, good, "document_key._id: a BSON string that a column of type BIGINT cannot hold"),
        ({}, good, "document_key._id is missing or undefined"),
        ({"_id": ObjectId()}, good, "document_key._id: a BSON objectId"),
        ({"_id": 1}, good | {"n": "x"}, "document.n: a BSON string that a column of type BIGINT cannot hold"),
        ({"_id": 1}, good | {"l": [1, 2.5]}, "document.l[]: a BSON double"),
        ({"_id": 1}, good | {"l": [1, None]}, "document.l[] is declared NOT NULL"),
        ({"_id": 1}, good | {"o": {}}, "document.o.must is declared NOT NULL"),
        ({"_id": 2}, {"n": None}, None),
    ]
    events = [event(i, documentKey=key, fullDocument=found) for i, (key, found, _) in enumerate(shapes, 1)]
    made = rows("typed", stream(*events), schema)
    for row, (key, found, reason) in zip(made, shapes, strict=True):
        if reason is None:
            assert (row["type_mismatch"], row["document_key"]) == (None, key)
            assert row["document"] == {"l": None, "o": None} | found
        else:
            assert row["type_mismatch"].startswith(reason)
            assert (row["document_key"], row["document"], row["operation"]) == (None, None, "insert")
    # The key is never null without a word, the rest may be.
    (wrong, key) = rows("typed", stream(events[4], events[1]), schema, "null")
    assert (wrong["document"]["n"], wrong["type_mismatch"]) == (None, None)
    assert key["type_mismatch"].startswith("document_key._id")
