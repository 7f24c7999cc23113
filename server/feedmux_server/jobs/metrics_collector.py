"""Reads the metrics that need no counting from the server's state: streams, rings, sessions, quotas, the oplogs.

Runs on the event loop at each collection of metrics, in slices. Nothing is retained between two surveys.
"""

import asyncio
import resource
from bisect import bisect_left
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from feedmux_server.core.delivery.feed_streams import FeedStreams
from feedmux_server.core.delivery.shared_stream import SharedStream
from feedmux_server.core.limits.quota import Account
from feedmux_server.ranges.cache import RangeCache
from feedmux_server.store.committer import Committer
from feedmux_server.streams.manager import KeyStreams, OpenSession, StreamManager
from feedmux_server.streams.wide.view_reader import ViewReader
from feedmux_server.telemetry import metrics
from feedmux_server.telemetry.metrics_snapshot import MetricsSnapshot

T = TypeVar("T")

_SLICE = 64
"""Sessions, tenants or feeds to read before other tasks get a turn at the event loop: about a millisecond."""
_PAGE_BYTES = resource.getpagesize()
_PER_SOURCE = (
    metrics.TRAILING, metrics.CURSORS, metrics.RING_EVENTS, metrics.RING_USAGE, metrics.VIEWS, metrics.WIDE_STREAMS,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class MetricsCollector:
    """Called with each survey."""

    manager: StreamManager
    ranges: RangeCache
    committer: Committer
    sessions_max: int
    ready: Callable[[], bool]

    async def __call__(self, survey: MetricsSnapshot) -> None:
        self._process(survey)
        self._sources(survey)
        async for each in _sliced(list(self.manager.keyed())):
            _streams(survey, each)
            for stream in each.streams.streams:
                self._stream(survey, each, stream)
        trailing = self.manager.slots.used()
        async for account in _sliced(list(self.manager.accounts)):
            _account(survey, account, trailing[account.tenant])
        self._stored(survey)
        async for session in _sliced(list(self.manager.sessions)):
            if session in self.manager.sessions:
                self._session(survey, session)

    def _process(self, survey: MetricsSnapshot) -> None:
        limits = self.manager.limits
        survey.add(metrics.READY, self.ready())
        survey.add(metrics.SESSION_LIMIT, self.sessions_max)
        survey.add(metrics.TRAILING_LIMIT, limits.trailing_max)
        memory = self.manager.memory
        beside_rings = memory.beside_rings
        for part, size in {"rings": memory.rings.bytes, **beside_rings}.items():
            survey.add(metrics.MEMORY, size, part)
        for part, most in memory.limits.items():
            survey.add(metrics.MEMORY_LIMIT, most, part)
        survey.add(metrics.MEMORY, self.ranges.kept_bytes, "kept")
        survey.add(metrics.MEMORY_LIMIT, self.ranges.limits.kept_bytes_max, "kept")
        survey.add(metrics.COMMITS_WAITING, self.committer.waiting)
        survey.add(metrics.REDIS_AVAILABLE, self.committer.available)
        with suppress(OSError):  # Linux has it
            survey.add(metrics.PROCESS_MEMORY, int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES)
        used = resource.getrusage(resource.RUSAGE_SELF)
        survey.add(metrics.PROCESS_CPU, used.ru_utime + used.ru_stime)

    def _sources(self, survey: MetricsSnapshot) -> None:
        for name in self.manager.sources:
            survey.add(metrics.SOURCE_AVAILABLE, name not in self.manager.sources_away, name)
            state = self.manager.forecasts[name].state
            if state is not None:
                survey.add(metrics.OPLOG_WINDOW, state.window_s, name)
            for metric in _PER_SOURCE:
                survey.add(metric, 0, name)
        for wide in self.manager.wide.streams():
            source = wide.scope.source
            survey.add(metrics.WIDE_STREAMS, 1, source)
            survey.add(metrics.CURSORS, wide.has_cursor, source)
            survey.add(metrics.RING_EVENTS, wide.ring.events, source)
            survey.add(metrics.RING_USAGE, wide.ring.bytes, source)

    def _stream(self, survey: MetricsSnapshot, each: KeyStreams, stream: SharedStream) -> None:
        source, ring = each.source.name, stream.ring
        survey.add(metrics.RING_EVENTS, ring.events, source)
        survey.add(metrics.RING_USAGE, ring.bytes, source)
        pump = each.pumps.get(stream.id)
        reader = pump.reader if pump is not None else None
        survey.add(metrics.CURSORS, reader is not None and reader.has_cursor, source)
        survey.add(metrics.VIEWS, isinstance(reader, ViewReader) and reader.view_of is not None, source)
        if stream is not each.streams.leader():
            return
        if ring.first_seq:
            window_s = (ring.newest.cluster_time >> 32) - (ring.oldest.cluster_time >> 32)
            survey.least(metrics.RING_WINDOW, window_s, source)
        now_s = self._now_s(source)
        if now_s is not None and stream.has_usable_credit:
            survey.most(metrics.STREAM_LAG, max(0, now_s - (ring.newest.cluster_time >> 32)), source)

    def _session(self, survey: MetricsSnapshot, session: OpenSession) -> None:
        subscriber, source = session.subscriber, session.source
        tenant, place_s = subscriber.tenant, subscriber.safe_place.cluster_time >> 32
        survey.most(metrics.LAG_EVENTS, subscriber.lag_events(), tenant)
        if isinstance(subscriber.streams, FeedStreams):
            survey.add(metrics.SUBSCRIBERS, 1, tenant, subscriber.streams.state_of(subscriber).value)
        if subscriber.acks is not None:
            survey.add(metrics.UNACKED, subscriber.acks.outstanding, tenant)
        now_s = self._now_s(source)
        if now_s is None:
            return
        survey.most(metrics.LAG, max(0, now_s - place_s), tenant)
        headroom_s = self.manager.forecasts[source].headroom_s(place_s)
        survey.least(metrics.HEADROOM, headroom_s, source, tenant)
        survey.add(metrics.AT_RISK, headroom_s < self._at_risk_s, source, tenant)

    def _stored(self, survey: MetricsSnapshot) -> None:
        for tenant, count in self.manager.damaged.items():
            survey.add(metrics.DAMAGED, count, tenant)
        for (source, tenant), places in self.manager.stored_places.items():
            forecast = self.manager.forecasts[source]
            if forecast.state is not None:
                # They are sorted, and so is their headroom.
                at_risk = bisect_left(places, True, key=lambda second: forecast.headroom_s(second) >= self._at_risk_s)
                survey.least(metrics.STORED_HEADROOM, forecast.headroom_s(places[0]), source, tenant)
                survey.add(metrics.STORED_AT_RISK, at_risk, source, tenant)

    @property
    def _at_risk_s(self) -> float:
        return max(self.manager.limits.history_at_risk_s, default=0.0)

    def _now_s(self, source: str) -> int | None:
        """The source's operation time at the last oplog check, in seconds: as old as the interval of checks at most."""
        state = self.manager.forecasts[source].state
        return state.newest_s if state is not None else None


def _streams(survey: MetricsSnapshot, each: KeyStreams) -> None:
    source = each.source.name
    for stream in each.streams.streams:
        survey.add(metrics.STREAMS, 1, source, stream.state.value)
    survey.add(metrics.TRAILING, each.streams.trailing_count, source)


def _account(survey: MetricsSnapshot, account: Account, trailing_streams: int) -> None:
    tenant = account.tenant
    survey.add(metrics.DELIVERED, account.events_sent, tenant)
    survey.add(metrics.DELIVERED_IO, account.bytes_sent, tenant)
    survey.add(metrics.HELD_BACK, account.held_back_s, tenant)
    for quota, (limit, used) in account.usage(None, trailing_streams).items():
        survey.least(metrics.QUOTA_LIMIT, limit, tenant, quota)
        if used is not None:
            survey.most(metrics.QUOTA_UTILIZATION, used / limit if limit else 1.0, tenant, quota)


async def _sliced(items: Sequence[T]) -> AsyncIterator[T]:
    for number, item in enumerate(items):
        if number % _SLICE == _SLICE - 1:
            await asyncio.sleep(0)
        yield item
