"""`scale`: what one step on the event loop takes beside 5,000 feeds of others, and beside 100."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from types import SimpleNamespace
from typing import cast

import bson

from bench.report import Figures, Result, Target, median_ratio, medians, progress
from bench.settings import Settings
from feedmux_server.core.delivery.cached_range import CachedRange
from feedmux_server.core.delivery.subscriber import Subscriber
from feedmux_server.core.delivery.taken import BSON, Delivery
from feedmux_server.core.events.chunk import Chunk, cut_batch
from feedmux_server.core.feeds.feed import FeedSpec, Scope
from feedmux_server.core.feeds.stream_key import StreamKey, stream_key
from feedmux_server.core.limits.account import Accounts
from feedmux_server.core.limits.quota import Quotas
from feedmux_server.core.positions.join_point import JoinPoint
from feedmux_server.core.positions.resume_token import ResumeToken
from feedmux_server.rpc.plan_range import SLICES_AT_ONCE
from feedmux_server.source.deployment import Source
from feedmux_server.source.reader import Batch
from feedmux_server.streams.key_streams import KeyStreams, ManagerLimits
from feedmux_server.streams.manager import StreamManager
from feedmux_server.streams.pump import PumpLimits
from feedmux_server.streams.upstream import Reader
from feedmux_server.supervision import Tasks

FEEDS, FEW_FEEDS = 5_000, 100
WAITING = 100
CHUNKS, CHUNK_BYTES = 6, 4_096
SLICES, RANGE_BYTES = 1_000, 768 * 1_024
MOST_MS = 5.0
_SECOND = 1_700_000_000


async def run(settings: Settings) -> Result:
    feeds = settings.size(FEEDS, 1_000, 200)
    many: list[Figures] = []
    few: list[Figures] = []
    for number in range(settings.runs):
        many.append(await _figures(feeds))
        few.append(await _figures(FEW_FEEDS))
        progress(
            f"run {number + 1}: {_sum(many[-1]):.2f} ms with {feeds:,} feeds, {_sum(few[-1]):.2f} with {FEW_FEEDS}"
        )
    figures, alternative = medians(many), medians(few)
    ratio = median_ratio([_sum(each) for each in many], [_sum(each) for each in few])
    return Result(
        "scale: milliseconds that one step holds the event loop",
        f"{feeds:,} feeds",
        f"{FEW_FEEDS} feeds",
        figures,
        alternative,
        ratio,
        "all steps with many feeds ÷ with few, median of the runs' ratios",
        [Target("ratio", "at_most", 2.0, ratio)]
        + [Target(name, "at_most", MOST_MS, value) for name, value in figures.items()],
        [f"{WAITING} sessions wait for a slot to read history; the stream that ends is that of one of them"],
    )


async def _figures(count: int) -> Figures:
    plain = KeyStreams._reader_at
    KeyStreams._reader_at = lambda *_: cast(Reader, IdleReader())  # type: ignore[method-assign]
    try:
        async with Tasks() as tasks:
            limits = ManagerLimits(catch_up_max=WAITING, pump=PumpLimits(coalesce_s=0.0))
            accounts = Accounts(lambda _: Quotas(shared_streams=50), time.monotonic)
            source = cast(
                Source,
                SimpleNamespace(
                    name="main",
                    clock=SimpleNamespace(known_time=1 << 63),
                    timeline=SimpleNamespace(listeners=[], lost=lambda place: None),
                ),
            )
            manager = StreamManager({"main": source}, limits, tasks, accounts)
            figures = await _measure(manager, count)
            manager.stop()
        await manager.renderers.chunks.close()
    finally:
        KeyStreams._reader_at = plain  # type: ignore[method-assign]
    return figures


async def _measure(manager: StreamManager, count: int) -> Figures:
    for number in range(count):
        _join(manager, number, 9)
        ring = next(iter(manager.streams_of(_key(number)).streams.open)).ring
        for first in range(10, 10 + CHUNKS):
            ring.append(_chunk(first))
    await asyncio.sleep(0.1)
    took: dict[str, float] = {}
    manager.slots._most = 0
    waiting = [_join(manager, number, 0, f"tenant-{number % 10}") for number in range(WAITING)]
    with _timed(took, "waiting_session_looks_again_ms"):
        manager.streams_of(_key(0)).streams.take(waiting[0])
    manager.slots._most = 1
    with _timed(took, "end_of_a_stream_ms"):
        manager.slots.admit()
        for number, each in enumerate(waiting):
            manager.streams_of(_key(number)).streams.take(each)
    account = manager.accounts.of("t")
    for number in range(40):
        manager.release(_key(number + WAITING // 2), _others(manager, number + WAITING // 2))
    with _timed(took, "room_for_a_feed_ms"):
        manager.abandoned._to_close(account, _key(-1))
    with _timed(took, "subscriber_of_a_new_feed_ms"):
        _join(manager, count, 9)
    excess = min(1 << 20, manager.memory.rings.bytes // 4)
    manager.memory.bytes_max = manager.memory.bytes - excess
    with _timed(took, "eviction_of_a_mebibyte_ms"):
        manager.memory.grew(1 << 20)
    kept = _range()
    with _timed(took, "a_turn_of_slices_ms"):
        assert len(list(islice(kept.slices(SLICES), SLICES_AT_ONCE))) == SLICES_AT_ONCE
    return took


@contextmanager
def _timed(took: dict[str, float], name: str) -> Iterator[None]:
    began_s = time.perf_counter()
    yield
    took[name] = (time.perf_counter() - began_s) * 1e3


def _sum(figures: Figures) -> float:
    return sum(figures.values())


class IdleReader:
    """A change stream at the head of the oplog, without events."""

    is_open = has_cursor = False

    async def open(self) -> None:
        self.is_open = self.has_cursor = True

    async def read(self) -> Batch:
        await asyncio.get_running_loop().create_future()
        raise AssertionError("unreachable")

    def interrupt(self) -> None: ...

    async def close(self) -> None:
        self.is_open = self.has_cursor = False


def _join(manager: StreamManager, number: int, place: int, tenant: str = "t") -> Subscriber:
    at = JoinPoint(_mark(place), exact=True)
    subscriber = manager.subscriber(
        _key(number), tenant, at, lambda: None, durable=False, payload_max=1 << 20, wire_format=BSON
    )
    manager.streams_of(_key(number)).streams.grant(subscriber, 1_000, 1 << 20)
    return subscriber


def _others(manager: StreamManager, number: int) -> Subscriber:
    (subscriber,) = next(iter(manager.streams_of(_key(number)).streams.open)).subscribers.values()
    return subscriber


def _key(number: int) -> StreamKey:
    return stream_key(FeedSpec(Scope("main", "d", f"c{number}")))


def _mark(number: int) -> ResumeToken:
    return ResumeToken.high_water_mark((_SECOND + number) << 32)


_TOKEN_TAIL = "2B022C0100296E5A1004942584E96D514A63B59E7230E38388D7461E5F6964002B020004"
"""Of an insert into a collection, after its cluster time."""


def _event(number: int, size: int) -> bytes:
    token = f"82{_SECOND + number:08X}{1:08X}{_TOKEN_TAIL}"
    return bson.encode({"_id": {"_data": token}, "operationType": "insert", "pad": "x" * (size - 250)})


def _chunk(number: int) -> Chunk:
    (chunk,) = cut_batch(
        _event(number, CHUNK_BYTES), _mark(number - 1), _mark(number + 1), 0.0, bytes_max=CHUNK_BYTES * 2
    )
    return chunk


def _range() -> CachedRange:
    """Return a delivery of the given size, as a plan of a backlog holds it."""
    count = 2 * SLICES
    data = b"".join(_event(number, RANGE_BYTES // count) for number in range(1, count + 1))
    end = _mark(count + 1)
    return CachedRange(_mark(0), end, (Delivery(1, count, (data,), len(data), len(data), end, 0.0),))
