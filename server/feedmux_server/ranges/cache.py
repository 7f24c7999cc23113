"""Ranges for bulk readers: planned by reading them once, retained until they have been read.

A range holds the ring's own bytes, so several readers of its slices cost MongoDB one pass. The reader that planned the
range stays where it stopped, without credit, so that the next plan can continue: the stream stays open too, and MongoDB
is not read meanwhile. The reader counts against the tenant's quotas of streams, and is closed when the tenant needs the
room. A plan charges the tenant's rates for what it reads, as a session does for what it is sent; as much of the range
may then be sent without another charge. Retained ranges, and events that plans are reading now, count against the
tenant's quota and a bound of the process; ranges are also bounded in number and in time. Evicted events are read from
MongoDB again.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

from feedmux_server.clock import monotonic_s
from feedmux_server.core.delivery.cached_range import CachedRange, held_bytes
from feedmux_server.core.delivery.copy_range import has_documents, progress_of
from feedmux_server.core.delivery.taken import Delivery
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.feeds.snapshot_stages import unsuitable
from feedmux_server.core.feeds.stream_key import StreamKey
from feedmux_server.core.limits.account import Account
from feedmux_server.core.positions.join_point import JoinPoint
from feedmux_server.core.positions.resume_token import ResumeToken
from feedmux_server.core.positions.timeline import Fork
from feedmux_server.ranges.reader import RangeReader
from feedmux_server.streams.in_turns import in_turns
from feedmux_server.streams.manager import StreamManager

PIECE_BYTES_MAX = 1024 * 1024
_FREED_AT_ONCE = 4 * 1024 * 1024
"""Bytes of a range that are freed without a pause."""
_DELIVERY_COST = 4 * 1024
"""To free a delivery takes as long as to free so many bytes more."""
READ_TIME_MAX_S = 10.0
"""A plan ends after this time with the events it has, even if more follow."""
EMPTY_TIME_MAX_S = 15.0
"""A plan without events ends after this time. It may have to wait until MongoDB names a later time than the target; an
idle one does so every 10 s, with a no-op."""
_SETTLE_S = 0.1
"""With the first events of the target's time, a plan waits for this long to know whether more events have that time."""


class GivenUp(Exception):
    """A range was evicted: read the rest of its events from MongoDB."""


@dataclass(frozen=True, slots=True)
class RangeLimits:
    """Bounds of what is retained between planning and reading."""

    retained_bytes_max: int = 256 * 1024 * 1024
    """For all tenants together; above it, the oldest range of the tenant that retains most is evicted."""
    ranges_max: int = 1_000
    """For each tenant, because a read of a range looks through those of its tenant; above it, the tenant's oldest range
    is evicted. A query of Spark retains two."""
    kept_s: float = 120.0
    reader_s: float = 30.0
    """How long a planning reader waits for the next plan."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a plan should reach."""

    until: ResumeToken | None
    """The range ends here at the latest."""
    target: int
    """The cluster time up to which MongoDB has committed by now: the plan reads the events at or before it in any case,
    and later ones if they are available."""
    events_max: int
    bytes_max: int
    wait_s: float
    """How long to wait for the first event once the target is reached."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a plan has found."""

    range: CachedRange
    caught_up: bool


@dataclass(slots=True, eq=False)
class _Kept:
    account: Account
    key: StreamKey
    range: CachedRange
    deliveries: list[Delivery]
    """The deliveries of the range: emptied when the range is evicted, also for readers that are reading it."""
    bytes: int
    unread: int
    """Events not yet sent once."""
    paid_bytes: int
    """Bytes of events that the plan has charged to the tenant's rates, and that have not been sent since."""
    timer: asyncio.TimerHandle | None = None
    given_up: bool = False

    def pays(self, size: int) -> bool:
        if self.given_up or self.paid_bytes < size:
            return False
        self.paid_bytes -= size
        return True


@dataclass(slots=True, eq=False)
class _Waiting:
    reader: RangeReader
    at: ResumeToken
    timer: asyncio.TimerHandle


@dataclass(slots=True)
class RangeCache:
    """The ranges of a process."""

    manager: StreamManager
    limits: RangeLimits = field(default_factory=RangeLimits)
    _kept: dict[Account, OrderedDict[_Kept, None]] = field(default_factory=dict)
    """The retained ranges of each tenant that has any, the oldest first."""
    _waiting: dict[tuple[str, StreamKey], _Waiting] = field(default_factory=dict)
    retained_bytes: int = 0
    """Bytes retained, and bytes that plans are reading now."""

    async def plan(self, key: StreamKey, tenant: str, at: JoinPoint, wanted: Wanted) -> Plan:
        """Read the next events and retain them. Raises the FeedmuxError that ended the feed at this position."""
        if wanted.until is not None and at.place.reaches(wanted.until):
            return Plan(CachedRange(at.place, at.place, ()), caught_up=True)
        reader, account, charged = await self._reader(key, tenant, at), self.manager.accounts.of(tenant), 0

        def charge(size: int) -> bool:
            nonlocal charged
            charged += size
            return self._charge(account, size)

        try:
            deliveries, error = await _read(reader, wanted, account, charge)
            if deliveries and deliveries[-1].are_documents and not has_documents(at.place, reader.end_of_step()):
                raise unsuitable(
                    "_id",
                    "all documents of the range have an `_id` of more than 2 KiB, which no position can contain: ask"
                    " for more events and bytes, or read the copy with Subscribe or Watch",
                )
            if error is not None and error.reason is ErrorReason.TIMELINE_FORKED:
                raise error  # also what was read before it may be gone
            invalidated = error is not None and error.reason is ErrorReason.FEED_INVALIDATED
            # A pipeline that hides the invalidate event does not hide its position: the next plan begins after it.
            if error is not None and not deliveries and not (invalidated and reader.place.is_after(at.place)):
                raise error
        except BaseException:
            self._release(account, charged)
            self._close(account, key, reader)
            raise
        end = deliveries[-1].end if deliveries else at.place
        met_all = error is None or not deliveries  # up to the reader's position
        if at.place.copied is not None:
            end = reader.end_of_step()
        elif met_all and wanted.until is not None and (reader.passed or reader.has_reached(wanted.until)):
            end = wanted.until
        elif met_all and reader.place.is_after(end):
            end = reader.place
        # Within a copy, an event after the range may have been read.
        caught_up = at.place.copied is None and (
            reader.has_read(wanted.target) if wanted.until is None else not wanted.until.is_after(end)
        )
        # Within a copy, documents may have come that the position does not cover: the next plan begins at the position.
        # So does the plan after an invalidate: the stream of this reader ends there.
        continues = error is None and at.place.copied is None and not end.from_invalidate
        if continues and end.raw == reader.place.raw:
            self._wait(account, key, reader, end)
        else:
            self._close(account, key, reader)
        found = CachedRange(at.place, end, tuple(deliveries))
        if deliveries:
            self._keep(key, account, found)
        return Plan(found, caught_up)

    def __post_init__(self) -> None:
        for name, source in self.manager.sources.items():
            source.timeline.listeners.append(partial(self._fork, name))

    def _fork(self, source: str, fork: Fork) -> None:
        """Drop what MongoDB may have lost. The waiting readers were read before the fork, too."""
        for tenant, key in [each for each in self._waiting if each[1].spec.scope.source == source]:
            self._leave(self.manager.accounts.of(tenant), key)
        for kept in [each for ranges in self._kept.values() for each in ranges]:
            if kept.key.spec.scope.source == source and fork.may_have_lost(kept.range.end):
                self._give_up(kept)

    def read(
        self, key: StreamKey, tenant: str, after: ResumeToken, until: ResumeToken, payload_max: int
    ) -> Iterator[Delivery] | None:
        """The events in (after, until] from the retained ranges, in pieces of at most `payload_max` bytes unless one
        event is larger; None when they are not retained. The iterator raises GivenUp before the first piece or after
        any, and after an eviction it holds no more than the piece it has yielded."""
        kept = self._covering(key, tenant, after, until)
        return None if kept is None else _reading(kept, after, until, payload_max)

    def pays(self, key: StreamKey, tenant: str, after: ResumeToken, until: ResumeToken) -> Callable[[int], bool] | None:
        """A function that returns whether so many bytes of events in (after, until], which are sent now, were charged
        by their plan. Each charge of a plan is used once. None when they are not retained."""
        kept = self._covering(key, tenant, after, until)
        return None if kept is None else kept.pays

    def was_read(self, key: StreamKey, tenant: str, after: ResumeToken, until: ResumeToken, count: int) -> None:
        """Note that all `count` events in (after, until] were sent. A range is retained until each event was sent
        once."""
        kept = self._covering(key, tenant, after, until)
        if kept is not None:
            kept.unread -= count
            if kept.unread <= 0:
                self._give_up(kept)

    def close(self) -> None:
        for waiting in list(self._waiting.values()):
            waiting.timer.cancel()
            waiting.reader.close()
        self._waiting.clear()
        for ranges in list(self._kept.values()):
            for kept in list(ranges):
                self._give_up(kept)

    def _covering(self, key: StreamKey, tenant: str, after: ResumeToken, until: ResumeToken) -> _Kept | None:
        for kept in self._kept.get(self.manager.accounts.of(tenant), ()):
            if kept.range.covers(after, until) and kept.key == key:
                return kept
        return None

    async def _reader(self, key: StreamKey, tenant: str, at: JoinPoint) -> RangeReader:
        """The reader that waits at this position, or a new one. It counts against the tenant's quotas until `_close`.

        Raises QUOTA_EXCEEDED."""
        account, waiting = self.manager.accounts.of(tenant), self._waiting.get((tenant, key))
        if waiting is not None:
            here = waiting.at.raw, progress_of(waiting.at)
            if here == (at.place.raw, progress_of(at.place)) and at.native is None:
                waiting.timer.cancel()
                account.feeds.unspare(key)
                del self._waiting[tenant, key]
                return waiting.reader
            self._leave(account, key)
        await self.manager.abandoned.make_room(tenant, key)
        account.feeds.open(key)
        try:
            return RangeReader(self.manager, key, tenant, at, PIECE_BYTES_MAX)
        except BaseException:
            account.feeds.close(key)
            raise

    def _close(self, account: Account, key: StreamKey, reader: RangeReader) -> None:
        reader.close()
        account.feeds.close(key)

    def _wait(self, account: Account, key: StreamKey, reader: RangeReader, at: ResumeToken) -> None:
        """Keep the reader for the next plan, for a while, unless its tenant needs its stream for something else."""
        reader.revoke()
        self._leave(account, key)
        loop = asyncio.get_running_loop()
        timer = loop.call_later(self.limits.reader_s, self._leave, account, key)
        self._waiting[account.tenant, key] = _Waiting(reader, at, timer)
        account.feeds.spare(key, partial(self._leave, account, key))

    def _leave(self, account: Account, key: StreamKey) -> None:
        waiting = self._waiting.pop((account.tenant, key), None)
        if waiting is not None:
            waiting.timer.cancel()
            account.feeds.unspare(key)
            self._close(account, key, waiting.reader)

    def _keep(self, key: StreamKey, account: Account, found: CachedRange) -> None:
        """Retain a range. Its bytes were charged while it was read."""
        deliveries = list(found.deliveries)
        kept = _Kept(
            account, key, replace(found, deliveries=deliveries), deliveries, found.held_bytes, found.count, found.size
        )
        kept.timer = asyncio.get_running_loop().call_later(self.limits.kept_s, self._give_up, kept)
        ranges = self._kept.setdefault(account, OrderedDict())
        ranges[kept] = None
        if len(ranges) > self.limits.ranges_max:
            self._give_up(next(iter(ranges)))

    def _charge(self, account: Account, size: int) -> bool:
        """Count what a plan has read, and evict older ranges for it. False when the plan must end because no older
        range is left."""
        self.retained_bytes += size
        account.retained_bytes += size
        while account.retains_too_much or self.retained_bytes > self.limits.retained_bytes_max:
            most = account if account.retains_too_much else max(self._kept, key=_retained_bytes, default=account)
            if most not in self._kept:
                return False
            self._give_up(next(iter(self._kept[most])))
        return True

    def _release(self, account: Account, size: int) -> None:
        self.retained_bytes -= size
        account.retained_bytes -= size

    def _give_up(self, kept: _Kept) -> None:
        if kept.given_up:
            return
        kept.given_up = True
        if kept.timer is not None:
            kept.timer.cancel()
        ranges = self._kept[kept.account]
        del ranges[kept]
        if not ranges:
            del self._kept[kept.account]
        leaving = kept.deliveries.copy()
        kept.deliveries.clear()
        self._release(kept.account, kept.bytes)
        in_turns(partial(_free, leaving))


def _free(deliveries: list[Delivery]) -> bool:
    """Free some of a range: 160 MB at once would take the event loop 15 ms. Returns whether there are more."""
    cost = 0
    while deliveries and cost < _FREED_AT_ONCE:
        cost += deliveries.pop().size + _DELIVERY_COST
    return bool(deliveries)


def _retained_bytes(account: Account) -> int:
    return account.retained_bytes


def _reading(kept: _Kept, after: ResumeToken, until: ResumeToken, payload_max: int) -> Iterator[Delivery]:
    for delivery in kept.range.read(after, until, payload_max):
        yield delivery
        del delivery
        if kept.given_up:
            raise GivenUp
    if kept.given_up:
        raise GivenUp


async def _read(
    reader: RangeReader, wanted: Wanted, account: Account, charge: Callable[[int], bool]
) -> tuple[list[Delivery], FeedmuxError | None]:
    """Read events up to the limits, and as fast as the account's rates allow; return them with the error that ended the
    feed after them, if any.

    `charge` says whether more may be retained.
    """
    began_s = monotonic_s()
    wait_until_s = began_s + wanted.wait_s
    reader.grant(wanted.events_max, wanted.bytes_max)
    found: list[Delivery] = []
    while reader.can_receive and not reader.passed:
        reached, now_s = reader.has_read(wanted.target), monotonic_s()
        deadline_s = last_s = began_s + max(wanted.wait_s, READ_TIME_MAX_S if found else EMPTY_TIME_MAX_S)
        throttled_s = account.rates.delivery_wait_s(now_s)
        if now_s >= last_s or (throttled_s and found and reached):
            break
        if throttled_s:
            throttled_s = min(throttled_s, last_s - now_s)
            account.throttled_s += throttled_s
            await asyncio.sleep(throttled_s)
            continue
        if reached:
            deadline_s = now_s if found else wait_until_s
        elif found and reader.place.cluster_time == wanted.target and reader.place.copied is None:
            deadline_s = now_s + _SETTLE_S
        deadline_s = min(deadline_s, last_s)
        try:
            delivery = await reader.next(deadline_s, until=wanted.until, target=None if reached else wanted.target)
        except FeedmuxError as error:
            return found, error
        if delivery is not None:
            found.append(delivery)
            account.rates.deliver(delivery.count, delivery.size, monotonic_s())
            if not charge(held_bytes(delivery)):
                break
        elif reached or monotonic_s() >= deadline_s or (wanted.until is not None and reader.has_reached(wanted.until)):
            break
    return found, None
