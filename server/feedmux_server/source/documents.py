"""Reads a collection's documents as of one cluster time, and says when they can only be read as of a later one.

MongoDB keeps old versions of documents for some minutes. A read that takes longer, or that begins too late, is no
failure of the copy: `streams.snapshot_reader` reads the changes since then, and the rest as of a later time.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from secrets import token_hex
from typing import Final, Literal, TypeVar

from pymongo.errors import NetworkTimeout, OperationFailure, PyMongoError

from feedmux_server.clock import monotonic_s
from feedmux_server.core.delivery.resume_policy import Action, without_words
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.feeds.feed import FeedSpec, Scope
from feedmux_server.core.feeds.snapshot_stages import (
    ID_CHANGED,
    ID_CHANGED_CODE,
    bound,
    documents,
    may_drop,
    probe,
    read_scope,
    unsuitable,
)
from feedmux_server.core.feeds.stream_key import StreamKey
from feedmux_server.core.positions.resume_token import Copied
from feedmux_server.source.answers import CollectionInfo
from feedmux_server.source.cursor import RawBatch, RawChangeStreamCursor
from feedmux_server.source.deployment import Source
from feedmux_server.source.errors import UNAUTHORIZED, judge, rejects_login
from feedmux_server.source.read_limits import ReadLimits
from feedmux_server.source.reader import Failed
from feedmux_server.source.timed_reads import TimedReads

_NOT_AS_OF_THIS_TIME: Final = frozenset({72, 239, 246})
"""InvalidOptions, from a secondary that has not reached the time; SnapshotTooOld; SnapshotUnavailable, after DDL."""
_SECRET_BYTES: Final = 16
_WORDS_MAX: Final = 1000
"""What is read of a message of MongoDB, which may quote a document."""
_READ_S: Final = 0.5
"""A bounded read that takes less is followed by a larger one, and by a smaller one if it takes four times as long."""
_FEWER: Final = 16
"""After a read that was stopped, the next ones pass fewer documents by this factor."""
_READ_GROWS: Final = 16
"""A bounded read passes so many batches of documents at most."""

T = TypeVar("T")


class NotAtThisTime(Exception):
    """MongoDB cannot read documents as of this cluster time, and may be able to as of a later one."""

    def __init__(self, cause: OperationFailure) -> None:
        super().__init__(cause.code)
        self.failure = Failed(cause, at_once=False)
        """To raise in its place where it comes again and again."""
        self.failure.__cause__ = cause


class DocumentsReader:
    """Reads of the documents after those copied, one at a time, each as of one cluster time. End it with `close`.

    A pipeline may drop every document. So where there is one, a read has a bound, and ends there.
    """

    def __init__(self, source: Source, key: StreamKey, limits: ReadLimits) -> None:
        self._source = source
        self._key = key
        self._reads = TimedReads(source, key, limits, self._open_cursor)
        self._most = self._count = limits.batch_events
        """How many documents the next read passes, if it has a bound."""
        self._from = Copied(), 0
        """After which document, and as of which time, the present read began."""
        self._began_s = 0.0
        self._cursor: RawChangeStreamCursor | None = None
        self._ahead: asyncio.Future[RawBatch] | None = None
        """The read of the next batch, begun before it is asked for."""
        self.up_to = b""
        """The `_id` at which the present read ends; empty: the last of the collection."""
        self._end = b""
        """No read passes this `_id`, if it is set."""
        self.found = False
        """The present read has returned documents."""

    @property
    def is_open(self) -> bool:
        return self._cursor is not None

    async def check_collection(self) -> bool:
        """As `check_collection`, but raises Failed where MongoDB does not answer."""
        return await answered(check_collection(self._source, self._key))

    async def reads_a_collection(self) -> bool:
        """Whether the documents are those of a collection. MongoDB reads a view that has just taken its place, also as
        of a time before that. Raises Failed."""
        scope = self._spec.scope
        info = await answered(self._source.collection(scope.database, scope.collection))
        return info is None or info.kind == "collection"

    async def operation_time(self) -> int:
        """MongoDB's present operation time. Raises Failed."""
        return await answered(self._source.clock.operation_time())

    async def open(self, copied: Copied, cluster_time: int, tenant: str, end: bytes = b"") -> None:
        """Raises NotAtThisTime, Failed, or FeedmuxError if another try cannot help. `tenant` as in `next_batch`; the
        documents after the `_id` in `end` are not read."""
        self._end = end
        self._from, self.up_to, self.found, self._began_s = (copied, cluster_time), end, False, monotonic_s()
        try:
            if may_drop(self._key):
                self.up_to = await self._bound(tenant) or end
        except PyMongoError as error:
            raise self._judged(error, "aggregate", stopped=False) from error
        try:
            self._cursor = await self._reads.open()
        except PyMongoError as error:
            raise self._judged(error, "aggregate", stopped=self._reads.overran) from error

    @property
    def _spec(self) -> FeedSpec:
        """The feed, of the collection that is read."""
        return replace(self._key.spec, scope=read_scope(self._key, self._from[0]))

    async def _bound(self, tenant: str) -> bytes:
        copied, cluster_time = self._from
        # Only a read of one document shows whether this one takes MongoDB too long.
        find = bound(self._key, copied, 1 if self._reads.is_careful else self._count, self._end)
        if find is None:
            return b""
        permit = await self._source.history_reads.begin(tenant)
        try:
            return await self._source.find_id(self._spec, find, cluster_time)
        finally:
            permit.end()

    async def _open_cursor(
        self,
        events: int,
        opening: Callable[[bytes], None] | None = None,
        *,
        has_policy: bool = True,
        has_pipeline: bool = True,
    ) -> RawChangeStreamCursor:
        copied, cluster_time = self._from
        secret = token_hex(_SECRET_BYTES)
        stages = documents(
            self._key, copied, cluster_time, self.up_to, secret, has_policy=has_policy, has_pipeline=has_pipeline
        )
        return await self._source.open_documents(self._spec, stages, events, cluster_time, opening)

    async def next_batch(self, tenant: str) -> RawBatch:
        """The next documents, with a permit of `tenant` for reads of history. Raises as `open` does."""
        assert self._cursor is not None
        ahead, self._ahead = self._ahead, None
        try:
            batch = await (self._read_with_permit(self._cursor, tenant) if ahead is None else ahead)
        except PyMongoError as error:
            raise self._judged(error, "getMore", stopped=self._reads.overran) from error
        self.found = self.found or bool(batch.data)
        if batch.exhausted:
            await self.close()
            self._set_count(monotonic_s() - self._began_s)
        return batch

    async def read_ahead(self) -> None:
        """Have MongoDB work on the next batch while the present one is cut and sent, if a permit is free."""
        if self._cursor is None or (permit := self._source.history_reads.try_begin()) is None:
            return
        self._ahead = asyncio.ensure_future(self._read(self._cursor))
        self._ahead.add_done_callback(lambda _: permit.end())
        await asyncio.sleep(0)  # sends the request, so that MongoDB does not wait until the present batch is cut

    async def _read_with_permit(self, cursor: RawChangeStreamCursor, tenant: str) -> RawBatch:
        permit = await self._source.history_reads.begin(tenant)
        try:
            return await self._read(cursor)
        finally:
            permit.end()

    async def _read(self, cursor: RawChangeStreamCursor) -> RawBatch:
        self._reads.count()
        batch = await self._reads.next_batch(cursor)
        if batch.data and not batch.exhausted:
            self._reads.saw(batch.size)
        return batch

    def _set_count(self, took_s: float) -> None:
        if self._reads.is_careful:
            return
        if took_s < _READ_S:
            self._count = min(self._count * 2, self._most * _READ_GROWS)
        elif took_s > 4 * _READ_S:
            self._count = max(self._count // 2, 1)

    async def close(self) -> None:
        """Kill the cursor. Does not raise if MongoDB is unavailable."""
        self._reads.closed()
        cursor, self._cursor = self._cursor, None
        ahead, self._ahead = self._ahead, None
        try:
            if ahead is not None:
                ahead.cancel()
                await asyncio.gather(ahead, return_exceptions=True)
        finally:  # also if a drain cancels the wait: nobody else knows the cursor
            if cursor is not None:
                with suppress(PyMongoError):
                    await cursor.close()

    def _judged(self, error: PyMongoError, during: Literal["aggregate", "getMore"], *, stopped: bool) -> Exception:
        """`stopped`: the read took MongoDB too long, and was stopped."""
        if stopped:
            self._count = max(self._count // _FEWER, 1)
            return Failed(error, at_once=True)
        if isinstance(error, OperationFailure):
            cursor = self._cursor if error.code == UNAUTHORIZED else None
            if cursor is not None and self._source.logins.is_former(cursor):
                return Failed(error, at_once=True)
            if error.code in _NOT_AS_OF_THIS_TIME:
                self._count = max(self._count // 4, 1)
                return NotAtThisTime(error)
            if (
                error.code == ID_CHANGED_CODE
                and ID_CHANGED in str((error.details or {}).get("errmsg", ""))[:_WORDS_MAX]
            ):
                return FeedmuxError(
                    ErrorReason.RESUME_TOKEN_MODIFIED,
                    "the pipeline removed or changed _id, which is the resume token; keep it",
                )
        if rejects_login(error):
            self._source.login_rejected(error)
        verdict = judge(error, during)
        if self._key.policy:
            verdict = without_words(verdict)
        if verdict.action in (Action.RESUME, Action.RETRY):
            return Failed(error, at_once=verdict.action is Action.RESUME)
        if verdict.error.reason is ErrorReason.EVENT_TOO_LARGE:  # which only a change stream could split
            return FeedmuxError(
                ErrorReason.EVENT_TOO_LARGE,
                "the event of a document is larger than the 16 MB that MongoDB can send; have the pipeline add less to"
                " it, or leave such documents out by a $match",
            )
        return verdict.error


async def answered(command: Awaitable[T]) -> T:
    """The answer to a command. Raises Failed where MongoDB does not answer."""
    try:
        return await command
    except FeedmuxError as error:
        if error.status != "UNAVAILABLE":
            raise
        cause = error.__cause__
        raise Failed(cause if isinstance(cause, PyMongoError) else NetworkTimeout(), at_once=False) from error


async def check_collection(source: Source, key: StreamKey) -> bool:
    """Whether the collection that a feed watches exists. Raises SNAPSHOT_UNSUITABLE if its documents cannot be copied,
    and FeedmuxError if MongoDB does not say."""
    check_source(source)
    scope = key.spec.scope
    info = await source.collection(scope.database, scope.collection)
    if info is not None:
        await check_info(source, scope, info)
    return info is not None


def check_source(source: Source) -> None:
    """Raises SNAPSHOT_UNSUITABLE for a sharded cluster, where two shards may have documents of one `_id`."""
    if source.clock.is_mongos:
        raise unsuitable(
            "sharded cluster",
            f"source {source.name!r} is a sharded cluster; only the documents of a replica set can be copied",
        )


async def check_info(source: Source, scope: Scope, info: CollectionInfo) -> None:
    """Raises SNAPSHOT_UNSUITABLE if the documents of this collection cannot be copied."""
    name = scope.namespace
    if info.kind == "timeseries":
        raise unsuitable("time series", f"{name} is a time series collection, which has no change streams")
    if info.kind != "collection":
        raise unsuitable("view", f"{name} is a view, which has no change streams")
    if info.capped:
        raise unsuitable("capped", f"{name} is capped; MongoDB cannot read a capped collection as of a past time")
    if info.collation:
        raise unsuitable("collation", f"{name} has a collation, and documents are copied in the order of bytes")
    if info.clustered and await _scans(source, scope):
        raise unsuitable(
            "clustered",
            f"{name} is clustered, and this version of MongoDB would read all of it for each step of a copy; upgrade"
            " MongoDB (6.0.27 uses its index)",
        )


async def _scans(source: Source, scope: Scope) -> bool:
    try:
        return await source.scans(scope.database, scope.collection, probe())
    except FeedmuxError as error:
        if error.reason is not ErrorReason.SOURCE_UNAUTHORIZED:
            raise
        return True
