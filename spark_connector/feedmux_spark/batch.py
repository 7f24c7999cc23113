"""The batch reader: all events between two positions, planned once and read by one task for each slice."""

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from feedmux_spark.connection import Connection
from feedmux_spark.offsets import parse_start
from feedmux_spark.options import Options
from feedmux_spark.planning import Planner
from feedmux_spark.ranges import Slice, read_slice
from feedmux_spark.rows import row_maker


class FeedmuxBatchReader(DataSourceReader):
    """The reader that Spark calls: `read` on executors, `partitions` on the driver."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._maker = row_maker(options.schema_mode, schema, options.on_type_mismatch)

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        start = parse_start(options.starting_offsets or "earliest", "startingOffsets")
        end = parse_start(options.ending_offsets, "endingOffsets")
        connection = Connection(options)
        with connection.explaining():
            found = connection.locate(options, end)
            until = found.feed_position.position
            after = connection.resolve(options, start)
            slices = Planner(options, connection).through(after, found.feed, until, options.max_bytes_per_trigger)
        # Spark treats a source without partitions as one with a single unknown partition.
        return slices or [Slice(until, until, feed=found.feed)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Slice)
        for events in read_slice(self._options, partition):
            yield from self._maker.record_batches(events)
