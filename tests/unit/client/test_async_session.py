"""A session against scripts: windows, acks, reconnects, the watchdog, fences and broken promises."""

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

import feedmux
from feedmux.notices import Disconnected, Notice
from feedmux.v1 import change_feed_pb2 as pb
from tests.unit.client.scripted_server import (
    Call,
    Script,
    ScriptedServer,
    batch,
    fragments,
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


async def test_credit_is_refilled_as_events_are_taken() -> None:
    async def script(call: Call) -> None:
        await call.send(opened(), *(batch(1 + 2 * each, [1 + 2 * each, 2 + 2 * each]) for each in range(4)))
        await call.until_closed()

    async with serving(script) as (server, client), client.subscription("s").open(window_events=8) as session:
        call = await server.call(0)
        while session._buffer.latest[0] < 8:
            await asyncio.sleep(0.01)
        await take(session, 3)  # Two batches are taken.
        await call.until(lambda c: sum(events for events, _ in c.credits) == 4)
        await take(session, 5)
        await call.until(lambda c: sum(events for events, _ in c.credits) == 8)
        session.ack()
        await call.until_acked(8)
        assert call.granted_events == 16, "nothing was granted for what waited"


async def test_acks_go_at_half_of_the_unacked_maximum_without_waiting() -> None:
    async with (
        serving(play(opened(unacked_events_max=8), batch(1, range(1, 9)))) as (server, client),
        client.subscription("s").open(ack_interval_s=60) as session,
    ):
        call = await server.call(0)
        for _ in range(4):
            session.ack(await session.next())
        await call.until_acked(4)


async def test_reconnects_after_the_last_acked_event_without_repeats() -> None:
    async def first(call: Call) -> None:
        await call.send(opened(epoch=5), batch(1, [1, 2, 3]), batch(4, [4, 5]))
        await call.until_acked(2)
        await call.abort(grpc.StatusCode.UNAVAILABLE, "DRAINING", 0.01)

    async def second(call: Call) -> None:
        await call.send(opened(2, epoch=6, at_last_acked=True), batch(1, [3, 4, 5, 6]), batch(5, [7]))
        await call.until_closed()

    notices: list[Notice] = []
    async with serving(first, second) as (server, client):
        async with client.subscription("s").open(on_notice=notices.append) as session:
            events = [await session.next() for _ in range(4)]
            session.ack(events[1])
            call = await server.call(1)
            assert call.open.last_acked.resume_token
            assert call.open.last_acked.epoch == 5
            assert call.open.instance_id == server.calls[0].open.instance_id
            assert call.metadata["x-feedmux-route"] == "route-1"
            session.ack(events[3])
            await call.until_acked(2)
            assert await take(session, 3) == [5, 6, 7]
            session.ack()
            await call.until_acked(5)
            assert session.epoch == 6
        assert [type(each) for each in notices] == [Disconnected]


async def test_a_stream_that_ends_without_a_reason_is_opened_again() -> None:
    async def ends(call: Call) -> None:
        await call.send(opened(), batch(1, [1]))

    async with (
        serving(ends, play(opened(0), batch(1, [1, 2]))) as (_, client),
        client.subscription("s").open() as session,
    ):
        assert await take(session, 2) == [1, 2]


async def test_silence_is_noticed_and_the_stream_opened_again() -> None:
    async def mute(call: Call) -> None:
        await call.send(opened(heartbeat_s=0.2))
        await asyncio.Event().wait()

    async with (
        serving(mute, play(opened(), batch(1, [1]))) as (server, client),
        client.subscription("s").open(heartbeat_s=60) as session,
    ):
        assert await take(session, 1) == [1]
        first, second = server.calls
        assert second.began_s - first.began_s >= 0.6


async def test_a_seek_forgets_what_is_unacked() -> None:
    async def sought(call: Call) -> None:
        await call.send(opened(), batch(1, [1, 2]), batch(3, [3]))
        await call.until_acked(1)
        await call.abort(grpc.StatusCode.ABORTED, "FENCED", cause="SEEK")

    async with (
        serving(sought, play(opened(0, epoch=2), batch(1, [1, 2]))) as (server, client),
        client.subscription("s").open() as session,
    ):
        first = await session.next()
        session.ack(first)
        call = await server.call(1)
        assert not call.open.HasField("last_acked")
        assert await take(session, 3) == [2, 1, 2]
        session.ack()
        await call.until_acked(2)


async def test_a_seek_while_disconnected_is_told_as_a_rewind() -> None:
    async def first(call: Call) -> None:
        await call.send(opened(4), batch(1, [5, 6]))
        await call.until_acked(1)
        await call.abort(grpc.StatusCode.UNAVAILABLE)

    notices: list[Notice] = []
    async with (
        serving(first, play(opened(1, epoch=2), batch(1, [2, 5, 6]))) as (_, client),
        client.subscription("s").open(on_notice=notices.append) as session,
    ):
        session.ack(await session.next())
        assert await take(session, 4) == [6, 2, 5, 6]
    assert feedmux.Rewound((1001, 1), (1005, 1)) in notices


async def test_an_update_reopens_without_repeats() -> None:
    async def updated(call: Call) -> None:
        await call.send(opened(), batch(1, [1, 2]))
        await call.until_acked(1)
        await call.abort(grpc.StatusCode.ABORTED, "FENCED", cause="UPDATE")

    async with (
        serving(updated, play(opened(1, at_last_acked=True), batch(1, [2, 3]))) as (_, client),
        client.subscription("s").open() as session,
    ):
        session.ack(await session.next())
        assert await take(session, 2) == [2, 3]


@pytest.mark.parametrize(
    ("status", "reason", "metadata", "kind"),
    [
        (grpc.StatusCode.ABORTED, "FENCED", {"cause": "TAKEOVER"}, feedmux.Fenced),
        (grpc.StatusCode.ABORTED, "FENCED", {"cause": "DELETE"}, feedmux.SubscriptionNotFound),
        (grpc.StatusCode.OUT_OF_RANGE, "HISTORY_LOST", {"oldest_time": "t"}, feedmux.HistoryLost),
        (grpc.StatusCode.UNAUTHENTICATED, "UNAUTHENTICATED", {}, feedmux.Unauthenticated),
    ],
)
async def test_what_only_the_user_can_decide_ends_the_session(
    status: grpc.StatusCode, reason: str, metadata: dict[str, str], kind: type[feedmux.FeedmuxError]
) -> None:
    async def script(call: Call) -> None:
        await call.send(opened(), batch(1, [1]))
        await call.abort(status, reason, None, **metadata)

    async with serving(script) as (server, client):
        async with client.subscription("s").open() as session:
            assert await take(session, 1) == [1]
            for _ in range(2):
                with pytest.raises(kind) as caught:
                    await session.next()
            assert caught.value.metadata == metadata
            assert session.closed
        assert len(server.calls) == 1


async def test_open_raises_what_the_server_says() -> None:
    async def script(call: Call) -> None:
        await call.abort(grpc.StatusCode.FAILED_PRECONDITION, "SUBSCRIPTION_BUSY", owner="other")

    async with serving(script) as (_, client):
        with pytest.raises(feedmux.SubscriptionBusy) as caught:
            await client.subscription("s").open()
        assert caught.value.metadata == {"owner": "other"}


async def test_open_gives_up_after_its_timeout() -> None:
    client = feedmux.AsyncClient("127.0.0.1:1", session=feedmux.SessionOptions(**QUICK | {"open_timeout_s": 0.2}))
    with pytest.raises(feedmux.Unavailable):
        await client.subscription("s").open()
    await client.close()


async def test_an_invalidated_feed_says_where_it_ended() -> None:
    async def script(call: Call) -> None:
        await call.send(opened(), batch(1, [1]))
        await call.abort(grpc.StatusCode.FAILED_PRECONDITION, "FEED_INVALIDATED")

    async with serving(script) as (_, client), client.feed(database="shop").open() as session:
        await take(session, 1)
        with pytest.raises(feedmux.FeedInvalidated) as caught:
            await session.next()
        assert caught.value.position == b"P1"
        assert caught.value.resume_token == token(1)


async def test_an_inline_feed_goes_on_behind_the_last_batch() -> None:
    async def first(call: Call) -> None:
        parts = fragments(3, 3, 1000, 2)
        await call.send(opened(), batch(1, [1, 2]), parts[0])
        await call.abort(grpc.StatusCode.UNAVAILABLE)

    async def second(call: Call) -> None:
        await call.send(opened(2), *fragments(1, 3, 1000, 2), batch(2, [4]))
        await call.until_closed()

    async with serving(first, second) as (server, client):
        pipeline = [{"$match": {"n": 1}}]
        feed = client.feed(database="shop", collection="orders", pipeline=pipeline, full_document="required")
        async with feed.open(start="earliest") as session:
            assert await take(session, 4) == [1, 2, 3, 4]
            session.ack()
        one, two = server.calls
        assert one.open.start.HasField("earliest")
        assert one.open.feed.source == "main"
        assert one.open.feed.full_document == "required"
        assert one.open.feed.pipeline.bson
        assert two.open.start.position == b"P2"
        assert two.acks == []


async def drain(client: feedmux.AsyncClient) -> None:
    async with client.subscription("s").open(window_events=10, message_bytes_max=65536) as session:
        async for _ in session:
            pass


@pytest.mark.parametrize(
    "messages",
    [
        [batch(1, [1])],
        [opened(), opened()],
        [opened(), batch(2, [1])],
        [opened(), batch(1, [1]), batch(3, [3])],
        [opened(), batch(1, range(1, 12))],
        [opened(), batch(1, [1], 200_000)],
        [opened(), fragments(1, 1, 1000, 3)[1]],
        [opened(), b"\x12\x05rubbish"],
    ],
    ids=["before Opened", "twice", "not 1", "gap", "over credit", "too large", "fragment", "rubbish"],
)
async def test_a_server_that_breaks_the_protocol(messages: list[pb.SubscribeResponse | bytes]) -> None:
    async with serving(play(*messages)) as (server, client):
        with pytest.raises(feedmux.ProtocolError):
            await drain(client)
        assert len(server.calls) == 1


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


async def test_a_batch_found_broken_during_the_backoff_ends_the_session() -> None:
    async with (
        serving(lie_and_abort(3600.0), play(opened())) as (server, client),
        client.subscription("s").open() as session,
    ):
        while len(session._queue._items) < 2:  # the batch, and the notice that the stream ended
            await asyncio.sleep(0.01)
        with pytest.raises(feedmux.ProtocolError):
            await session.next()
        await ends_without_another_stream(session, server)


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


async def test_unknown_messages_are_ignored() -> None:
    async with (
        serving(play(opened(), b"\xfa\x07\x01x", batch(1, [1]))) as (_, client),
        client.subscription("s").open() as session,
    ):
        assert await take(session, 1) == [1]


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


async def test_a_close_that_nobody_answers_ends_after_its_timeout() -> None:
    async def deaf(call: Call) -> None:
        await call.send(opened())
        await asyncio.Event().wait()

    async with serving(deaf) as (server, client):
        session = await client.subscription("s").open()
        await session.close(0.1)
        await server.calls[0].ended.wait()


async def test_a_close_while_reconnecting_does_not_wait() -> None:
    async def first(call: Call) -> None:
        await call.send(opened())
        await call.abort(grpc.StatusCode.UNAVAILABLE)

    async def never(call: Call) -> None:
        await asyncio.Event().wait()

    async with serving(first, never) as (server, client):
        session = await client.subscription("s").open(close_timeout_s=3600)
        await server.call(1)
        await session.close()


async def test_a_close_while_waiting_opens_one_more_stream_for_the_acks() -> None:
    async def first(call: Call) -> None:
        await call.send(opened(), batch(1, [1]))
        await call.abort(grpc.StatusCode.UNAVAILABLE, "STATE_UNAVAILABLE", 3600.0)

    disconnected = asyncio.Event()
    async with serving(first, play(opened(1, at_last_acked=True))) as (server, client):
        session = await client.subscription("s").open(on_notice=lambda _: disconnected.set())
        event = await session.next()
        waiting = asyncio.create_task(session.next())
        await disconnected.wait()
        session.ack(event)
        await session.close()
        with pytest.raises(StopAsyncIteration):
            await waiting
        assert server.calls[1].open.last_acked.position == b"P1"
        assert server.calls[1].closed


async def test_reconnecting_gives_up_when_told_to() -> None:
    async def first(call: Call) -> None:
        await call.send(opened())
        await call.abort(grpc.StatusCode.UNAVAILABLE)

    async def away(call: Call) -> None:
        await call.abort(grpc.StatusCode.UNAVAILABLE, "STATE_UNAVAILABLE", 0.05)

    async with serving(first, away) as (_, client), client.subscription("s").open(reconnect_timeout_s=0.2) as session:
        with pytest.raises(feedmux.Unavailable):
            await session.next()


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
