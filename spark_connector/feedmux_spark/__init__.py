"""The PySpark data source `feedmux`: change events of MongoDB as a stream or a batch of rows.

You do not need to import anything to read: Spark finds the format automatically. The names here are the public
interface.
"""

from feedmux_spark.errors import FeedmuxSparkError, OptionError
from feedmux_spark.java import java_home

__all__ = ["FeedmuxSparkError", "OptionError", "java_home"]
