"""Reads a range within a copy of one collection again, as `core.delivery.copy_range` defines it.

A reader of a stream, like `SnapshotReader`, which decides how far a step goes; here that is known.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from feedmux_server.clock import wall_s
from feedmux_server.core.delivery.copy_range import has_documents
from feedmux_server.core.delivery.snapshot_steps import RETRIES_AT_ONCE
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.events.chunk import Chunk
from feedmux_server.core.events.copy_chunks import ChangesChunk, cut_documents
from feedmux_server.core.feeds.snapshot_stages import check_feed
from feedmux_server.core.feeds.stream_key import StreamKey
from feedmux_server.core.positions.join_point import JoinPoint
from feedmux_server.core.positions.resume_token import Copied, ResumeToken
from feedmux_server.source.deployment import LISTED_AT_ONCE, Source
from feedmux_server.source.documents import DocumentsReader, NotAtThisTime, answered
from feedmux_server.source.namespaces import WAIT_MS, Namespaces
from feedmux_server.source.read_limits import ReadLimits
from feedmux_server.source.reader import Batch, ChangeStreamReader
from feedmux_server.telemetry import metrics

_QUIET_S: Final = 0.05
"""The pause before the next look for changes while there are none, and after the end."""


class CopyRangeReader:
    """The events after `origin`, up to its `copied.until`."""

    def __init__(
        self, source: Source, key: StreamKey, origin: JoinPoint, limits: ReadLimits, reads_for: Callable[[], str],
        charge: Callable[[int], Any] = int,
    ) -> None:  # fmt: skip
        """`reads_for` is that of `ChangeStreamReader`, `charge` that of `SnapshotReader`."""
        place = origin.place
        assert place.copied is not None
        assert place.copied.until is not None
        self._source = source
        self._key = key
        self._place, self._until = place, place.copied.until
        self._is_of_mongodb = origin.exact or origin.of_mongodb
        """As in `SnapshotReader`."""
        self._changes_end = self._until.outside_copy() if self._until.is_high_water_mark else self._until
        self._limits = replace(limits, max_await_ms=WAIT_MS)
        self._reads_for = reads_for
        self._changes: ChangeStreamReader | None = None
        self._documents = DocumentsReader(source, key, limits)
        self._namespaces = Namespaces(
            source, key, limits, reads_for, charge=lambda items: charge(1 + items // LISTED_AT_ONCE)
        )
        self._refusal: FeedmuxError | None = None
        """Why the documents of the collection that has the name now cannot be read."""
        self._documents_left = has_documents(place, self._until)
        self._up_to = place.copied.up_to
        """The last `_id` up to which documents were read, as in `SnapshotSteps`."""
        self._time = self._until.cluster_time - 1
        """The documents are read as of this cluster time."""
        self._retries = 0
        """As in `SnapshotSteps`."""
        self.is_open = False

    @property
    def has_cursor(self) -> bool:
        return self._changes is not None or self._documents.is_open

    async def open(self) -> None:
        """Raises `Failed`, or FeedmuxError when a retry cannot help."""
        check_feed(self._key)
        await self._check_collection()
        if not self._place.reaches(self._changes_end):
            at = JoinPoint(self._place.outside_copy(), of_mongodb=self._is_of_mongodb)
            self._changes = ChangeStreamReader(
                self._source, self._key, at, self._limits, self._reads_for, copied=self._copied
            )
            try:
                await self._changes.open()
            except FeedmuxError as error:
                raise self._refusal or error from error
        self.is_open = True

    async def read(self) -> Batch:
        """Raises as `open` does."""
        try:
            if self._changes is not None:
                return await self._read_changes(self._changes)
            if self._documents_left:
                return await self._read_documents()
        except BaseException:
            await self.close()
            raise
        await asyncio.sleep(_QUIET_S)
        return Batch([], self._until, False)

    def interrupt(self) -> None:
        """Reads never wait for long."""

    async def close(self) -> None:
        self.is_open = False
        changes, self._changes = self._changes, None
        if changes is not None:
            await changes.close()
        await self._documents.close()

    @property
    def _copied(self) -> Copied:
        assert self._place.copied is not None
        return self._place.copied

    async def _read_changes(self, changes: ChangeStreamReader) -> Batch:
        batch = await changes.read()
        parts = (ChangesChunk.of(chunk, self._copied, self._until) for chunk in batch.chunks)
        chunks: list[Chunk] = [part for part in parts if part is not None]
        read_to, end = changes.at.place, self._changes_end
        if read_to.reaches(end) or (end.is_high_water_mark and batch.complete_time >= end.cluster_time - 1):
            read_to, self._changes = end, None
            await changes.close()
        elif not batch.chunks:
            await asyncio.sleep(_QUIET_S)
        self._place = read_to.while_copying(self._copied)
        is_last = self._changes is None and not self._documents_left
        if is_last and chunks:
            chunks[-1].end = self._until  # after an invalidate that is not shown, it covers no document
        return Batch(chunks, self._until if is_last else self._place, batch.exhausted and not self._documents_left)

    async def _check_collection(self) -> None:
        self._refusal = None
        try:
            await self._documents.check_collection()
        except FeedmuxError as error:
            if error.reason is not ErrorReason.SNAPSHOT_UNSUITABLE:
                raise
            self._refusal = error

    async def _is_gone(self, refusal: FeedmuxError) -> bool:
        """Whether the collection of the range was dropped or renamed, so that the range has no documents; False if that
        is to be asked again. Raises the refusal if it was not."""
        mark = ResumeToken.high_water_mark(self._until.cluster_time)
        now = await answered(self._namespaces.settled_time())
        try:
            gone, _ = await self._namespaces.gone_after(mark, now, lambda gone: gone.name)
        except FeedmuxError as error:
            raise refusal from error  # a view, for example, has no changes either
        if now and gone is None:
            raise refusal
        return now > 0

    async def _read_documents(self) -> Batch:
        documents, until = self._documents, self._until
        end = until.copied.up_to if until.copied is not None else b""
        is_first = not documents.is_open
        try:
            if is_first:
                self._namespaces.forget()
                if self._refusal is not None:
                    self._documents_left = not await self._is_gone(self._refusal)
                    return Batch([], None if self._documents_left else until, False)
                await documents.open(replace(self._copied, up_to=self._up_to), self._time, self._reads_for(), end)
            raw = await documents.next_batch(self._reads_for())
        except NotAtThisTime as error:
            # The rest is read as of now. The changes since then come again after the range, with smaller times.
            self._source.observer.count(metrics.SNAPSHOT_RETRIES, 1, self._source.name)
            await documents.close()
            await self._check_collection()
            self._time = await documents.operation_time()
            self._retries += 1
            if self._retries > RETRIES_AT_ONCE:
                raise error.failure from error
            await asyncio.sleep(_QUIET_S)
            return Batch([], None, False)
        self._retries = 0
        if is_first and not await documents.reads_a_collection():
            await documents.close()
            await self._check_collection()
            return Batch([], None, False)
        if raw.exhausted and not documents.found and not await answered(self._namespaces.settled_time()):
            return Batch([], None, False)  # it may have been dropped by a primary that has lost the drop since
        await documents.read_ahead()
        chunks: list[Chunk] = []
        for part in raw.parts:
            if chunks:
                await asyncio.sleep(0)
            cut = cut_documents(part, self._place, self._copied, wall_s(), bytes_max=self._limits.chunk_bytes_max)
            self._place, self._up_to = cut[-1].end, cut[-1].last_id()
            chunks.extend(cut)
            self._source.observer.documents_read(self._source.name, sum(each.count for each in cut), len(part))
        if raw.exhausted:
            self._documents_left, self._up_to = documents.up_to != end, documents.up_to
        return Batch(chunks, self._place if self._documents_left else until, False)
