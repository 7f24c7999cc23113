"""What all mirrors do: judge a batch of changes, keep the latest of each document, and hand them to the table."""

from abc import ABC, abstractmethod
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import BooleanType, StructType

from feedmux_spark.errors import FeedmuxSparkError
from feedmux_spark.rows import typed_schema

COLUMNS: Final = ("document_key", "sort_key", "document")
"""Of a mirrored table."""

_CHANGES: Final = ("insert", "update", "replace", "delete")
_EMPTYING: Final = ("drop", "dropDatabase")
_QUERY_ID: Final = "sql.streaming.queryId"


class CannotApply(FeedmuxSparkError):
    """The changes do not say what the table should hold; the message says what to do."""


def mirror_schema(document: StructType) -> StructType:
    """The schema of a stream whose changes a mirror takes. `document` holds `_id`, which the rows are known by."""
    key = StructType([document["_id"]])
    return typed_schema(document, document_key=key).add("has_document", BooleanType(), nullable=False)


def latest_changes(changes: DataFrame, key: str = "document_key") -> DataFrame:
    """The last change of each document, with all columns; events that are about no document are left out.

    Needs the columns `key` and `sort_key`. The stream's order is not the order of a DataFrame's rows: this goes by
    `sort_key`, which tells apart also the changes of one transaction.
    """
    rows = changes.where(f.col(key).isNotNull())
    last = f.max_by(f.struct("*"), "sort_key").alias("_last")
    return rows.groupBy(f.col(key).alias("_key")).agg(last).select("_last.*")


class Mirror(ABC):
    """A table with one row for each document of a collection: its key, the place of its last change, and itself."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark = spark
        self.path = path

    @abstractmethod
    def create(self, documents: DataFrame) -> None:
        """Makes the table of a copy: rows of `document_key` and `document`. Raises CannotApply where there is one."""

    @abstractmethod
    def exists(self) -> bool:
        """Whether there is a table."""

    @abstractmethod
    def read(self) -> DataFrame:
        """The table as it is now: `document_key`, `sort_key`, `document`."""

    @abstractmethod
    def _applied(self, query_id: str, batch_id: int) -> bool:
        """Whether this batch, or a later one of its query, is in the table."""

    @abstractmethod
    def _merge(self, latest: DataFrame, emptied_at: bytes | None, query_id: str, batch_id: int) -> None:
        """Brings `latest` (COLUMNS and `gone`) into the table, without the rows up to `emptied_at`."""

    def apply(self, changes: DataFrame, batch_id: int) -> None:
        """For `foreachBatch`. Does nothing for a batch that has been applied. Raises CannotApply."""
        query_id = changes.sparkSession.sparkContext.getLocalProperty(_QUERY_ID) or ""
        if self._applied(query_id, batch_id):
            return
        changes = changes.persist()
        try:
            emptied_at = _check(changes)
            if emptied_at is not None:
                changes = changes.where(f.col("sort_key") > f.lit(emptied_at))
            latest = latest_changes(changes.where(f.col("operation").isin(*_CHANGES)))
            # An update whose document updateLookup no longer found is followed by its delete.
            gone = (f.col("operation") == "delete") | f.col("document").isNull()
            self._merge(latest.select(*COLUMNS, gone.alias("gone")), emptied_at, query_id, batch_id)
        finally:
            changes.unpersist()


def as_copy(documents: DataFrame) -> DataFrame:
    """Copied rows as those of a mirror: any change is later than they are."""
    return documents.select("document_key", f.lit(bytearray()).alias("sort_key"), "document")


def _check(changes: DataFrame) -> bytes | None:
    """Where the collection was dropped last, if it was. Raises CannotApply for what a mirror cannot follow."""

    def any_(condition: Column) -> Column:
        return f.coalesce(f.max(condition), f.lit(False))

    operation = f.col("operation")
    found: Any = changes.agg(
        f.max(f.when(operation.isin(*_EMPTYING), f.col("sort_key"))).alias("emptied_at"),
        any_((operation != "delete") & operation.isin(*_CHANGES) & ~f.col("has_document")).alias("without_document"),
        any_(operation == "rename").alias("renamed"),
        any_(operation.isNull()).alias("unnamed"),
        f.array_sort(f.collect_set(f.when(operation.isin(*_CHANGES), f.struct("database", "collection")))).alias(
            "names"
        ),
    ).first()
    if found.without_document:
        raise CannotApply("updates came without their document: set the option fullDocument to updateLookup")
    if found.renamed:
        raise CannotApply("the collection was renamed, or another one to its name: copy it anew, into a new table")
    if found.unnamed:
        raise CannotApply("events came without operationType: leave it in what the pipeline gives")
    if len(found.names) > 1:
        names = ", ".join(f"{name.database}.{name.collection}" for name in found.names)
        raise CannotApply(f"changes of several collections ({names}): a mirror is of one; filter the stream")
    return None if found.emptied_at is None else bytes(found.emptied_at)
