"""Rendering: once for each chunk, tenant by tenant, each chunk its own text, and never without a reader."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator

import bson
import pytest_asyncio

from feedmux_server.core.delivery.replay_buffer import ReplayBuffer, RingLimits
from feedmux_server.core.delivery.taken import NeedsRender
from feedmux_server.core.errors import ErrorReason
from feedmux_server.core.events.chunk import CHUNK_OVERHEAD_BYTES, Chunk, cut_batch
from feedmux_server.core.positions.resume_token import ResumeToken
from feedmux_server.workers.rendering import CANONICAL, RELAXED, Renderer, Ticket
from tests.integration.side_render import LONG_S

FILLED: list[int] = []


@pytest_asyncio.fixture
async def renderer() -> AsyncIterator[Renderer]:
    FILLED.clear()
    renderer = Renderer(FILLED.append)
    renderer._process._timeout_s = LONG_S  # a process that a test has frozen stays frozen
    yield renderer
    await renderer.close()


def chunk_at(time: int, padding: int = 0) -> NeedsRender:
    start, end = (ResumeToken.high_water_mark(each << 32) for each in (time, time + 1))
    event = bson.encode({"_id": bson.decode(end.raw), "padding": bytes(padding), "n": time})
    ring = ReplayBuffer(start, RingLimits())
    (chunk,) = cut_batch(event, start, end, 0.0, bytes_max=1 << 24)
    ring.append(chunk)
    return NeedsRender(chunk, ring)


class Waiting:
    """Do what a session does: request a text, wait for the notification, check the result."""

    def __init__(self, renderer: Renderer, wanted: NeedsRender, tenant: str = "a", wire_format: str = RELAXED) -> None:
        self.woken = asyncio.Event()
        self.ticket: Ticket = renderer.request(wanted.chunk, wanted.ring, wire_format, tenant, self.woken.set)

    async def done(self) -> None:
        async with asyncio.timeout(60):
            await self.woken.wait()


async def render(renderer: Renderer, wanted: NeedsRender, tenant: str = "a", wire_format: str = RELAXED) -> None:
    await Waiting(renderer, wanted, tenant, wire_format).done()


def text(chunk: Chunk, wire_format: str) -> bytes:
    return chunk.rendered[wire_format].data


async def until_asked(renderer: Renderer) -> None:
    """The process has been asked for the first in the queue."""
    async with asyncio.timeout(60):
        while not renderer._process.held_bytes or renderer._process.pid is None:
            await asyncio.sleep(0.001)


async def frozen(renderer: Renderer) -> int:
    """Stops the process, and says which it was."""
    await render(renderer, chunk_at(1))
    pid = renderer._process.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    return pid


async def test_tenants_take_turns(renderer: Renderer) -> None:
    order: list[str] = []

    async def one(tenant: str, number: int) -> None:
        await render(renderer, chunk_at(number), tenant)
        order.append(tenant)

    loud = [asyncio.create_task(one("loud", number)) for number in range(50)]
    await asyncio.sleep(0)
    await asyncio.gather(*(one("quiet", number) for number in range(3)))
    assert order.index("quiet") <= 2
    assert order[:8].count("quiet") == 3
    await asyncio.gather(*loud)


async def test_an_event_that_cannot_be_rendered_is_told_and_the_others_go_on(renderer: Renderer) -> None:
    broken = bytearray(bson.encode({"_id": bson.decode(ResumeToken.high_water_mark(1 << 32).raw), "n": "text"}))
    broken[-6] = 0xFF
    broken[broken.rindex(b"\x02n\x00")] = 0x44  # no type of BSON
    wanted = chunk_at(1)
    rendition = wanted.chunk.bson
    assert rendition is not None
    rendition.data, rendition.offsets = bytes(broken), [0, len(broken)]
    await render(renderer, wanted)
    error = wanted.chunk.render_error(RELAXED)
    assert error is not None
    assert error.reason is ErrorReason.BSON_INVALID
    assert wanted.chunk.render_error(CANONICAL) is None
    good = chunk_at(2)
    await render(renderer, good)
    assert text(good.chunk, RELAXED)


async def test_waiting_chunks_of_rings_that_are_gone_and_requests_are_counted(renderer: Renderer) -> None:
    await frozen(renderer)
    wanted = [chunk_at(number, padding=10_000) for number in range(2, 7)]
    waiting = [Waiting(renderer, each) for each in wanted]
    await until_asked(renderer)
    request = len(wanted[0].chunk.bson.data) + 1 if wanted[0].chunk.bson else 0
    assert renderer.memory_bytes == request
    wanted[3].ring.close()
    assert request < renderer.memory_bytes <= request + CHUNK_OVERHEAD_BYTES
    for each in waiting:
        each.ticket.withdraw()


async def test_who_waits_for_an_evicted_chunk_is_woken_and_gets_no_text(renderer: Renderer) -> None:
    pid = await frozen(renderer)
    wanted = [chunk_at(number) for number in (2, 3)]
    waiting = [Waiting(renderer, each) for each in wanted]
    await until_asked(renderer)
    for each in wanted:
        each.ring.drop_oldest()
    os.kill(pid, signal.SIGCONT)
    for one, each in zip(waiting, wanted, strict=True):
        await one.done()
        assert not each.chunk.rendered
        assert each.ring.bytes == 0
        assert each.chunk.render_error(RELAXED) is None


async def test_nothing_is_rendered_after_it_is_closed() -> None:
    renderer = Renderer(lambda _: None)
    waiting = [Waiting(renderer, chunk_at(number)) for number in range(9)]
    await asyncio.sleep(0)
    async with asyncio.timeout(60):
        await renderer.close()
    assert (renderer._process.pid, renderer.waiting, renderer._pending) == (None, 0, {})
    late = Waiting(renderer, chunk_at(10))
    await asyncio.sleep(0)
    for each in (*waiting, late):
        each.ticket.withdraw()
