"""The common part of all mirrors: checks a batch of changes, selects the latest of each document, and merges them."""

from abc import ABC, abstractmethod
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DateType,
    FloatType,
    MapType,
    StringType,
    StructType,
)

from feedmux_spark.errors import FeedmuxSparkError, OptionError
from feedmux_spark.offsets import parse_begin, shown_time
from feedmux_spark.rows import SchemaRefused, typed_schema
from feedmux_spark.rows.columns import TYPE_MISMATCH, key_schema

COLUMNS: Final = ("document_key", "sort_key", "document")
"""The columns of a mirrored table."""

_TARGET: Final = "rename_target"
_CHANGES: Final = ("insert", "update", "replace", "delete")
_EMPTYING: Final = ("drop", "dropDatabase")


class CannotApply(FeedmuxSparkError):
    """The changes do not determine the content of the table; the message says what to do."""


def mirror_schema(document: StructType) -> StructType:
    """Returns the schema of a stream that a mirror can apply. `document` contains `_id`, which identifies the rows.

    Values that do not fit it are an error of the mirror, and only in changes of its collection: the stream may contain
    others.
    Raises SchemaRefused if there is no `_id`, or if its type maps several values to one.
    """
    key = key_schema(document)
    _check_key(key)
    schema = typed_schema(document, document_key=key).add("has_document", BooleanType(), nullable=False)
    schema.add(_TARGET, StructType().add("db", StringType()).add("coll", StringType()))
    return schema.add(TYPE_MISMATCH, StringType())


def _check_key(kind: DataType) -> None:
    match kind:
        case StructType():
            for field in kind.fields:
                _check_key(field.dataType)
        case ArrayType():
            _check_key(kind.elementType)
        case MapType():
            raise SchemaRefused(
                "an _id of type MAP cannot be compared: name its fields, as in STRUCT<a: INT, b: STRING>"
            )
        case FloatType() | DateType() | StringType() if kind != StringType():
            raise SchemaRefused(
                f"an _id of type {kind.simpleString().upper()} would make one document of several: use DOUBLE,"
                " TIMESTAMP, or STRING without a collation"
            )


def latest_changes(changes: DataFrame, key: str = "document_key") -> DataFrame:
    """Returns the last change of each document, with all columns; omits events that concern no document.

    Needs the columns `key`, `sort_key` and `operation`. A DataFrame's rows are not in the order of the stream, so
    `sort_key` decides. It also orders the changes of one transaction on one shard. A change of the shard key that moves
    a document is a delete on one shard and an insert on another with the same `sort_key`: the insert counts as later.
    """
    rows = changes.where(f.col(key).isNotNull())
    last = f.max_by(f.struct("*"), f.struct("sort_key", ~f.col("operation").eqNullSafe("delete"))).alias("_last")
    return rows.groupBy(f.col(key).alias("_key")).agg(last).select("_last.*")


class Mirror(ABC):
    """A table with one row for each document of a collection: its key, the `sort_key` of its last change, and the
    document.

    `namespace` (`database.collection`) is the collection. It is needed if the stream also contains changes of other
    collections, which are then skipped. By default, it is the collection of the first change applied, and is stored
    with the table.
    """

    def __init__(self, spark: SparkSession, path: str, namespace: str | None = None) -> None:
        """Raises ValueError if `namespace` is not of the form `database.collection`."""
        if namespace is not None and not all(namespace.partition(".")):
            raise ValueError(f"a namespace has the form database.collection, not {namespace!r}")
        self._spark = spark
        self.path = path
        self.namespace = namespace

    @abstractmethod
    def create(self, documents: DataFrame, *, replace: bool = False) -> None:
        """Creates the table from a copy: rows of `document_key` and `document`.

        With `replace`, the copy takes the place of the table, in one step for its readers: after lost history, rows of
        documents that were deleted meanwhile are gone. The changes since then are those of another query, with a new
        checkpoint. Without it, raises an error if there is a table.
        """

    def create_empty(self, document: StructType) -> None:
        """Creates the table without rows, for a stream that begins with the existing documents."""
        schema = mirror_schema(document)
        columns = StructType([schema["document_key"], schema["document"]])
        self.create(self._spark.createDataFrame([], columns))

    @abstractmethod
    def exists(self) -> bool:
        """Whether there is a table."""

    @abstractmethod
    def read(self) -> DataFrame:
        """The table as it is now: `document_key`, `sort_key`, `document`."""

    def sweep(self, offset: str) -> None:
        """Deletes the rows of documents that are gone, after a stream has read the whole copy of the existing documents
        that began at `offset` (`snapshot_offsets`): those that neither this copy nor a change since then has brought.

        Not while a stream is applied. Raises OptionError if `offset` is not one, and CannotApply if nothing in the
        table is from this copy or later: a later offset would delete the rows of documents that exist.
        """
        begin = parse_begin(offset)
        if begin is None:
            raise OptionError(
                "sweep needs the offset at which the copy began, as snapshot_offsets returned it and the stream had it"
                " in startingOffsets"
            )
        seconds, increment = begin.time
        # The documents are read as of the time before the offset, or later.
        before = ((seconds << 32 | increment) - 1).to_bytes(8)
        newest: Any = self.read().agg(f.max("sort_key").alias("at")).first()
        if newest.at is not None and bytes(newest.at) < before:
            raise CannotApply(
                f"{self.path} has nothing of a copy that began at {shown_time(begin.time)}, or later: nothing was"
                " deleted. sweep needs the offset at which its stream began, not a new one, and when the copy is"
                " complete. If the collection has no documents now, create the table again, with replace=True"
            )
        self._delete_before(before)

    @abstractmethod
    def _delete_before(self, sort_key: bytes) -> None:
        """Deletes the rows with a smaller `sort_key`."""

    @abstractmethod
    def _stored_namespace(self) -> str | None:
        """The namespace passed to the last `_merge`; None before the first."""

    @abstractmethod
    def _merge(self, latest: DataFrame, emptied_at: bytes | None, namespace: str | None) -> None:
        """Merges `latest` (COLUMNS and `gone`) into the table, without the rows up to `emptied_at`. A row gives way to
        a later `sort_key`, and to the same one that is not `gone`."""

    def apply(self, changes: DataFrame, batch_id: int) -> None:
        """Applies a batch, for `foreachBatch`. Raises CannotApply.

        `batch_id` does not count: after a change of the feed, or with an older checkpoint that was put back, a batch of
        the same number has other changes. Changes may be applied again, because all later ones follow again. Until
        then, documents that were deleted since may be there again.
        """
        stored = self._stored_namespace()
        if self.namespace is not None:
            if stored not in (None, self.namespace):
                raise CannotApply(f"{self.path} mirrors {stored}, not {self.namespace}: use another path")
            about = _about(self.namespace) | _renames(changes, self.namespace)
            changes = changes.where(f.coalesce(about, f.lit(False)) | f.col("operation").isNull() | _without_ns())
        changes = changes.persist()
        try:
            namespace = _check(changes, self.namespace or stored)
            emptied_at = _emptied_at(changes, namespace)
            if emptied_at is not None:
                changes = changes.where(f.col("sort_key") > f.lit(emptied_at))
            gone = f.col("operation") == "delete"
            # An update whose document updateLookup no longer found is followed by its delete, which may be in a later
            # batch: until then, the table has the document as it was.
            told = f.col("operation").isin(*_CHANGES) & (gone | f.col("document").isNotNull())
            latest = latest_changes(changes.where(told))
            self._merge(latest.select(*COLUMNS, gone.alias("gone")), emptied_at, namespace)
        finally:
            changes.unpersist()


def as_copy(documents: DataFrame) -> DataFrame:
    """Converts copied rows to rows of a mirror; every change is later than these rows."""
    return documents.select("document_key", f.lit(bytearray()).alias("sort_key"), "document")


def _about(namespace: str) -> Column:
    """Matches events of the collection, and drops of its database."""
    database, _, collection = namespace.partition(".")
    here = f.col("collection").eqNullSafe(collection) | (f.col("operation") == "dropDatabase")
    return (f.col("database") == database) & here


def _renames(changes: DataFrame, namespace: str | None) -> Column:
    """Matches renames of the collection, and of others to its name; any rename if one of the names is not known."""
    renames = f.col("operation") == "rename"
    if namespace is None or _TARGET not in changes.columns:
        return renames
    target = f.concat_ws(".", f"{_TARGET}.db", f"{_TARGET}.coll")
    return renames & (_about(namespace).eqNullSafe(True) | (target == namespace))


def _without_ns() -> Column:
    """Matches events without the collection or database that they are of."""
    operation, database, collection = f.col("operation"), f.col("database"), f.col("collection")
    # The grants may cover only the target of a rename, which is then without ns.
    of_collection = operation.isin(*_CHANGES, "drop") & (database.isNull() | collection.isNull())
    return of_collection | ((operation == "dropDatabase") & database.isNull())


def _check(changes: DataFrame, known: str | None) -> str | None:
    """Returns the collection of the changes, if known. Raises CannotApply if a mirror cannot apply the changes."""

    def any_(condition: Column) -> Column:
        return f.coalesce(f.max(condition), f.lit(False))

    operation = f.col("operation")
    is_change = operation.isin(*_CHANGES)
    namespace = f.concat_ws(".", "database", "collection")
    mismatch = f.col(TYPE_MISMATCH) if TYPE_MISMATCH in changes.columns else f.lit(None)
    found: Any = changes.agg(
        f.max(f.when(is_change, mismatch)).alias("mismatch"),
        any_((operation != "delete") & is_change & ~f.col("has_document")).alias("without_document"),
        any_(_without_ns()).alias("without_ns"),
        any_(is_change & f.col("document_key").isNull()).alias("without_key"),
        any_(_renames(changes, known)).alias("renamed"),
        any_(operation.isin(*_EMPTYING)).alias("emptied"),
        any_(operation.isNull()).alias("unnamed"),
        f.collect_set(f.when(is_change, namespace)).alias("names"),
    ).first()
    if found.without_ns:
        raise CannotApply("events came without ns: the pipeline must keep this field")
    names = sorted({*found.names, *([known] if known else [])})
    if len(names) > 1:
        raise CannotApply(
            f"changes of several collections ({', '.join(names)}): a mirror holds one collection. Filter the stream, or"
            f" name the collection to apply only its changes, as in ParquetMirror(spark, path, {names[0]!r})"
        )
    if found.mismatch is not None:
        advice = (
            "If no type fits, merge the changes by document_key as BINARY instead of with a mirror"
            if found.mismatch.startswith("document_key")
            else "Values of `document` may also become null, with the option onTypeMismatch=null"
        )
        raise CannotApply(
            f"a change of {names[0] if names else 'the collection'} does not fit the schema of the stream:"
            f" {found.mismatch}. Change the type in the schema. {advice}"
        )
    if found.without_document:
        raise CannotApply(
            "updates came without their document: set the option fullDocument to updateLookup. If it is, an update has"
            " changed the shard key of its document, which MongoDB then does not find; if it is whenAvailable, MongoDB"
            " has no post-image. In these cases, enable changeStreamPreAndPostImages for the collection, set"
            " fullDocument to whenAvailable, and copy the collection again"
        )
    if found.without_key:
        raise CannotApply("changes came without documentKey: the pipeline must keep this field")
    if found.renamed:
        raise CannotApply(
            "the collection was renamed, or another collection took its name: copy it again, into a new table"
        )
    if found.unnamed:
        raise CannotApply("events came without operationType: the pipeline must keep this field")
    if found.emptied and not names:
        raise CannotApply(
            "a collection was dropped before any change showed which one the table mirrors: name it, as in"
            " ParquetMirror(spark, path, 'database.collection')"
        )
    return names[0] if names else None


def _emptied_at(changes: DataFrame, namespace: str | None) -> bytes | None:
    """Returns the `sort_key` of the last drop of the collection, alone or with its database, if there was one."""
    if namespace is None:
        return None
    dropped = changes.where(f.col("operation").isin(*_EMPTYING) & _about(namespace))
    found: Any = dropped.agg(f.max("sort_key").alias("at")).first()
    return None if found.at is None else bytes(found.at)
