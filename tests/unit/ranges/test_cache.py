"""Ranges are read once, retained within bounds, and end where a plan was asked to end."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from feedmux_server.clock import monotonic_s
from feedmux_server.core.delivery.cached_range import CachedRange
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.feeds.stream_key import StreamKey
from feedmux_server.core.limits.quota import Quotas
from feedmux_server.core.positions.join_point import JoinPoint
from feedmux_server.core.positions.resume_token import ResumeToken
from feedmux_server.core.positions.timeline import Fork
from feedmux_server.ranges import cache as ranges_cache
from feedmux_server.ranges.cache import PIECE_BYTES_MAX, GivenUp, RangeCache, RangeLimits, Wanted
from feedmux_server.ranges.reader import RangeReader
from tests.executed import executed
from tests.tables import over
from tests.unit.core.delivery.streams_support import behind, mark, token
from tests.unit.streams.manager_support import Log, World, world
from tests.virtual_time import in_virtual_time

KEPT_S = 120.0


@asynccontextmanager
async def ranges(
    monkeypatch: pytest.MonkeyPatch, *, retained_bytes: int = 1 << 30, ranges_max: int = 1_000, **more: Any
) -> AsyncIterator[tuple[World, RangeCache, Any, Log]]:
    async with world(monkeypatch, **more) as there:
        cache = RangeCache(there.manager, RangeLimits(retained_bytes, ranges_max))
        key, log = there.feed("a")
        yield there, cache, key, log
        cache.close()


def wanted(target: int, *, until: int | None = None, events: int = 1_000) -> Wanted:
    end: ResumeToken | None = None if until is None else mark(until)
    return Wanted(end, token(target).cluster_time, events, 1 << 20, 1.0)


@in_virtual_time
async def test_a_plan_ends_at_its_target_its_end_or_its_events(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ranges(monkeypatch) as (_, cache, key, log):
        log.write(20)
        for asked, count, caught_up in (
            (wanted(20), 20, True),
            (wanted(20, until=7), 7, True),
            (wanted(20, events=5), 5, False),
            (wanted(20, until=0), 0, True),
        ):
            plan = await cache.plan(key, "a", behind(0), asked)
            assert (plan.range.count, plan.caught_up) == (count, caught_up)


@in_virtual_time
async def test_a_plan_that_has_reached_its_end_fails_if_mongodb_was_restored_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While its tenant is throttled: what the plan has read may be gone."""
    async with ranges(monkeypatch, quotas=Quotas(events_per_s=5)) as (_, cache, key, log):
        log.write(10)
        log.error = Fork().error("main")
        with pytest.raises(FeedmuxError) as caught:
            await cache.plan(key, "a", behind(0), wanted(20, until=10))
        assert caught.value.reason is ErrorReason.TIMELINE_FORKED


@over("written", [7, 0])
@in_virtual_time
async def test_what_ends_the_feed_after_the_end_of_a_plan_is_met_by_the_next_one(
    monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    """Also if the stream has read on while the tenant was throttled."""
    async with ranges(monkeypatch, quotas=Quotas(events_per_s=5)) as (there, cache, key, log):
        there.manager.accounts.of("a").rates.deliver(20, 100, monotonic_s())
        log.write(written)
        log.complete_time = token(10).cluster_time
        planning = asyncio.create_task(cache.plan(key, "a", behind(0), wanted(20, until=9)))
        await asyncio.sleep(1)
        log.error = FeedmuxError(ErrorReason.PIPELINE_FAILED, "on an event after the range")
        plan = await planning
        assert (plan.range.count, plan.range.end.raw, plan.caught_up) == (written, mark(9).raw, True)
        with pytest.raises(FeedmuxError, match="after the range"):
            await cache.plan(key, "a", JoinPoint(plan.range.end), wanted(20, until=20))


@in_virtual_time
async def test_a_plan_that_never_learns_whether_something_follows_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ranges(monkeypatch) as (_, cache, key, log):
        log.write(20)
        plan = await cache.plan(key, "a", behind(20), replace(wanted(20), target=mark(20).cluster_time))
        assert (plan.range.count, plan.caught_up) == (0, False)


@in_virtual_time
async def test_what_is_retained_is_read_without_mongodb_until_its_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ranges(monkeypatch) as (there, cache, key, log):
        log.write(20)
        plan = await cache.plan(key, "a", behind(0), wanted(20))
        after, end = plan.range.after, plan.range.end
        pieces = cache.read(key, "a", after, end, 1 << 20)
        assert pieces is not None
        assert sum(each.count for each in pieces) == 20
        assert cache.read(key, "b", after, end, 1 << 20) is None, "another tenant's"
        account = there.manager.accounts.of("a")
        assert cache.retained_bytes == account.retained_bytes > 0
        await asyncio.sleep(KEPT_S + 1)
        assert cache.read(key, "a", after, end, 1 << 20) is None
        assert (cache.retained_bytes, account.retained_bytes) == (0, 0)


@pytest.mark.parametrize("bound", ["process", "quota"])
@in_virtual_time
async def test_above_a_bound_the_oldest_range_goes_also_for_who_is_reading_it(
    monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    most = 150_000
    more = {"retained_bytes": most} if bound == "process" else {"quotas": Quotas(retained_bytes=most)}
    async with ranges(monkeypatch, **more) as (_, cache, key, log):
        log.write(40, padding=5_000)
        first = (await cache.plan(key, "a", behind(0), wanted(10, until=10))).range
        reading = cache.read(key, "a", first.after, first.end, 10_000)
        assert reading is not None
        next(reading)
        at = behind(10)
        for end in (20, 30, 40):
            await cache.plan(key, "a", at, wanted(end, until=end))
            at = behind(end)
        with pytest.raises(GivenUp):
            list(reading)
        assert cache.retained_bytes <= most


@in_virtual_time
async def test_a_range_is_freed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """160 MB at once would take the event loop 15 ms."""
    monkeypatch.setattr(ranges_cache, "_FREED_AT_ONCE", 20_000)
    monkeypatch.setattr(ranges_cache, "PIECE_BYTES_MAX", 6_000)
    steps: list[Callable[[], bool]] = []
    monkeypatch.setattr(ranges_cache, "in_turns", steps.append)
    async with ranges(monkeypatch) as (_, cache, key, log):
        log.write(20, padding=5_000)
        found = (await cache.plan(key, "a", behind(0), wanted(20, until=20))).range
        (kept,) = [each for ranges in cache._kept.values() for each in ranges]
        cache._give_up(kept)
        assert not kept.deliveries
        (leaving,) = [step.args[0] for step in steps if isinstance(step, partial)]
        assert (len(leaving), sum(each.size for each in leaving)) == (20, found.size)
        lengths = [len(leaving)]
        while steps[0]():
            lengths.append(len(leaving))
        assert max(before - after for before, after in pairwise([*lengths, 0])) <= 3


async def small_ranges(cache: RangeCache, key: StreamKey, count: int) -> list[CachedRange]:
    """Retain ranges of one event each."""
    return [(await cache.plan(key, "a", behind(n), wanted(n + 1, events=1))).range for n in range(count)]


@in_virtual_time
async def test_a_plan_reads_as_fast_as_its_tenant_may_be_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, most, total = asyncio.get_running_loop(), 500_000, 5_000_000
    async with ranges(monkeypatch, quotas=Quotas(bytes_per_s=most)) as (there, cache, key, log):
        log.write(total // 5_000, padding=5_000)
        began_s, at, size = loop.time(), behind(0), 0
        while size < total:
            plan = await cache.plan(key, "a", at, wanted(total // 5_000))
            size += plan.range.size
            at = JoinPoint(plan.range.end, exact=True)
        # One second's worth may be read at once, and the last piece is a debt.
        assert loop.time() - began_s >= (size - most - PIECE_BYTES_MAX) / most
        assert there.manager.accounts.of("a").throttled_s > 1
        assert there.manager.accounts.of("b").rates.delivery_wait_s(loop.time()) == 0


@in_virtual_time
async def test_a_plans_charge_is_used_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ranges(monkeypatch) as (_, cache, key, log):
        log.write(20)
        found = (await cache.plan(key, "a", behind(0), wanted(20))).range
        part, rest = found.size // 3, found.size - found.size // 3
        for tenant, size, paid in (("b", 1, False), ("a", part, True), ("a", found.size, False), ("a", rest, True)):
            pays = cache.pays(key, tenant, found.after, found.end)
            assert (pays is not None and pays(size)) is paid
        cache.close()
        assert pays is not None
        assert not pays(0), "it is retained no more"


@in_virtual_time
async def test_a_tenants_ranges_are_bounded_in_number(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ranges(monkeypatch, ranges_max=5) as (there, cache, key, log):
        log.write(8)
        planned = await small_ranges(cache, key, 8)
        retained = [cache.read(key, "a", each.after, each.end, 1 << 20) is not None for each in planned]
        assert retained == [False] * 3 + [True] * 5
        sizes = [each.held_bytes for each in planned[3:]]
        assert cache.retained_bytes == there.manager.accounts.of("a").retained_bytes == sum(sizes)


@in_virtual_time
async def test_room_for_a_plan_and_a_message_cost_the_same_however_many_ranges_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    costs: set[tuple[int, int]] = set()
    for count in (10, 100, 1_000):
        async with ranges(monkeypatch) as (there, cache, key, log):
            log.write(count)
            planned = await small_ranges(cache, key, count)
            account = there.manager.accounts.of("a")
            account.quotas = Quotas(retained_bytes=account.retained_bytes)
            pays = cache.pays(key, "a", planned[-1].after, planned[-1].end)
            assert pays is not None
            with executed(ranges_cache) as of_a_message:
                pays(1)
            with executed(ranges_cache) as of_a_plan:
                cache._charge(account, 1)
            costs.add((of_a_message.count, of_a_plan.count))
            first, second = (cache.read(key, "a", each.after, each.end, 1) is not None for each in planned[:2])
            assert (first, second) == (False, True), "it has evicted one range"
    assert len(costs) == 1
    assert min(costs.pop()) > 1


@in_virtual_time
async def test_a_reader_that_waits_for_the_next_plan_goes_on_and_later_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[RangeReader] = []
    begin = RangeReader.__init__

    def counted(self: RangeReader, *arguments: Any) -> None:
        made.append(self)
        begin(self, *arguments)

    monkeypatch.setattr(RangeReader, "__init__", counted)
    async with ranges(monkeypatch) as (there, cache, key, log):
        log.write(10)
        plan = await cache.plan(key, "a", behind(0), wanted(10))
        log.write(10)
        assert (await cache.plan(key, "a", behind(10), wanted(20))).range.count == 10
        assert plan.range.count == 10
        assert len(made) == 1
        await asyncio.sleep(120.0)
        assert there.manager.cursors == 0
