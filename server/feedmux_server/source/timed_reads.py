"""Requests to MongoDB: how many events each asks for, and that MongoDB may not compute on one for too long
(`limits.event_time_s`).

MongoDB bounds a batch in events, and at 16 MB. The driver makes its buffer for a reply at once, which takes the event
loop 11 ms for 16 MB, and the whole reply is in memory twice until it is copied. So a read asks for as many
events as make a batch of `BATCH_BYTES`, by the size of those before.

`read_watch` finds a read that takes too long and stops it. That is a suspicion only, because MongoDB computes on a
whole batch without a pause: the reads after it ask for one event each, and one that is stopped too ends the feed. The
limit is for the user's stages: what the policy's stages take for the events is allowed in addition, because the user
has chosen neither the policy nor the documents.
"""

import asyncio
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from pymongo.errors import ExecutionTimeout, PyMongoError

from feedmux_server.core.delivery.resume_policy import Action
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.feeds.stream_key import StreamKey, has_stages
from feedmux_server.source.answers import documents_in
from feedmux_server.source.cursor import RawBatch, RawChangeStreamCursor
from feedmux_server.source.deployment import Source
from feedmux_server.source.errors import judge
from feedmux_server.source.read_limits import ReadLimits
from feedmux_server.source.read_watch import OPENS_ARE_SLOWER, Read

BATCH_BYTES = 2_500_000
"""The size of a batch. One of 3 MB cost the server less CPU for a document than one of 6 MB."""
FIRST_EVENTS = 10
"""The first batch shows how large events are. 64 of 250 KB would be as much as MongoDB returns at once, and to cut them
held the event loop for 21 ms."""
_LATE_S = 0.25
"""A read that waits for events returns at most this long after its wait time."""
_CAREFUL_READS = 256
"""Reads of one event each, after a batch has taken too long: it shows whether a single event does."""
_FEWER = 16
"""After those reads, batches are smaller by this factor."""
_POLICY_MAY_VARY = 2.0
"""The stages of a policy may take longer by this factor than they took in a read without the user's."""
_POLICY_VARIES = 1.5
"""By less than this factor, no new measurement allows more time."""
_POLICY_COUNTS = 0.1
"""Nor does a policy that takes less than this part of the limit."""
_SLOWER_TO_FETCH = 4.0
"""A read that returns all events of the policy may pass them more slowly by this factor than a read that was stopped,
whose pipeline dropped them."""


class OpenCursor(Protocol):
    """Runs a reader's aggregate at its present position. Raises PyMongoError."""

    async def __call__(
        self,
        events: int,
        opening: Callable[[bytes], None] | None = None,
        *,
        has_policy: bool = True,
        has_pipeline: bool = True,
    ) -> RawChangeStreamCursor:
        """`events`: at most so many per getMore. `opening` is that of `RawChangeStreamCursor.open`. `has_pipeline`:
        with the user's stages; without them the read waits for no event, and `has_policy` says whether it has the
        policy's."""


class TimedReads:
    """The requests of one reader. Only those with stages of a user are timed."""

    def __init__(self, source: Source, key: StreamKey, limits: ReadLimits, open_cursor: OpenCursor) -> None:
        self._source = source
        self._has_policy = bool(key.policy)
        self._limits = limits
        self._open_cursor = open_cursor
        self._batch_events = limits.batch_events
        self._wanted_events = FIRST_EVENTS
        """What makes a batch of `BATCH_BYTES`."""
        self._asked_events = 0
        """By the last read."""
        self._careful_reads = 0
        """How many more reads ask for one event each."""
        self._read = Read(limits.event_time_s) if has_stages(key.spec) else None

    @property
    def overran(self) -> bool:
        """Whether the last request was stopped."""
        return self._read is not None and self._read.overran

    @property
    def batch_events(self) -> int:
        """At most so many events per read now."""
        return 1 if self._careful_reads else min(self._wanted_events, self._batch_events)

    async def open(self) -> RawChangeStreamCursor:
        """Run the aggregate. Raises PyMongoError, or the FeedmuxError that ends the feed."""
        read = self._read
        if read is None:
            return await self._open_cursor(self.batch_events)
        try:
            return await self._open_watched(read, self.batch_events)
        except TimeoutError:
            raise await self._too_slow("to prepare the pipeline", read) from None
        except BaseException:
            self.closed()
            raise

    async def _open_watched(self, read: Read, events: int, *, has_pipeline: bool = True) -> RawChangeStreamCursor:
        """Raises TimeoutError if the watch stops it."""
        read.overran = False
        self._source.read_watch.add(read)
        try:
            async with read.scope():
                cursor = await self._open_cursor(events, read.open_in, has_pipeline=has_pipeline)
        finally:
            read.end()
        read.address, read.cursor_id = cursor.address, cursor.id
        return cursor

    async def next_batch(self, cursor: RawChangeStreamCursor, wait_ms: int | None = None) -> RawBatch:
        """Run a getMore that waits for `wait_ms`; None where there is nothing to wait for. Raises ExecutionTimeout for
        a read that was stopped, or, if that read asked for only one event, the error that ends the feed."""
        if wait_ms is not None:
            cursor.await_up_to(wait_ms)
        self._asked_events = self.batch_events
        cursor.ask_for(self._asked_events)
        read = self._read
        if read is None:
            return await cursor.next_batch()
        is_careful = self.is_careful
        if not self._careful_reads:
            read.event_time_s = self._limits.event_time_s
        read.begin((wait_ms or 0) / 1000 + _LATE_S)
        try:
            async with read.scope():
                return await cursor.next_batch()
        except (TimeoutError, PyMongoError):
            if not read.overran:
                raise
            if is_careful:
                raise await self._too_slow("for one event of this feed", read) from None
            self._careful_reads = _CAREFUL_READS
            self._batch_events = max(1, self._batch_events // _FEWER)
            raise ExecutionTimeout("a batch of events takes MongoDB too long") from None
        finally:
            read.end()

    def count(self) -> None:
        """Count a read, after whose last careful one the next batches are larger."""
        if self._careful_reads:
            self._careful_reads -= 1

    def saw(self, size: int, events: int | None = None) -> None:
        """The last read returned so many bytes and events; None: as many as it asked for. Fewer events say nothing of
        those that follow, so they never make the next batch larger."""
        asked = self._asked_events
        wanted = max(1, (asked if events is None else events) * BATCH_BYTES // size)
        if events is None or events >= asked or wanted < self._wanted_events:
            self._wanted_events = wanted

    def ask_singly(self) -> bool:
        """Ask for one event per read for a while. False if the last read did already."""
        if self.is_careful:
            return False
        self._careful_reads = _CAREFUL_READS
        return True

    @property
    def is_careful(self) -> bool:
        """Whether the reads ask for one event each now, so that one that takes too long shows which event does."""
        return self._careful_reads > 0 or self._batch_events == 1

    def closed(self) -> None:
        """There is no cursor any more."""
        if self._read is not None:
            self._source.read_watch.remove(self._read)

    async def _too_slow(self, for_what: str, read: Read) -> FeedmuxError | ExecutionTimeout:
        """Return the error that ends the feed if the pipeline is the cause, and else the error that resumes the feed: a
        MongoDB that waits for a majority, or for a disk, looks the same, and so do a policy's stages."""
        read.end()  # MongoDB may continue with it, but nobody waits for it any more
        if not await self._reads_without_pipeline():
            return ExecutionTimeout("MongoDB is slow, also without the pipeline")
        policy_s = await self._policy_s(read.took_s, read.event_time_s) if self._has_policy else 0.0
        if self._is_more_due(policy_s, read.event_time_s):
            self._careful_reads = _CAREFUL_READS
            read.event_time_s = self._limits.event_time_s + _POLICY_MAY_VARY * policy_s
            return ExecutionTimeout("MongoDB is slow, also with the policy's stages alone")
        limit_s = self._limits.event_time_s
        return FeedmuxError(
            ErrorReason.PIPELINE_FAILED,
            f"MongoDB takes longer than {limit_s:g} s {for_what}, which is the limit (limits.event_time_s). Make the"
            " pipeline compute less, or let an earlier stage drop such events",
            {"event_time_s": f"{limit_s:g}"},
        )

    async def _reads_without_pipeline(self) -> bool:
        """Return whether MongoDB delivers the next event in time to the same read without the pipeline.

        An event that is too large without the pipeline counts as delivered: MongoDB has reached it.
        """
        cursor: RawChangeStreamCursor | None = None
        try:
            async with asyncio.timeout(self._limits.event_time_s):
                cursor = await self._open_cursor(1, has_policy=False, has_pipeline=False)
                await cursor.next_batch()
            return True
        except TimeoutError:
            return False
        except PyMongoError as error:
            return judge(error, "getMore").error.reason is ErrorReason.EVENT_TOO_LARGE
        finally:
            if cursor is not None:
                with suppress(PyMongoError):
                    await cursor.close()

    def _is_more_due(self, policy_s: float, allowed_s: float) -> bool:
        """Whether a read whose policy takes `policy_s` for an event is due more time for it than `allowed_s`."""
        own_s = self._limits.event_time_s
        return _POLICY_VARIES * policy_s > allowed_s - own_s * (1 - _POLICY_COUNTS)

    async def _policy_s(self, took_s: float, allowed_s: float) -> float:
        """Return what the policy's stages alone take MongoDB for one event, the slowest of the next ones.

        The event at which a read was stopped after `took_s` may follow others, which its pipeline dropped. So the reads
        continue until they must have passed it, or one shows that more time than `allowed_s` is due. If that one had
        several events, these are read again, one by one. Raises PyMongoError, after which the feed resumes.
        """
        longest_s, passed = await self._slowest_read(took_s, allowed_s)
        if self._is_more_due(longest_s, allowed_s):
            longest_s, _ = await self._slowest_read(took_s, allowed_s, passed)
        return longest_s

    async def _slowest_read(self, took_s: float, allowed_s: float, together: int = sys.maxsize) -> tuple[float, int]:
        """Read with the policy's stages alone, as `_policy_s` says: the first `together` events several at a time.
        Return how long the slowest read worked, and how many events came before the last read."""
        read = Read(allowed_s)
        cursor: RawChangeStreamCursor | None = None
        longest_s, passed, found = 0.0, 0, 0
        try:
            async with asyncio.timeout(_SLOWER_TO_FETCH * took_s):
                try:
                    cursor = await self._open_watched(read, FIRST_EVENTS, has_pipeline=False)
                finally:
                    longest_s = read.worked_s / OPENS_ARE_SLOWER
                while not self._is_more_due(longest_s, allowed_s):
                    passed += found
                    cursor.ask_for(max(1, min(FIRST_EVENTS, together - passed)))
                    read.begin(_LATE_S)
                    try:
                        async with read.scope():
                            batch = await cursor.next_batch()
                    finally:
                        read.end()
                        longest_s = max(longest_s, read.worked_s)
                    found = sum(1 for part in batch.parts for _ in documents_in(part))
                    if batch.exhausted or not found:
                        break
        except TimeoutError:
            pass  # the read was stopped, or they must have passed the event
        except PyMongoError as error:
            # Else the read was stopped, or has met an event that the policy fails on, or that is too large.
            if not read.overran and judge(error, "getMore").action is not Action.FATAL:
                raise
        finally:
            self._source.read_watch.remove(read)
            if cursor is not None:
                with suppress(PyMongoError):
                    await cursor.close()
        return longest_s, passed
