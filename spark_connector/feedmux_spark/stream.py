"""The stream reader: answers Spark's calls on the driver with plans.

Spark asks, in this order and in one process that it starts for the query, where to begin, where the next micro-batch
ends, and how to divide it. The content of an offset must not depend on this process: after a restart, Spark asks again
from the checkpoint.
"""

import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from feedmux.errors import (
    FailedPrecondition,
    FeedmuxError,
    HistoryLost,
    SubscriptionNotFound,
    TimelineForked,
)
from feedmux.feeds import Start
from feedmux.positions import FeedPosition
from feedmux_spark.agreement import Agreement
from feedmux_spark.connection import Call, Connection
from feedmux_spark.errors import FeedmuxSparkError, OptionError
from feedmux_spark.lease import Renewal, hold_name, instance_id
from feedmux_spark.offsets import Offset, parse_begin, parse_start, shown_time
from feedmux_spark.options import Options
from feedmux_spark.planning import EVENTS_MAX, PINNED_WAIT_S, Plan, Planner, Wanted, as_plan
from feedmux_spark.ranges import Slice, read_slice
from feedmux_spark.rows import row_maker

log = logging.getLogger("feedmux_spark")

QUIET_BATCH_S: Final = 300
"""When the position of a feed without events has advanced by this much, an empty micro-batch advances the checkpoint;
otherwise the checkpoint would leave the oplog. Under a trigger that ends the query, nobody knows when the next run
comes: every run without events makes such a micro-batch."""


class FeedmuxStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader that Spark calls: `read` on executors, everything else on the driver."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._maker = row_maker(options.schema_mode, schema, options.on_type_mismatch, options.full_document)
        self._progress: Progress | None = None

    # --- On the driver.

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 Spark's names, here and below
        return self._driver().begin().as_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._options.max_events_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._driver().pin()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        events_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return self._driver().advance(Offset.from_json(start), events_max).as_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return self._driver().report()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return self._driver().slices(Offset.from_json(start), Offset.from_json(end))

    def commit(self, end: dict[str, Any]) -> None:
        """Does nothing, so it cannot fail: the next plan reports the position to the server, see `Progress.advance`."""

    def stop(self) -> None:
        if self._progress is not None:
            self._progress.stop()

    def _driver(self) -> "Progress":
        # Created at the first call: a reader is pickled before that, and must not contain a connection.
        if self._progress is None:
            hold_name(self._options, application=os.getppid())
            self._progress = Progress(self._options)
            self._progress.renewal.start()
        return self._progress

    # --- On executors.

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Slice)
        for events in read_slice(self._options, partition):
            yield from self._maker.record_batches(events)


class RejectedStreamReader(FeedmuxStreamReader):
    """Raises an error at Spark's first call, whichever that is."""

    def __init__(self, error: Exception) -> None:
        self._error = error
        self._progress = None

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        raise self._error

    def _driver(self) -> "Progress":
        raise self._error


def _of(after: Offset, slices: Sequence[Slice]) -> Sequence[Slice]:
    """The slices of a range that begins at `after`."""
    return slices if after.copied is None else [replace(each, copying=True) for each in slices]


@dataclass(frozen=True, slots=True)
class _Ahead:
    """A plan requested in advance, while the previous micro-batch runs."""

    wanted: Wanted
    call: Call


class Progress:
    """The driver's side of one query. Every method raises FeedmuxSparkError."""

    def __init__(self, options: Options) -> None:
        assert options.consumer_name is not None
        self._options = options
        self._connection = Connection(options)
        self._planner = Planner(options, self._connection, options.consumer_name, instance_id(options))
        self.renewal = Renewal(self._planner)
        """To be started where nobody plans in short intervals; `stop` stops it."""
        self._agreement = Agreement(options, self._connection, self._planner)
        self._pinned: FeedPosition | None = None
        self._reached: tuple[Offset, Offset] | None = None
        """There are no events between the first offset and the second."""
        self._behind_gaps: tuple[Offset, Offset] | None = None
        """The end of a batch that came again, as its checkpoint has it and with the gaps found meanwhile."""
        self._advanced = False
        """Whether this run has made a micro-batch."""
        self._planned: dict[tuple[bytes, bytes], Sequence[Slice]] = {}
        self._ahead: _Ahead | None = None
        self._latest: tuple[int, int] | None = None

    def begin(self) -> Offset:
        """Returns where a query without a checkpoint begins: after any crash the same offset, until something was
        processed."""
        with self._connection.explaining():
            start = parse_start(self._options.starting_offsets or "latest", "startingOffsets")
            if start.kind == "snapshot":
                # An older server would create the subscription at the present; it rejects the position of a copy.
                position = self._connection.resolve(self._options, start).position
                # One that knows copies, and no ranges of them, rejects this plan of nothing.
                Planner(self._options, self._connection).plan(
                    Wanted(position, b"", position, events_max=1, bytes_max=1)
                )
                start = Start.position(position)
            feed_position = self._agreement.create(start)
            feed = self._agreement.fingerprint(feed_position.position)
            try:
                found = self._connection.locate(self._options, Start.position(feed_position.position))
            except (HistoryLost, TimelineForked) as error:
                stored = Offset.at(feed_position, feed, copied=0 if self._planner.copying() else None)
                return self._behind_the_gap(stored, error)
            return Offset.at(feed_position, feed, copied=found.copied)

    def pin(self) -> None:
        """Limits all further plans to what MongoDB has committed now."""
        with self._connection.explaining():
            self._pinned = self._connection.resolve(self._options, Start.latest())

    def advance(self, start: Offset, events_max: int | None) -> Offset:
        """Returns where the next micro-batch ends; `start` if there are no events. Without `events_max`, as under the
        trigger once, takes all available events, and plans several ranges in turn.

        When Spark asks for the events after `start`, everything before is in the sink; the plan reports this to the
        server.
        """
        _check_begin(self._options, start)
        with self._connection.explaining(restart_at=start.restart_at):
            feed = self._agreement.check(start)
            if start.copied is not None and events_max is None:
                raise OptionError(
                    "the trigger once reads everything in one micro-batch, and a copy of existing documents"
                    " (startingOffsets=snapshot) has several: use the trigger availableNow"
                )
            reached = start
            for found in (self._reached, self._behind_gaps):
                if found is not None and found[0] == start:
                    reached = found[1]
                    break
            until = self._pinned
            if until is None and events_max is None:
                until = self._connection.resolve(self._options, Start.latest())
            processed, slices = b"", list[Slice]()
            while True:
                plan, reached, until = self._plan_from(reached, processed, until, events_max)
                self._latest = plan.latest
                if plan.slices and not slices:
                    processed = reached.position
                slices += plan.slices
                copied = None
                if reached.copied is not None:  # the plan may have ended the copy
                    copied = self._connection.locate(self._options, Start.position(plan.end.position)).copied
                end = Offset.at(plan.end, feed, reached.gaps, copied)
                if slices and (events_max is not None or plan.caught_up):
                    self._remember(start, end, slices)
                    if events_max is not None:
                        self._look_ahead(plan, end, reached, until, events_max)
                    return end
                if not slices:
                    self._reached = start, end
                    if self._needs_quiet_batch(start, end, plan, until, events_max):
                        self._remember(start, end, ())
                        return end
                    if plan.caught_up or until is None:
                        self._latest = start.time if plan.caught_up else plan.latest
                        return start
                reached = end

    def slices(self, start: Offset, end: Offset) -> Sequence[Slice]:
        """Returns the slices of (start, end]. After a restart, they are planned again: other slices, with the same
        events."""
        if start.position == end.position:
            return ()
        planned = self._planned.get((start.position, end.position))
        if planned is not None:
            return planned
        _check_begin(self._options, start)
        with self._connection.explaining(restart_at=start.restart_at):
            self._agreement.check(start, end)
            if (0, 0) < end.time < start.time and start.gaps == end.gaps:
                raise FeedmuxSparkError(
                    f"The start of the first micro-batch is lost: subscription {self._options.consumer_name!r}, which"
                    " stored it, was deleted before the micro-batch was finished, and a new one begins after its end,"
                    f" {shown_time(end.time)}. To read its events, restart the query with startingOffsets at a time"
                    " before them, or earliest, after deleting the subscription again; to begin later, use a new"
                    " checkpoint"
                )
            try:
                slices, begin = self._through(start, end.position)
            except TimelineForked as error:
                # What the batch had has not happened: it is empty, and the next one begins at the oldest change.
                begin = self._behind_the_gap(start, error)
                self._behind_gaps = end, replace(begin, gaps=end.gaps + 1)
                return ()
            if begin.gaps != start.gaps:
                # One gap may also reach beyond the batch.
                place = begin if begin.time > end.time else end
                self._behind_gaps = end, replace(place, gaps=end.gaps + begin.gaps - start.gaps)
            return _of(start, slices)

    def report(self) -> dict[str, Any] | None:
        """Returns how far the feed reaches, for the query's progress; if nothing more matches, how far it was read."""
        return None if self._latest is None else {"clusterTime": shown_time(self._latest)}

    def stop(self) -> None:
        self.renewal.stop()
        if self._ahead is not None:
            self._ahead.call.cancel()

    def _needs_quiet_batch(
        self, start: Offset, end: Offset, plan: Plan, until: FeedPosition | None, events_max: int | None
    ) -> bool:
        """Whether a micro-batch without events must advance the checkpoint from `start` to `end`."""
        if events_max is None and not plan.caught_up:
            return False  # the only micro-batch of the run: it takes everything
        if start.copied is not None and end.copied is None:
            return True  # the end of the copy
        if end.gaps != start.gaps or end.time[0] - start.time[0] >= QUIET_BATCH_S:
            return True
        ends_here = until is not None and plan.caught_up
        return ends_here and not self._advanced and end.position != start.position

    def _plan_from(
        self, reached: Offset, processed: bytes, until: FeedPosition | None, events_max: int | None
    ) -> tuple[Plan, Offset, FeedPosition | None]:
        """Returns the next plan, where it begins, and where it ends: later than given if changes were lost. Raises
        FeedmuxError.

        Reports `processed` to the server, or everything up to the plan if that is empty.
        """
        end_is_new = until is None
        while True:
            wanted = self._wanted(reached, until, events_max)
            try:
                plan = self._take_ahead(wanted) or self._planner.plan(wanted, processed or reached.position)
            except (SubscriptionNotFound, HistoryLost, TimelineForked) as error:
                if isinstance(error, TimelineForked) and not end_is_new:
                    # Perhaps only the end is lost: then nothing that was read is, and it does not come again.
                    until, end_is_new = self._connection.resolve(self._options, Start.latest()), True
                    self._pinned = until if self._pinned is not None else None
                else:
                    reached, processed = self._mended(reached, error), b""
            except FailedPrecondition as error:
                self._agreement.settle(error)
            else:
                self._agreement.planned()
                return replace(plan, slices=_of(reached, plan.slices)), reached, until

    def _through(self, after: Offset, until: bytes) -> tuple[Sequence[Slice], Offset]:
        """Returns the slices of everything up to `until`, and where they begin. Raises FeedmuxError."""
        while True:
            try:
                feed = self._agreement.fingerprint(after.position)
                slices = self._planner.through(
                    after.feed_position, feed, until, self._options.max_bytes_per_trigger, processed=after.position
                )
            except (SubscriptionNotFound, HistoryLost) as error:
                after = self._mended(after, error)
            except FailedPrecondition as error:
                self._agreement.settle(error)
            else:
                self._agreement.planned()
                return slices, after

    def _mended(self, after: Offset, error: SubscriptionNotFound | HistoryLost | TimelineForked) -> Offset:
        """Returns the offset from which to ask again. Raises the error if a gap is not allowed."""
        if not isinstance(error, SubscriptionNotFound):
            return self._behind_the_gap(after, error)
        # The checkpoint has the position, even if Redis lost its data.
        log.warning("the subscription %s does not exist any more; creating it again", self._options.consumer_name)
        self._planner.create(Start.position(after.position))
        return after

    def _wanted(self, after: Offset, until: FeedPosition | None, events_max: int | None) -> Wanted:
        if after.copied is not None:
            until = None  # within a copy, that would be a range with all the rest of the documents
        wait_s = PINNED_WAIT_S if until else self._options.poll_timeout_ms / 1000
        feed = self._agreement.fingerprint(after.position)
        return Wanted(
            after.position,
            feed,
            until.position if until else b"",
            EVENTS_MAX if events_max is None else events_max,
            self._options.max_bytes_per_trigger,
            wait_s,
        )

    def _remember(self, start: Offset, end: Offset, slices: Sequence[Slice]) -> None:
        self._planned = {(start.position, end.position): slices}
        self._reached = None
        self._advanced = True

    def _behind_the_gap(self, before: Offset, error: HistoryLost | TimelineForked) -> Offset:
        """Returns the oldest available position, with the gap counted. Raises the error if a gap is not allowed."""
        if self._options.fail_on_data_loss or before.copied is not None:
            raise error
        oldest = self._connection.resolve(self._options, Start.earliest())
        if isinstance(error, HistoryLost) and oldest.time <= before.time:
            raise error  # the primary has the position: nothing is lost, and what was read would come again
        log.warning(
            "changes are lost: from %s to %s (failOnDataLoss=false); %s",
            shown_time(before.time),
            shown_time(oldest.time),
            error,
        )
        return Offset.at(oldest, before.feed, before.gaps + 1)

    def _look_ahead(
        self, plan: Plan, end: Offset, reached: Offset, until: FeedPosition | None, events_max: int
    ) -> None:
        """Requests the next range of a backlog while this one is processed. Only one, so that a slow sink slows down
        reading.

        Requests nothing if the feed is caught up: the next micro-batch should contain everything that arrives until it
        starts.
        """
        if not plan.caught_up:
            wanted = self._wanted(end, until, events_max)
            self._ahead = _Ahead(wanted, self._planner.start(wanted, reached.position))

    def _take_ahead(self, wanted: Wanted) -> Plan | None:
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            return None
        if ahead.wanted != wanted:
            ahead.call.cancel()
            return None
        try:
            plan = as_plan(ahead.call.result())
        except FeedmuxError as error:
            log.info("the plan requested in advance failed, requesting it again: %s", error)
            return None
        # An empty plan is requested again: no later request would report to the server what was processed since.
        return plan if plan.count else None


def _check_begin(options: Options, start: Offset) -> None:
    """Rejects the beginning of another copy than that of the checkpoint. Without a checkpoint it would count; and a
    sweep with it would delete what this query has copied."""
    begin = parse_begin(options.starting_offsets or "")
    if begin is not None and begin.time > start.time:
        raise OptionError(
            f"option startingOffsets is a later beginning of a copy, {shown_time(begin.time)}, than that of the"
            f" query, which has come to {shown_time(start.time)}. Start it with the offset of its first start, and"
            " sweep with that one; or begin the other copy, with a new checkpoint and consumerName"
        )
