"""Change events as rows: from the BSON of a `ReadRange` batch to Arrow record batches of a Spark schema.

`envelope` and `json` have the schema of `default_schema`, or any of its columns in any order; `typed` has one of the
user's own. Columns, types and rules: `docs/rows.md`. Nothing here talks to Spark, a server or MongoDB.
"""

from pyspark.sql.types import StructType

from feedmux.feeds import FullDocument
from feedmux_spark.rows.columns import default_schema, typed_schema
from feedmux_spark.rows.errors import InvalidEvents, RowsError, SchemaRefused, TypeMismatch
from feedmux_spark.rows.maker import RowMaker, documents_batch

__all__ = [
    "InvalidEvents", "RowMaker", "RowsError", "SchemaRefused", "TypeMismatch",
    "default_schema", "documents_batch", "row_maker", "typed_schema",
]  # fmt: skip


def row_maker(
    mode: str, schema: StructType, on_type_mismatch: str, full_document: FullDocument | None = None
) -> RowMaker:
    """`mode` is envelope, json or typed; `on_type_mismatch` is fail or null; `full_document` is the option of the feed.
    Raises SchemaRefused."""
    return RowMaker(mode, schema, on_type_mismatch, full_document)
