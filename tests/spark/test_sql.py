"""Tables and views of the format, created in SQL."""

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.documents import Documents, insert
from tests.spark.support import numbers

Options = Callable[..., dict[str, str]]


def in_sql(options: dict[str, str]) -> str:
    return ", ".join(f"`{name}` '{text}'" for name, text in options.items() if name != "consumerName")


def test_a_table(spark: SparkSession, database: Documents, options: Options) -> None:
    """Each query of a table is planned again; a DataFrame and a view of the format are planned once."""
    spark.sql(
        f"CREATE TABLE changes USING feedmux OPTIONS ({in_sql(options())}) COMMENT 'of the shop'"
        " TBLPROPERTIES ('department' = 'sales')"
    )
    spark.sql(f"CREATE TEMPORARY VIEW view USING feedmux OPTIONS ({in_sql(options())})")
    try:
        rows = spark.read.format("feedmux").options(**options()).load()
        for count in (10, 20):
            insert(database, range(count - 10, count))
            assert numbers(spark.sql("SELECT * FROM changes ORDER BY sort_key").collect()) == list(range(count))
            assert rows.count() == spark.table("view").count() == 10
        assert numbers(spark.sql("SELECT * FROM changes WITH (startingOffsets 'latest')").collect()) == []
    finally:
        spark.sql("DROP TABLE changes")
        spark.catalog.dropTempView("view")


@pytest.mark.parametrize(
    ("columns", "more", "message"),
    [
        ("", {"token": "t"}, "option token would be stored with the table"),
        ("", {"colection": "c"}, "unknown option 'colection'; did you mean collection"),
        ("(event BINARY)", {}, "Create the table without columns, or a view"),
    ],
)
def test_a_table_that_cannot_be_read(
    spark: SparkSession, options: Options, columns: str, more: dict[str, Any], message: str
) -> None:
    def create_and_read() -> None:
        spark.sql(f"CREATE TABLE wrong {columns} USING feedmux OPTIONS ({in_sql(options(**more))})")
        spark.sql("SELECT * FROM wrong").collect()

    try:
        with pytest.raises(Exception, match=message):
            create_and_read()
    finally:
        spark.sql("DROP TABLE IF EXISTS wrong")


def test_nothing_is_written(spark: SparkSession, options: Options) -> None:
    spark.sql(f"CREATE TABLE read_only USING feedmux OPTIONS ({in_sql(options())})")
    try:
        with pytest.raises(Exception, match="the format feedmux only reads changes"):
            spark.sql("INSERT INTO read_only SELECT * FROM read_only")
    finally:
        spark.sql("DROP TABLE read_only")
    with pytest.raises(Exception, match="the format feedmux only reads changes"):
        spark.range(1).write.format("feedmux").options(**options()).mode("append").save()
