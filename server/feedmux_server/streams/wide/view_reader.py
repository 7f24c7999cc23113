"""Reads a narrow feed, from a wide stream if there is one, else from MongoDB; its pump sees no difference.

The reader opens its own cursor, so that MongoDB checks the feed and its start, and becomes a view when a wide stream of
its group covers its position. The reader returns to its own cursor, at its position, at a boundary event
(`core.delivery.namespaces`), when its subscribers fall behind, when the memory of events that they have not taken is
needed, or when the wide stream ends. Up the data path: `streams.wide.stream`, `source.reader`; down: `streams.pump`.
"""

from collections.abc import Callable
from typing import Protocol

from feedmux_server.core.delivery.wide_plan import group_of
from feedmux_server.core.errors import FeedmuxError
from feedmux_server.core.events.chunk import cut_batch
from feedmux_server.core.feeds.simple_filter import SimpleFilter
from feedmux_server.core.feeds.stream_key import StreamKey
from feedmux_server.core.limits.rings import Rings
from feedmux_server.core.positions.resume_token import ResumeToken
from feedmux_server.source.read_limits import ReadLimits
from feedmux_server.source.read_pace import IDLE_S
from feedmux_server.source.reader import Batch, ChangeStreamReader, Failed
from feedmux_server.streams.wakeup import Wakeup
from feedmux_server.streams.wide.inbox import Inbox
from feedmux_server.streams.wide.stream import WideStream


class WidePort(Protocol):
    """Knows which wide stream serves a feed."""

    def enter(self, key: StreamKey) -> None: ...

    def leave(self, key: StreamKey) -> None: ...

    def of(self, name: StreamKey) -> WideStream | None:
        """The wide stream of a group (`core.delivery.wide_plan.group_of`)."""


class ViewReader:
    """Reads like a `ChangeStreamReader`, for one pump."""

    def __init__(
        self,
        key: StreamKey,
        simple_filter: SimpleFilter,
        narrow: ChangeStreamReader,
        limits: ReadLimits,
        inbox_bytes_max: int,
        wide_streams: WidePort,
        rings: Rings | None = None,
        is_watched: Callable[[], bool] = lambda: True,
    ) -> None:
        """`simple_filter` is `core.delivery.wide_plan.view_of` the key. `is_watched` says whether a subscriber waits
        for progress reports. `inbox_bytes_max`: the view's events that may wait for its pump; above it the view reads
        MongoDB with its own cursor.
        """
        self.scope = key.spec.scope
        self.simple_filter = simple_filter
        self._key = key
        self._group = group_of(key)  # a hash over all options: not for each batch
        self._narrow = narrow
        self._limits = limits
        self._wide_streams = wide_streams
        self.view_of: WideStream | None = None
        self.is_open = False
        self._entered = False
        self._inbox = Inbox(inbox_bytes_max, rings or Rings(), self._overflowed)
        self._boundary_at: ResumeToken | None = None
        self._is_watched = is_watched
        self._was_idle = False
        """The last read that waited brought nothing."""
        self._signal = Wakeup()
        self._interrupted = False

    @property
    def has_cursor(self) -> bool:
        return self._narrow.has_cursor

    async def open(self) -> None:
        """Raises as `ChangeStreamReader.open`."""
        if not self._entered:
            self._entered = True
            self._wide_streams.enter(self._key)
        await self._narrow.open()
        self.is_open = True

    async def read(self) -> Batch:
        """Raises as `ChangeStreamReader.read`."""
        try:
            return await self._read()
        except (Failed, FeedmuxError):
            self.is_open = False
            raise

    async def _read(self) -> Batch:
        if self.view_of is None and not self._inbox:
            return await self._read_narrow()
        if (
            not self._inbox
            and not self._interrupted
            and (self.view_of is None or self.view_of.unavailable_for_long is None)
        ):
            idle = self._was_idle and not self._is_watched()
            self._was_idle = not await self._signal.wait(IDLE_S if idle else self._limits.max_await_ms / 1000)
        self._interrupted = False
        batch = self._take_inbox()
        if self.view_of is not None:
            self._follow_plan(self.view_of)
        return batch

    async def close(self) -> None:
        self.is_open = False
        self._detach()
        self._inbox.clear()
        self._boundary_at = None
        if self._entered:
            self._entered = False
            self._wide_streams.leave(self._key)
        await self._narrow.close()

    def interrupt(self) -> None:
        self._interrupted = True
        self._signal.set()
        self._narrow.interrupt()

    def offer(self, data: bytes, read_time_s: float) -> None:
        """Take events; the wide stream calls this."""
        self._inbox.put(data, read_time_s)
        self._signal.set()

    def boundary(self, place: ResumeToken) -> None:
        """Return to the own cursor at `place`; the wide stream calls this after it has detached this view."""
        self.view_of = None
        self._boundary_at = place
        self._signal.set()

    def unavailable(self) -> None:
        """Note that MongoDB has been unavailable for long; the wide stream calls this."""
        self._signal.set()

    def lost(self) -> None:
        """Note that the wide stream has ended; it calls this after it has detached this view."""
        self.view_of = None
        self._signal.set()

    async def _read_narrow(self) -> Batch:
        narrow = self._narrow
        if not narrow.is_open:
            await narrow.open()
        batch = await narrow.read()
        # Only MongoDB can check a native start, until the first event has arrived.
        if not batch.exhausted and not narrow.is_behind and narrow.is_open and narrow.at.native is None:
            wide = self._wide_streams.of(self._group)
            if wide is not None and self._attach(wide):
                await narrow.close()
        return batch

    def _take_inbox(self) -> Batch:
        narrow, wide = self._narrow, self.view_of
        if wide is not None and not self._inbox and (failure := wide.unavailable_for_long) is not None:
            self._detach()
            raise failure
        place = narrow.at.place
        passed = wide.progress() if wide is not None else self._boundary_at
        if passed is not None and not passed.is_after(place):
            passed = None
        self._boundary_at = None
        read_time_s, data = self._inbox.read_time_s, self._inbox.take()
        bytes_max = self._limits.chunk_bytes_max
        chunks = cut_batch(data, place, passed, read_time_s, bytes_max=bytes_max) if data else []
        newest = chunks[-1].end if chunks else passed
        if newest is not None:
            narrow.resume_from(newest)
        if wide is None:
            return Batch(chunks, passed, False)
        return Batch(chunks, passed, False, wide.pace_s, wide.complete_time)

    def _follow_plan(self, wide: WideStream) -> None:
        wanted = self._wide_streams.of(self._group)
        if wanted is wide or self._inbox:
            return
        if wanted is None:
            self._detach()
        elif self._attach(wanted) or self.view_of is None:
            wide.detach(self)

    def _attach(self, wide: WideStream) -> bool:
        """Become a view of `wide`. On failure, keep the former stream, or detach from all if the inbox is too small."""
        before, self.view_of = self.view_of, wide
        if wide.attach(self, self._narrow.at.place):
            return True
        if self.view_of is not None:
            self.view_of = before
        return False

    def _overflowed(self) -> None:
        """Handle an evicted inbox: all events that it held are read again with the reader's own cursor."""
        self._detach()
        self._boundary_at = None
        self._signal.set()

    def _detach(self) -> None:
        wide, self.view_of = self.view_of, None
        if wide is not None:
            wide.detach(self)
