"""Tables that mirror a collection: changes applied by `foreachBatch`, the latest of each document, once.

    mirror = ParquetMirror(spark, "/data/orders", "shop.orders")
    mirror.create(documents)                                    # the copy, taken behind the position of the stream
    changes.writeStream.foreachBatch(mirror.apply).option("checkpointLocation", "/data/orders.checkpoint").start()
    mirror.read().select("document.*")

Changes are rows of `mirror_schema`, a typed schema, of one collection. A row is replaced only by a later change (its
`sort_key`), so that applying changes which the copy already shows does no harm. After a crash a table holds the old
state or the new one, and a batch that comes again is left out: Spark's query id and batch id are stored with it.
"""

from feedmux_spark.apply.delta import DeltaMirror
from feedmux_spark.apply.mirror import CannotApply, Mirror, latest_changes, mirror_schema
from feedmux_spark.apply.parquet import ParquetMirror

__all__ = ["CannotApply", "DeltaMirror", "Mirror", "ParquetMirror", "latest_changes", "mirror_schema"]
