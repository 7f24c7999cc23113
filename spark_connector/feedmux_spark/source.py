"""The data source `feedmux`, which Spark creates from the format's name and options."""

from collections.abc import MutableMapping

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from feedmux_spark.batch import FeedmuxBatchReader
from feedmux_spark.errors import OptionError
from feedmux_spark.options import Options, parse_options
from feedmux_spark.rows import default_schema
from feedmux_spark.stream import FeedmuxStreamReader


class FeedmuxSource(DataSource):
    """`spark.readStream.format("feedmux")` and `spark.read.format("feedmux")`."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._parsed = parse_options(options)

    @classmethod
    def name(cls) -> str:
        return "feedmux"

    def schema(self) -> StructType:
        return default_schema(self._parsed.schema_mode)

    def reader(self, schema: StructType) -> DataSourceReader:
        return FeedmuxBatchReader(self._parsed, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 Spark's name
        return FeedmuxStreamReader(_for_stream(self._parsed), schema)


def _for_stream(options: Options) -> Options:
    """Checks the options that a stream needs. Raises OptionError."""
    if options.consumer_name is None:
        raise OptionError(
            "option consumerName is missing: a stream needs its own name, under which its start is stored before the"
            " first batch"
        )
    if options.ending_offsets != "latest":
        raise OptionError(
            "option endingOffsets is for batches only: to end a stream at the latest available event, use the trigger"
            " availableNow"
        )
    return options
