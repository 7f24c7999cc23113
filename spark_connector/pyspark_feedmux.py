"""What Spark finds by itself: it imports every top-level module named `pyspark_*` and registers its `DefaultSource`."""

from feedmux_spark.source import FeedmuxSource as DefaultSource

__all__ = ["DefaultSource"]
