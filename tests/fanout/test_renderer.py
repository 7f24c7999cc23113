"""Rendering: once for each chunk, and tenant by tenant."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator

import bson
import pytest
import pytest_asyncio

from feedmux_server.core.chunk import Chunk, cut_batch
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.replay_buffer import ReplayBuffer, RingLimits
from feedmux_server.core.resume_token import ResumeToken
from feedmux_server.core.subscriber import NeedsRender
from feedmux_server.fanout.rendering import CANONICAL, RELAXED, Renderer


@pytest_asyncio.fixture
async def renderer() -> AsyncIterator[Renderer]:
    renderer = Renderer()
    yield renderer
    await renderer.close()


def chunk_at(time: int, data: bytes = b"") -> NeedsRender:
    start, end = (ResumeToken.high_water_mark(each << 32) for each in (time, time + 1))
    event = data or bson.encode({"_id": bson.decode(end.raw), "n": time})
    ring = ReplayBuffer(start, RingLimits())
    (chunk,) = cut_batch(event, start, end, 0.0, bytes_max=1 << 20)
    ring.append(chunk)
    return NeedsRender(chunk, ring)


def text(chunk: Chunk, wire_format: str) -> bytes:
    return chunk.rendered[wire_format].data


async def test_sessions_share_a_rendering_and_its_bytes_are_counted_once(renderer: Renderer) -> None:
    wanted, filled = chunk_at(1), list[int]()
    before = wanted.ring.bytes
    await asyncio.gather(*(renderer.render(wanted, RELAXED, tenant, filled.append) for tenant in "aabb"))
    await renderer.render(wanted, CANONICAL, "a", filled.append)
    assert b'"n":1}' in text(wanted.chunk, RELAXED)
    assert b'{"$numberInt":"1"}' in text(wanted.chunk, CANONICAL)
    assert len(filled) == 2
    assert wanted.ring.bytes == before + sum(filled)


async def test_tenants_take_turns(renderer: Renderer) -> None:
    order: list[str] = []

    async def render(tenant: str, time: int) -> None:
        await renderer.render(chunk_at(time), RELAXED, tenant, lambda _: order.append(tenant))

    loud = [asyncio.create_task(render("loud", number)) for number in range(50)]
    await asyncio.sleep(0)
    await asyncio.gather(*(render("quiet", number) for number in range(3)))
    assert order.index("quiet") <= 2
    assert order[:8].count("quiet") == 3
    await asyncio.gather(*loud)


async def test_an_event_that_cannot_be_rendered_is_told_and_the_others_go_on(renderer: Renderer) -> None:
    broken = bytearray(bson.encode({"_id": bson.decode(ResumeToken.high_water_mark(1 << 32).raw), "n": "text"}))
    broken[-6] = 0xFF
    broken[broken.rindex(b"\x02n\x00")] = 0x44  # no type of BSON
    wanted = chunk_at(1)
    view = wanted.chunk.bson
    assert view is not None
    view.data, view.offsets = bytes(broken), [0, len(broken)]
    with pytest.raises(FeedmuxError) as caught:
        await renderer.render(wanted, RELAXED, "a", lambda _: None)
    assert caught.value.reason is ErrorReason.BSON_INVALID
    good = chunk_at(2)
    await renderer.render(good, RELAXED, "a", lambda _: None)
    assert text(good.chunk, RELAXED)


async def test_a_killed_process_is_replaced_and_nothing_lost(renderer: Renderer) -> None:
    await renderer.render(chunk_at(1), RELAXED, "a", lambda _: None)
    for number in range(2, 5):
        pid = renderer._process.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        wanted = chunk_at(number)
        await renderer.render(wanted, RELAXED, "a", lambda _: None)
        assert b'"n":%d}' % number in text(wanted.chunk, RELAXED)


async def test_nobody_waits_for_ever_when_it_is_closed() -> None:
    renderer = Renderer()
    waiting = [asyncio.create_task(renderer.render(chunk_at(n), RELAXED, "a", lambda _: None)) for n in range(9)]
    await asyncio.sleep(0)
    await renderer.close()
    _, pending = await asyncio.wait(waiting, timeout=5)
    assert not pending
    assert renderer._process.pid is None
