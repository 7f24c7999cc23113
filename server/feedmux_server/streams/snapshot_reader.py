"""Reads the existing documents of a collection, and between them the changes to those read so far, as one stream.

One reader serves one pump, like a `ChangeStreamReader`. `core.delivery.snapshot_steps` says when documents may be read,
and as of which time; `source.documents` reads them. Invariant: `_steps` moves only together with the batch that is
returned, so that whatever fails between two batches costs no event.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from feedmux_server.clock import monotonic_s, wall_s
from feedmux_server.core.delivery.snapshot_steps import SnapshotSteps
from feedmux_server.core.errors import FeedmuxError
from feedmux_server.core.events.chunk import Chunk
from feedmux_server.core.events.copy_chunks import ChangesChunk, cut_documents
from feedmux_server.core.feeds.snapshot_stages import check_feed
from feedmux_server.core.feeds.stream_key import StreamKey, has_stages
from feedmux_server.core.positions.join_point import JoinPoint
from feedmux_server.core.positions.resume_token import ResumeToken
from feedmux_server.source.deployment import Source
from feedmux_server.source.documents import DocumentsReader, NotAtThisTime
from feedmux_server.source.read_limits import ReadLimits
from feedmux_server.source.reader import Batch, ChangeStreamReader

CHANGES_WAIT_MS: Final = 5
"""How long MongoDB waits for changes at the end of the oplog, before the next documents."""
ESTIMATE_EVERY_S: Final = 30.0
_QUIET_S: Final = 0.05
"""The pause before the next look for changes, while they do not suffice for documents and none came."""


class SnapshotReader:
    """A copy of one collection, from a position within it."""

    def __init__(
        self, source: Source, key: StreamKey, origin: ResumeToken, limits: ReadLimits, reads_for: Callable[[], str],
        estimated: Callable[[int], Any] = int,
    ) -> None:  # fmt: skip
        """`reads_for` is that of `ChangeStreamReader`. `estimated` gets the number of documents in the collection."""
        self._source = source
        self._key = key
        self._limits = limits
        self._reads_for = reads_for
        self._estimated = estimated
        self._estimate_s = -ESTIMATE_EVERY_S
        self._steps = SnapshotSteps(origin)
        self._steps.up_to = self._steps.stored.up_to
        self._documents = DocumentsReader(source, key, limits)
        self._changes: ChangeStreamReader | None = None
        self._uuid: bytes | None = None
        """The collection's, when it was last asked for; empty if there was none."""
        self._is_open = False
        self._documents_next = False
        """Documents as of the step's time are to be read, or are being read."""
        self._at_end = False
        """MongoDB had no more documents."""
        self._step_began_s = 0.0

    @property
    def is_open(self) -> bool:
        return self._is_open

    @property
    def has_cursor(self) -> bool:
        return self._documents.is_open or (self._changes is not None and self._changes.has_cursor)

    async def open(self) -> None:
        """Open the change stream. Raises `Failed`, or FeedmuxError when a retry cannot help."""
        check_feed(self._key)
        try:
            if self._uuid is None:
                # Changes until now may have been sent before an interruption, and a client hands out a change once. So
                # no document that comes again may be older than they are.
                self._steps.not_before = await self._documents.operation_time()
                await self._check_collection()
            await self._estimate()
            await self._open_changes()
        except BaseException:
            await self.close()
            raise
        self._is_open = True

    async def read(self) -> Batch:
        """The next batch of changes or of documents. Raises as `open` does."""
        try:
            if self._at_end:
                return await self._end()
            if self._documents_next:
                return await self._read_documents()
            if self._changes is None:
                await self._open_changes()
            return await self._read_changes()
        except BaseException:
            await self.close()
            raise

    def interrupt(self) -> None:
        """Reads never wait for long."""

    async def close(self) -> None:
        """Close the cursors. The next `open` continues after the batches that were returned."""
        self._is_open = self._documents_next = self._at_end = False
        await self._close_changes()
        await self._documents.close()

    async def _open_changes(self) -> ChangeStreamReader:
        changes = ChangeStreamReader(
            self._source,
            self._key,
            JoinPoint(self._steps.place.outside_copy()),
            replace(self._limits, max_await_ms=CHANGES_WAIT_MS),
            self._reads_for,
            copied=self._steps.copied,
        )
        self._changes = changes  # before the opening: if that is cancelled, `close` finds the cursor
        await changes.open()
        return changes

    async def _close_changes(self) -> None:
        changes, self._changes = self._changes, None
        if changes is not None:
            await changes.close()

    async def _read_changes(self) -> Batch:
        changes, steps = self._changes, self._steps
        assert changes is not None
        batch = await changes.read()
        mark = None
        if not batch.exhausted:
            known_time = self._source.clock.known_time
            mark = steps.mark_after(changes.at.place, batch.complete_time, known_time, has_more=changes.is_behind)
        if mark is not None:
            # What comes after the mark is read again, with the changes to the next documents.
            await self._close_changes()
        elif not batch.chunks:
            await asyncio.sleep(_QUIET_S)
        chunks: list[Chunk] = []
        for chunk in batch.chunks:
            stop = chunk.count if mark is None else chunk.first_after(mark)
            part = ChangesChunk.of(chunk, steps.stored, stop)
            if part is not None:
                chunks.append(part)
        if mark is None:
            steps.gave_changes(changes.at.place)
        else:
            steps.begin_documents(mark)
            self._documents_next, self._step_began_s = True, monotonic_s()
        return Batch(chunks, steps.place, batch.exhausted)

    async def _read_documents(self) -> Batch:
        steps, documents = self._steps, self._documents
        try:
            if not documents.is_open:
                await self._estimate()
                await documents.open(steps.copied, steps.time, self._reads_for())
            raw = await documents.next_batch(self._reads_for())
        except NotAtThisTime as error:
            self._source.observer.documents_not_at_this_time(self._source.name)
            await documents.close()
            self._documents_next = False
            await self._check_collection()
            if not steps.may_retry_at_once():
                raise error.failure from error
            return Batch([], None, False)
        passed = documents.up_to if raw.exhausted else b""
        if passed and not documents.found and not await self._is_same():
            return Batch([], None, False)
        self._at_end = raw.exhausted and not passed
        if not self._at_end and monotonic_s() - self._step_began_s >= self._limits.snapshot_step_s:
            await documents.close()
            self._documents_next = False
        documents.read_ahead()
        chunks: list[Chunk] = []
        if raw.data:
            cut = cut_documents(raw.data, steps.place, steps.stored, wall_s(), bytes_max=self._limits.chunk_bytes_max)
            steps.gave_documents(cut[-1].end, cut[-1].last_id())
            chunks.extend(cut)
            self._source.observer.documents_read(self._source.name, sum(each.count for each in cut), len(raw.data))
        if passed:
            steps.passed(passed, may_be_known=not self._key.judges_documents)
        return Batch(chunks, steps.place, False)

    async def _end(self) -> Batch:
        """Believe that there are no more documents only if the collection is still the same."""
        if not await self._is_same():
            return Batch([], None, False)
        self._at_end = self._documents_next = False
        return Batch([], self._steps.place.copy_complete(), False, copy_complete=True)

    async def _is_same(self) -> bool:
        """Whether the collection is still the one of before: as of a time before a drop or a rename, MongoDB reads an
        empty collection, without an error. If not, changes are read next."""
        uuid = self._uuid
        await self._check_collection()
        if self._uuid == uuid:
            return True
        self._at_end = self._documents_next = False
        return False

    async def _estimate(self) -> None:
        """Ask for the number of documents, which MongoDB has at hand. A copy does without it. Not where a reader sees
        only some of the documents: their number may be a secret, and says nothing about his copy."""
        now_s, key, scope = monotonic_s(), self._key, self._key.spec.scope
        if key.policy or has_stages(key.spec) or now_s - self._estimate_s < ESTIMATE_EVERY_S:
            return
        self._estimate_s = now_s
        with suppress(FeedmuxError):
            self._estimated(await self._source.estimated_count(scope.database, scope.collection))

    async def _check_collection(self) -> None:
        """Raises SNAPSHOT_UNSUITABLE if the collection cannot be copied now."""
        uuid = await self._documents.check_collection()
        if not uuid or self._uuid not in (None, uuid):
            # It was dropped, renamed or not created yet: the changes until now say which.
            self._steps.not_before = await self._documents.operation_time()
        self._uuid = uuid
