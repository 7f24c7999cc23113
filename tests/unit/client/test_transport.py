"""The way to the server: what a stream's end says, and connections that have died."""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import grpc
import pytest

import feedmux
from feedmux import target, transport
from feedmux.connection import Connection
from tests.unit.client.scripted_server import Call, ScriptedServer, batch, opened

QUICK = feedmux.SessionOptions(backoff_first_s=0.01, backoff_most_s=0.05, ack_interval_s=0.0, close_timeout_s=60.0)


async def beside(server: ScriptedServer, work: Callable[[feedmux.AsyncClient], Coroutine[Any, Any, Any]]) -> Any:
    """Runs a client on an event loop and in a thread of its own, so that it can stop while the server continues."""

    async def run() -> Any:
        client = feedmux.AsyncClient(server.address, session=QUICK)
        try:
            return await work(client)
        finally:
            await client.close()

    return await asyncio.to_thread(asyncio.run, run())


class Answers:
    """A token function that must be released, and takes long to end."""

    def __init__(self) -> None:
        self.calls = 0
        self.may_end = threading.Event()

    def __call__(self) -> str:
        self.calls += 1
        self.may_end.wait()
        return f"token-{self.calls}"


async def test_calls_that_wait_for_a_token_share_one_call_of_its_function() -> None:
    function = Answers()
    tokens = target.TokenThread(function)
    waiting = [asyncio.create_task(tokens.token()) for _ in range(3)]
    while not function.calls:
        await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.wait(waiting[:1])
    function.may_end.set()
    assert await asyncio.gather(*waiting[1:]) == ["token-1"] * 2
    assert await tokens.token() == "token-2"


async def test_a_token_function_that_does_not_return_holds_one_thread_and_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(target, "_TOKEN_S", 0.01)
    function = Answers()
    tokens = target.TokenThread(function)
    try:
        for _ in range(3):
            with pytest.raises(feedmux.Unavailable, match="has not returned within"):
                await tokens.token()
        assert function.calls == 1
        # In a forked process that thread is not there.
        monkeypatch.setattr(os, "getpid", lambda: 0)
        with pytest.raises(feedmux.Unavailable, match="has not returned within"):
            await tokens.token()
        assert function.calls == 2
    finally:
        function.may_end.set()


async def test_where_no_thread_can_be_started_the_next_call_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def cannot(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    tokens = target.TokenThread(lambda: "token")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", cannot)
        with pytest.raises(RuntimeError, match="new thread"):
            await tokens.token()
    assert await tokens.token() == "token"


@pytest.mark.parametrize("error", [OSError("away"), TimeoutError("slow"), StopIteration(), SystemExit(1)])
async def test_whatever_a_token_function_raises_is_one_failure(error: BaseException) -> None:
    def fails() -> str:
        raise error

    with pytest.raises(feedmux.Unavailable, match=f"the token function failed: {type(error).__name__}"):
        await target.TokenThread(fails).token()


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
