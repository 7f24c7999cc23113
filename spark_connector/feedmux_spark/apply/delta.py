"""A mirror in a Delta table: each batch is one MERGE, which writes only the files that hold changed documents.

In a batch with a drop of the collection, a DELETE precedes it as a commit of its own: readers may see the table without
the documents that were inserted after the drop.

The session needs Delta's jars and its extension.
"""

import uuid
from typing import Any, Final

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame

from feedmux_spark.apply.mirror import Mirror, as_copy

_NAMESPACE: Final = "feedmux.namespace"


class DeltaMirror(Mirror):
    """`path` is the table's folder."""

    def create(self, documents: DataFrame, *, replace: bool = False) -> None:
        """Without `replace`, raises AnalysisException if there is a table."""
        writer = as_copy(documents).write.format("delta").mode("overwrite" if replace else "error")
        (writer.option("overwriteSchema", "true") if replace else writer).save(self.path)

    def exists(self) -> bool:
        try:
            self._spark.sql(f"DESCRIBE DETAIL {self._table}")
        except AnalysisException as error:
            if "DELTA_MISSING_DELTA_TABLE" in str(error) or "DELTA_TABLE_NOT_FOUND" in str(error):
                return False
            raise
        return True

    def read(self) -> DataFrame:
        return self._spark.read.format("delta").load(self.path)

    def _delete_before(self, sort_key: bytes) -> None:
        self._spark.sql(f"DELETE FROM {self._table} WHERE sort_key < X'{sort_key.hex()}'")

    def _stored_namespace(self) -> str | None:
        detail: Any = self._spark.sql(f"DESCRIBE DETAIL {self._table}").first()
        found: str | None = (detail.properties or {}).get(_NAMESPACE)
        return found

    def _merge(self, latest: DataFrame, emptied_at: bytes | None, namespace: str | None) -> None:
        session = latest.sparkSession
        if namespace is not None and self._stored_namespace() != namespace:
            text = namespace.replace("\\", "\\\\").replace("'", "\\'")
            session.sql(f"ALTER TABLE {self._table} SET TBLPROPERTIES ('{_NAMESPACE}' = '{text}')")
        if emptied_at is not None:
            session.sql(f"DELETE FROM {self._table} WHERE sort_key <= X'{emptied_at.hex()}'")
        # Mirrors of one session may merge at the same time.
        view = f"feedmux_latest_{uuid.uuid4().hex}"
        latest.createOrReplaceTempView(view)
        try:
            session.sql(
                f"""
                MERGE INTO {self._table} old USING {view} new ON old.document_key = new.document_key
                WHEN MATCHED AND new.sort_key > old.sort_key AND new.gone THEN DELETE
                WHEN MATCHED AND new.sort_key >= old.sort_key AND NOT new.gone
                  THEN UPDATE SET old.sort_key = new.sort_key, old.document = new.document
                WHEN NOT MATCHED AND NOT new.gone
                  THEN INSERT (document_key, sort_key, document) VALUES (new.document_key, new.sort_key, new.document)
                """
            )
        finally:
            session.catalog.dropTempView(view)

    @property
    def _table(self) -> str:
        path = self.path.replace("`", "``")
        return f"delta.`{path}`"
