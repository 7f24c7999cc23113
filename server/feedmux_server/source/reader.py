"""Reads one change stream from MongoDB as chunks, and interprets failures.

One reader serves one pump. It builds the request to MongoDB (start options, pipeline, options), keeps the position it
has read to, and reopens there; the pump decides when to try again. Next on the data path: `core.events.chunk`.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import bson
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from pymongo.errors import ExecutionTimeout, PyMongoError

from feedmux_server.clock import monotonic_s, wall_s
from feedmux_server.core.delivery.resume_policy import Action, Verdict, without_words
from feedmux_server.core.delivery.subscriber import JoinPoint
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.events.chunk import Chunk, cut_batch, read_token
from feedmux_server.core.events.event_time import event_time_s
from feedmux_server.core.feeds.feed import change_stream_options
from feedmux_server.core.feeds.stream_key import StreamKey, effective_stages, has_stages
from feedmux_server.core.positions.resume_token import ResumeToken
from feedmux_server.source.cursor import Interrupted, RawBatch, RawChangeStreamCursor
from feedmux_server.source.deployment import Source
from feedmux_server.source.errors import judge, kind_of
from feedmux_server.source.read_watch import Read

_RAW = CodecOptions(document_class=RawBSONDocument)

_BACKLOG_BYTES = 256 * 1024
"""A batch of this size means that MongoDB has more: the reader requests the next batch in a turn of `CatchupLimiter`,
and if a turn is free it does so before it processes this batch."""
HISTORY_S = 15
"""A reader this far behind the newest known cluster time reads history, however few events match: an idle MongoDB still
writes a no-op every 10 s, which moves readers at the head."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLimits:
    """Limits of the requests to MongoDB."""

    batch_events: int = 4_000
    """Events per getMore at most. Smaller batches let reading and sending overlap; larger ones save round trips."""
    max_await_ms: int = 1_000
    """How long MongoDB waits for an event before it answers with a new postBatchResumeToken."""
    idle_reads_per_s: float = 125.0
    """Reads per second of all change streams without events together: with more such streams, each read waits longer. A
    read without events costs the server about 0.7 ms."""
    event_time_s: float = 5.0
    """How long MongoDB may compute on one event for a pipeline of a user."""
    chunk_bytes_max: int = 1024 * 1024 - 16 * 1024
    """A batch is cut into chunks of this size, so that a whole chunk and its frame fit into the default message."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One getMore's worth of a stream."""

    chunks: list[Chunk]
    post_batch: ResumeToken | None
    exhausted: bool
    """The stream was invalidated: MongoDB closed the cursor."""
    gathered_s: float = 0.0
    """How long a wide stream has gathered these events."""


_SPLIT = "$changeStreamSplitLargeEvent"
_HISTORY_AWAIT_MS = 10
"""A read of history waits at MongoDB's newest entry for at most this long, because other readers wait for its turn. A
mongos waits for its shards meanwhile, and gets the usual time."""
IDLE_S = 8.0
"""A read of a feed without events waits for at most this long, if no subscriber wants to know progress. Its
position stays recent enough to need no turn for reads of history."""
_INTERRUPT_S = 2.0
"""How long MongoDB may take to kill a cursor."""
_INTERRUPTED_S = 0.1
"""How long the read of a killed cursor may then take to end. MongoDB 6.0 notices the kill only when its oplog has
grown, which may take ten seconds on an idle deployment; until then the read causes no work."""
_LATE_S = 0.25
"""A read that waits for events returns at most this long after its wait time."""
_CAREFUL_READS = 256
"""Reads of one event each, after a batch has taken too long: it shows whether a single event does."""
_FEWER = 16
"""After those reads, batches are smaller by this factor."""

_TOKEN_UNREADABLE = frozenset({15, 207, 6189503, *range(50810, 50832)})
"""Overflow, InvalidUUID and unnamed codes: besides 280, all errors of 6.0 for 600 tokens with a garbled tail."""


def _may_be_the_token(verdict: Verdict, error: PyMongoError, during: str) -> bool:
    if verdict.action is Action.REPOSITION:
        return True
    unreadable = getattr(error, "code", None) in _TOKEN_UNREADABLE
    return during == "aggregate" and (unreadable or verdict.error.reason is ErrorReason.START_AFTER_REQUIRED)


class Failed(Exception):
    """MongoDB or the network failed in a way that reopening may fix."""

    def __init__(self, cause: PyMongoError, *, at_once: bool) -> None:
        super().__init__(type(cause).__name__)
        self.kind = kind_of(cause)
        self.at_once = at_once
        """The driver specification allows one attempt without waiting."""


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
    ) -> None:
        """`reads_for` names the tenant whose turn a read of history takes: one that the stream serves now; none by
        default. `is_watched` says whether a subscriber wants to know how far the stream has read."""
        self._source = source
        self._reads_for = reads_for
        self._is_watched = is_watched
        self._key = key
        self._limits = limits
        self._at = origin
        self._drop_until: ResumeToken | None = None
        self._cursor: RawChangeStreamCursor | None = None
        self._hurry: asyncio.Future[None] | None = None
        """Set while a read waits for longer than usual."""
        self._hurried = False
        """The last read was interrupted and its cursor killed: the next read opens another cursor and does not wait."""
        self._behind = False
        """The last batch was a large one: there is more, and it is read in turns."""
        self._at_end_s: float | None = None
        """When a read last returned no events: MongoDB had reached its newest entry. None if the last had events."""
        self._ahead: asyncio.Future[RawBatch] | None = None
        self._batch_events = limits.batch_events
        self._careful_reads = 0
        """How many more reads ask for one event each."""
        self._watched: Read | None = None
        if has_stages(key.spec):
            self._watched = Read(limits.event_time_s)
        self._split = any(_SPLIT in stage for stage in effective_stages(key))

    @property
    def is_open(self) -> bool:
        return self._cursor is not None or self._hurried

    @property
    def has_cursor(self) -> bool:
        return self._cursor is not None

    @property
    def is_behind(self) -> bool:
        """MongoDB has more: the last batch was a large one."""
        return self._behind

    @property
    def _in_history(self) -> bool:
        """Whether MongoDB scans its oplog for the next batch, including the first batch and small batches. A lagging
        secondary counts as at its end."""
        if self._at_end_s is not None and monotonic_s() - self._at_end_s < HISTORY_S:
            return False
        return self._source.clock.known_time - self._at.place.cluster_time > HISTORY_S << 32

    @property
    def at(self) -> JoinPoint:
        """The position read to, where the reader opens next."""
        return self._at

    def go_on_from(self, place: ResumeToken) -> None:
        """Open at `place` next: everything before this position was read elsewhere."""
        if self._cursor is not None:
            raise RuntimeError("the reader is open")
        self._at = JoinPoint(place, exact=True)

    async def open(self) -> None:
        """Run the aggregate at the present position. Raises `Failed`, or FeedmuxError if another try cannot help."""
        while self._cursor is None:
            try:
                self._cursor = await self._open()
                self._source.cursors += 1
            except PyMongoError as error:
                await self._fail(error, "aggregate")

    async def _open(self) -> RawChangeStreamCursor:
        events = 1 if self._careful_reads else self._batch_events
        asked = (self._key.spec, self._stages(), events, self._limits.max_await_ms)
        watched = self._watched
        if watched is None:
            return await self._source.open_cursor(*asked)
        watched.overran = False
        self._source.read_watch.add(watched)
        try:
            async with watched.scope():
                cursor = await self._source.open_cursor(*asked, watched.open_in)
        except TimeoutError:
            raise await self._too_slow("to prepare the pipeline") from None
        except BaseException:
            self._source.read_watch.remove(watched)
            raise
        finally:
            watched.left()
            watched.end()
        watched.address, watched.cursor_id = cursor.address, cursor.id
        return cursor

    async def read(self) -> Batch:
        """One getMore. Raises as `open` does."""
        if not self.is_open:
            raise RuntimeError("the reader is not open")
        if self._cursor is None:
            await self.open()
        cursor = self._cursor
        assert cursor is not None
        try:
            raw = await self._next(cursor)
        except Interrupted:
            return Batch([], None, False)
        except PyMongoError as error:
            await self._fail(error, "getMore")
            return Batch([], None, False)
        self._behind = len(raw.data) >= _BACKLOG_BYTES and not raw.exhausted
        self._at_end_s = None if raw.data else monotonic_s()
        if self._behind and self._cursor is not None and (turn := self._source.history_reads.try_begin()) is not None:
            # MongoDB works on the next batch while this one is cut and sent.
            self._ahead = asyncio.ensure_future(self._getmore(cursor, self._history_wait_ms))
            self._ahead.add_done_callback(lambda _: turn.end())
        place = self._at.place
        post_batch = read_token(raw.post_batch) if raw.post_batch is not None else None
        if post_batch is not None and self._key.policy:
            post_batch = self._shown(post_batch, raw.data)
        read_time_s = wall_s()
        chunks = (
            cut_batch(
                raw.data, place, post_batch, read_time_s, bytes_max=self._limits.chunk_bytes_max, split=self._split
            )
            if raw.data
            else []
        )
        self._tell(chunks, read_time_s)
        if self._drop_until is not None:
            chunks = self._drop_passed(chunks, self._drop_until)
        newest = chunks[-1].end if chunks else post_batch
        if newest is not None:
            self._source.clock.saw(newest.cluster_time)
        if newest is not None and (chunks or newest.is_after(place)):
            # The start stays native until the first event, because MongoDB checks the token only then. By the
            # specification ("Resume Process"), startAfter is used until then, with the newest token.
            self._at = JoinPoint(newest, exact=True, native=None if chunks else self._at.native)
        return Batch(chunks, post_batch, raw.exhausted)

    def _tell(self, chunks: list[Chunk], read_time_s: float) -> None:
        events = size = 0
        happened_s = 0.0
        for chunk in chunks:
            if chunk.bson is not None:
                events += chunk.count
                size += len(chunk.bson.data)
                happened_s = event_time_s(chunk.bson.data, chunk.bson.offsets[-2], chunk.bson.offsets[-1])
        self._source.observer.batch_read(self._source.name, events, size, happened_s, read_time_s)

    def _shown(self, post_batch: ResumeToken, data: bytes) -> ResumeToken:
        """Return a position that reveals nothing of an event that the policy withheld: a token holds the document key,
        and may hold more. Such a token comes from a hidden invalidate, or from a mongos whose shards read further."""
        if post_batch.is_high_water_mark or data.rfind(post_batch.raw) >= 0:
            return post_batch
        # An invalidate is alone at its cluster time; after it comes the next cluster time.
        time_ = post_batch.cluster_time + 1 if post_batch.from_invalidate else post_batch.cluster_time
        return ResumeToken.high_water_mark(time_, post_batch.version)

    async def _next(self, cursor: RawChangeStreamCursor) -> RawBatch:
        if self._careful_reads:
            self._careful_reads -= 1
            if not self._careful_reads:
                cursor.ask_for(self._batch_events)
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            return await ahead
        if not self._behind and not self._in_history:
            hurried, self._hurried = self._hurried, False
            wait_ms = self._history_wait_ms if hurried else self._wait_ms
            if wait_ms > self._limits.max_await_ms:
                return await self._getmore_unless_hurried(cursor, wait_ms)
            return await self._getmore(cursor, wait_ms)
        turn = await self._source.history_reads.begin(self._reads_for())
        try:
            return await self._getmore(cursor, self._history_wait_ms)
        finally:
            turn.end()

    @property
    def _history_wait_ms(self) -> int:
        usual = self._limits.max_await_ms
        return usual if self._source.clock.is_mongos else min(usual, _HISTORY_AWAIT_MS)

    @property
    def _wait_ms(self) -> int:
        usual = self._limits.max_await_ms
        if self._at_end_s is None or self._is_watched():
            return usual
        share_s = min(IDLE_S, self._source.cursors / self._limits.idle_reads_per_s)
        return max(usual, int(share_s * 1000))

    async def _getmore_unless_hurried(self, cursor: RawChangeStreamCursor, wait_ms: int) -> RawBatch:
        """Raises Interrupted when `hurry` was called meanwhile."""
        reading = asyncio.ensure_future(self._getmore(cursor, wait_ms))
        hurry = self._hurry = asyncio.get_running_loop().create_future()
        either: list[asyncio.Future[Any]] = [reading, hurry]
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                self._hurried = True
                with suppress(PyMongoError, TimeoutError):
                    async with asyncio.timeout(_INTERRUPT_S):
                        await cursor.interrupt()
                await asyncio.wait([reading], timeout=_INTERRUPTED_S)
                if not reading.done():
                    raise Interrupted
            return await reading
        finally:
            self._hurry = None
            reading.cancel()
            await asyncio.wait([reading])
            if not reading.cancelled():
                reading.exception()  # otherwise asyncio logs it as never retrieved
            if self._hurried:
                await self._close_cursor()

    async def _getmore(self, cursor: RawChangeStreamCursor, wait_ms: int) -> RawBatch:
        """Read one batch. Raises ExecutionTimeout for a read that `read_watch` stopped, or, if that read asked for only
        one event, the error that ends the feed."""
        cursor.await_up_to(wait_ms)
        watched = self._watched
        if watched is None:
            return await cursor.next_batch()
        careful = self._careful_reads > 0 or self._batch_events == 1
        watched.begin(wait_ms / 1000 + _LATE_S)
        try:
            async with watched.scope():
                return await cursor.next_batch()
        except (TimeoutError, PyMongoError):
            if not watched.overran:
                raise
            if careful:
                raise await self._too_slow("for one event of this feed") from None
            self._careful_reads = _CAREFUL_READS
            self._batch_events = max(1, self._batch_events // _FEWER)
            raise ExecutionTimeout("a batch of events takes MongoDB too long") from None
        finally:
            watched.left()
            watched.end()

    async def _too_slow(self, for_what: str) -> FeedmuxError | ExecutionTimeout:
        """Return the error that ends the feed if the pipeline is the cause, and else the error that resumes the feed.
        While MongoDB waits for a majority or a disk, it does not yield either."""
        if not await self._reads_without_pipeline():
            return ExecutionTimeout("MongoDB is slow, also without the pipeline")
        limit_s = self._limits.event_time_s
        return FeedmuxError(
            ErrorReason.PIPELINE_FAILED,
            f"MongoDB takes longer than {limit_s:g} s {for_what}, which is the limit (limits.event_time_s). Make the"
            " pipeline compute less, or let an earlier stage drop such events",
            {"event_time_s": f"{limit_s:g}"},
        )

    async def _reads_without_pipeline(self) -> bool:
        """Return whether MongoDB delivers the next event in time to the same change stream without the pipeline.

        An event that is too large without the pipeline counts as delivered: MongoDB has reached it.
        """
        cursor: RawChangeStreamCursor | None = None
        stages = self._stages()
        plain = [stages[0], *(stage for stage in stages[1:] if _SPLIT in stage)]
        try:
            async with asyncio.timeout(self._limits.event_time_s):
                cursor = await self._source.open_cursor(self._key.spec, plain, 1, _HISTORY_AWAIT_MS)
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

    def hurry(self) -> None:
        """End the present read if it waits for longer than `max_await_ms`."""
        if self._hurry is not None and not self._hurry.done():
            self._hurry.set_result(None)

    async def close(self) -> None:
        """Kill the cursor. Does not raise if MongoDB is unavailable."""
        self._hurried = False
        await self._close_cursor()

    async def _close_cursor(self) -> None:
        if self._watched is not None:
            self._source.read_watch.remove(self._watched)
        cursor, self._cursor = self._cursor, None
        self._behind = False
        ahead, self._ahead = self._ahead, None
        if cursor is not None:
            self._source.cursors -= 1
        if ahead is not None:
            ahead.cancel()
            await asyncio.wait([ahead])
        if cursor is not None:
            with suppress(PyMongoError):
                await cursor.close()

    def _drop_passed(self, chunks: list[Chunk], until: ResumeToken) -> list[Chunk]:
        """Drop events up to position `until`, after a start at its cluster time, which is inclusive."""
        kept: list[Chunk] = []
        for chunk in chunks:
            first = chunk.first_after(until)
            if first == chunk.count:
                continue
            self._drop_until = None
            kept.append(chunk if first == 0 else chunk.without_first(first, until))
        if kept:
            kept[0].start = self._at.place
        return kept

    def _stages(self) -> list[Any]:
        at, stage = self._at, change_stream_options(self._key.spec)
        place, token = at.place, bson.decode(at.place.raw, _RAW)
        self._drop_until = None
        if at.native is not None:
            stage["resumeAfter" if at.native == "resume_after" else "startAfter"] = token
        elif at.exact:
            # startAfter also continues past an invalidate, which resumeAfter rejects.
            stage["startAfter" if place.from_invalidate else "resumeAfter"] = token
        else:
            time_ = place.cluster_time + 1 if place.from_invalidate else place.cluster_time
            stage["startAtOperationTime"] = Timestamp(time_ >> 32, time_ & 0xFFFF_FFFF)
            if not place.is_high_water_mark and not place.from_invalidate:
                self._drop_until = place
        return [{"$changeStream": stage}, *effective_stages(self._key)]

    async def _fail(self, error: PyMongoError, during: Literal["aggregate", "getMore"]) -> None:
        """Close the cursor and raise, or return if the reader can open in another way at once."""
        await self.close()
        if self._watched is not None and self._watched.overran:
            raise Failed(error, at_once=True) from error
        verdict = judge(error, during)
        if self._key.policy:
            verdict = without_words(verdict)
        if verdict.action in (Action.RESUME, Action.RETRY):
            raise Failed(error, at_once=verdict.action is Action.RESUME) from error
        if self._at.native is None and self._at.exact and _may_be_the_token(verdict, error, during):
            # The pipeline now hides this token, or this mongod cannot read it, but its cluster time still finds the
            # position. An error after that is not caused by the start, and concerns all who share the feed.
            self._at = JoinPoint(self._at.place, exact=False)
            if during == "aggregate":
                return
            raise Failed(error, at_once=True) from error
        if verdict.error.reason is ErrorReason.HISTORY_LOST:
            await self._add_oldest_time(verdict.error)
        raise verdict.error from error

    async def _add_oldest_time(self, error: FeedmuxError) -> None:
        try:
            seconds = await self._source.oplog.oldest_time() >> 32
        except FeedmuxError:
            return  # not permitted, or MongoDB is unavailable: the error is correct without it
        error.metadata["oldest_time"] = datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
