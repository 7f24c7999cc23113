"""All streams of the process: one `KeyStreams` per StreamKey, the slots of catch-up streams, the memory budget.

`sessions` and `ranges` ask the stream manager for a subscriber. Every pump is a named task of the process.
"""

import asyncio
import itertools
from collections.abc import Callable, Iterator
from functools import partial

from feedmux_server.clock import monotonic_s
from feedmux_server.core.delivery.ack_tracker import AckTracker
from feedmux_server.core.delivery.credit import CreditWindow
from feedmux_server.core.delivery.slots import Slots
from feedmux_server.core.delivery.subscriber import Acks, Subscriber
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.feeds.stream_key import StreamKey
from feedmux_server.core.limits.account import Accounts
from feedmux_server.core.limits.memory import UNACKED_SHARE, Memory
from feedmux_server.core.limits.quota import UNLIMITED_QUOTAS
from feedmux_server.core.limits.usage_meter import UsageMeter
from feedmux_server.core.positions.join_point import JoinPoint
from feedmux_server.core.positions.timeline import Fork
from feedmux_server.source.deployment import Source
from feedmux_server.streams.abandoned_streams import AbandonedStreams
from feedmux_server.streams.in_turns import in_turns
from feedmux_server.streams.key_streams import KeyStreams, ManagerLimits, StreamParts
from feedmux_server.streams.pump import PumpHost
from feedmux_server.streams.scheduler import Scheduler
from feedmux_server.streams.wide.manager import WideStreams
from feedmux_server.supervision import Tasks
from feedmux_server.telemetry.observer import NOBODY, Observer
from feedmux_server.workers.rendering import Renderers
from feedmux_server.workers.side_process import SideProcess, SideProcesses


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
        self.accounts = accounts or Accounts(lambda _: UNLIMITED_QUOTAS, monotonic_s)
        self.memory = Memory(limits.memory_bytes_max)
        self.renderers = Renderers(self.memory.grew, side_processes)
        backlog = self.accounts.backlog
        backlog.bytes_max = limits.memory_bytes_max // UNACKED_SHARE
        backlog.in_turns = in_turns
        self.memory.include("unacknowledged", lambda: backlog.bytes, backlog.bytes_max)
        self.memory.include("renderings", lambda: self.renderers.memory_bytes)
        self.turns = Scheduler(limits.round_bytes)
        self.sources = sources
        self.limits = limits
        self.tasks = tasks
        self.memory.rings.in_parts = in_turns
        self.usage = UsageMeter()
        self.slots = Slots(limits.catch_up_max, self.accounts)
        self.abandoned = AbandonedStreams(self.accounts)
        self.wide = WideStreams(sources, tasks, limits.wide, limits.wide_stream, limits.read, self.memory)
        self._ids = itertools.count(1)
        host = PumpHost(self.memory, self.slots, self.accounts, observer)
        self._parts = StreamParts(limits, host, tasks, self.usage, self.slots, self.abandoned, self.wide, self._ids)
        self._keys: dict[StreamKey, KeyStreams] = {}
        for name, source in sources.items():
            source.timeline.listeners.append(partial(self._fork, name))

    def source(self, name: str) -> Source:
        try:
            return self.sources[name]
        except KeyError:
            raise FeedmuxError(
                ErrorReason.SOURCE_NOT_FOUND, f"there is no source {name!r}", {"source": name}, field="feed.source"
            ) from None

    def keyed(self) -> Iterator[KeyStreams]:
        return iter(self._keys.values())

    def is_read(self, key: StreamKey) -> bool:
        """Whether there is a stream that a subscriber of the key could join."""
        found = self._keys.get(key)
        return found is not None and any(stream.joinable for stream in found.streams.open)

    def one_of(self, key: StreamKey) -> StreamKey:
        """The equal key that is already in use, if there is one: policies and pipelines are large."""
        found = self._keys.get(key)
        return found.key if found is not None else key

    def streams_of(self, key: StreamKey) -> KeyStreams:
        found = self._keys.get(key)
        if found is None:
            source = self.source(key.spec.scope.source)
            found = self._keys[key] = KeyStreams(self._parts, source, key, lambda: self._forget_if_empty(key))
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
            next(self._ids),
            tenant,
            at,
            CreditWindow(self.limits.credit),
            wake,
            acks=AckTracker(at.place, self.limits.unacked_events_max, self.accounts.of(tenant).outstanding.retain)
            if durable
            else None,
            payload_max=payload_max,
            wire_format=wire_format,
            batch_events_max=batch_events_max,
            wants_progress=wants_progress,
        )
        streams.join(subscriber)
        return subscriber

    def next_id(self) -> int:
        """An id for a member of a group, among those of subscribers."""
        return next(self._ids)

    def release(self, key: StreamKey, subscriber: Subscriber) -> None:
        acks = subscriber.acks
        if self._keys[key].streams.remove(subscriber) and acks is not None:
            self.tasks.run_once("release", partial(_release, acks))
        self._forget_if_empty(key)

    def stop(self) -> None:
        """End every pump and wide stream; their cursors are killed."""
        self.wide.stop()
        self.slots.stop()  # or the end of a pump would begin another one
        for each in self._keys.values():
            for task in each.tasks.values():
                task.cancel()

    @property
    def cursors(self) -> int:
        """The number of cursors open in MongoDB now."""
        readers = (pump.reader for each in self._keys.values() for pump in each.pumps.values())
        own = sum(reader is not None and reader.has_cursor for reader in readers)
        return own + sum(stream.has_cursor for stream in self.wide.streams())

    def _fork(self, source: str, fork: Fork) -> None:
        self.wide.drop(source)
        for each in list(self._keys.values()):
            if each.source.name == source:
                each.fork(fork)

    def _forget_if_empty(self, key: StreamKey) -> None:
        found = self._keys.get(key)
        if found is not None and not found.pumps and not found.streams.subscriber_count:
            del self._keys[key]


async def _release(acks: Acks) -> None:
    """Release what a session has not acknowledged, which may be tens of thousands of chunks, in turns."""
    left = True
    while left:
        await asyncio.sleep(0)
        left = acks.release()
