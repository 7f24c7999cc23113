"""How a stream ends, where the moment matters. `test_async_session.py` has all else that a connection does."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import grpc
import pytest

import feedmux
from feedmux.connection import Connection
from tests.unit.client.beside import QUICK
from tests.unit.client.scripted_server import Call, ScriptedServer, batch, opened


async def beside(server: ScriptedServer, work: Callable[[feedmux.AsyncClient], Coroutine[Any, Any, Any]]) -> Any:
    """Runs a client on an event loop and in a thread of its own, so that it can stop while the server continues."""

    async def run() -> Any:
        client = feedmux.AsyncClient(server.address, session=QUICK)
        try:
            return await work(client)
        finally:
            await client.close()

    return await asyncio.to_thread(asyncio.run, run())


async def test_a_time_out_that_rings_a_moment_early_is_the_last_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = 0

    async def early(_connection: Connection) -> None:
        nonlocal attempts
        attempts += 1
        raise TimeoutError

    monkeypatch.setattr(Connection, "_one_stream", early)
    async with feedmux.AsyncClient("127.0.0.1:1", session=QUICK) as client:
        with pytest.raises(feedmux.Unavailable, match="has not opened the session within 60 s"):
            await client.subscription("s").open(open_timeout_s=60.0)
    assert attempts == 1


async def test_a_write_at_the_end_of_a_stream_does_not_hide_why_it_ended() -> None:
    """Messages that are not read yet keep the status from the client: then writes fail that know nothing of it."""

    acked, standing, all_sent = (threading.Event() for _ in range(3))

    async def script(call: Call) -> None:
        await call.send(opened(), *(batch(number, [number]) for number in range(1, 6)))
        await call.until_acked(1)
        acked.set()
        await asyncio.to_thread(standing.wait)
        await call.send(*(batch(number, [number]) for number in range(6, 301)))
        try:
            await call.abort(grpc.StatusCode.ABORTED, "FENCED", cause="TAKEOVER")
        finally:
            all_sent.set()

    seen: list[int] = []

    async def work(client: feedmux.AsyncClient) -> None:
        async with client.subscription("s").open() as session:
            async for event in session:
                session.ack(event)
                seen.append(event.sequence)
                if event.sequence == 5:
                    while not acked.is_set():
                        await asyncio.sleep(0.01)
                    # The event loop stands still, and everything comes at once.
                    standing.set()
                    all_sent.wait()

    async with ScriptedServer(script) as server, asyncio.timeout(60):
        with pytest.raises(feedmux.Fenced):
            await beside(server, work)
        assert seen == list(range(1, 301)), "events before the end"
        assert len(server.calls) == 1
