"""Documents of other shapes than their neighbours, and bytes that are no documents."""

import struct

import bson
import pytest
from bson import Regex
from pyspark.sql.types import ArrayType, LongType, StringType, StructField, StructType

from feedmux_spark.rows import InvalidEvents, default_schema, row_maker
from tests.tables import over
from tests.unit.spark.events import event, stream, token


def test_one_long_document_among_short_ones_is_walked_to_its_end() -> None:
    many = {f"field {number}": number for number in range(500)} | {
        "pattern": Regex("x", "i"),
        "last": [*range(300), "z"],
    }
    documents = [{"last": [1]}, many, {"last": []}]
    schema = StructType([
        StructField("document", StructType([
            StructField("last", ArrayType(StringType())),
            StructField("field 499", LongType()), StructField("field 3", LongType()),
        ]))
    ])  # fmt: skip
    events = stream(*(event(number, fullDocument=each) for number, each in enumerate(documents, 1)))
    (batch,) = row_maker("typed", schema, "null").record_batches(events)
    one, two, three = batch.column("document").to_pylist()
    assert one == {"last": [None], "field 499": None, "field 3": None}
    assert two == {"last": [*[None] * 300, "z"], "field 499": 499, "field 3": 3}
    assert three["last"] == []


def test_of_a_name_that_stands_twice_the_first_counts() -> None:
    # As MongoDB's own operators read it. No driver writes such a document, but the server keeps it.
    body = b"\x10a\0" + struct.pack("<i", 1) + b"\x10a\0" + struct.pack("<i", 2) + b"\x10b\0" + struct.pack("<i", 3)
    twice = bson.decode(struct.pack("<i", len(body) + 5) + body + b"\0")
    assert twice["a"] == 2
    raw = struct.pack("<i", len(body) + 5) + body + b"\0"
    document = bson.raw_bson.RawBSONDocument(raw)
    schema = StructType([
        StructField("document", StructType([StructField("a", LongType()), StructField("b", LongType())]))
    ])  # fmt: skip
    events = stream(event(1, fullDocument=document), event(2, fullDocument={"a": 5, "b": 6}))
    (batch,) = row_maker("typed", schema, "fail").record_batches(events)
    assert batch.column("document").to_pylist() == [{"a": 1, "b": 3}, {"a": 5, "b": 6}]


@over(
    "events",
    [
        b"abc",
        stream(event(1))[:-1],
        stream(event(1)) + b"\x05\0\0",
        stream({"a": 1}),
        stream(event(1, _id={"_data": "83"})),
        stream(event(1, _id={"_data": 7})),
        stream(event(1, _id={"_data": token(1, 1, version=3)["_data"]})),
        stream(event(1)).replace(b"\x02operationType", b"\x42operationType"),
        stream(event(1)).replace(b"\x07\0\0\0insert", b"\xff\xff\xff\xffinsert"),
        stream(event(1)).replace(b"\x07\0\0\0insert", b"\xff\xff\xff\x7finsert"),
    ],
)
def test_bytes_that_are_no_events_are_an_error(events: bytes) -> None:
    with pytest.raises(InvalidEvents):
        row_maker("envelope", default_schema("envelope"), "fail").record_batches(events)
