"""The streams of the process: found by key, and gone when nobody needs them."""

import asyncio
from typing import cast

import pytest

from feedmux_server.core.delivery import ack_tracker
from feedmux_server.core.delivery.ack_tracker import TRACKED_BYTES
from feedmux_server.core.delivery.shared_stream import SharedStream
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.feeds.feed import FeedSpec, Scope
from feedmux_server.core.feeds.stream_key import StreamKey, stream_key
from feedmux_server.core.positions.join_point import JoinPoint
from feedmux_server.source.reader import Batch
from feedmux_server.streams.key_streams import KeyStreams
from feedmux_server.streams.upstream import Reader
from tests.unit.core.delivery.streams_support import mark
from tests.unit.streams.manager_support import LogReader, World, world
from tests.virtual_time import in_virtual_time

ABSENT = stream_key(FeedSpec(Scope("absent", "shop", "orders")))


@in_virtual_time
async def test_sessions_of_one_key_share_a_stream_until_the_last_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(monkeypatch) as there:
        key, log = there.feed("a")
        other, _ = there.feed("b")
        log.write(5)
        clients = [there.session(key, tenant, 0) for tenant in "aab"]
        apart = there.session(other, "a", 0)
        for client in clients:
            await client.take(5)
        assert (there.manager.cursors, there.manager.is_read(key), there.manager.is_read(ABSENT)) == (2, True, False)
        again = stream_key(FeedSpec(Scope("main", "a", "c")))
        assert again is not key
        assert there.manager.one_of(again) is key, "pipelines and policies are large"
        for client in (*clients, apart):
            client.close()
        await asyncio.sleep(1.0)
        assert (there.manager.cursors, list(there.manager.keyed())) == (0, [])
        assert there.manager.one_of(again) is again


@in_virtual_time
async def test_a_stream_without_sessions_stays_open_for_one_that_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(monkeypatch, unused_stream_s=10.0) as there:
        key, log = there.feed("a")
        log.write(5)
        client = there.session(key, "a", 0)
        await client.take(5)
        client.close()
        (stream,) = there.manager.streams_of(key).streams.open
        await asyncio.sleep(9.0)
        again = there.session(key, "a", 3)
        await again.take(2)
        assert list(there.manager.streams_of(key).streams.open) == [stream]
        again.close()
        await asyncio.sleep(11.0)
        assert not there.manager.is_read(key)


@in_virtual_time
async def test_an_unknown_source_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(monkeypatch) as there:
        with pytest.raises(FeedmuxError) as caught:
            there.manager.subscriber(
                ABSENT, "a", JoinPoint(mark(0)), lambda: None, durable=False, payload_max=1, wire_format=""
            )
        assert (caught.value.reason, caught.value.field) == (ErrorReason.SOURCE_NOT_FOUND, "feed.source")
        assert caught.value.metadata == {"source": "absent"}
        assert list(there.manager.keyed()) == []


# Slots for reading history: real pumps and sessions.


async def history(there: World, name: str, count: int) -> StreamKey:
    """A feed with large events, and a session at its end, whose stream begins no further back for others."""
    key, log = there.feed(name)
    log.write(count, padding=100_000)
    there.session(key, "live", count)
    await asyncio.sleep(0.1)
    return key


@in_virtual_time
async def test_the_end_of_a_session_with_many_unacknowledged_chunks_has_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here of two chunks each."""
    monkeypatch.setattr(ack_tracker, "ENTRIES_AT_ONCE", 2)
    async with world(monkeypatch, chunk_bytes=100) as here:
        key, log = here.feed("db")
        log.write(10)
        client = here.session(key, "team", 0, durable=True)
        await client.take(10)
        outstanding = here.manager.accounts.of("team").outstanding
        assert outstanding.backlog_bytes == 10 * TRACKED_BYTES
        client.close()
        assert outstanding.backlog_bytes == 8 * TRACKED_BYTES
        async with asyncio.timeout(60):
            while outstanding.backlog_bytes:
                await asyncio.sleep(0.01)


@in_virtual_time
async def test_a_stream_that_has_ended_needs_no_slot_although_its_subscriber_does_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with world(monkeypatch, slots=1) as there:
        broken, key = await history(there, "a", 30), await history(there, "b", 30)

        class Broken(LogReader):
            async def read(self) -> Batch:
                await asyncio.sleep(5.0)
                raise FeedmuxError(ErrorReason.PIPELINE_FAILED, "a fault")

        def reader_at(streams: KeyStreams, stream: SharedStream) -> Reader:
            kind = Broken if streams.key is broken else LogReader
            return cast(Reader, kind(there.logs[streams.key], stream, 2000))

        monkeypatch.setattr(KeyStreams, "_reader_at", reader_at)
        there.session(broken, "a", 0)
        await asyncio.sleep(0.1)
        other = there.session(key, "b", 0, heartbeat_s=1000.0)
        assert other.session.subscriber.ring is None
        async with asyncio.timeout(60.0):
            assert len(await other.take(30)) == 30


@in_virtual_time
async def test_after_a_stop_nobody_gets_a_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(monkeypatch, slots=1) as there:
        key, other_key = await history(there, "a", 30), await history(there, "b", 30)
        there.session(key, "a", 0)
        await asyncio.sleep(0.1)
        waiting = there.session(other_key, "b", 0)
        there.manager.stop()
        await asyncio.sleep(1.0)
        assert (there.manager.cursors, waiting.session.subscriber.ring) == (0, None)
