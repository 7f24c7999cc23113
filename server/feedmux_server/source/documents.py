"""Reads a collection's documents as of one cluster time, and says when they can only be read as of a later one.

MongoDB keeps old versions of documents for some minutes. A read that takes longer, or that begins too late, is no
failure of the copy: `streams.snapshot_reader` reads the changes since then, and the rest as of a later time.
"""

from collections.abc import Awaitable
from contextlib import suppress
from typing import Final, Literal, TypeVar

from pymongo.errors import NetworkTimeout, OperationFailure, PyMongoError

from feedmux_server.core.delivery.resume_policy import Action
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.feeds.snapshot_stages import documents, probe, unsuitable
from feedmux_server.core.feeds.stream_key import StreamKey
from feedmux_server.core.positions.resume_token import Copied
from feedmux_server.source.cursor import RawBatch, RawChangeStreamCursor
from feedmux_server.source.deployment import Source
from feedmux_server.source.errors import judge, rejects_login
from feedmux_server.source.reader import Failed

_NOT_AS_OF_THIS_TIME: Final = frozenset({72, 239, 246})
"""InvalidOptions, from a secondary that has not reached the time; SnapshotTooOld; SnapshotUnavailable, after DDL."""

T = TypeVar("T")


class NotAtThisTime(Exception):
    """MongoDB cannot read documents as of this cluster time, and may be able to as of a later one."""

    def __init__(self, cause: OperationFailure) -> None:
        super().__init__(cause.code)
        self.failure = Failed(cause, at_once=False)
        """To raise in its place where it comes again and again."""
        self.failure.__cause__ = cause


class DocumentsReader:
    """One read of the documents after those copied, as of one cluster time. End it with `close`."""

    def __init__(self, source: Source, key: StreamKey, batch_documents: int) -> None:
        self._source = source
        self._key = key
        self._batch_documents = batch_documents
        self._cursor: RawChangeStreamCursor | None = None

    @property
    def is_open(self) -> bool:
        return self._cursor is not None

    async def check_collection(self) -> bytes:
        """As `check_collection`, but raises Failed where MongoDB does not answer."""
        return await _answered(check_collection(self._source, self._key))

    async def operation_time(self) -> int:
        """MongoDB's present operation time. Raises Failed."""
        return await _answered(self._source.clock.operation_time())

    async def open(self, copied: Copied, cluster_time: int) -> None:
        """Raises NotAtThisTime, Failed, or FeedmuxError if another try cannot help."""
        stages = documents(self._key, copied, cluster_time)
        try:
            self._cursor = await self._source.open_documents(
                self._key.spec, stages, self._batch_documents, cluster_time
            )
        except PyMongoError as error:
            raise self._judged(error, "aggregate") from error

    async def next_batch(self, tenant: str) -> RawBatch:
        """The next documents, in a turn of `tenant` for reads of history. Raises as `open` does."""
        assert self._cursor is not None
        turn = await self._source.history_reads.begin(tenant)
        try:
            batch = await self._cursor.next_batch()
        except PyMongoError as error:
            raise self._judged(error, "getMore") from error
        finally:
            turn.end()
        if batch.exhausted:
            await self.close()
        return batch

    async def close(self) -> None:
        """Kill the cursor. Does not raise if MongoDB is unavailable."""
        cursor, self._cursor = self._cursor, None
        if cursor is not None:
            with suppress(PyMongoError):
                await cursor.close()

    def _judged(self, error: PyMongoError, during: Literal["aggregate", "getMore"]) -> Exception:
        if isinstance(error, OperationFailure) and error.code in _NOT_AS_OF_THIS_TIME:
            return NotAtThisTime(error)
        if rejects_login(error):
            self._source.login_rejected()
        verdict = judge(error, during)
        if verdict.action in (Action.RESUME, Action.RETRY):
            return Failed(error, at_once=verdict.action is Action.RESUME)
        return verdict.error


async def _answered(command: Awaitable[T]) -> T:
    try:
        return await command
    except FeedmuxError as error:
        if error.status != "UNAVAILABLE":
            raise
        cause = error.__cause__
        raise Failed(cause if isinstance(cause, PyMongoError) else NetworkTimeout(), at_once=False) from error


async def check_collection(source: Source, key: StreamKey) -> bytes:
    """The UUID of the collection that a feed watches; empty if it does not exist. Raises SNAPSHOT_UNSUITABLE if its
    documents cannot be copied, and FeedmuxError if MongoDB does not say."""
    scope, name = key.spec.scope, key.spec.scope.namespace
    if source.clock.is_mongos:
        # Two shards may have documents of one `_id`.
        raise unsuitable(
            "sharded cluster",
            f"source {source.name!r} is a sharded cluster; only the documents of a replica set can be copied",
        )
    info = await source.collection(scope.database, scope.collection)
    if info is None:
        return b""
    if info.kind == "timeseries":
        raise unsuitable("time series", f"{name} is a time series collection, which has no change streams")
    if info.kind != "collection":
        raise unsuitable("view", f"{name} is a view, which has no change streams")
    if info.capped:
        raise unsuitable("capped", f"{name} is capped; MongoDB cannot read a capped collection as of a past time")
    if info.collation:
        raise unsuitable("collation", f"{name} has a collation, and documents are copied in the order of bytes")
    if info.clustered and await _scans(source, key):
        raise unsuitable(
            "clustered",
            f"{name} is clustered, and this version of MongoDB would read all of it for each step of a copy; upgrade"
            " MongoDB (6.0.27 uses its index)",
        )
    return info.uuid


async def _scans(source: Source, key: StreamKey) -> bool:
    scope = key.spec.scope
    try:
        return await source.scans(scope.database, scope.collection, probe())
    except FeedmuxError as error:
        if error.reason is not ErrorReason.SOURCE_UNAUTHORIZED:
            raise
        return True
