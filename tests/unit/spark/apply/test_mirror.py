"""What a mirror refuses before it has a table, and the names of its states."""

import json
import math
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import MagicMock

import bson
import pytest
from bson import Binary, Code, ObjectId, Timestamp
from bson.raw_bson import RawBSONDocument
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    FloatType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from feedmux_spark.apply import DeltaMirror, ParquetMirror, mirror_schema
from feedmux_spark.apply.parquet import _STATE, _folder, _number
from feedmux_spark.errors import OptionError
from feedmux_spark.offsets import Offset
from feedmux_spark.rows import SchemaRefused, TypeMismatch, documents_batch
from tests.tables import over


@over("kind", [FloatType(), DateType(), StringType("UTF8_LCASE"), MapType(StringType(), LongType())])
def test_a_key_that_would_make_one_of_several_is_refused(kind: DataType) -> None:
    for each in (kind, StructType([StructField("a", kind)]), ArrayType(kind)):
        with pytest.raises(SchemaRefused, match=r"make one document of several|MAP cannot be compared"):
            mirror_schema(StructType([StructField("_id", each)]))


def test_a_schema_without_a_key_is_refused() -> None:
    document = StructType([StructField("id", LongType()), StructField("_ID", LongType())])
    for refused in (lambda: mirror_schema(document), lambda: documents_batch(b"", document)):
        with pytest.raises(SchemaRefused, match="no field _id, only id, _ID"):
            refused()


MIDNIGHT = datetime(2026, 1, 1, tzinfo=UTC)
UNDEFINED = RawBSONDocument(b"\x08\0\0\0\x06a\0\0")
"""The field `a` as undefined."""
PAIR = StructType([StructField("a", LongType()), StructField("b", LongType())])


@over(
    ("kind", "taken", "refused"),
    [
        (StringType(), ["x", ObjectId(), Binary(bytes(16), 4), None], [Code("x"), Binary(bytes(16), 3)]),
        (
            BinaryType(),
            [b"", b"x"],
            [Binary(b"x", 128), Binary(b"x", 2), Binary(b"", 2), Binary(bytes(16), 4), ObjectId()],
        ),
        (BinaryType(), [], [{"a": 1}]),
        (TimestampType(), [MIDNIGHT], [Timestamp(5, 1)]),
        (TimestampNTZType(), [MIDNIGHT], [Timestamp(5, 1)]),
        (DateType(), [MIDNIGHT], [MIDNIGHT + timedelta(milliseconds=1), Timestamp(86400, 1)]),
        (FloatType(), [1.5, math.nan, -math.inf], [0.1, (1 << 24) + 1]),
        (PAIR, [{"a": 1, "b": 2}, {"a": 1.0, "b": None}, None], []),
        (PAIR, [], [{"b": 2, "a": 1}, {"a": 5}, {"a": 1, "b": 2, "c": 3}, {"a": 1, "c": 2}, {}]),
        (PAIR, [], [{"aa": 1, "b": 2}, {"b": 2}, {"a": 1, "b": 2, "aa": 3}]),
        (
            ArrayType(StructType([StructField("a", StringType())])),
            [[{"a": "x"}, {"a": None}, None], []],
            [[{}], [{"a": Code("x")}], [UNDEFINED]],
        ),
        (MapType(StringType(), StringType()), [{"a": None}], [UNDEFINED]),
    ],
)
def test_a_key_takes_no_value_whose_column_is_also_another_ones(
    kind: DataType, taken: list[Any], refused: list[Any]
) -> None:
    inner = StructType([StructField("s", StructType([StructField("v", kind)]))])
    for schema, wrap in (kind, lambda value: value), (inner, lambda value: {"s": {"v": value}}):
        document = StructType([StructField("_id", schema)])
        rows = documents_batch(b"".join(bson.encode({"_id": wrap(value)}) for value in taken), document)
        assert rows.num_rows == len(taken)
        for value in refused:
            with pytest.raises(TypeMismatch, match=r"^document_key\._id.*: a BSON .* cannot hold"):
                documents_batch(bson.encode({"_id": wrap(value)}), document)


@over("namespace", ["orders", "shop.", ".orders", ""])
def test_a_namespace_has_two_parts(namespace: str) -> None:
    spark: Any = None
    with pytest.raises(ValueError, match=r"database\.collection"):
        ParquetMirror(spark, "/nowhere", namespace)


@over(
    "offset",
    [
        "snapshot",
        '{"position": "AA=="}',
        json.dumps(Offset(b"p", (1000, 1)).as_json()),
        json.dumps(Offset(b"p", (1000, 1), copied=200).as_json()),
        json.dumps(Offset(b"p", copied=0).as_json()),
    ],
)
def test_a_sweep_without_the_beginning_of_its_copy_deletes_nothing(offset: str) -> None:
    """A later offset would delete the documents that were copied before it."""
    spark: Any = None
    with pytest.raises(OptionError, match="offset at which the copy began"):
        ParquetMirror(spark, "/nowhere").sweep(offset)


def test_the_schema_has_what_tells_a_delete_from_an_update_without_a_document() -> None:
    schema = mirror_schema(StructType([StructField("_id", LongType()), StructField("n", LongType())]))
    assert schema["document_key"].dataType == StructType([StructField("_id", LongType())])
    assert schema["has_document"] == StructField("has_document", BooleanType(), nullable=False)
    assert "sort_key" in schema.fieldNames()


def test_each_merge_of_delta_has_a_view_of_its_own() -> None:
    """Mirrors of one session may merge at the same time, in threads of one foreachBatch."""
    views = set()
    for _ in range(2):
        spark, latest = MagicMock(), MagicMock()
        DeltaMirror(spark, "/nowhere")._merge(latest, None, None)
        (view,) = latest.createOrReplaceTempView.call_args.args
        assert f"USING {view} new" in latest.sparkSession.sql.call_args.args[0]
        latest.sparkSession.catalog.dropTempView.assert_called_once_with(view)
        views.add(view)
    assert len(views) == 2


def test_states_have_a_number_also_those_that_name_their_batch() -> None:
    for name in (_folder(12), "state-000000000012-7-b-query"):
        assert _STATE.match(name)
        assert _number(name) == 12


def test_what_else_is_in_the_folder_is_no_state() -> None:
    for name in ("state-1", "state-x-0-q", "state-1-x-q", "other-1-0-q", "_temporary", ".state-1-0-q", ""):
        assert not _STATE.match(name)
