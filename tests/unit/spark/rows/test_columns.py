"""Schemas that rows cannot fill are refused, with what to write instead."""

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    VariantType,
)

from feedmux_spark.rows import SchemaRefused, default_schema, row_maker
from tests.tables import over


def struct(**fields: DataType) -> StructType:
    return StructType([StructField(name, each) for name, each in fields.items()])


TWICE = StructType([StructField("id", LongType())] * 2)


@over(
    ("mode", "schema", "says"),
    [
        ("avro", default_schema("json"), "envelope, json, typed"),
        ("envelope", struct(price=LongType()), "schemaMode typed"),
        ("envelope", struct(event=StringType()), "BINARY"),
        ("json", struct(event=BinaryType()), "STRING"),
        ("typed", struct(_id=LongType()), "struct column `document`"),
        ("typed", struct(document=struct(_id=LongType()), total=LongType()), "field of the struct column `document`"),
        ("typed", struct(document=struct(a=MapType(LongType(), LongType()))), "keys are not STRING"),
        ("typed", struct(document=struct(a=VariantType())), "parse_json"),
        ("typed", struct(document=struct(a=struct())), "without fields"),
        ("typed", struct(document=struct(a=LongType()), cluster_time=LongType()), "TIMESTAMP"),
        ("envelope", StructType([StructField("operation", StringType())] * 2), "operation twice"),
        ("typed", struct(document=struct(a=TWICE)), "document.a names id twice"),
        ("typed", struct(document=struct(a=ArrayType(TWICE))), r"document.a\[\] names id twice"),
        ("envelope", StructType([]), "no columns"),
    ],
)
def test_a_schema_that_cannot_be_filled_is_refused_with_what_to_do(mode: str, schema: StructType, says: str) -> None:
    with pytest.raises(SchemaRefused, match=says):
        row_maker(mode, schema, "fail")


def test_a_typed_schema_has_no_default() -> None:
    with pytest.raises(SchemaRefused, match="schemaMode typed needs a schema"):
        default_schema("typed")


def test_the_default_schemas_differ_in_the_event_alone() -> None:
    envelope, texts = default_schema("envelope"), default_schema("json")
    assert envelope.fields[:-1] == texts.fields[:-1]
    assert [each.fields[-1].simpleString() for each in (envelope, texts)] == ["event:binary", "event:string"]
