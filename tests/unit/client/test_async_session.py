"""A session against scripts: what tests/conformance/clients cannot ask of a client in every language."""

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

import feedmux
from feedmux.v1 import change_feed_pb2 as pb
from tests.unit.client.scripted_server import (
    Call,
    Script,
    ScriptedServer,
    batch,
    opened,
    play,
    progress,
    token,
)

QUICK: dict[str, Any] = {
    "backoff_first_s": 0.01,
    "backoff_most_s": 0.05,
    "ack_interval_s": 0.02,
    "open_timeout_s": 60.0,
    "close_timeout_s": 60.0,
}


@contextlib.asynccontextmanager
async def serving(*scripts: Script) -> AsyncIterator[tuple[ScriptedServer, feedmux.AsyncClient]]:
    async with ScriptedServer(*scripts) as server:
        options = feedmux.SessionOptions(**QUICK)
        client = feedmux.AsyncClient(server.address, api_key="key", session=options)
        try:
            async with asyncio.timeout(120):
                yield server, client
        finally:
            await client.close()


async def take(session: feedmux.AsyncSession, count: int) -> list[int]:
    return [(await session.next()).document["n"] for _ in range(count)]


async def test_opens_iterates_acks_and_closes() -> None:
    async def script(call: Call) -> None:
        await call.send(opened(epoch=3), batch(1, [1, 2]), batch(3, [3]))
        await call.until_acked(2)
        await call.send(pb.SubscribeResponse(committed=pb.Committed(delivery_sequence=2, position=b"P2")))
        await call.until_closed()

    async with serving(script) as (server, client):
        async with client.subscription("s").open() as session:
            assert session.epoch == 3
            assert session.position == b"P0"
            seen = []
            async for event in session:
                seen.append((event.document["n"], event.sequence, event.resume_token))
                if len(seen) == 2:
                    assert session.position == b"P2"
                    session.ack(event)
                if len(seen) == 3:
                    break
            assert seen == [(number, number, token(number)) for number in (1, 2, 3)]
            while session.committed != b"P2":
                await asyncio.sleep(0.01)
            session.ack()
        (call,) = server.calls
        assert call.open.subscription == "s"
        assert call.open.format == 1
        assert call.open.instance_id
        assert not call.open.HasField("last_acked")
        assert (call.open.credit.events, call.open.credit.bytes) == (16_384, 8 * 1024 * 1024)
        assert call.metadata["authorization"] == "Bearer key"
        assert call.acks == [2, 3]
        assert call.closed
        with pytest.raises(StopAsyncIteration):
            await session.next()


async def test_positions_move_with_what_was_handed_out() -> None:
    async with (
        serving(play(opened(), batch(1, [1, 2]), progress(7))) as (_, client),
        client.subscription("s").open() as session,
    ):
        await take(session, 1)
        while session._buffer.latest[1].position != b"P7":
            await asyncio.sleep(0.01)
        assert session.resume_token == token(1)
        assert session.position == b"P0"
        assert session.progress.position == b"P0"
        await take(session, 1)
        assert session.position == b"P7", "also before anybody asks for the progress"
        assert session.progress.position == b"P7"
        assert session.resume_token == token(7)
        assert await session.try_next() is None
        with pytest.raises(TimeoutError):
            await session.next(0.01)


async def test_open_raises_what_the_server_says() -> None:
    async def script(call: Call) -> None:
        await call.abort(grpc.StatusCode.FAILED_PRECONDITION, "SUBSCRIPTION_BUSY", owner="other")

    async with serving(script) as (_, client):
        with pytest.raises(feedmux.SubscriptionBusy) as caught:
            await client.subscription("s").open()
        assert caught.value.metadata == {"owner": "other"}


async def ends_without_another_stream(session: feedmux.AsyncSession, server: ScriptedServer) -> None:
    assert session._task is not None
    another = asyncio.create_task(server.call(1))
    await asyncio.wait((session._task, another), return_when=asyncio.FIRST_COMPLETED)
    another.cancel()
    assert session._task.done()
    assert len(server.calls) == 1


def lie_and_abort(retry_after_s: float) -> Script:
    async def script(call: Call) -> None:
        lie = batch(1, [1, 2])
        lie.batch.event_count = 3
        await call.send(opened(), lie)
        await call.abort(grpc.StatusCode.UNAVAILABLE, retry_after_s=retry_after_s)

    return script


async def test_a_batch_found_broken_while_a_token_is_awaited_ends_the_session() -> None:
    loop, calls = asyncio.get_running_loop(), iter(range(2))
    asked, may_return = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        asked.set()
        await may_return.wait()

    def fresh() -> str:
        if next(calls):
            asyncio.run_coroutine_threadsafe(wait(), loop).result()
        return "token"

    async with ScriptedServer(lie_and_abort(0.0), play(opened())) as server, asyncio.timeout(120):
        client = feedmux.AsyncClient(server.address, token=fresh, session=feedmux.SessionOptions(**QUICK))
        async with client, client.subscription("s").open() as session:
            await asked.wait()
            with pytest.raises(feedmux.ProtocolError):
                await session.next()
            may_return.set()
            await ends_without_another_stream(session, server)


async def test_batches_and_events_share_one_position() -> None:
    async with (
        serving(play(opened(), batch(1, [1, 2, 3]), batch(4, [4]))) as (server, client),
        client.subscription("s").open() as session,
    ):
        assert await take(session, 1) == [1]
        seen = []
        async for each in session.batches():
            seen.append([document["n"] for document in each.documents])
            session.ack(each)
            if len(seen) == 2:
                break
        assert seen == [[2, 3], [4]]
        assert session.position == b"P4"
        await (await server.call(0)).until_acked(4)


async def test_an_event_of_another_session_cannot_be_acked() -> None:
    async with (
        serving(play(opened(), batch(1, [1]))) as (_, client),
        client.subscription("a").open() as one,
        client.subscription("b").open() as two,
    ):
        event = await one.next()
        with pytest.raises(ValueError, match="another session"):
            two.ack(event)
        with pytest.raises(TypeError):
            one.ack(1)  # type: ignore[arg-type]


async def test_a_session_not_opened_says_so() -> None:
    client = feedmux.AsyncClient("127.0.0.1:1")
    with pytest.raises(feedmux.SessionClosed):
        await client.subscription("s").open().next()
    await client.close()


async def test_a_session_dropped_without_close_ends_its_call() -> None:
    gone = asyncio.Event()

    async def script(call: Call) -> None:
        await call.send(opened())
        try:
            await asyncio.Event().wait()
        finally:
            gone.set()

    async with serving(script) as (_, client):
        await client.subscription("s").open()
        gc.collect()
        await gone.wait()
