"""One stream of a database or a deployment that serves the feeds inside that scope as views.

`WideStreams` owns it. It reads MongoDB by itself, as fast as events arrive, and never waits for a view: a view takes
the events put into its inbox, or detaches and reads MongoDB with its own cursor from its own position
(`streams.wide.view_reader`). Invariant: from the position at which a view was attached, every change in the view's
scope is put into its inbox, in order and once, until the view is detached.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from feedmux_server.clock import monotonic_s
from feedmux_server.core.delivery.namespaces import NamespaceIndex, Scopes, runs
from feedmux_server.core.delivery.replay_buffer import ReplayBuffer, RingLimits
from feedmux_server.core.events.chunk import Chunk
from feedmux_server.core.feeds.feed import Scope
from feedmux_server.core.feeds.simple_filter import SimpleFilter
from feedmux_server.core.feeds.stream_key import StreamKey
from feedmux_server.core.limits.memory import Memory
from feedmux_server.core.limits.quota import UNLIMITED
from feedmux_server.core.positions.resume_token import ResumeToken
from feedmux_server.source.reader import ChangeStreamReader, Failed
from feedmux_server.streams.in_turns import wait_in_turns
from feedmux_server.streams.upstream import TraceContext, Upstream
from feedmux_server.telemetry.observer import NOBODY, Observer

_INDEXED_AT_ONCE = 250
"""Events of which the namespaces are found in one turn of the event loop: 3 ms."""
_AHEAD_S = 10
"""A view may be this far ahead, in cluster time."""


@dataclass(frozen=True, slots=True)
class WideStreamLimits:
    """How a wide stream reads."""

    ring: RingLimits = field(default_factory=lambda: RingLimits(200_000, 32 * 1024 * 1024))
    """How far behind a feed may be and still become a view."""
    pace_s: float = 0.002
    """Pause between two small batches: events that arrive meanwhile share one getMore, which costs about a
    millisecond."""
    unavailable_s: float = 5.0
    """If MongoDB is unavailable for longer, the views try on their own, and their subscribers are notified."""


class View(Protocol):
    """What a wide stream feeds."""

    scope: Scope
    simple_filter: SimpleFilter

    def offer(self, data: bytes, read_time_s: float) -> None:
        """Take concatenated events of the scope that `simple_filter` admits."""

    def boundary(self, place: ResumeToken) -> None:
        """Note that a boundary event follows `place`: an event that concerns the scope, and whose meaning for the view
        only MongoDB knows. The view is already detached."""

    def unavailable(self) -> None:
        """Note that MongoDB has not answered for longer than `WideStreamLimits.unavailable_s`."""

    def lost(self) -> None:
        """Note that the wide stream has ended. The view is already detached."""


class WideStream:
    """Reads one scope and puts the events into the inboxes of its views."""

    def __init__(
        self,
        key: StreamKey,
        reader: ChangeStreamReader,
        start: ResumeToken,
        limits: WideStreamLimits,
        observer: Observer = NOBODY,
        memory: Memory | None = None,
    ) -> None:
        self.key = key
        self._memory = memory or Memory(UNLIMITED)
        self.ring = ReplayBuffer(start, limits.ring, self._memory.rings)
        self.unavailable_since_s: float | None = None
        self.ended = False
        self.batches_read = 0
        self.complete_time = 0
        """Every event at or before this cluster time has been offered."""
        self.events_read = 0
        self.events_taken = 0
        """Events read that went to at least one view on arrival."""
        self._limits = limits
        self._reader = reader
        self._observer = observer
        self._upstream = Upstream(reader, observer, TraceContext(key.spec.scope.source, {"feedmux.stream.wide": True}))
        self._ahead: dict[View, ResumeToken] = {}
        """Views whose position this stream has not reached yet: events before that position are not for them."""
        self._views: defaultdict[Scope, dict[View, None]] = defaultdict(dict)
        self._scopes = Scopes()
        """The keys of `_views`."""

    @property
    def scope(self) -> Scope:
        return self.key.spec.scope

    @property
    def pace_s(self) -> float:
        return self._limits.pace_s

    @property
    def view_count(self) -> int:
        return sum(len(views) for views in self._views.values())

    @property
    def has_cursor(self) -> bool:
        return self._reader.has_cursor

    @property
    def unavailable_for_long(self) -> Failed | None:
        """MongoDB's failure, once it has lasted so long that views should ask MongoDB themselves; else None."""
        if self.unavailable_since_s is None or monotonic_s() - self.unavailable_since_s < self._limits.unavailable_s:
            return None
        return self._upstream.failure

    def progress(self) -> ResumeToken:
        """The position before which everything has been offered. Never the token of another feed's event: a view could
        not be resumed there."""
        newest = self.ring.newest
        if newest.is_high_water_mark:
            return newest
        return ResumeToken.high_water_mark(newest.cluster_time, newest.version)

    def attach(self, view: View, at: ResumeToken) -> bool:
        """Feed a view from position `at` on. False if the ring no longer has that position, if a boundary event comes
        after it, or if the view has detached meanwhile."""
        ring = self.ring
        if self.ended or not self.has_cursor or at.version != ring.newest.version or ring.oldest.is_after(at):
            return False
        if not at.is_high_water_mark and not self._is_at_a_change(at):
            return False  # a drop is followed by its invalidate event, which only the feed's own stream has
        if at.is_after(ring.newest):
            if (at.cluster_time >> 32) - (ring.newest.cluster_time >> 32) > _AHEAD_S:
                return False
            self._ahead[view] = at
            self._add(view)
            return True
        seq, first = ring.locate(at)
        offers: list[tuple[bytes, float]] = []
        while seq < ring.next_seq:
            chunk, index = ring[seq], self._index(seq)
            if index.boundary_of(view.scope, first) is not None:
                return False
            data = _cut(chunk, index.admitted(index.events_of(view.scope), view.simple_filter, first))
            if data:
                offers.append((data, chunk.read_time_s))
            seq, first = seq + 1, 0
        self._add(view)
        for data, read_time_s in offers:
            view.offer(data, read_time_s)
            if view not in self._views.get(view.scope, ()):
                return False  # the events were more than the view's inbox holds
        return True

    def _add(self, view: View) -> None:
        self._views[view.scope][view] = None
        self._scopes.add(view.scope)

    def _is_at_a_change(self, at: ResumeToken) -> bool:
        """Whether the event of a token is in the ring and is not a boundary event."""
        ring = self.ring
        if not ring.covers(at):
            return False
        seq, after = ring.locate(at)
        if after == 0:
            seq -= 1
            if seq < ring.first_seq:
                return False
            after = ring[seq].count
        boundaries = {boundary.index for boundary in self._index(seq).boundaries}
        return after - 1 not in boundaries and ring[seq].token(after - 1).raw == at.raw

    def detach(self, view: View) -> None:
        """Stop feeding a view. May be called again."""
        self._ahead.pop(view, None)
        views = self._views.get(view.scope)
        if views is not None:
            views.pop(view, None)
            if not views:
                del self._views[view.scope]
                self._scopes.remove(view.scope)

    async def run(self) -> None:
        """Run until cancelled. Raises FeedmuxError when MongoDB refuses to continue."""
        upstream = self._upstream
        try:
            while True:
                try:
                    if not self._reader.is_open:
                        await upstream.open()
                    batch = await self._reader.read()
                    upstream.answered()
                except Failed as failure:
                    delay_s = upstream.retry_delay_s(failure)
                    if self.unavailable_since_s is None:
                        self.unavailable_since_s = monotonic_s()
                    if delay_s:
                        if self.unavailable_for_long is not None:
                            for view in self._attached():
                                view.unavailable()
                        await asyncio.sleep(delay_s)
                    continue
                self.unavailable_since_s = None
                await self._index_in_turns(batch.chunks)
                self._publish(batch.chunks, batch.post_batch, batch.complete_time)
                await wait_in_turns(lambda: self.ring.trims or self._memory.evicting)
                if batch.exhausted:
                    return
                if not self._reader.is_behind:
                    await asyncio.sleep(self._limits.pace_s)
        finally:
            self.ended = True
            for view in list(self._attached()):
                view.lost()
            self._views.clear()
            self._scopes = Scopes()
            self._ahead.clear()
            self.ring.close()
            await self._reader.close()

    async def _index_in_turns(self, chunks: list[Chunk]) -> None:
        """Find the namespaces of a batch before it is in the ring: it may have 9,000 events."""
        if self._views:
            for chunk in chunks:
                index = NamespaceIndex(chunk, read=0)
                await wait_in_turns(partial(index.read_on, _INDEXED_AT_ONCE))
                chunk.index = index

    def _publish(self, chunks: list[Chunk], post_batch: ResumeToken | None, complete_time: int = 0) -> None:
        ring = self.ring
        self.batches_read += 1
        first = ring.next_seq
        for chunk in chunks:
            ring.append(chunk)
            self.events_read += chunk.count
            self._dispatch(ring.next_seq - 1)
        ring.trim(first)
        if post_batch is not None:
            ring.advance(post_batch)
        self.complete_time = max(self.complete_time, complete_time)
        for view in [view for view, place in self._ahead.items() if not place.is_after(ring.newest)]:
            del self._ahead[view]
        if chunks:
            self._memory.grew(sum(chunk.size_bytes for chunk in chunks))
            self._observer.batch_in_ring(self.scope.source, chunks[0].read_time_s)

    def _dispatch(self, seq: int) -> None:
        if not self._views:
            return
        chunk, index = self.ring[seq], self._index(seq)
        for boundary in index.boundaries:
            for scope in self._scopes.concerned(boundary):
                place = ResumeToken.high_water_mark(chunk.token(boundary.index).cluster_time, chunk.end.version)
                self._offer(scope, chunk, index, [each for each in index.events_of(scope) if each < boundary.index])
                self._scopes.remove(scope)
                for view in list(self._views.pop(scope, ())):
                    self._ahead.pop(view, None)
                    view.boundary(place)
        for namespace, events in index.collections.items():
            self._offer(Scope(self.scope.source, *map(_text, namespace)), chunk, index, events)
        for database, events in index.databases.items():
            self._offer(Scope(self.scope.source, _text(database)), chunk, index, events)

    def _offer(self, scope: Scope, chunk: Chunk, index: NamespaceIndex, events: list[int]) -> None:
        views = self._views.get(scope)
        if not views or not events:
            return
        taken: set[int] = set()
        cuts: dict[tuple[SimpleFilter, int], bytes] = {}
        for view in list(views):
            ahead = self._ahead.get(view)
            wanted = view.simple_filter, 0 if ahead is None else chunk.first_after(ahead)
            data = cuts.get(wanted)
            if data is None:
                admitted = index.admitted(events, *wanted)
                taken.update(admitted)
                data = cuts[wanted] = _cut(chunk, admitted)
            if data:
                view.offer(data, chunk.read_time_s)
        self.events_taken += len(taken)

    def _index(self, seq: int) -> NamespaceIndex:
        chunk = self.ring[seq]
        index = chunk.index
        if not isinstance(index, NamespaceIndex):
            index = chunk.index = NamespaceIndex(chunk)
            self.ring.grew(index.size_bytes)
        return index

    def _attached(self) -> Iterator[View]:
        return (view for views in self._views.values() for view in views)


def _text(name: bytes) -> str:
    """A name that is not UTF-8 gives a text that no feed's scope can have."""
    return name.decode(errors="surrogateescape")


def _cut(chunk: Chunk, events: list[int]) -> bytes:
    if chunk.bson is None:
        raise LookupError("the chunk's bytes are gone")
    return b"".join([chunk.bson.cut(first, stop) for first, stop in runs(events)])
