"""Connections that have died."""

import asyncio
from pathlib import Path

import pytest

import feedmux
from feedmux import target, transport


async def test_a_unary_call_that_waited_in_vain_leaves_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes 5 s for that; here no call is too short."""
    monkeypatch.setattr(transport, "_DEAD_AFTER_S", 0.0)

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(-1)
        writer.close()

    listener = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    async with listener, feedmux.AsyncClient(f"127.0.0.1:{port}", timeout_s=0.2) as client:
        before = client._api.transport._channel()
        with pytest.raises(feedmux.Unavailable):
            await client.get_subscription("s")
        assert before.left
        assert client._api.transport._channel() is not before


async def test_a_connection_that_answers_no_ping_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its server is frozen. The client waits for 30 s; here for a hundredth of that."""
    options = dict(target._CHANNEL_OPTIONS)
    times: dict[str, int | str] = {"grpc.keepalive_time_ms": 20_000, "grpc.http2.ping_timeout_ms": 10_000}
    assert options | times == options
    faster = {name: int(value) // 100 for name, value in times.items()}
    monkeypatch.setattr(target, "_CHANNEL_OPTIONS", tuple((options | faster).items()))
    closed = asyncio.Event()

    async def frozen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)))  # HTTP/2's settings, and nothing after that
        await reader.read(-1)
        closed.set()
        writer.close()

    listener = await asyncio.start_server(frozen, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    async with listener, feedmux.AsyncClient(f"127.0.0.1:{port}", timeout_s=600.0) as client:
        call = asyncio.create_task(client.get_subscription("s"))
        async with asyncio.timeout(60.0):
            await closed.wait()
        call.cancel()


def test_no_connection_stays_of_an_event_loop_that_has_ended() -> None:
    client = feedmux.AsyncClient("127.0.0.1:1")

    async def use() -> None:
        client._api.transport._channel()

    for _ in range(3):
        asyncio.run(use())
    assert len(client._api.transport._channels) == 1
    asyncio.run(client.close())
    assert not client._api.transport._channels


async def test_changed_tls_files_are_read_for_new_connections(tmp_path: Path) -> None:
    root = tmp_path / "ca.pem"
    root.write_text("one authority")
    async with feedmux.AsyncClient("127.0.0.1:1", tls=feedmux.Tls(root=root)) as client:
        transport = client._api.transport
        before = transport._channel()
        assert transport._channel() is before
        root.unlink()
        assert transport._channel() is before  # while the file is being replaced
        root.write_text("another one")
        assert transport._channel() is not before
        assert before.left
