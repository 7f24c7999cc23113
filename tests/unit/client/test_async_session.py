"""A session against scripts: what tests/conformance/clients cannot ask of a client in every language."""

import asyncio
import contextlib
import gc
import logging
from typing import Any

import grpc
import pytest

import feedmux
from feedmux.v1 import change_feed_pb2 as pb
from tests.tables import over
from tests.unit.client.beside import QUICK, serving
from tests.unit.client.scripted_server import (
    Call,
    Script,
    ScriptedServer,
    batch,
    invalidated,
    joined,
    opened,
    play,
    progress,
    runs,
)


async def take(session: feedmux.AsyncSession, count: int) -> list[int]:
    return [(await session.next()).document["n"] for _ in range(count)]


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
        client = feedmux.AsyncClient(server.address, token=fresh, session=QUICK)
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


async def test_a_loop_goes_on_after_what_its_body_takes() -> None:
    async with (
        serving(play(opened(), batch(1, [1]), batch(2, [2, 3, 4]), batch(5, [5]))) as (_, client),
        client.subscription("s").open() as session,
    ):
        seen = []
        async for event in session:
            seen.append(event.document["n"])
            if event.sequence == 1:
                seen += await take(session, 1)
            if event.sequence == 3:
                last = await session.try_next()
                assert last is not None
                seen.append(last.document["n"])
            if event.sequence == 5:
                break
        assert seen == [1, 2, 3, 4, 5]


async def test_tasks_share_the_events_however_they_take_them() -> None:
    seen: list[int] = []
    batches = [batch(first, range(first, first + 5)) for first in range(1, 1000, 5)]
    async with (
        serving(play(opened(), *batches)) as (_, client),
        client.subscription("s").open() as session,
        asyncio.TaskGroup() as tasks,
    ):

        async def note(event: feedmux.Event) -> None:
            seen.append(event.sequence)
            if len(seen) == 1000:
                tasks.create_task(session.close())
            await asyncio.sleep(0)

        async def loop() -> None:
            async for event in session:
                await note(event)

        async def whole() -> None:
            async for each in session.batches():
                for event in each:
                    await note(event)

        async def calls() -> None:
            with contextlib.suppress(StopAsyncIteration):
                while True:
                    if (event := await session.try_next()) is not None:
                        await note(event)
                    await note(await session.next())

        for way in (loop, loop, whole, calls, calls):
            tasks.create_task(way())
    assert sorted(seen) == list(range(1, 1001))


@over(("joins", "first"), [(False, [opened(), batch(1, [1])]), (True, [joined(), runs(1, [1])])])
async def test_notices_are_awaited_in_order_and_again_after_a_cancellation(
    joins: bool, first: list[pb.SubscribeResponse]
) -> None:
    heard: list[object] = []
    begun = asyncio.Event()

    async def on_notice(notice: feedmux.Notice) -> None:
        begun.set()
        await (asyncio.sleep(0) if heard else asyncio.Event().wait())
        heard.append(notice)

    gap = pb.SubscribeResponse(notice=pb.Notice(gap=pb.Notice.Gap(reason="policy")))
    async with serving(play(first[0], gap, first[1])) as (_, client):
        subscription = client.subscription("s")
        session = await (subscription.join if joins else subscription.open)(on_notice=on_notice)
        waiting = asyncio.create_task(session.next())
        await begun.wait()
        waiting.cancel()
        await asyncio.wait((waiting,))
        heard.append("cancelled")
        assert (await session.next()).document["n"] == 1
        assert heard == ["cancelled", feedmux.Gap((0, 0), (0, 0), "policy")]
        await session.close()


@pytest.mark.parametrize("joins", [False, True])
async def test_a_second_await_tells_what_became_of_the_first(joins: bool) -> None:
    async with serving(play()) as (_, client):
        subscription = client.subscription("s")
        session = subscription.join() if joins else subscription.open()
        opening = asyncio.ensure_future(session)
        await asyncio.sleep(0)
        opening.cancel()
        for ask in (session.__aenter__, session.__aenter__, session.next):
            with pytest.raises(feedmux.SessionClosed, match="or its opening: open or join again"):
                await ask()
        session = subscription.join(open_timeout_s=0.0) if joins else subscription.open(open_timeout_s=0.0)
        for _ in range(2):
            with pytest.raises(feedmux.Unavailable):
                await session


async def test_acks_are_accepted_while_the_close_is_under_way_and_not_after_it() -> None:
    gate = asyncio.Event()

    async def script(call: Call) -> None:
        await call.send(opened(), batch(1, [1, 2]))
        await call.until_closed()
        await gate.wait()

    async with serving(script) as (server, client):
        session = await client.subscription("s").open()
        one, two = await session.next(), await session.next()
        closing = asyncio.create_task(session.close())
        await (await server.call(0)).until_closed()
        session.ack(one)
        gate.set()
        await closing
        with pytest.raises(feedmux.SessionClosed, match="before this ack"):
            session.ack(two)


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


async def confirms(call: Call) -> None:
    await call.send(opened(), batch(1, [1]))
    await call.until_closed()
    await call.send(pb.SubscribeResponse(committed=pb.Committed(delivery_sequence=1)))


@over(
    ("script", "closes", "warnings"),
    [
        (confirms, True, 0),
        (play(opened(), batch(1, [1])), True, 1),
        (play(opened(), batch(1, [1])), False, 1),
        (invalidated, True, 1),
    ],
)
async def test_a_close_says_once_that_acks_were_not_confirmed(script: Script, closes: bool, warnings: int) -> None:
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("feedmux").addHandler(handler)
    try:
        async with serving(script) as (_, client):
            session = await client.subscription("s").open()
            event = await session.next()
            if script is invalidated:
                event = await session.next()
                with pytest.raises(feedmux.FeedInvalidated):
                    await session.next()
            session.ack(event)
            for _ in range(2 if closes else 0):
                await session.close()
    finally:
        logging.getLogger("feedmux").removeHandler(handler)
    assert len([text for text in said if "before the server confirmed all acks" in text]) == warnings


async def test_acks_in_the_open_of_a_closing_session_are_confirmed(caplog: pytest.LogCaptureFixture) -> None:
    async def first(call: Call) -> None:
        await call.send(opened(), batch(1, [1, 2, 3]))
        await call.abort(grpc.StatusCode.UNAVAILABLE, retry_after_s=3600.0)

    disconnected = asyncio.Event()
    async with serving(first, play(opened(2, epoch=2, at_last_acked=True))) as (server, client):
        session = await client.subscription("s").open(on_notice=lambda _: disconnected.set())
        events = [await session.next() for _ in range(3)]
        waiting = asyncio.create_task(session.next())
        await disconnected.wait()
        session.ack(events[1])
        await session.close()
        with pytest.raises(StopAsyncIteration):
            await waiting
        assert (await server.call(1)).open.last_acked.resume_token
    assert "before the server confirmed all acks" not in caplog.text


@over(("status", "reason", "cause"), [("ABORTED", "FENCED", {"cause": "SEEK"}), ("UNAVAILABLE", "", {})])
async def test_acks_of_what_the_session_was_moved_past_need_no_confirmation(
    status: str, reason: str, cause: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    taken = asyncio.Event()

    async def script(call: Call) -> None:
        await call.send(opened(), batch(1, [1, 2]))
        await taken.wait()
        await call.abort(grpc.StatusCode[status], reason, **cause)

    async with serving(script, play(opened(5, epoch=2), progress(7))) as (server, client):
        session = await client.subscription("s").open(on_notice=lambda _: None)
        events = [await session.next(), await session.next()]
        taken.set()
        while session.position != b"P7":
            await asyncio.sleep(0.01)
        session.ack(events[1])
        closing = asyncio.create_task(session.close())
        await (await server.call(1)).until_closed()
        await closing
    assert "before the server confirmed all acks" not in caplog.text
