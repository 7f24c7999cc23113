"""Reads the existing documents of a feed's scope, and between them the changes to those read so far, as one stream.

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
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.events.chunk import Chunk
from feedmux_server.core.events.copy_chunks import ChangesChunk, cut_documents
from feedmux_server.core.feeds.snapshot_stages import check_feed
from feedmux_server.core.feeds.stream_key import StreamKey, has_stages
from feedmux_server.core.positions.join_point import JoinPoint
from feedmux_server.source.deployment import LISTED_AT_ONCE, Source
from feedmux_server.source.documents import DocumentsReader, NotAtThisTime, answered
from feedmux_server.source.namespaces import WAIT_MS, Gone, Namespace, Namespaces
from feedmux_server.source.read_limits import ReadLimits
from feedmux_server.source.reader import Batch, ChangeStreamReader
from feedmux_server.telemetry import metrics

ESTIMATE_EVERY_S: Final = 30.0
_QUIET_S: Final = 0.05
"""The pause before the next look for changes, while they do not suffice for documents and none came."""


class SnapshotReader:
    """A copy of one collection, or of several one after the other, from a position within it."""

    def __init__(
        self, source: Source, key: StreamKey, origin: JoinPoint, limits: ReadLimits, reads_for: Callable[[], str],
        estimated: Callable[[int], Any] = int, charge: Callable[[int], Any] = int,
    ) -> None:  # fmt: skip
        """`reads_for` is that of `ChangeStreamReader`. `estimated` gets the number of documents in the scope. `charge`
        gets the number of commands, about, beside the getMore of each read."""
        self._source = source
        self._key = key
        self._limits = limits
        self._reads_for = reads_for
        self._estimated = estimated
        self._estimate_s = -ESTIMATE_EVERY_S
        self._steps = SnapshotSteps(origin.place)
        self._is_of_mongodb = origin.exact or origin.of_mongodb
        """MongoDB sent the tokens of its positions. It is asked for their times, and so does not check the tokens."""
        self._steps.up_to = self._steps.stored.passed or self._steps.stored.up_to
        self._documents = DocumentsReader(source, key, limits)
        self._changes: ChangeStreamReader | None = None
        self._charge = charge
        self._namespaces = Namespaces(
            source, key, limits, reads_for, charge=lambda items: charge(1 + items // LISTED_AT_ONCE)
        )
        self._names = None if key.spec.scope.collection else self._namespaces
        """In a copy of several collections."""
        self._is_new = True
        """MongoDB was not asked for its time yet."""
        self._refusal: FeedmuxError | None = None
        """Why the collection cannot be copied. It is raised in place of documents: the changes before it may say that
        another collection was dropped."""
        self._seen_to = 0
        """Up to this cluster time it is known which collections were dropped or renamed; events after it are read when
        that is known too."""
        self._collection_done = False
        """The present collection has no more documents."""
        self.is_open = False
        self._documents_next = False
        """Documents as of the step's time are to be read, or are being read."""
        self._at_end = False
        """MongoDB had no more documents."""
        self._step_began_s = 0.0

    @property
    def has_cursor(self) -> bool:
        return self._documents.is_open or (self._changes is not None and self._changes.has_cursor)

    async def open(self) -> None:
        """Open the change stream. Raises `Failed`, or FeedmuxError when a retry cannot help."""
        check_feed(self._key)
        try:
            if self._is_new:
                # Changes until now may have been sent before an interruption, and a client hands out a change once. So
                # no document that comes again may be older than they are.
                self._steps.not_before = await self._documents.operation_time()
                if self._names is None:
                    await self._check_collection()
                self._is_new = False
            await self._estimate()
            await self._open_changes()
        except BaseException as error:
            await self.close()
            if isinstance(error, FeedmuxError) and self._refusal is not None:
                raise self._refusal from error  # a view, for example, has no changes either
            raise
        self.is_open = True

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
        self.is_open = self._documents_next = self._at_end = self._collection_done = False
        await self._close_changes()
        await self._documents.close()

    async def _open_changes(self) -> ChangeStreamReader:
        self._charge(1)
        if self._names is not None:
            await self._look_ahead(self._names)
        place = self._steps.place
        is_newest = self._steps.not_before == place.cluster_time and not place.from_invalidate
        changes = ChangeStreamReader(
            self._source,
            self._key,
            JoinPoint(place.outside_copy(), from_before=is_newest, of_mongodb=self._is_of_mongodb),
            replace(self._limits, max_await_ms=WAIT_MS),
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
        read_to, complete_time = changes.at.place, batch.complete_time
        if self._names is not None:
            complete_time = min(complete_time, self._seen_to)
        end = mark = None
        if self._names is not None and read_to.cluster_time > self._seen_to:
            # What comes after may be of a collection that was renamed.
            read_to = end = steps.mark_at(self._seen_to, read_to.version)
        if end is not None or not batch.exhausted:
            known_time = self._source.clock.known_time
            mark = steps.mark_after(read_to, complete_time, known_time, has_more=changes.is_behind)
        end = mark or end
        if end is not None:
            # What comes after this is read again, with the changes to the next documents.
            await self._close_changes()
        elif not batch.chunks:
            await asyncio.sleep(_QUIET_S)
        parts = (ChangesChunk.of(chunk, steps.stored, end) for chunk in batch.chunks)
        chunks: list[Chunk] = [part for part in parts if part is not None]
        if mark is None:
            steps.gave_changes(end or changes.at.place)
        else:
            steps.begin_documents(mark)
            self._documents_next, self._step_began_s = True, monotonic_s()
            self._namespaces.forget()
        is_over = batch.exhausted and end is None
        if is_over:
            steps.invalidated()
            if chunks:
                chunks[-1].end = steps.place
        return Batch(chunks, steps.place, is_over)

    async def _read_documents(self) -> Batch:
        steps, documents = self._steps, self._documents
        is_first = not documents.is_open
        if is_first and self._refusal is not None:
            raise self._refusal
        try:
            if is_first:
                if self._names is not None and not await self._find_collection(self._names):
                    return Batch([], steps.place, False)
                await self._estimate()
                self._charge(1)
                await documents.open(steps.copied, steps.time, self._reads_for())
            raw = await documents.next_batch(self._reads_for())
        except NotAtThisTime as error:
            self._source.observer.count(metrics.SNAPSHOT_RETRIES, 1, self._source.name)
            await documents.close()
            self._documents_next = False
            if self._names is None:
                await self._check_collection()
            steps.not_before = await documents.operation_time()
            if not steps.may_retry_at_once():
                raise error.failure from error
            return Batch([], None, False)
        if is_first:
            self._charge(1)
            if not await documents.reads_a_collection():
                await documents.close()
                self._documents_next = False
                steps.not_before = await documents.operation_time()  # the changes until now say what has become of it
                return Batch([], None, False)
        passed = documents.up_to if raw.exhausted else b""
        if passed and not documents.found and not await self._is_same():
            return Batch([], None, False)
        is_last = raw.exhausted and not passed
        self._at_end, self._collection_done = is_last and self._names is None, is_last
        if not is_last and self._is_step_over:
            await documents.close()
            self._documents_next = False
        await documents.read_ahead()
        chunks: list[Chunk] = []
        for part in raw.parts:
            if chunks:
                await asyncio.sleep(0)
            cut = cut_documents(part, steps.place, steps.stored, wall_s(), bytes_max=self._limits.chunk_bytes_max)
            steps.gave_documents(cut[-1].end, cut[-1].last_id())
            chunks.extend(cut)
            self._source.observer.documents_read(self._source.name, sum(each.count for each in cut), len(part))
        if passed:
            steps.passed(passed, may_be_known=not self._key.judges_documents)
        return Batch(chunks, steps.place, False)

    @property
    def _is_step_over(self) -> bool:
        return monotonic_s() - self._step_began_s >= self._limits.snapshot_step_s

    async def _end(self) -> Batch:
        """Believe that there are no more documents only if the collection is still the same."""
        if not await self._is_same():
            return Batch([], None, False)
        self._at_end = self._documents_next = False
        return Batch([], self._steps.place.copy_complete(), False, copy_complete=True)

    async def _find_collection(self, names: Namespaces) -> bool:
        """Find the collection to read as of the step's time: the present one, or after it the next one. False if there
        is none, or if changes are to be read first."""
        here = self._steps.stored.namespace
        lists = names.lists
        found = await answered(names.next(here, after=self._collection_done))
        if names.lists != lists:
            # A list of many names may take longer than a step: then each step would list all for one collection.
            self._step_began_s = monotonic_s()
        if found == here:
            return True
        if not await self._is_same():
            return False
        self._collection_done = False
        if found is None:
            self._at_end = True
            return False
        self._steps.enter(*found)
        self._documents_next = not self._is_step_over
        return self._documents_next

    async def _look_ahead(self, names: Namespaces) -> None:
        """Find the renames of the next changes. A collection may have been renamed from a name that the copy has not
        come to, to one that it has passed. No change says so of its documents, and a pipeline may drop the rename. So
        the copy goes back to that name, before the rename comes."""
        steps = self._steps
        place = steps.place
        until = max(place.cluster_time - place.is_high_water_mark, steps.not_before)

        def passed(gone: Gone) -> Namespace | None:
            return gone.to if gone.to and gone.to <= steps.stored.namespace and names.covers(gone.to) else None

        back, self._seen_to = await names.gone_after(place, until, passed)
        if back is not None:
            steps.enter(*back)
            self._source.observer.count(metrics.SNAPSHOT_RESTARTS, 1, self._source.name, self._reads_for(), "RENAMED")

    async def _is_same(self) -> bool:
        """Whether the collection, and all those after it, are still those of the step's time: as of a time before a
        drop or a rename, MongoDB reads an empty collection, without an error. If not, or if the primary that was read
        may have lost such a drop since, changes are read next."""
        steps, names = self._steps, self._names
        now = await answered(self._namespaces.settled_time())
        if 0 < now <= steps.time:
            return True

        def ahead(gone: Gone) -> Namespace | None:
            is_ahead = names is None or (gone.name >= steps.stored.namespace and names.covers(gone.name))
            return gone.name if is_ahead else None

        if now:
            changed, complete = await self._namespaces.gone_after(steps.place, now, ahead)
            if changed is None:
                return True
            steps.not_before = complete
        self._at_end = self._documents_next = self._collection_done = False
        return False

    async def _estimate(self) -> None:
        """Ask for the number of documents, which MongoDB has at hand. A copy does without it. Not where a reader sees
        only some of the documents: their number may be a secret, and says nothing about his copy."""
        now_s, key, names, scope = monotonic_s(), self._key, self._names, self._key.spec.scope
        may_drop = (key.policy or has_stages(key.spec)) if names is None else names.may_drop
        if may_drop or now_s - self._estimate_s < ESTIMATE_EVERY_S:
            return
        self._estimate_s = now_s
        with suppress(FeedmuxError):
            if names is None:
                self._charge(1)
                self._estimated(await self._source.estimated_count(scope.database, scope.collection))
            else:
                self._estimated(await names.estimate())

    async def _check_collection(self) -> None:
        """Note whether the collection can be copied now."""
        self._refusal = None
        try:
            exists = await self._documents.check_collection()
        except FeedmuxError as error:
            if error.reason is not ErrorReason.SNAPSHOT_UNSUITABLE:
                raise
            self._refusal, exists = error, False
        if not exists:
            # It was dropped, renamed or not created yet: the changes until now say which.
            self._steps.not_before = await self._documents.operation_time()
