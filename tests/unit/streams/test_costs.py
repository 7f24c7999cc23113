"""The work for one feed costs the same however many other feeds there are: measured in instructions, not time."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from bench.scale import IdleReader
from feedmux_server.core.delivery.shared_stream import SharedStream, StreamState
from feedmux_server.core.delivery.stream_steps import Step
from feedmux_server.core.delivery.subscriber import Subscriber
from feedmux_server.core.events.chunk import cut_batch
from feedmux_server.core.feeds.feed import FeedSpec, Scope
from feedmux_server.core.feeds.stream_key import StreamKey, stream_key
from feedmux_server.core.limits.quota import Quotas
from feedmux_server.core.positions.join_point import JoinPoint
from feedmux_server.streams.key_streams import KeyStreams
from feedmux_server.streams.manager import StreamManager
from feedmux_server.streams.upstream import Reader
from tests.executed import executed
from tests.sim.events import event
from tests.unit.core.delivery.streams_support import behind, mark, token
from tests.unit.streams.manager_support import World, rings_of, world

FEW, MANY = 20, 400
CHUNK_BYTES = 1000


class Feeds:
    """A manager with many feeds. Each feed has one subscriber at its head and three chunks in its ring."""

    def __init__(self, manager: StreamManager) -> None:
        self.manager = manager
        self.subscribers: list[Subscriber] = []

    async def fill(self, count: int) -> None:
        for number in range(count):
            self.subscribers.append(self.join(key(number), behind(9)))
            for first in (10, 11, 12):
                data = event(1, token(first), CHUNK_BYTES).data
                self.stream(number).append(
                    cut_batch(data, mark(first - 1), mark(first), 0.0, bytes_max=len(data)), mark(first)
                )
        while not all(each.state is StreamState.READING for each in map(self.stream, range(count))):
            await asyncio.sleep(0)

    def join(self, at_key: StreamKey, at: JoinPoint, tenant: str = "t", credit: int = 100) -> Subscriber:
        subscriber = self.manager.subscriber(
            at_key, tenant, at, lambda: None, durable=False, payload_max=1 << 20, wire_format="bson"
        )
        self.manager.streams_of(at_key).streams.grant(subscriber, credit, 1 << 20)
        return subscriber

    def stream(self, number: int) -> SharedStream:
        return next(iter(self.manager.streams_of(key(number)).streams.open))


def key(number: int) -> StreamKey:
    return stream_key(FeedSpec(Scope("main", "d", f"c{number}")))


async def a_place_in_history(feeds: Feeds) -> Callable[[], object]:
    """A subscriber that waits for a slot, and checks again as each heartbeat does."""
    feeds.manager.slots._most = 0
    waiting = feeds.join(key(0), behind(0))
    assert waiting.ring is None
    streams = feeds.manager.streams_of(key(0)).streams
    return lambda: streams.take(waiting)


async def the_end_of_a_stream(feeds: Feeds) -> Callable[[], object]:
    feeds.manager.slots._most = 0
    for number in range(5):
        assert feeds.join(key(number), behind(0), f"tenant-{number}").ring is None
    feeds.manager.slots._most = 2
    return feeds.manager.slots.admit


async def bytes_beyond_the_bound(feeds: Feeds) -> Callable[[], object]:
    feeds.manager.memory.bytes_max = feeds.manager.memory.bytes - 5 * CHUNK_BYTES
    return lambda: feeds.manager.memory.grew(1 << 20)


async def room_for_one_more(feeds: Feeds) -> Callable[[], object]:
    account = feeds.manager.accounts.of("t")
    for number in range(3):
        feeds.manager.release(key(number), feeds.subscribers[number])
    account.feeds.open(key(3))
    return lambda: feeds.manager.abandoned._to_close(account, key(4))


async def one_who_comes(feeds: Feeds) -> Callable[[], object]:
    return lambda: feeds.join(key(5), behind(12))


async def one_who_goes(feeds: Feeds) -> Callable[[], object]:
    return lambda: feeds.manager.release(key(6), feeds.subscribers[6])


async def a_new_feed(feeds: Feeds) -> Callable[[], object]:
    return lambda: feeds.join(key(1_000_000), behind(12))


OPERATIONS = [
    a_place_in_history, the_end_of_a_stream, bytes_beyond_the_bound, room_for_one_more, one_who_comes, one_who_goes,
    a_new_feed,
]  # fmt: skip


@pytest.mark.parametrize("operation", OPERATIONS)
async def test_no_cost_grows_with_the_feeds_of_others(operation: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    costs = []
    for count in (FEW, FEW, MANY):
        async with world(monkeypatch, quotas=Quotas(shared_streams=4)) as here:
            monkeypatch.setattr(KeyStreams, "_reader_at", lambda *_: cast(Reader, IdleReader()))
            feeds = Feeds(here.manager)
            await feeds.fill(count)
            work = await operation(feeds)
            with executed(what="opcode") as cost:
                work()
        costs.append(cost.count)
    # Python walks sets of other sizes along other paths: a few instructions more or less.
    assert costs[2] <= 1.1 * max(costs[:2]), costs
    assert costs[2] > 20, "no work was done"


@pytest.mark.parametrize("same_feed", [True, False])
async def test_a_slot_is_handed_over_at_the_same_cost_however_many_wait(
    monkeypatch: pytest.MonkeyPatch, *, same_feed: bool
) -> None:
    costs = []
    for count in (10, 10, 100, 1_000):
        async with world(monkeypatch, slots=4) as here:
            monkeypatch.setattr(KeyStreams, "_reader_at", lambda *_: cast(Reader, IdleReader()))
            feeds = Feeds(here.manager)
            await feeds.fill(1 if same_feed else count + 4)
            keys = [key(0 if same_feed else number) for number in range(count + 4)]
            late = list[Subscriber]()
            for number, each in enumerate(keys):
                late.append(feeds.join(each, behind(-number), f"tenant-{number}"))
                opened = here.manager.streams_of(each).streams.open
                while number < 4 and any(stream.state is StreamState.GATHERING for stream in opened):
                    await asyncio.sleep(0)  # until its stream begins no further back for others
            assert sum(each.ring is None for each in late) == count
            streams, slots = here.manager.streams_of(keys[0]).streams, here.manager.slots
            stream = streams.stream_of(late[0])
            assert stream is not None
            with executed(what="opcode") as cost:
                assert slots.next_step(streams, stream, turn_over=True) is Step.GIVE_WAY
                slots.give_way(streams, stream)
            assert late[4].ring is not None
        costs.append(cost.count)
    assert max(costs[2:]) <= 1.1 * max(costs[:2]), costs


async def test_memory_is_the_sum_of_all_rings(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(monkeypatch) as here:
        monkeypatch.setattr(KeyStreams, "_reader_at", lambda *_: cast(Reader, IdleReader()))
        feeds = Feeds(here.manager)
        await feeds.fill(FEW)
        _adds_up(here)
        feeds.stream(3).ring.grew(777)
        _adds_up(here)
        here.manager.memory.rings.evict(10 * feeds.stream(0).ring[0].size_bytes)
        _adds_up(here)
        left = [len(ring) for ring in rings_of(here.manager)]
        assert sum(left) == 3 * FEW - 10
        assert min(left) == 2, "each ring gave up one chunk before any gave up two"
        here.manager.memory.rings.evict(1 << 40)
        assert not any(rings_of(here.manager)), "no subscriber waits for any chunk"
        _adds_up(here)
        feeds.manager.streams_of(key(5)).streams.close(feeds.stream(5))
        _adds_up(here)


def _adds_up(here: World) -> None:
    rings = rings_of(here.manager)
    assert here.manager.memory.rings.bytes == sum(ring.bytes for ring in rings)
    assert all((ring.bytes > 0) == (len(ring) > 0) for ring in rings)
