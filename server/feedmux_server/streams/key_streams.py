"""The streams of one key, and the pumps and tasks that run them."""

import asyncio
import contextvars
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

from feedmux_server.core.delivery.credit import CreditLimits
from feedmux_server.core.delivery.feed_streams import FeedStreams, StreamLimits
from feedmux_server.core.delivery.shared_stream import SharedStream
from feedmux_server.core.delivery.slots import Slots
from feedmux_server.core.delivery.wide_plan import WideLimits, view_of
from feedmux_server.core.errors import FeedmuxError
from feedmux_server.core.feeds.stream_key import StreamKey
from feedmux_server.core.limits.usage_meter import UsageMeter
from feedmux_server.core.positions.resume_token import ResumeToken
from feedmux_server.core.positions.timeline import Fork
from feedmux_server.source.deployment import Source
from feedmux_server.source.read_limits import ReadLimits
from feedmux_server.source.reader import ChangeStreamReader
from feedmux_server.streams.abandoned_streams import AbandonedStreams
from feedmux_server.streams.copy_range_reader import CopyRangeReader
from feedmux_server.streams.pump import Pump, PumpHost, PumpLimits
from feedmux_server.streams.scheduler import ROUND_BYTES
from feedmux_server.streams.snapshot_reader import SnapshotReader
from feedmux_server.streams.upstream import Reader
from feedmux_server.streams.wide.manager import WideStreams
from feedmux_server.streams.wide.stream import WideStream, WideStreamLimits
from feedmux_server.streams.wide.view_reader import ViewReader
from feedmux_server.supervision import Tasks


@dataclass(frozen=True, slots=True)
class ManagerLimits:
    """Bounds of the process."""

    streams: StreamLimits = field(default_factory=StreamLimits)
    pump: PumpLimits = field(default_factory=PumpLimits)
    read: ReadLimits = field(default_factory=ReadLimits)
    credit: CreditLimits = field(default_factory=CreditLimits)
    memory_bytes_max: int = 1024 * 1024 * 1024
    """Memory for everything but ranges. Above it, the oldest chunks of the largest rings are evicted, and subscribers
    at those chunks read MongoDB again."""
    catch_up_max: int = 32
    """Streams that read history in addition to the live stream of their key. Each costs MongoDB an oplog scan."""
    wide: WideLimits = field(default_factory=WideLimits)
    wide_stream: WideStreamLimits = field(default_factory=WideStreamLimits)
    view_inbox_bytes: int = 4 * 1024 * 1024
    """Bytes of events that may wait for the reader of one view; above it the view reads MongoDB with its own cursor."""
    unacked_events_max: int = 50_000
    """Delivery to a durable subscription pauses at this many unacknowledged events."""
    round_bytes: int = ROUND_BYTES
    """Bytes of deliveries in one round of the event loop; above it, sessions take turns by tenant."""
    history_at_risk_s: tuple[float, ...] = (3_600.0, 600.0)
    """A session is notified when the time until its position leaves the oplog falls below each of these."""


@dataclass(frozen=True, slots=True)
class StreamParts:
    """What the streams of all keys share."""

    limits: ManagerLimits
    host: PumpHost
    tasks: Tasks
    usage: UsageMeter
    slots: Slots
    abandoned: AbandonedStreams
    wide: WideStreams
    ids: "itertools.count[int]"
    """The next ids of streams and subscribers."""


class KeyStreams:
    """The streams of one key; `FeedStreams` decides when one is opened and closed (as its `StreamPort`)."""

    def __init__(self, parts: StreamParts, source: Source, key: StreamKey, on_empty: Callable[[], None]) -> None:
        """`on_empty` is called when the last pump may have ended."""
        self.source = source
        self.key = key
        self.streams = FeedStreams(
            parts.limits.streams, self, parts.slots, parts.ids, parts.usage, parts.host.memory.rings
        )
        self.pumps: dict[int, Pump] = {}
        self.tasks: dict[int, asyncio.Task[None]] = {}
        """The tasks of the pumps, by stream id."""
        self._views: dict[int, ViewReader] = {}
        """The readers of the pumps that may be views, by stream id."""
        self._parts = parts
        self._on_empty = on_empty

    def start(self, stream: SharedStream) -> None:
        parts = self._parts
        cause = parts.host.observer.here
        pump = Pump(stream, self.streams, self._reader_at, parts.limits.pump, parts.host, self.source.name, cause)
        self.pumps[stream.id] = pump
        # In its own context: the pump outlives the call that first asked for it, and is not part of that call's trace.
        task = parts.tasks.run_once(
            "pump", pump.run, of=f"{stream.id}-{self.key.spec.scope.namespace}", context=contextvars.Context()
        )
        self.tasks[stream.id] = task
        task.add_done_callback(lambda _: self._pump_done(stream), context=contextvars.Context())

    @property
    def known_time(self) -> int:
        return self.source.clock.known_time

    def lost(self, place: ResumeToken) -> FeedmuxError | None:
        return self.source.timeline.lost(place)

    def fork(self, fork: Fork) -> None:
        """Drop all that was read, because MongoDB may have lost it."""
        self.streams.fork(fork, fork.error(self.source.name))
        for task in self.tasks.values():
            if task is not asyncio.current_task():  # that one has met the fork, and ends by itself
                task.cancel()

    def abandoned(self, stream: SharedStream) -> None:
        task = self.tasks.get(stream.id)
        if task is not None:
            self._parts.abandoned.add(stream, self.key, self.streams.open, task)

    def wide_stream_of(self, stream: SharedStream) -> WideStream | None:
        """The wide stream whose view the stream is now, if it is one."""
        view = self._views.get(stream.id)
        return view.view_of if view is not None else None

    def _reader_at(self, stream: SharedStream) -> Reader:
        parts, limits = self._parts, self._parts.limits

        def reads_for() -> str:
            return next(iter(stream.account.tenants), "")

        if stream.copies:

            def estimated(documents: int) -> None:
                stream.documents_estimated = documents

            payers: list[str] = []

            def charge(commands: int) -> None:
                payers[:] = stream.account.tenants or payers  # whoever has left pays for what he has caused
                parts.host.accounts.read(payers, commands)

            place = stream.origin.place
            if place.copied is not None and place.copied.until is not None:
                return CopyRangeReader(self.source, self.key, stream.origin, limits.read, reads_for, charge)
            return SnapshotReader(self.source, self.key, stream.origin, limits.read, reads_for, estimated, charge)

        def is_watched() -> bool:
            return bool(stream.watching)

        reader = ChangeStreamReader(
            self.source,
            self.key,
            stream.origin,
            limits.read,
            reads_for=reads_for,
            is_watched=is_watched,
            is_awaited=lambda: stream.awaited_time > stream.complete_time,
        )
        simple_filter = view_of(self.key) if limits.wide.enabled else None
        if simple_filter is None:
            return reader
        view = self._views[stream.id] = ViewReader(
            self.key,
            simple_filter,
            reader,
            limits.read,
            limits.view_inbox_bytes,
            parts.wide,
            parts.host.memory.rings,
            is_watched,
        )
        return view

    def _pump_done(self, stream: SharedStream) -> None:
        del self.tasks[stream.id]
        del self.pumps[stream.id]
        self._views.pop(stream.id, None)
        self._parts.abandoned.discard(stream.id)
        self._parts.slots.closed(stream)
        self._on_empty()
