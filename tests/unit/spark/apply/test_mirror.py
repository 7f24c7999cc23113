"""What a mirror refuses before it has a table."""

from typing import Any

import pytest
from pyspark.sql.types import BooleanType, DataType, DateType, FloatType, LongType, StructField, StructType

from feedmux_spark.apply import ParquetMirror, mirror_schema
from feedmux_spark.rows import SchemaRefused
from tests.tables import over


@over("kind", [FloatType(), DateType()])
def test_a_key_that_would_make_one_of_several_is_refused(kind: DataType) -> None:
    with pytest.raises(SchemaRefused, match="make one document of several"):
        mirror_schema(StructType([StructField("_id", kind)]))


@over("namespace", ["orders", "shop.", ".orders", ""])
def test_a_namespace_has_two_parts(namespace: str) -> None:
    spark: Any = None
    with pytest.raises(ValueError, match=r"database\.collection"):
        ParquetMirror(spark, "/nowhere", namespace)


def test_the_schema_has_what_tells_a_delete_from_an_update_without_a_document() -> None:
    schema = mirror_schema(StructType([StructField("_id", LongType()), StructField("n", LongType())]))
    assert schema["document_key"].dataType == StructType([StructField("_id", LongType())])
    assert schema["has_document"] == StructField("has_document", BooleanType(), nullable=False)
    assert "sort_key" in schema.fieldNames()
