"""Reads the metrics that need no counting from the server's state: streams, rings, sessions, quotas, the oplogs.

Runs on the event loop at each collection of metrics, in slices. Nothing is retained between two snapshots.
"""

import asyncio
import resource
from bisect import bisect_left
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from feedmux_server.clock import wall_s
from feedmux_server.core.delivery.shared_stream import SharedStream
from feedmux_server.core.limits.account import Account
from feedmux_server.jobs.monitor_results import MonitorResults
from feedmux_server.ranges.cache import RangeCache
from feedmux_server.rpc.live_sessions import LiveSessions
from feedmux_server.sessions.groups import Group, Groups
from feedmux_server.sessions.session import Session
from feedmux_server.source.dead_letters import DeadLetters
from feedmux_server.store.committer import Committer
from feedmux_server.streams.key_streams import KeyStreams
from feedmux_server.streams.manager import StreamManager
from feedmux_server.telemetry import metrics
from feedmux_server.telemetry.metrics_snapshot import MetricsSnapshot

T = TypeVar("T")

_SLICE = 64
"""Sessions, tenants or feeds to read before other tasks get a turn at the event loop: about a millisecond."""
_PAGE_BYTES = resource.getpagesize()
_PER_SOURCE = (
    metrics.CATCH_UP, metrics.CURSORS, metrics.RING_EVENTS, metrics.RING_USAGE, metrics.VIEWS, metrics.WIDE_STREAMS,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class MetricsCollector:
    """Called with each snapshot."""

    manager: StreamManager
    sessions: LiveSessions
    results: MonitorResults
    ranges: RangeCache
    committer: Committer
    groups: Groups
    sessions_max: int
    ready: Callable[[], bool]
    letters: DeadLetters | None

    async def __call__(self, snapshot: MetricsSnapshot) -> None:
        self._process(snapshot)
        self._sources(snapshot)
        async for each in _sliced(list(self.manager.keyed())):
            source = each.source.name
            for stream in each.streams.open:
                snapshot.add(metrics.STREAMS, 1, source, stream.state.value)
                self._stream(snapshot, each, stream)
            snapshot.add(metrics.CATCH_UP, each.streams.open.catch_up_count, source)
        catch_up = self.manager.slots.used()
        async for account in _sliced(list(self.manager.accounts)):
            _account(snapshot, account, catch_up[account.tenant])
        async for group in _sliced(list(self.groups)):
            _group(snapshot, group)
        self._stored(snapshot)
        for tenant, share in self.letters.shares().items() if self.letters is not None else ():
            snapshot.most(metrics.DEAD_LETTERS_UTILIZATION, share, tenant)
        async for live in self.sessions.in_turns():
            self._session(snapshot, live.session)

    def _process(self, snapshot: MetricsSnapshot) -> None:
        limits = self.manager.limits
        snapshot.add(metrics.READY, self.ready())
        snapshot.add(metrics.SESSION_LIMIT, self.sessions_max)
        snapshot.add(metrics.CATCH_UP_LIMIT, limits.catch_up_max)
        memory = self.manager.memory
        beside_rings = memory.beside_rings
        for part, size in {"rings": memory.rings.bytes, **beside_rings}.items():
            snapshot.add(metrics.MEMORY, size, part)
        for part, most in memory.limits.items():
            snapshot.add(metrics.MEMORY_LIMIT, most, part)
        snapshot.add(metrics.MEMORY, self.ranges.retained_bytes, "retained")
        snapshot.add(metrics.MEMORY_LIMIT, self.ranges.limits.retained_bytes_max, "retained")
        snapshot.add(metrics.COMMITS_WAITING, self.committer.waiting)
        snapshot.add(metrics.REDIS_AVAILABLE, self.committer.available)
        with suppress(OSError):  # Linux has it
            snapshot.add(metrics.PROCESS_MEMORY, int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES)
        used = resource.getrusage(resource.RUSAGE_SELF)
        snapshot.add(metrics.PROCESS_CPU, used.ru_utime + used.ru_stime)

    def _sources(self, snapshot: MetricsSnapshot) -> None:
        for name in self.manager.sources:
            snapshot.add(metrics.SOURCE_AVAILABLE, name not in self.results.unavailable, name)
            state = self.results.forecasts[name].state
            if state is not None:
                snapshot.add(metrics.OPLOG_WINDOW, state.window_s, name)
            for metric in _PER_SOURCE:
                snapshot.add(metric, 0, name)
        for wide in self.manager.wide.streams():
            source = wide.scope.source
            snapshot.add(metrics.WIDE_STREAMS, 1, source)
            snapshot.add(metrics.CURSORS, wide.has_cursor, source)
            snapshot.add(metrics.RING_EVENTS, wide.ring.events, source)
            snapshot.add(metrics.RING_USAGE, wide.ring.bytes, source)

    def _stream(self, snapshot: MetricsSnapshot, each: KeyStreams, stream: SharedStream) -> None:
        source, ring = each.source.name, stream.ring
        snapshot.add(metrics.RING_EVENTS, ring.events, source)
        snapshot.add(metrics.RING_USAGE, ring.bytes, source)
        pump = each.pumps.get(stream.id)
        reader = pump.reader if pump is not None else None
        snapshot.add(metrics.CURSORS, reader is not None and reader.has_cursor, source)
        snapshot.add(metrics.VIEWS, each.wide_stream_of(stream) is not None, source)
        if stream is not each.streams.open.live():
            return
        if ring.first_seq:
            window_s = (ring.newest.cluster_time >> 32) - (ring.oldest.cluster_time >> 32)
            snapshot.least(metrics.RING_WINDOW, window_s, source)
        now_s = self._now_s(source)
        if now_s is not None and stream.has_usable_credit:
            snapshot.most(metrics.STREAM_LAG, max(0, now_s - (ring.newest.cluster_time >> 32)), source)

    def _session(self, snapshot: MetricsSnapshot, session: Session) -> None:
        subscriber, source = session.subscriber, session.source
        tenant, place_s = subscriber.tenant, subscriber.safe_place.cluster_time >> 32
        snapshot.most(metrics.LAG_EVENTS, subscriber.lag_events(), tenant)
        snapshot.add(metrics.SUBSCRIBERS, 1, tenant, session.state.value)
        if subscriber.acks is not None or subscriber.unacked:
            snapshot.add(metrics.UNACKED, subscriber.unacked, tenant)
        _copy(snapshot, session, source, tenant)
        now_s = self._now_s(source)
        if now_s is None:
            return
        snapshot.most(metrics.LAG, max(0, now_s - place_s), tenant)
        headroom_s = self.results.forecasts[source].headroom_s(place_s)
        snapshot.least(metrics.HEADROOM, headroom_s, source, tenant)
        snapshot.add(metrics.AT_RISK, headroom_s < self._at_risk_s, source, tenant)

    def _stored(self, snapshot: MetricsSnapshot) -> None:
        for tenant, count in self.results.damaged.items():
            snapshot.add(metrics.DAMAGED, count, tenant)
        for tenant, count in self.results.unattended.items():
            snapshot.add(metrics.GROUPS_UNATTENDED, count, tenant)
        for (source, tenant), places in self.results.stored_times.items():
            forecast = self.results.forecasts[source]
            if forecast.state is not None:
                # They are sorted, and so is their headroom.
                at_risk = bisect_left(places, True, key=lambda second: forecast.headroom_s(second) >= self._at_risk_s)
                snapshot.least(metrics.STORED_HEADROOM, forecast.headroom_s(places[0]), source, tenant)
                snapshot.add(metrics.STORED_AT_RISK, at_risk, source, tenant)

    @property
    def _at_risk_s(self) -> float:
        return max(self.manager.limits.history_at_risk_s, default=0.0)

    def _now_s(self, source: str) -> int | None:
        """The source's operation time at the last oplog check, in seconds: as old as the interval of checks at most."""
        state = self.results.forecasts[source].state
        return state.newest_s if state is not None else None


def _copy(snapshot: MetricsSnapshot, session: Session, source: str, tenant: str) -> None:
    state, status = session.copy_state, session.copy_status
    if state is None or status is None:
        return
    snapshot.add(metrics.SNAPSHOTS, 1, source, tenant, state.value)
    if status.remaining_s is not None:
        snapshot.most(metrics.SNAPSHOT_REMAINING, status.remaining_s, source, tenant)


def _group(snapshot: MetricsSnapshot, group: Group) -> None:
    tenant, ledger = group.definition.tenant, group.ledger
    snapshot.add(metrics.GROUP_MEMBERS, group.connected, tenant)
    snapshot.add(metrics.GROUP_UNSETTLED, ledger.outstanding, tenant)
    snapshot.add(metrics.GROUP_HELD_KEYS, ledger.retries.held, tenant)
    snapshot.add(metrics.DEAD_LETTERS_WAITING, group.letters_waiting, tenant)
    snapshot.add(metrics.QUARANTINED_KEYS, len(ledger.pinned), tenant)
    read_time_s = ledger.oldest_read_time_s
    snapshot.most(metrics.GROUP_OLDEST, 0.0 if read_time_s is None else max(0.0, wall_s() - read_time_s), tenant)


def _account(snapshot: MetricsSnapshot, account: Account, catch_up_streams: int) -> None:
    tenant = account.tenant
    snapshot.add(metrics.DELIVERED, account.events_sent, tenant)
    snapshot.add(metrics.DELIVERED_IO, account.bytes_sent, tenant)
    snapshot.add(metrics.THROTTLED, account.throttled_s, tenant)
    snapshot.add(metrics.GROUP_REDELIVERED, account.redelivered, tenant)
    for quota, (limit, used) in account.usage(None, catch_up_streams).items():
        snapshot.least(metrics.QUOTA_LIMIT, limit, tenant, quota)
        if used is not None:
            snapshot.most(metrics.QUOTA_UTILIZATION, used / limit if limit else 1.0, tenant, quota)


async def _sliced(items: Sequence[T]) -> AsyncIterator[T]:
    for number, item in enumerate(items):
        if number % _SLICE == _SLICE - 1:
            await asyncio.sleep(0)
        yield item
