"""Tables that mirror a collection: `foreachBatch` applies the latest change of each document, once.

    mirror = ParquetMirror(spark, "/data/orders", "shop.orders")
    mirror.create(documents)                                    # the copy, taken after the position of the stream
    changes.writeStream.foreachBatch(mirror.apply).option("checkpointLocation", "/data/orders.checkpoint").start()
    mirror.read().select("document.*")

Changes are rows of `mirror_schema`, a typed schema, of one collection. No row is replaced by an earlier change (by
`sort_key`), so applying changes that the table already contains does no harm. After a crash, a table has the old state
or the new state (in Delta, a batch with a drop of the collection has a state between: the emptied table), and the batch
that comes again is applied again.
"""

from feedmux_spark.apply.delta import DeltaMirror
from feedmux_spark.apply.mirror import CannotApply, Mirror, latest_changes, mirror_schema
from feedmux_spark.apply.parquet import ParquetMirror

__all__ = ["CannotApply", "DeltaMirror", "Mirror", "ParquetMirror", "latest_changes", "mirror_schema"]
