"""The batch reader: all events between two positions, planned once and read by one task for each slice."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from feedmux.errors import HistoryLost, InvalidArgument, OutOfRange, TimelineForked
from feedmux.feeds import Start
from feedmux.positions import FeedPosition
from feedmux_spark.connection import Connection, Located
from feedmux_spark.errors import OptionError
from feedmux_spark.offsets import parse_start, shown_time
from feedmux_spark.options import Options
from feedmux_spark.planning import Planner, Wanted
from feedmux_spark.ranges import Slice, read_slice
from feedmux_spark.rows import row_maker

log = logging.getLogger("feedmux_spark")


class FeedmuxBatchReader(DataSourceReader):
    """The reader that Spark calls: `read` on executors, `partitions` on the driver."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._maker = row_maker(options.schema_mode, schema, options.on_type_mismatch, options.full_document)

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        starting = options.starting_offsets or "earliest"
        start, end = parse_start(starting, "startingOffsets"), parse_start(options.ending_offsets, "endingOffsets")
        for option, bound in (("startingOffsets", start), ("endingOffsets", end)):
            if bound.kind == "snapshot":
                raise OptionError(
                    f"option {option}: a batch reads changes. To read the existing documents too, use a stream with"
                    " startingOffsets=snapshot and the trigger availableNow; to read them alone, use MongoDB's own"
                    " connector"
                )
        connection = Connection(options)
        planner = Planner(options, connection)
        with connection.explaining():
            with _naming("endingOffsets", options.ending_offsets):
                try:
                    found = connection.locate(options, end)
                except TimelineForked as error:
                    raise OptionError(
                        "option endingOffsets is an offset that MongoDB, which was restored, does not have: choose"
                        f" another end. ({error})"
                    ) from None
            with _naming("startingOffsets", starting):
                lost = False
                try:
                    at = connection.locate(options, start)
                except TimelineForked as error:
                    at, lost = self._oldest(connection, error), True
            if at.copied is not None or found.copied is not None:
                raise OptionError("an offset within a copy of existing documents: only its own stream continues there")
            until = found.feed_position.position
            while True:
                after = at.feed_position
                try:
                    slices = planner.through(after, found.feed, until, options.max_bytes_per_trigger)
                except HistoryLost as error:
                    at, lost = self._oldest(connection, error, after), True
                else:
                    break
            # Nothing is after `latest`, but `latest` may be resolved a moment before a start.
            if not (slices or lost or options.ending_offsets == "latest") and _swapped(planner, after, found):
                raise OptionError(
                    f"option startingOffsets ({_shown(starting, after)}) is after endingOffsets"
                    f" ({_shown(options.ending_offsets, found.feed_position)}): the batch would have no rows"
                )
        # Spark treats a source without partitions as one with a single unknown partition.
        return slices or [Slice(until, until, feed=found.feed)]

    def _oldest(
        self, connection: Connection, error: HistoryLost | TimelineForked, after: FeedPosition | None = None
    ) -> Located:
        """Returns the oldest available position. Raises the error if a gap is not allowed, or the position is not
        after `after`: then the primary has that one, and nothing is lost."""
        if self._options.fail_on_data_loss:
            raise error
        oldest = connection.locate(self._options, Start.earliest())
        if after is not None and oldest.feed_position.time <= after.time:
            raise error
        log.warning(
            "changes are lost: the batch begins at %s (failOnDataLoss=false); %s",
            shown_time(oldest.feed_position.time),
            error,
        )
        return oldest

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Slice)
        for events in read_slice(self._options, partition):
            yield from self._maker.record_batches(events)


@contextmanager
def _naming(option: str, text: str) -> Iterator[None]:
    """Converts the error about a bound that MongoDB has not reached, or never can, to one that names its option."""
    try:
        yield
    except (OutOfRange, InvalidArgument) as error:
        if error.reason != "START_IN_FUTURE" and error.metadata.get("field") != "start.time":
            raise
        problem = (
            "a time up to which MongoDB has committed: choose an earlier time, or latest"
            if error.reason == "START_IN_FUTURE"
            else "a time that MongoDB knows"
        )
        raise OptionError(f"option {option} ({text}) is not {problem}. ({error})") from None


def _swapped(planner: Planner, after: FeedPosition, found: Located) -> bool:
    """Whether a range without events begins after its end."""
    until = found.feed_position
    if after.time != until.time:
        return after.time > until.time
    # Within one cluster time, such as that of a transaction, only the server knows the order.
    back = Wanted(until.position, found.feed, after.position, events_max=1, bytes_max=1)
    return after.position != until.position and planner.plan(back).count > 0


def _shown(text: str, feed_position: FeedPosition) -> str:
    return shown_time(feed_position.time) if text.lstrip().startswith("{") else text
