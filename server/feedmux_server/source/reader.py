"""Reads one change stream from MongoDB as chunks, and decides what a failure means.

One reader serves one pump. It holds the cursor, and opens another one at the position it has read to; the pump decides
when to try again. Its parts: `stream_request` (what it asks for), `read_pace` (how long a read waits), `timed_reads`
(how long MongoDB may compute). Next on the data path: `core.events.chunk`.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal

from pymongo.errors import AutoReconnect, PyMongoError

from feedmux_server.clock import monotonic_s, wall_s
from feedmux_server.core.delivery.resume_policy import Action, Verdict, without_words
from feedmux_server.core.errors import ErrorReason, FeedmuxError, FragmentsChanged
from feedmux_server.core.events.chunk import Chunk, chunks_of, read_token
from feedmux_server.core.events.event_time import event_time_s
from feedmux_server.core.feeds.stream_key import SPLIT, StreamKey, effective_stages, policy_stages
from feedmux_server.core.positions.join_point import JoinPoint
from feedmux_server.core.positions.resume_token import Copied, Given, ResumeToken
from feedmux_server.source.cursor import Interrupted, RawBatch, RawChangeStreamCursor
from feedmux_server.source.deployment import Source
from feedmux_server.source.errors import UNAUTHORIZED, judge, kind_of, rejects_login
from feedmux_server.source.read_limits import ReadLimits
from feedmux_server.source.read_pace import HISTORY_AWAIT_MS, ReadPace
from feedmux_server.source.stream_request import StreamRequest
from feedmux_server.source.timed_reads import TimedReads
from feedmux_server.source.token_check import has_event

_INTERRUPT_S = 2.0
"""How long MongoDB may take to kill a cursor."""
_INTERRUPTED_S = 0.1
"""How long the read of a killed cursor may then take to end. MongoDB 6.0 notices the kill only when its oplog has
grown, which may take ten seconds on an idle deployment; until then the read causes no work."""
_MEMBER_WITHOUT_S = 60.0
"""So long a reader tries to read on while a member says that history is lost that the primary has."""
_TOKEN_UNREADABLE = frozenset({15, 207, 6189503, *range(50810, 50832)})
"""Overflow, InvalidUUID and unnamed codes: besides 280, all errors of MongoDB 6.0 for tokens with a garbled tail, of
which 600 were tried."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One getMore's worth of a stream."""

    chunks: list[Chunk]
    post_batch: ResumeToken | None
    exhausted: bool
    """The stream was invalidated: MongoDB closed the cursor."""
    gathered_s: float = 0.0
    """How long a wide stream has gathered these events."""
    complete_time: int = 0
    """Every event at or before this cluster time is in this batch or an earlier one. 0: not known. A position cannot
    say this: a high-water mark is before the events of its time, and further events may follow an event at its time."""
    copy_complete: bool = False
    """The last existing document is copied: from `post_batch` on, the feed is read as any other."""


class Failed(Exception):
    """MongoDB or the network failed in a way that reopening may fix."""

    def __init__(self, cause: PyMongoError, *, at_once: bool, reads_singly: bool = False) -> None:
        super().__init__(type(cause).__name__)
        self.kind = kind_of(cause)
        self.at_once = at_once
        """The driver specification allows one attempt without waiting."""
        self.reads_singly = reads_singly
        """Nothing has failed yet: the batch was too large, and its events are read one by one."""


class ChangeStreamReader:
    """A change stream of one key, from `origin` on."""

    def __init__(
        self,
        source: Source,
        key: StreamKey,
        origin: JoinPoint,
        limits: ReadLimits,
        reads_for: Callable[[], str] = str,
        is_watched: Callable[[], bool] = lambda: True,
        is_awaited: Callable[[], bool] = lambda: False,
        copied: Copied | None = None,
    ) -> None:
        """`reads_for` names the tenant whose permit a read of history takes: one that the stream serves now; none by
        default. `is_watched` says whether a subscriber wants to know how far the stream has read, and `is_awaited`
        whether a plan waits to know that nothing follows. `copied` is that of `StreamRequest`."""
        self._source = source
        self._reads_for = reads_for
        self._key = key
        self._limits = limits
        self._request = StreamRequest(key, origin, copied)
        self._pace = ReadPace(source, limits, is_watched, is_awaited)
        self._reads = TimedReads(source, key, limits, self._open_cursor)
        self._forked_count = source.timeline.forked_count
        self._had_cursor = False
        self._may_be_of_lost_history = not origin.exact and origin.of_mongodb
        """The position was made by another feed, so MongoDB does not check its token."""
        self._without_since_s: float | None = None
        """Set when the member that was read has lost the position and the primary has not: the next cursors are opened
        on the primary, until one has answered."""
        self._split = any(SPLIT in stage for stage in effective_stages(key))
        self._cursor: RawChangeStreamCursor | None = None
        self._scanned_after: int | None = None
        """The present cursor has read MongoDB's oplog once it names a later time than this; None once it had events."""
        self._interrupt: asyncio.Future[None] | None = None
        """Set while a read waits for longer than usual."""
        self._interrupted = False
        """The last read was interrupted and its cursor killed: the next read opens another cursor and does not wait."""
        self._ahead: asyncio.Future[RawBatch] | None = None
        """The read of the next batch, begun before the present one is processed."""

    @property
    def is_open(self) -> bool:
        return self._cursor is not None or self._interrupted

    @property
    def has_cursor(self) -> bool:
        return self._cursor is not None

    @property
    def is_behind(self) -> bool:
        """MongoDB has more: the last batch was a large one."""
        return self._pace.is_behind

    @property
    def at(self) -> JoinPoint:
        """The position read to, where the reader opens next."""
        return self._request.at

    def resume_from(self, place: ResumeToken) -> None:
        """Open at `place` next: everything before this position was read elsewhere."""
        if self._cursor is not None:
            raise RuntimeError("the reader is open")
        self._request.at = JoinPoint(place, exact=True)

    async def open(self) -> None:
        """Run the aggregate at the present position. Raises `Failed`, or FeedmuxError if another try cannot help."""
        while self._cursor is None:
            try:
                self._cursor = await self._reads.open()
                self._source.cursors += 1
                self._scanned_after = self._request.begin_time
            except PyMongoError as error:
                await self._fail(error, "aggregate")
        await self._verify()

    async def _open_cursor(
        self,
        events: int,
        opening: Callable[[bytes], None] | None = None,
        *,
        has_policy: bool = True,
        has_pipeline: bool = True,
    ) -> RawChangeStreamCursor:
        stages, wait_ms = self._request.stages(), self._limits.max_await_ms
        if not has_pipeline:
            policy = policy_stages(self._key) if has_policy else []
            stages = [stages[0], *policy, *(stage for stage in stages[1:] if SPLIT in stage)]
            wait_ms = HISTORY_AWAIT_MS
        spec = self._key.spec
        if self._without_since_s is not None:
            spec = replace(spec, read_preference="primary")
        return await self._source.open_cursor(spec, stages, events, wait_ms, opening)

    async def _verify(self) -> None:
        """Raises TIMELINE_FORKED if MongoDB has lost what was read before. Only the cursor's own deployment counts, so
        this comes after its opening and before its first read."""
        timeline, at = self._source.timeline, self._request.at
        if self._had_cursor:
            # MongoDB may have been restored since the cursor was lost, whatever was found meanwhile. A first opening
            # continues nothing, so it needs no look of its own.
            timeline.doubt()
        self._had_cursor = True
        try:
            await timeline.verify()
        except FeedmuxError as error:
            await self.close()
            raise Failed(AutoReconnect(error.message), at_once=False) from error
        forked = timeline.forked_since(self._forked_count, at.place) or timeline.lost(at.place)
        self._forked_count = timeline.forked_count
        if forked is None and self._may_be_of_lost_history and not await self._has_event():
            forked = await timeline.missing(at.place, self._key.digest)
        self._may_be_of_lost_history = False
        if forked is not None:
            raise forked

    async def _has_event(self) -> bool:
        """Whether MongoDB has the event of the present position. Raises `Failed`."""
        try:
            return await has_event(self._source, self._key, self._request.at.place)
        except PyMongoError as error:
            await self.close()
            raise Failed(error, at_once=False) from error

    async def read(self) -> Batch:
        """One getMore. Raises as `open` does."""
        if not self.is_open:
            raise RuntimeError("the reader is not open")
        if self._cursor is None:
            await self.open()
        cursor = self._cursor
        assert cursor is not None
        try:
            self._reads.count()
            ahead, self._ahead = self._ahead, None
            interrupted, self._interrupted = self._interrupted, False
            if ahead is not None:
                raw = await ahead
            elif self._pace.needs_permit(self._request.at.place.cluster_time):
                permit = await self._source.history_reads.begin(self._reads_for())
                try:
                    raw = await self._reads.next_batch(cursor, self._pace.history_wait_ms)
                finally:
                    permit.end()
            else:
                wait_ms = self._pace.history_wait_ms if interrupted else self._pace.wait_ms
                may_end_early = wait_ms > self._limits.max_await_ms
                read = self._next_unless_interrupted if may_end_early else self._reads.next_batch
                raw = await read(cursor, wait_ms)
        except Interrupted:
            return Batch([], None, False)
        except PyMongoError as error:
            await self._fail(error, "getMore")
            return Batch([], None, False)
        self._without_since_s = None
        self._pace.saw(raw.size, exhausted=raw.exhausted)
        place = self._request.at.place
        read_time_s = wall_s()
        chunks: list[Chunk] = []
        for part in raw.parts:
            if chunks:
                await asyncio.sleep(0)
            start = chunks[-1].end if chunks else place
            for chunk in chunks_of(part, start, read_time_s, bytes_max=self._limits.chunk_bytes_max, split=self._split):
                chunks.append(chunk)
                if chunk.is_rearranged:
                    await asyncio.sleep(0)
        post_batch = None
        if raw.post_batch is not None:
            post_batch = read_token(raw.post_batch, chunks[-1].end if chunks else place)
        complete_time = self._complete_time(raw, post_batch)
        if post_batch is not None and self._key.policy:
            post_batch = _without_hidden(post_batch, chunks)
        if chunks:
            if post_batch is not None and post_batch.is_after(chunks[-1].end):
                chunks[-1].end = post_batch
            self._reads.saw(raw.size, sum(each.count for each in chunks))
        if self.is_behind and self._cursor is not None and (free := self._source.history_reads.try_begin()) is not None:
            # MongoDB works on the next batch while this one is sent.
            self._ahead = asyncio.ensure_future(self._reads.next_batch(cursor, self._pace.history_wait_ms))
            self._ahead.add_done_callback(lambda _: free.end())
        _report(self._source, chunks, read_time_s)
        chunks = self._request.after(chunks)
        if raw.exhausted and self._request.passes_invalidate():
            await self._close_cursor()
            await self.open()
            return Batch([], None, False)
        newest = chunks[-1].end if chunks else post_batch
        if newest is not None:
            self._source.clock.saw(newest.cluster_time)
            if chunks:
                self._source.timeline.read(newest.cluster_time)
        if newest is not None and (chunks or newest.is_after(place)):
            self._request.advance(newest, has_events=bool(chunks))
        return Batch(chunks, post_batch, raw.exhausted, complete_time=complete_time)

    def _complete_time(self, raw: RawBatch, post_batch: ResumeToken | None) -> int:
        """Return the time of which this cursor has read every event (`Batch.complete_time`).

        A read without events has met the end of the oplog, as far as a majority has it. Its token is then of the newest
        entry, whose time no other entry of a replica set has. But a cursor that has read nothing yet, such as one on a
        lagging secondary, answers with the token that it began at; and a mongos, with a time of which a shard may still
        have events.
        """
        if raw.data:
            self._scanned_after = None
            return 0
        if post_batch is None or raw.exhausted or self._source.clock.is_mongos:
            return 0
        time_ = post_batch.cluster_time
        return time_ if self._scanned_after is None or time_ > self._scanned_after else 0

    async def _next_unless_interrupted(self, cursor: RawChangeStreamCursor, wait_ms: int) -> RawBatch:
        """Raises Interrupted when `interrupt` was called meanwhile."""
        reading = asyncio.ensure_future(self._reads.next_batch(cursor, wait_ms))
        interrupt = self._interrupt = asyncio.get_running_loop().create_future()
        either: list[asyncio.Future[Any]] = [reading, interrupt]
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                self._interrupted = True
                with suppress(PyMongoError, TimeoutError):
                    async with asyncio.timeout(_INTERRUPT_S):
                        await cursor.interrupt()
                await asyncio.wait([reading], timeout=_INTERRUPTED_S)
                if not reading.done():
                    raise Interrupted
            return await reading
        finally:
            self._interrupt = None
            reading.cancel()
            await asyncio.wait([reading])
            if not reading.cancelled():
                reading.exception()  # otherwise asyncio logs it as never retrieved
            if self._interrupted:
                await self._close_cursor()

    def interrupt(self) -> None:
        """End the present read if it waits for longer than `max_await_ms`."""
        if self._interrupt is not None and not self._interrupt.done():
            self._interrupt.set_result(None)

    async def close(self) -> None:
        """Kill the cursor. Does not raise if MongoDB is unavailable."""
        self._interrupted = False
        await self._close_cursor()

    async def _close_cursor(self) -> None:
        self._reads.closed()
        cursor, self._cursor = self._cursor, None
        self._pace.is_behind = False
        ahead, self._ahead = self._ahead, None
        if cursor is not None:
            self._source.cursors -= 1
        try:
            if ahead is not None:
                ahead.cancel()
                await asyncio.wait([ahead])
        finally:  # also if a drain cancels the wait: nobody else knows the cursor
            if cursor is not None:
                with suppress(PyMongoError):
                    await cursor.close()

    async def _fail(self, error: PyMongoError, during: Literal["aggregate", "getMore"]) -> None:
        """Close the cursor and raise, or return if the reader can open in another way at once."""
        login_gone = (
            self._cursor is not None
            and getattr(error, "code", None) == UNAUTHORIZED
            and self._source.logins.is_former(self._cursor)
        )
        await self.close()
        if self._reads.overran or login_gone:
            raise Failed(error, at_once=True) from error
        if rejects_login(error):
            self._source.login_rejected(error)
        verdict = judge(error, during)
        if self._key.policy:
            verdict = without_words(verdict)
        if verdict.action in (Action.RESUME, Action.RETRY):
            self._source.timeline.doubt()
            raise Failed(error, at_once=verdict.action is Action.RESUME) from error
        at = self._request.at
        if (
            verdict.action is Action.REPOSITION
            and at.exact
            and at.place.given is Given.BY_MONGODB
            and not await self._has_event()
        ):
            raise await self._source.timeline.missing(at.place, self._key.digest)
        if (
            verdict.action is Action.REPOSITION
            and at.exact
            and at.native is None
            and at.place.is_of_mongodb
            and at.place.may_be_inside_event
        ):
            # The ring may have fragments that are no more, so another stream begins, where each subscriber needs it.
            raise FragmentsChanged from error
        if _may_be_the_token(verdict, error, during) and self._request.by_time():
            # The pipeline now hides this token, or this mongod cannot read it, but its cluster time still finds the
            # position. An error after that is not caused by the start, and concerns all who share the feed.
            if during == "aggregate":
                return
            raise Failed(error, at_once=True) from error
        if verdict.error.reason is ErrorReason.EVENT_TOO_LARGE and during == "getMore" and self._reads.ask_singly():
            # The events of a batch and its postBatchResumeToken together: MongoDB counts only the events.
            raise Failed(error, at_once=True, reads_singly=True) from error
        if verdict.error.reason is ErrorReason.HISTORY_LOST:
            found = await self._lost(error, verdict.error)
            if during == "aggregate" and isinstance(found, Failed) and found.at_once:
                return
            raise found from error
        raise verdict.error from error

    async def _lost(self, cause: PyMongoError, error: FeedmuxError) -> Failed | FeedmuxError:
        """What it means that a member has lost the position. The primary may have it, and decides: a member that was
        resynchronized, or whose oplog is smaller, has lost it for itself only."""
        source, at = self._source, self._request.at.place
        if source.clock.is_mongos:  # which has no oplog
            return error
        is_first, now_s = self._without_since_s is None, monotonic_s()
        try:
            oldest = await source.oplog.oldest_time()
        except FeedmuxError as unknown:
            if unknown.reason in (ErrorReason.SOURCE_UNAUTHORIZED, ErrorReason.SOURCE_UNSUITABLE):
                return error  # nobody can say
            source.timeline.doubt()
            return Failed(cause, at_once=False)
        error.metadata["oldest_time"] = datetime.fromtimestamp(oldest >> 32, UTC).isoformat().replace("+00:00", "Z")
        if oldest > at.cluster_time:
            return error
        if self._without_since_s is None:
            self._without_since_s = now_s
        if now_s - self._without_since_s < _MEMBER_WITHOUT_S:
            source.timeline.doubt()
            return Failed(cause, at_once=is_first)
        return FeedmuxError(
            error.reason,
            "a member of the replica set says that its oplog does not have the position, although the oldest entry of"
            f" the primary's oplog is before it; {error.message}",
            error.metadata,
        )


def _report(source: Source, chunks: list[Chunk], read_time_s: float) -> None:
    events = size = 0
    happened_s = 0.0
    for chunk in chunks:
        if chunk.bson is not None:
            events += chunk.count
            size += len(chunk.bson.data)
            happened_s = event_time_s(chunk.bson.data, chunk.bson.offsets[-2], chunk.bson.offsets[-1])
    source.observer.batch_read(source.name, events, size, happened_s, read_time_s)


def _without_hidden(post_batch: ResumeToken, chunks: list[Chunk]) -> ResumeToken:
    """Return a position that reveals nothing of an event that the policy withheld: a token holds the document key, and
    may hold more. Such a token comes from a hidden invalidate, or from a mongos whose shards read further. Any other is
    that of the last event, where the last chunk ends."""
    if post_batch.is_high_water_mark or (chunks and chunks[-1].end.raw == post_batch.raw):
        return post_batch
    # An invalidate is alone at its cluster time; after it comes the next cluster time.
    time_ = post_batch.cluster_time + 1 if post_batch.from_invalidate else post_batch.cluster_time
    return ResumeToken.high_water_mark(time_, post_batch.version)


def _may_be_the_token(verdict: Verdict, error: PyMongoError, during: str) -> bool:
    if verdict.action is Action.REPOSITION:
        return True
    unreadable = getattr(error, "code", None) in _TOKEN_UNREADABLE
    return during == "aggregate" and (unreadable or verdict.error.reason is ErrorReason.START_AFTER_REQUIRED)
