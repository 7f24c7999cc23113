"""Sessions that wait for Extended JSON: their own text, everything else meanwhile, and no memory that nobody counts."""

import asyncio
import json
import os
import random
import signal

import bson
import pytest

from feedmux_server.core.delivery.ack_tracker import TRACKED_BYTES, AckTracker
from feedmux_server.core.delivery.taken import BSON
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.events.chunk import Chunk
from feedmux_server.sessions import session as sessions
from feedmux_server.sessions.outputs import DegradedMark, DrainingMark, Output, ProgressMark
from feedmux_server.workers.rendering import CANONICAL, RELAXED
from feedmux_server.workers.side_process import SideProcess
from tests.integration import side_render
from tests.integration.side_render import FREEZE, LONG_S
from tests.unit.streams.manager_support import Client, World, rings_of, world


def numbers(client: Client) -> list[int]:
    """What each event that came says it is."""
    if client.wire_format == BSON:
        return [bson.decode(each)["n"] for each in client.events]
    found = (json.loads(each)["n"] for each in client.events)
    return [int(each["$numberInt"]) for each in found] if client.wire_format == CANONICAL else list(found)


def renderer_pid(world: World) -> int:
    pid = world.manager.renderers.chunks._process.pid
    assert pid is not None
    return pid


def freeze_renderer(world: World) -> int:
    """Stop the process. It stays frozen: the server does not replace it."""
    world.manager.renderers.chunks._process._timeout_s = LONG_S
    pid = renderer_pid(world)
    os.kill(pid, signal.SIGSTOP)
    return pid


async def after_progress(client: Client, task: "asyncio.Task[Output | None] | None" = None) -> Output | None:
    """What comes next that is no heartbeat; `task` waits for an output already."""
    output = await (task or client.next())
    while isinstance(output, ProgressMark):
        output = await client.next()
    return output


async def waits_for_a_rendering(world: World, client: Client) -> None:
    async with asyncio.timeout(60):
        while not client.session.gate._rendering.waits or not world.manager.renderers.chunks._process.held_bytes:
            await asyncio.sleep(0.001)


def adds_up(world: World) -> None:
    manager = world.manager
    chunks: set[Chunk] = set()
    tracked = 0
    for session in world.sessions:
        if session.closed:
            continue
        acks = session.subscriber.acks
        sent = acks._sent if isinstance(acks, AckTracker) else ()
        tracked += TRACKED_BYTES * len(sent)
        chunks.update({chunk for _, chunk, _, _ in sent})
    rings = rings_of(manager)
    held = tracked + sum(chunk.size_bytes for chunk in chunks if chunk.evicted)
    in_rings = sum(ring[seq].size_bytes for ring in rings for seq in range(ring.first_seq, ring.next_seq))
    beside = manager.renderers.chunks.memory_bytes + manager.memory.unsent.bytes
    assert manager.memory.bytes == in_rings + held + beside
    assert (
        manager.accounts.backlog.bytes == held == sum(account.outstanding.backlog_bytes for account in manager.accounts)
    )


@pytest.mark.parametrize("end", ["fenced", "drained", "closed", "cancelled"])
async def test_a_session_goes_on_while_the_renderer_is_frozen(monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    """It awaited the renderer: no heartbeat, no notice, no end, for as long as the process stood still."""
    async with world(monkeypatch) as here:
        key, log = here.feed("one")
        log.write(20)
        first, other = (here.session(key, "t", after, RELAXED, heartbeat_s=0.1) for after in (10, 0))
        await first.take(10)
        other.session.close()
        log.write(20)
        freeze_renderer(here)
        client = here.session(key, "t", 20, RELAXED, heartbeat_s=0.1, durable=True)
        task = asyncio.create_task(client.next())
        await waits_for_a_rendering(here, client)
        for _ in range(3):
            assert isinstance(await task, ProgressMark)
            task = asyncio.create_task(client.next())
        client.session.commits.state_available(False)
        assert isinstance(await after_progress(client, task), DegradedMark)
        in_bson = here.session(key, "t", 20)
        assert len(await in_bson.take(20)) == 20, "format BSON needs no renderer"
        adds_up(here)
        if end == "fenced":
            client.session.commits.fenced("TAKEOVER")
            with pytest.raises(FeedmuxError) as caught:
                await after_progress(client)
            assert caught.value.reason is ErrorReason.FENCED
        elif end == "drained":
            client.session.drain(5.0)
            assert isinstance(await after_progress(client), DrainingMark)
            with pytest.raises(FeedmuxError) as caught:
                await after_progress(client)
            assert caught.value.reason is ErrorReason.DRAINING
        elif end == "closed":
            client.session.ask_close()
            assert await after_progress(client) is None
        else:
            task = asyncio.create_task(client.next())
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        client.close()
        first.close()
        assert here.manager.renderers.chunks.waiting == 0


async def test_small_chunks_do_not_wait_for_large_events(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(monkeypatch, ring_bytes=32 << 20) as here:
        large, written = here.feed("large")
        small, log = here.feed("small")
        written.write(1, padding=3 << 20)
        renderer = here.manager.renderers.large
        renderer._process = SideProcess(side_render.__name__, lambda _: LONG_S)  # and it freezes over so much padding
        waiting = here.session(large, "t", 0, RELAXED, credit=16 << 20)
        taking = asyncio.create_task(waiting.take(1))
        async with asyncio.timeout(60):
            while not renderer._process.held_bytes:
                await asyncio.sleep(0.001)
        log.write(3)
        client = here.session(small, "t", 0, RELAXED)
        await client.take(3)
        assert numbers(client)[-1] % 1_000_000 == 3
        assert not taking.done()
        taking.cancel()
        await asyncio.wait([taking])


async def test_a_chunk_that_cannot_be_rendered_ends_only_who_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(monkeypatch, chunk_bytes=200_000) as here:
        here.manager.renderers.chunks._process = SideProcess(side_render.__name__, side_render.limit_s)
        poison, poisoned = here.feed("poison")
        good, log = here.feed("good")
        log.write(3)
        warm = here.session(good, "t", 0, RELAXED)
        await warm.take(3)
        poisoned.write(100, padding=len(FREEZE))
        ending = here.session(poison, "t", 0, RELAXED)
        with pytest.raises(FeedmuxError) as caught:
            await ending.take(100)
        assert caught.value.reason is ErrorReason.INTERNAL
        assert caught.value.metadata["correlation_id"]
        ending.close()
        log.write(3)
        await warm.take(6)
        assert [number % 1_000_000 for number in numbers(warm)] == [1, 2, 3, 4, 5, 6]
        in_bson = here.session(poison, "t", 0)
        await in_bson.take(100)


@pytest.mark.parametrize("seed", range(3))
async def test_everybody_gets_the_events_of_their_own_feed_whatever_happens(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Sessions come, go and are cancelled at any await; chunks are evicted; the renderer is killed and stopped."""
    monkeypatch.setattr(sessions, "CONTINUE_PAUSE_S", 0.0)
    chance = random.Random(seed)
    async with world(monkeypatch, ring_bytes=20_000) as here:
        monkeypatch.setattr(here.manager.renderers.chunks._process, "_timeout_s", 0.4)
        feeds = {name: here.feed(name) for name in "abc"}
        for _, log in feeds.values():
            log.write(100, padding=100)
        seen = 0

        async def read(name: str, after: int, wanted: int, wire_format: str) -> None:
            nonlocal seen
            key, log = feeds[name]
            client = here.session(key, name, after, wire_format, durable=chance.random() < 0.5, heartbeat_s=0.2)
            try:
                while len(client.events) < wanted:
                    await client.next()
                    if chance.random() < 0.5 and client.session.subscriber.events_sent:
                        client.session.ack(chance.randint(0, client.session.subscriber.events_sent))
            except FeedmuxError as error:
                if error.reason is not ErrorReason.INTERNAL:  # the process was stopped twice over one chunk
                    raise
            finally:
                client.close()
                assert numbers(client) == [log.base + after + n for n in range(1, len(client.events) + 1)]
                seen += len(client.events)

        reading: list[asyncio.Task[None]] = []
        harmed = 0
        while harmed < 6:
            name = chance.choice("abc")
            log = feeds[name][1]
            log.write(chance.choice((0, 1, 30)), padding=chance.choice((0, 300)))
            if len(reading) < 40:
                after = max(0, len(log.events) - chance.choice((5, 60)))
                wire_format = chance.choice((RELAXED, RELAXED, CANONICAL, BSON))
                wanted = chance.choice((1, 40, 10**6))
                reading.append(asyncio.create_task(read(name, after, wanted, wire_format)))
            for _ in range(chance.randrange(4)):
                if reading:
                    reading[chance.randrange(len(reading))].cancel()
            if chance.random() < 0.3:
                here.evict()
            if seen >= 150 * (harmed + 1) and here.manager.renderers.chunks._process.pid is not None:
                os.kill(renderer_pid(here), chance.choice((signal.SIGKILL, signal.SIGSTOP)))
                harmed += 1
            for _ in range(chance.randrange(4)):
                await asyncio.sleep(0)
            await asyncio.sleep(chance.choice((0, 0.002, 0.01)))
            adds_up(here)
            for each in [each for each in reading if each.done()]:
                reading.remove(each)
                if not each.cancelled():
                    each.result()
        for each in reading:
            each.cancel()
        for outcome in await asyncio.gather(*reading, return_exceptions=True):
            assert outcome is None or isinstance(outcome, asyncio.CancelledError), outcome
        # Sessions continue with a process that is not frozen.
        monkeypatch.setattr(here.manager.renderers.chunks._process, "_timeout_s", LONG_S)
        if (pid := here.manager.renderers.chunks._process.pid) is not None:
            os.kill(pid, signal.SIGKILL)
        for name, (key, log) in feeds.items():
            log.write(5)
            last = here.session(key, name, len(log.events) - 5, RELAXED)
            async with asyncio.timeout(60):
                await last.take(5)
            assert numbers(last)[-1] == log.base + len(log.events)
            last.close()
        assert (here.manager.renderers.chunks.waiting, here.manager.renderers.chunks._pending) == (0, {})
        assert here.manager.accounts.backlog.bytes == 0
