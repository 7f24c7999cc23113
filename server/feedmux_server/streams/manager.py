"""All streams of the process: one `FeedStreams` per StreamKey, their pumps, the trailing slots, the memory budget.

`rpc` asks the stream manager for a subscriber; `FeedStreams` asks it (as `StreamPort`) to start pumps. Every pump is a
named task of the manager's TaskGroup.
"""

import asyncio
import contextvars
import itertools
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

from feedmux_server.clock import monotonic_s
from feedmux_server.core.delivery.ack_tracker import AckTracker
from feedmux_server.core.delivery.credit import CreditLimits, CreditWindow
from feedmux_server.core.delivery.feed_streams import FeedStreams, StreamLimits
from feedmux_server.core.delivery.shared_stream import SharedStream
from feedmux_server.core.delivery.slots import Slots
from feedmux_server.core.delivery.subscriber import JoinPoint, Subscriber
from feedmux_server.core.delivery.wide_plan import WideLimits, view_of
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.events.chunk import Chunk
from feedmux_server.core.feeds.stream_key import StreamKey
from feedmux_server.core.limits.memory import UNACKED_SHARE, Memory
from feedmux_server.core.limits.oplog_forecast import OplogForecast
from feedmux_server.core.limits.quota import UNLIMITED, UNLIMITED_QUOTAS, Account, Accounts, exceeded
from feedmux_server.core.limits.usage_meter import UsageMeter
from feedmux_server.source.deployment import Source
from feedmux_server.source.reader import ChangeStreamReader, ReadLimits
from feedmux_server.streams.pump import Pump, PumpLimits, Reader
from feedmux_server.streams.scheduler import ROUND_BYTES, Scheduler
from feedmux_server.streams.wide.manager import WideStreams
from feedmux_server.streams.wide.stream import WideStreamLimits
from feedmux_server.streams.wide.view_reader import ViewReader
from feedmux_server.supervision import Tasks
from feedmux_server.telemetry.observer import NOBODY, Observer
from feedmux_server.workers.rendering import Renderer
from feedmux_server.workers.side_process import SideProcess, SideProcesses

_ADMIT_AGAIN_S = 0.02
_LARGE_BYTES = 2 * 1024 * 1024
"""Chunks are cut at half of this size; a chunk larger than this holds a single event."""
_CLOSE_WAIT_S = 3.0
"""How long an opening waits for cursors of its tenant that are being closed; a running getMore must end first."""


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
    trailing_max: int = 32
    """Streams that read history besides the leading stream of their key. Each costs MongoDB an oplog scan."""
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


class OpenSession(Protocol):
    """A session as seen by code that checks all sessions."""

    @property
    def source(self) -> str: ...

    @property
    def subscriber(self) -> Subscriber: ...

    def has_headroom(self, headroom_s: float) -> None:
        """Note how long it takes until the session's position has left the oplog."""


class KeyStreams:
    """The streams of one key, and the pumps and tasks that run them."""

    def __init__(self, manager: "StreamManager", source: Source, key: StreamKey, limits: ManagerLimits) -> None:
        self.source = source
        self.key = key
        self.streams = FeedStreams(limits.streams, self, manager.ledger, manager.memory.rings)
        self.pumps: dict[int, Pump] = {}
        self.tasks: dict[int, asyncio.Task[None]] = {}
        """The tasks of the pumps, by stream id."""
        self._manager = manager
        self._limits = limits

    def start(self, stream: SharedStream) -> None:
        manager = self._manager
        pump = Pump(
            stream, self.streams, self._reader_at, self._limits.pump, manager, self.source.name, manager.observer.here
        )
        self.pumps[stream.id] = pump
        # In its own context: the pump outlives the call that first asked for it, and is not part of that call's trace.
        task = manager.tasks.run_once(
            "pump", pump.run, of=f"{stream.id}-{self.key.spec.scope.namespace}", context=contextvars.Context()
        )
        self.tasks[stream.id] = task
        task.add_done_callback(lambda done: self._pump_done(stream, done))

    def may_trail(self, tenant: str) -> bool:
        return self._manager.slots.may_trail(tenant)

    @property
    def known_time(self) -> int:
        return self.source.known_time

    def waits(self, subscriber: Subscriber) -> None:
        self._manager.slots.waits(self.streams, subscriber)
        self._manager.slots.poke_stalled()

    def waits_no_longer(self, subscriber: Subscriber) -> None:
        self._manager.slots.waits_no_longer(subscriber)

    def streams_changed(self) -> None:
        self._manager.slots.changed(self.streams)

    def left(self, stream: SharedStream) -> None:
        self._manager.left(self, stream)

    def next_stream_id(self) -> int:
        return self._manager.next_id()

    def _reader_at(self, stream: SharedStream) -> Reader:
        limits = self._limits

        def is_watched() -> bool:
            return bool(stream.watching)

        reader = ChangeStreamReader(
            self.source,
            self.key,
            stream.origin,
            limits.read,
            reads_for=lambda: next(iter(stream.account.tenants), ""),
            is_watched=is_watched,
        )
        narrowing = view_of(self.key) if limits.wide.enabled else None
        if narrowing is None:
            return reader
        manager = self._manager
        return ViewReader(
            self.key,
            narrowing,
            reader,
            limits.read,
            limits.view_inbox_bytes,
            manager.wide,
            manager.memory.rings,
            is_watched,
        )

    def _pump_done(self, stream: SharedStream, task: asyncio.Task[None]) -> None:
        del self.tasks[stream.id]
        del self.pumps[stream.id]
        self._manager.pump_done(self, stream)


class StreamManager:
    """Finds streams for subscribers and keeps the process within its bounds."""

    def __init__(
        self,
        sources: dict[str, Source],
        limits: ManagerLimits,
        tasks: Tasks,
        accounts: Accounts | None = None,
        observer: Observer = NOBODY,
        side_processes: SideProcesses = SideProcess,
    ) -> None:
        """Without `accounts` no tenant has quotas."""
        self.observer = observer
        self.sessions: dict[OpenSession, None] = {}
        """The sessions that have begun."""
        self.forecasts = {name: OplogForecast() for name in sources}
        """By source; `jobs.oplog_monitor` keeps them up to date."""
        self.sources_away: set[str] = set()
        self.stored_places: dict[tuple[str, str], Sequence[int]] = {}
        """By source and tenant: the cluster times (seconds) of stored positions, the oldest first."""
        self.damaged: dict[str, int] = {}
        """The number of subscriptions of which Redis has only a part, by tenant."""
        self.accounts = accounts or Accounts(lambda _: UNLIMITED_QUOTAS, monotonic_s)
        self.accounts.backlog.bytes_max = limits.memory_bytes_max // UNACKED_SHARE
        self.memory = Memory(limits.memory_bytes_max)
        backlog = self.accounts.backlog
        self.memory.include("unacknowledged", lambda: backlog.bytes, backlog.bytes_max)
        self.memory.include("renderings", lambda: self.renderer.memory_bytes + self.large_renderer.memory_bytes)
        self.turns = Scheduler(limits.round_bytes)
        self.sources = sources
        self.limits = limits
        self.tasks = tasks
        self.ledger = UsageMeter()
        self.slots = Slots(limits.trailing_max, self.accounts)
        self._admission: asyncio.TimerHandle | None = None
        self._left: dict[int, tuple[str, KeyStreams]] = {}
        """Streams that a tenant was the last to leave, by id, until they close or have a subscriber again."""
        self._left_by: defaultdict[str, set[int]] = defaultdict(set)
        """The same by tenant."""
        self._keys: dict[StreamKey, KeyStreams] = {}
        self._ids = itertools.count(1)
        self.renderer = Renderer(self.filled, side_processes)
        self.large_renderer = Renderer(self.filled, side_processes)
        """Renders single large events, which take up to a minute each, so that other chunks do not wait for them."""
        self.wide = WideStreams(sources, tasks, limits.wide, limits.wide_stream, limits.read, self.memory)

    def source(self, name: str) -> Source:
        try:
            return self.sources[name]
        except KeyError:
            raise FeedmuxError(
                ErrorReason.SOURCE_NOT_FOUND, "no such source", {"source": name}, field="feed.source"
            ) from None

    def keyed(self) -> Iterator[KeyStreams]:
        return iter(self._keys.values())

    def is_read(self, key: StreamKey) -> bool:
        """Whether there is a stream that a subscriber of the key could join."""
        found = self._keys.get(key)
        return found is not None and any(stream.joinable for stream in found.streams.streams)

    def one_of(self, key: StreamKey) -> StreamKey:
        """The equal key that is already in use, if there is one: policies and pipelines are large."""
        found = self._keys.get(key)
        return found.key if found is not None else key

    def next_id(self) -> int:
        return next(self._ids)

    def streams_of(self, key: StreamKey) -> KeyStreams:
        found = self._keys.get(key)
        if found is None:
            found = self._keys[key] = KeyStreams(self, self.source(key.spec.scope.source), key, self.limits)
        return found

    def subscriber(
        self,
        key: StreamKey,
        tenant: str,
        at: JoinPoint,
        wake: Callable[[], None],
        *,
        durable: bool,
        payload_max: int,
        wire_format: str,
        batch_events_max: int = 0,
        wants_progress: bool = False,
    ) -> Subscriber:
        """Make a subscriber that has joined the streams of `key`. Give it back with `release`."""
        streams = self.streams_of(key).streams
        subscriber = Subscriber(
            self.next_id(),
            tenant,
            streams,
            at,
            CreditWindow(self.limits.credit),
            wake,
            acks=AckTracker(at.place, self.limits.unacked_events_max, self.accounts.of(tenant).retain)
            if durable
            else None,
            payload_max=payload_max,
            wire_format=wire_format,
            batch_events_max=batch_events_max,
            wants_progress=wants_progress,
        )
        streams.join(subscriber)
        return subscriber

    def release(self, key: StreamKey, subscriber: Subscriber) -> None:
        streams = self._keys[key]
        streams.streams.remove(subscriber)
        self._forget_if_empty(streams)

    @asynccontextmanager
    async def holding(self, tenant: str, feed: Hashable) -> AsyncIterator[None]:
        """Count `feed` against the tenant's quota inside the block. Raises QUOTA_EXCEEDED."""
        await self.make_room(tenant, feed)
        account = self.accounts.of(tenant)
        account.open_feed(feed)
        try:
            yield
        finally:
            account.close_feed(feed)

    async def make_room(self, tenant: str, feed: Hashable) -> None:
        """Close what the tenant keeps open without use, the oldest first, until one more stream of `feed` fits its
        quotas: readers that wait for a next plan, and streams that wait for clients to reconnect.

        Every cursor that a tenant caused counts until it is closed, so a tenant gets no more cursors by opening and
        leaving feeds in turn. Call this right before `open_feed`, which raises QUOTA_EXCEEDED if there is still no
        room.
        """
        account = self.accounts.of(tenant)
        account.give_up_spares(feed)
        deadline_s = monotonic_s() + _CLOSE_WAIT_S
        while left := self._to_close(account, feed):
            for stream, _ in left:
                stream.close_early()
            # Do not wait for all of them: another tenant may join one of the streams meanwhile, which keeps it open.
            await asyncio.wait([task for _, task in left], timeout=0.1, return_when=asyncio.FIRST_COMPLETED)
            account.give_up_spares(feed)
            if monotonic_s() > deadline_s:
                raise exceeded("shared_streams", account.quotas.shared_streams)

    def _to_close(self, account: Account, feed: Hashable) -> list[tuple[SharedStream, asyncio.Task[None]]]:
        """Streams that the tenant has left and that, together with `feed` and the feeds it reads, exceed its quota."""
        room = account.quotas.shared_streams - len({*account.feeds, feed})
        if account.quotas.shared_streams == UNLIMITED or room < 0:
            return []
        left: list[tuple[SharedStream, asyncio.Task[None]]] = []
        for number in sorted(self._left_by.get(account.tenant, ())):
            _, each = self._left[number]
            stream = each.pumps[number].stream
            if stream.subscribers:
                self._not_left(number)
            elif stream.holds_cursor_for and (each.key != feed or each.streams.is_beside(stream)):
                left.append((stream, each.tasks[number]))
        return left[: max(0, len(left) - room)]

    def left(self, each: KeyStreams, stream: SharedStream) -> None:
        """Note that the last subscriber of a stream has left."""
        if stream.id in each.pumps:
            self._not_left(stream.id)
            self._left[stream.id] = stream.left_by, each
            self._left_by[stream.left_by].add(stream.id)

    def _not_left(self, number: int) -> None:
        """Note that the stream has a subscriber again, or is closed."""
        tenant, _ = self._left.pop(number, ("", None))
        if tenant in self._left_by:
            self._left_by[tenant].discard(number)
            if not self._left_by[tenant]:
                del self._left_by[tenant]

    def stop(self) -> None:
        """End every pump and wide stream; their cursors are killed."""
        self.wide.stop()
        if self._admission is not None:
            self._admission.cancel()
        for each in self._keys.values():
            for task in each.tasks.values():
                task.cancel()

    def renderer_of(self, chunk: Chunk) -> Renderer:
        """The renderer that renders the chunk as Extended JSON."""
        is_large = chunk.bson is not None and chunk.bson.size_bytes > _LARGE_BYTES
        return self.large_renderer if is_large else self.renderer

    @property
    def slots_wanted(self) -> bool:
        return self.slots.wanted

    @property
    def cursors(self) -> int:
        """The number of cursors open in MongoDB now."""
        readers = (pump.reader for each in self._keys.values() for pump in each.pumps.values())
        own = sum(reader is not None and reader.has_cursor for reader in readers)
        return own + sum(stream.has_cursor for stream in self.wide.streams())

    def filled(self, size: int) -> None:
        self.memory.grew(size)

    def slot_free(self) -> None:
        if self._admission is None and self.slots.admit():
            self._admission = asyncio.get_running_loop().call_later(_ADMIT_AGAIN_S, self._admit_again)

    def _admit_again(self) -> None:
        self._admission = None
        self.slot_free()

    def pump_done(self, streams: KeyStreams, stream: SharedStream) -> None:
        self._not_left(stream.id)
        self.slot_free()
        self._forget_if_empty(streams)

    def _forget_if_empty(self, streams: KeyStreams) -> None:
        if not streams.pumps and not streams.streams.subscriber_count:
            self._keys.pop(streams.key, None)
