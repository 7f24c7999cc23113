"""The PySpark data source `feedmux`: change events of MongoDB as a stream or a batch of rows.

Nothing here needs to be imported to read: Spark finds the format by itself. What is named here is the interface.
"""

from feedmux_spark.errors import FeedmuxSparkError, OptionError
from feedmux_spark.java import java_home

__all__ = ["FeedmuxSparkError", "OptionError", "java_home"]
