"""Connections that have died."""

import asyncio

import pytest

import feedmux
from feedmux import transport


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
