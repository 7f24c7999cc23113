"""Typed rows and VARIANT as Spark takes and shows them, from MongoDB through the server."""

import json
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal

from bson import Decimal128, Int64, ObjectId
from bson.datetime_ms import DatetimeMS
from pyspark.sql import SparkSession
from pyspark.sql.types import DataType, StructType

from feedmux_spark.rows import typed_schema
from tests.documents import Documents

FIELDS = """_id STRING, name STRING, count INT, big BIGINT, ratio DOUBLE, price DECIMAL(20, 3), at TIMESTAMP, day DATE,
 tags ARRAY<STRING>, lines ARRAY<STRUCT<item: STRING, quantity: SMALLINT>>, extra MAP<STRING, BIGINT>,
 nested STRUCT<deep: STRUCT<flag: BOOLEAN>>"""
AT = datetime(2024, 2, 29, 12, 30, 15, 250000, UTC)
FAR_MS = 253_402_300_800_000  # the first moment of the year 10000


def test_documents_as_spark_types(
    spark: SparkSession, database: Documents, options: Callable[..., dict[str, str]]
) -> None:
    key = ObjectId()
    document = {
        "_id": key, "name": "é", "count": 7, "big": Int64(1 << 60), "ratio": 0.5, "price": Decimal128("12.50"),
        "at": AT, "day": AT, "tags": ["a", None, "b"], "lines": [{"item": "x", "quantity": 2}, {}], "extra": {"k": 1},
        "nested": {"deep": {"flag": True}}, "more": "unasked",
    }  # fmt: skip
    database.c.insert_one(document)
    database.c.insert_one({"_id": ObjectId(), "at": DatetimeMS(FAR_MS)})
    database.c.delete_one({"_id": key})
    struct = DataType.fromDDL(FIELDS)
    assert isinstance(struct, StructType)
    schema = typed_schema(struct, document_key=StructType([struct["_id"]]))
    reader = spark.read.format("feedmux").options(**options(schemaMode="typed")).schema(schema)
    rows = reader.load().orderBy("sort_key")
    first, last = rows.where("cardinality(document.tags) > 0 OR operation = 'delete'").collect()
    assert first.document.asDict(recursive=True) == {
        "_id": str(key), "name": "é", "count": 7, "big": 1 << 60, "ratio": 0.5, "price": Decimal("12.500"),
        "at": first.document.at, "day": date(2024, 2, 29), "tags": ["a", None, "b"],
        "lines": [{"item": "x", "quantity": 2}, {"item": None, "quantity": None}], "extra": {"k": 1},
        "nested": {"deep": {"flag": True}},
    }  # fmt: skip
    assert first.document.at.timestamp() == AT.timestamp()
    assert (last.document, last.document_key._id) == (None, str(key))
    times = rows.selectExpr("unix_millis(document.at) AS ms").collect()
    assert [row.ms for row in times] == [int(AT.timestamp() * 1000), FAR_MS, None]


def test_json_becomes_a_variant(
    spark: SparkSession, database: Documents, options: Callable[..., dict[str, str]]
) -> None:
    database.c.insert_one({"_id": 1, "lines": [{"price": Decimal128("1.10")}]})
    rows = spark.read.format("feedmux").options(**options(schemaMode="json")).load()
    path = "$.fullDocument.lines[0].price"
    (row,) = rows.selectExpr(f"to_json(variant_get(parse_json(event), '{path}')) AS price").collect()
    assert json.loads(row.price) == {"$numberDecimal": "1.10"}
