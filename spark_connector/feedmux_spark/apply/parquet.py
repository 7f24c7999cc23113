"""A mirror in Parquet files: each batch writes the whole table again, next to the old one.

A state is a folder. It is valid as soon as Spark has written `_SUCCESS` into it, which Spark does last on every file
system; a folder without `_SUCCESS` is left over from a crash, and is overwritten. The state before the newest is
retained for its current readers. Use `DeltaMirror` for tables that are too large to be rewritten.
"""

import logging
import re
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from feedmux_spark.apply.evolution import CannotConvert, converted, missing, same
from feedmux_spark.apply.mirror import CannotApply, Mirror, as_copy

log = logging.getLogger("feedmux_spark")

_KEPT: Final = 2
_STATE: Final = re.compile(r"state-\d+-\d+-")
"""The folder of a state. Only its number counts; earlier versions wrote the batch and the query that created it, and
read no other names."""
_GLOB: Final = re.compile(r"[][{}*?\\]")
"""What Spark takes for a pattern in a path that it reads, and not in one that it writes."""
_NAMESPACE: Final = "feedmux.namespace"
"""Stored as metadata of the column sort_key in the Parquet files, so it is written together with a state or not at
all."""


class ParquetMirror(Mirror):
    """`path` is a folder of a file system that Spark knows. Not for two queries at once, nor for Spark Connect."""

    def create(self, documents: DataFrame, *, replace: bool = False) -> None:
        states = self._states()
        if states and not replace:
            raise CannotApply(f"{self.path} already contains a mirror")
        self._write(as_copy(documents))

    def exists(self) -> bool:
        return bool(self._states())

    def read(self) -> DataFrame:
        states = self._states()
        if not states:
            raise CannotApply(f"{self.path} contains no mirror: create it with a copy first")
        return self._spark.read.parquet(_GLOB.sub(r"\\\g<0>", f"{self.path}/{states[-1]}"))

    def _delete_before(self, sort_key: bytes) -> None:
        self._write(self.read().where(f.col("sort_key") >= f.lit(sort_key)))

    def _stored_namespace(self) -> str | None:
        found: str | None = self.read().schema["sort_key"].metadata.get(_NAMESPACE)
        return found

    def _merge(self, latest: DataFrame, emptied_at: bytes | None, namespace: str | None) -> None:
        before = self._in_schema_of(latest)
        if emptied_at is not None:
            before = before.where(f.col("sort_key") > f.lit(emptied_at))
        rows = _merged(before, latest)
        if namespace is not None:
            rows = rows.withMetadata("sort_key", {_NAMESPACE: namespace})
        self._write(rows)

    def _in_schema_of(self, latest: DataFrame) -> DataFrame:
        """The table with the types of the stream: each batch writes all rows again. Raises CannotApply."""
        table = self.read()
        for name in ("document_key", "document"):
            have, want = table.schema[name].dataType, latest.schema[name].dataType
            if same(have, want):
                continue
            gained, lost = ", ".join(missing(have, want, name)), ", ".join(missing(want, have, name))
            try:
                if name == "document_key" and (gained or lost):
                    raise CannotConvert(f"{name} has other fields ({gained or lost})")
                table = table.withColumn(name, converted(f.col(name), have, want, name))
            except CannotConvert as error:
                raise CannotApply(
                    f"the schema of the stream does not fit the table {self.path}: in the table, {error}. Restore the"
                    " former type in the stream's schema, or copy the collection again into a new table"
                ) from None
            if gained or lost:
                log.warning(
                    "the schema of the stream differs from that of the table %s. New fields, null until their document"
                    " changes: %s. Fields removed from the table: %s",
                    self.path,
                    gained or "none",
                    lost or "none",
                )
        return table

    def _write(self, rows: DataFrame) -> None:
        """Writes the next state, and deletes those that no reader needs any more."""
        before = self._states()
        state = _folder(_number(before[-1]) + 1 if before else 0)
        rows.write.mode("overwrite").parquet(f"{self.path}/{state}")
        states = self._states()
        if state not in states:
            raise CannotApply(
                "mapreduce.fileoutputcommitter.marksuccessfuljobs is off: the mirror needs `_SUCCESS` files"
            )
        for old in states[:-_KEPT]:
            self._files.delete(self._hadoop_path(old), True)

    def _states(self) -> list[str]:
        """Returns the folders of the complete states, in order."""
        if not self._files.exists(self._hadoop_path("")):
            return []
        names = [entry.getPath().getName() for entry in self._files.listStatus(self._hadoop_path(""))]
        found = [name for name in names if _STATE.match(name)]
        complete = [name for name in found if self._files.exists(self._hadoop_path(f"{name}/_SUCCESS"))]
        return sorted(complete, key=_number)

    def _hadoop_path(self, name: str) -> Any:
        assert self._spark._jvm is not None
        return self._spark._jvm.org.apache.hadoop.fs.Path(f"{self.path}/{name}" if name else self.path)

    @property
    def _files(self) -> Any:
        return self._hadoop_path("").getFileSystem(self._spark._jsc.hadoopConfiguration())


def _folder(number: int) -> str:
    return f"state-{number:012}-0-table"


def _number(folder: str) -> int:
    return int(folder.split("-")[1])


def _merged(before: DataFrame, latest: DataFrame) -> DataFrame:
    content = f.struct("sort_key", "document")
    old = before.select("document_key", content.alias("old"))
    new = latest.select("document_key", content.alias("new"), "gone")
    order = f.col("new.sort_key"), f.col("old.sort_key")
    # As in DeltaMirror: of one sort_key, a delete is the earlier change, and a document that comes again may be another
    # one: the feed or the schema may have changed, and updateLookup finds the present document.
    beats = (order[0] > order[1]) | ((order[0] == order[1]) & ~f.col("gone"))
    later = f.col("new").isNotNull() & (f.col("old").isNull() | beats)
    return (
        old.join(new, "document_key", "full_outer")
        .where(~(later & f.col("gone")))
        .select("document_key", f.when(later, f.col("new")).otherwise(f.col("old")).alias("row"))
        .select("document_key", "row.sort_key", "row.document")
    )
