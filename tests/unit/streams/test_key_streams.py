"""The streams of one key: each has a pump and a task, and the reader of a feed that may be a view."""

import asyncio
import itertools
from random import Random

import pytest

from feedmux_server.core.delivery.replay_buffer import RingLimits
from feedmux_server.core.delivery.shared_stream import SharedStream
from feedmux_server.core.delivery.slots import Slots
from feedmux_server.core.delivery.wide_plan import WideLimits
from feedmux_server.core.feeds.feed import FeedSpec, Scope
from feedmux_server.core.feeds.stream_key import stream_key
from feedmux_server.core.limits.account import Accounts
from feedmux_server.core.limits.memory import Memory
from feedmux_server.core.limits.quota import Quotas
from feedmux_server.core.limits.usage_meter import UsageMeter
from feedmux_server.core.positions.join_point import JoinPoint
from feedmux_server.source.read_limits import ReadLimits
from feedmux_server.source.reader import ChangeStreamReader
from feedmux_server.streams.abandoned_streams import AbandonedStreams
from feedmux_server.streams.key_streams import KeyStreams, ManagerLimits, StreamParts
from feedmux_server.streams.pump import PumpHost
from feedmux_server.streams.wide.manager import WideStreams
from feedmux_server.streams.wide.stream import WideStreamLimits
from feedmux_server.streams.wide.view_reader import ViewReader
from feedmux_server.supervision import Tasks
from feedmux_server.telemetry.observer import NOBODY
from tests.sim.loop import SimLoop
from tests.sim.mongo import SimMongo, SimSource
from tests.unit.core.delivery.streams_support import mark
from tests.unit.streams.manager_support import world
from tests.virtual_time import in_virtual_time


def key_streams(spec: FeedSpec, wide_enabled: bool) -> KeyStreams:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    source = SimSource(SimMongo(loop, Random(0)))
    accounts, tasks, memory = Accounts(lambda _: Quotas(), lambda: 0.0), Tasks(), Memory(1 << 30)
    wide_limits = WideLimits(enabled=wide_enabled)
    slots = Slots(1, accounts)
    wide = WideStreams({"main": source}, tasks, wide_limits, WideStreamLimits(), ReadLimits())
    parts = StreamParts(
        ManagerLimits(wide=wide_limits),
        PumpHost(memory, slots, accounts, NOBODY),
        tasks,
        UsageMeter(),
        slots,
        AbandonedStreams(accounts),
        wide,
        itertools.count(1),
    )
    return KeyStreams(parts, source, stream_key(spec), lambda: None)


@pytest.mark.parametrize(
    ("scope", "wide_enabled", "kind"),
    [
        (Scope("main", "shop", "orders"), True, ViewReader),
        (Scope("main", "shop", "orders"), False, ChangeStreamReader),
        (Scope("main"), True, ChangeStreamReader),
    ],
)
@in_virtual_time
async def test_a_narrow_feed_may_become_a_view(scope: Scope, wide_enabled: bool, kind: type) -> None:
    streams = key_streams(FeedSpec(scope), wide_enabled)
    stream = SharedStream(1, JoinPoint(mark(0)), RingLimits(), 1 << 20)
    assert type(streams._reader_at(stream)) is kind
    assert streams.wide_stream_of(stream) is None, "it reads with a cursor of its own at first"


@in_virtual_time
async def test_a_pump_that_has_ended_leaves_neither_task_nor_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(monkeypatch) as there:
        key, log = there.feed("a")
        client = there.session(key, "a", 0)
        each = there.manager.streams_of(key)
        (stream,) = each.streams.open
        assert list(each.tasks) == list(each.pumps) == [stream.id]
        assert each.tasks[stream.id].get_name() == f"pump-{stream.id}-a.c"
        log.write(1)
        await client.take(1)
        client.close()
        await asyncio.sleep(1.0)
        assert (each.tasks, each.pumps, list(each.streams.open)) == ({}, {}, [])
