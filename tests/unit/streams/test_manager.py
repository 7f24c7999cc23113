"""The streams of the process: found by key, and gone when nobody needs them."""

import asyncio

import pytest

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.feeds.feed import FeedSpec, Scope
from feedmux_server.core.feeds.stream_key import stream_key
from feedmux_server.core.positions.join_point import JoinPoint
from tests.unit.core.delivery.streams_support import mark
from tests.unit.streams.manager_support import world
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


@in_virtual_time
async def test_only_durable_sessions_hold_what_is_not_acknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(monkeypatch, unacked_max=3) as there:
        key, log = there.feed("a")
        durable, watching = there.session(key, "a", 0, durable=True), there.session(key, "a", 0)
        log.write(10)
        await watching.take(10)
        await durable.take(3)
        assert len(durable.events) == 3
        durable.session.ack(3)
        await durable.take(6)
        assert (len(durable.events), there.manager.accounts.of("a").outstanding.bytes > 0) == (6, True)
        for client in (durable, watching):
            client.close()
        assert there.manager.accounts.of("a").outstanding.bytes == 0
