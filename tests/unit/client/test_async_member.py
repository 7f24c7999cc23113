"""A member of a group against scripts: settling, running handlers, reconnects, servers that do not host the group."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc
import pytest

import feedmux
from feedmux import requests
from feedmux.notices import Disconnected, Notice
from feedmux.v1 import change_feed_pb2 as pb
from tests.tables import over
from tests.unit.client.beside import QUICK, serving
from tests.unit.client.scripted_server import (
    Call,
    Script,
    ScriptedServer,
    batch,
    joined,
    opened,
    play,
    progress,
    runs,
)


def playing(*messages: pb.SubscribeResponse) -> Script:
    return play(joined(), *messages)


@asynccontextmanager
async def at_work(
    handle: Callable[[feedmux.MemberEvent], Awaitable[None]],
    *messages: pb.SubscribeResponse,
    session: dict[str, Any] | None = None,
    **options: Any,
) -> AsyncIterator[Call]:
    """The call of a member that runs a handler, and closes in the end."""
    async with serving(playing(*messages)) as (server, client):
        member = client.subscription("s").join(**session or {})
        running = asyncio.create_task(member.run(handle, **options))
        yield await server.call(0)
        await member.close()
        await running


def number(event: feedmux.MemberEvent) -> int:
    found: int = event.document["n"]
    return found


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


async def test_run_acks_fails_and_rejects_and_keeps_the_order_of_a_run() -> None:
    seen: list[int] = []

    async def handle(event: feedmux.MemberEvent) -> None:
        seen.append(number(event))
        match number(event):
            case 3:
                raise feedmux.RetryAfter(1.5, "later")
            case 5:
                raise feedmux.Reject("never")
            case 6:
                raise ValueError("x" * 2000)

    async with at_work(handle, runs(1, [1, 2, 3, 4], [5], [6], [7]), concurrency=2) as call:
        await call.until_settled(1, 2, 7)
        await call.until(lambda c: len(c.failed) == 3)
    assert sorted(seen) == [1, 2, 3, 5, 6, 7]
    assert [each for each in seen if each < 5] == [1, 2, 3], "4 was returned with 3"
    assert call.settled == {1, 2, 7}
    assert (call.failed[3].reason, call.failed[3].retry_after.ToMilliseconds()) == ("later", 1500)
    assert (call.failed[5].reason, call.failed[5].reject) == ("never", True)
    assert call.failed[6].reason.startswith("ValueError: xxx")
    assert len(call.failed[6].reason) == 1024
    assert call.closed


async def test_the_next_host_is_told_and_asked_without_long_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("random.random", lambda: 1.0)
    delays: list[float] = []

    async def first(call: Call) -> None:
        await call.send(joined(), runs(1, [1], [2]))
        await call.until_settled(1, 2)
        await call.send(pb.SubscribeResponse(committed=pb.Committed(delivery_sequence=1)))
        await call.abort(grpc.StatusCode.UNAVAILABLE)

    async def elsewhere(call: Call) -> None:
        await call.abort(grpc.StatusCode.UNAVAILABLE, "GROUP_ELSEWHERE", 0.01, route="to-host", host="b")

    def note(notice: Notice) -> None:
        assert isinstance(notice, Disconnected)
        delays.append(notice.retry_in_s)

    async with serving(first, *[elsewhere] * 8, playing(runs(1, [3]))) as (server, client):
        async with client.subscription("s").join(on_notice=note) as member:
            for wanted in (1, 2, 3):
                event = await member.next()
                assert number(event) == wanted
                event.ack()
        told = (await server.call(9)).open
        assert (len(told.settled), len(told.held), told.epoch) == (1, 0, 1), "what is not committed"
        assert len(delays) == 9
        assert max(delays[1:]) < 0.01 + 2 * QUICK.backoff_first_s


async def refusal(server: ScriptedServer, client: feedmux.AsyncClient) -> feedmux.FeedmuxError:
    """The error of a join that was answered on two connections before the time was up."""
    while True:
        before = len(server.calls)
        with pytest.raises(feedmux.FeedmuxError) as told:
            await client.subscription("s").join(open_timeout_s=0.2)
        if told.value.status != "DEADLINE_EXCEEDED" and len({call.peer for call in server.calls[before:]}) > 1:
            return told.value


async def test_it_gives_up_when_no_server_hosts_the_group() -> None:
    async def elsewhere(call: Call) -> None:
        await call.abort(grpc.StatusCode.UNAVAILABLE, "GROUP_ELSEWHERE", 0.01, route="to-host", host="b")

    async with serving(elsewhere) as (server, client):
        error = await refusal(server, client)
        assert isinstance(error, feedmux.Unavailable)
        assert "GROUP_ELSEWHERE" in str(error)


async def test_an_older_server_is_left_before_anything_is_settled() -> None:
    async def older(call: Call) -> None:
        await call.send(opened(), batch(1, [1]))
        await call.ended.wait()

    async with serving(older) as (server, client):
        error = await refusal(server, client)
        assert isinstance(error, feedmux.GroupsUnsupported)
        assert "Upgrade all replicas" in str(error)
        assert error.status == "UNIMPLEMENTED"
        assert all(not call.settles and not call.acks for call in server.calls)

    async with serving(older, playing(runs(1, [1]))) as (_, client), client.subscription("s").join() as member:
        assert number(await member.next()) == 1, "another server was newer"


async def test_an_error_ends_run_after_the_handlers_in_progress(caplog: pytest.LogCaptureFixture) -> None:
    begun, gate, done = asyncio.Event(), asyncio.Event(), list[int]()

    async def script(call: Call) -> None:
        await call.send(joined(), runs(1, [1], [2]))
        await begun.wait()
        await call.abort(grpc.StatusCode.ABORTED, "ENDED_BY_OPERATOR")

    async def handle(event: feedmux.MemberEvent) -> None:
        begun.set()
        await gate.wait()
        done.append(number(event))

    async with serving(script) as (_, client):
        member = await client.subscription("s").join()
        running = asyncio.create_task(member.run(handle))
        while not member.closed:
            await asyncio.sleep(0.01)
        assert not running.done()
        gate.set()
        with pytest.raises(feedmux.EndedByOperator):
            await running
    assert done == [1, 2]
    assert ["settled: 2 of" in each for each in warnings_of(caplog) if "confirmed" in each] == [True], "too late"


@over(("joins", "first"), [(False, [opened(), batch(1, [1])]), (True, [joined(), runs(1, [1])])])
async def test_a_report_that_cannot_be_made_ends_the_session(
    joins: bool, first: list[pb.SubscribeResponse], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> bytes:
        raise LookupError("here")

    async def script(call: Call) -> None:
        await call.send(*first)
        await call.until_closed()

    monkeypatch.setattr(requests, "settle_bytes" if joins else "ack_bytes", fail)
    async with serving(script) as (server, client):
        subscription = client.subscription("s")
        session = await (subscription.join() if joins else subscription.open())
        event = await session.next()
        event.ack() if isinstance(event, feedmux.MemberEvent) else session.ack()  # type: ignore[union-attr]
        with pytest.raises(feedmux.FeedmuxError, match=r"a defect of the client.*LookupError"):
            await session.next()
        assert len(server.calls) == 1


@over(("epoch", "seek_epoch", "handled"), [(3, 0, [1]), (3, 2, [1]), (4, 3, [1, 1])])
async def test_what_was_moved_past_without_a_connection_is_void(
    epoch: int, seek_epoch: int, handled: list[int]
) -> None:
    seen: list[int] = []

    async def handle(event: feedmux.MemberEvent) -> None:
        seen.append(number(event))

    async def first(call: Call) -> None:
        await call.send(joined(epoch=3), runs(1, [1]))
        await call.until_settled(1)
        await call.send(pb.SubscribeResponse(committed=pb.Committed(delivery_sequence=1)))
        await call.abort(grpc.StatusCode.UNAVAILABLE)

    second = joined(epoch=epoch)
    second.opened.group.seek_epoch = seek_epoch
    async with serving(first, play(second, runs(1, [1]))) as (server, client):
        member = client.subscription("s").join()
        running = asyncio.create_task(member.run(handle))
        await (await server.call(1)).until_settled(1)
        await member.close()
        await running
    assert seen == handled


async def test_reports_are_gathered_but_not_for_long() -> None:
    """64 handlers at once: one report for the first, and then few, although each handler ends by itself."""
    begun: list[asyncio.Future[None]] = []

    async def handle(event: feedmux.MemberEvent) -> None:
        begun.append(asyncio.get_running_loop().create_future())
        await begun[-1]

    messages, session = runs(1, *([each] for each in range(1, 65))), {"ack_interval_s": 3600}
    async with at_work(handle, messages, session=session, concurrency=64) as call:
        while len(begun) < 64:
            await asyncio.sleep(0.01)
        begun[0].set_result(None)
        await call.until_settled(1)
        for each in begun[1:16]:
            each.set_result(None)
            await asyncio.sleep(0)
        assert len(call.settles) == 1
        begun[16].set_result(None)
        await call.until_settled(*range(1, 18))
        assert len(call.settles) == 2, "a quarter of the window"
        for each in begun[17:]:
            each.set_result(None)
        await call.until_settled(*range(1, 65))


async def test_handlers_that_never_wait_let_other_tasks_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feedmux.async_member._TURN_S", 0.0)
    turns, seen = 0, list[int]()

    async def handle(_: feedmux.MemberEvent) -> None:
        seen.append(turns)

    async with serving(playing(runs(1, *([each] for each in range(1, 9))))) as (_, client):
        member = client.subscription("s").join()
        running = asyncio.create_task(member.run(handle, concurrency=2))
        while len(seen) < 8:
            turns += 1
            await asyncio.sleep(0)
        assert len(set(seen)) >= 3
        await member.close()
        await running


async def test_a_handler_that_takes_too_long_is_cancelled_and_its_event_returned() -> None:
    cancelled = []

    async def handle(event: feedmux.MemberEvent) -> None:
        if number(event) == 1:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(1)
                raise

    async with at_work(handle, runs(1, [1, 2], [3]), concurrency=1, timeout_s=0.05) as call:
        await call.until_settled(3)
        assert call.failed[1].reason == "the handler has not ended within 0.05 s"
        assert cancelled == [1]


async def test_run_ends_when_all_handlers_are_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feedmux.async_member._STOPPING_S", 0.05)
    never = asyncio.Event()

    async def handle(event: feedmux.MemberEvent) -> None:
        while not never.is_set():
            with suppress(asyncio.CancelledError):
                await never.wait()

    async with serving(playing(runs(1, [1], [2], [3]))) as (server, client):
        member = client.subscription("s").join()
        with pytest.raises(TimeoutError, match="all 2 handlers"):
            await member.run(handle, concurrency=2, timeout_s=0.05)
        (call,) = server.calls
        await call.until_closed()
        assert call.failed.keys() == {1, 2}
        never.set()


class Ends(BaseException):
    """No Exception."""


@pytest.mark.parametrize("timeout_s", [None, 60.0])
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, Ends])
async def test_an_event_that_ends_the_program_has_failed_but_not_by_an_interrupt(
    error: type[BaseException], timeout_s: float | None
) -> None:
    async def handle(event: feedmux.MemberEvent) -> None:
        if number(event) == 2:
            raise error
        await asyncio.Event().wait()

    async with serving(playing(runs(1, [1], [2]))) as (server, client):
        member = client.subscription("s").join()
        with pytest.raises(error):
            await member.run(handle, timeout_s=timeout_s)
        (call,) = server.calls
        await call.until_closed()
        assert call.settled == set()
        assert [each.reason for each in call.failed.values()] == [error.__name__] * (error is not KeyboardInterrupt)


async def cancels_itself() -> None:
    current = asyncio.current_task()
    assert current is not None
    current.cancel()


async def ends_cancelled() -> None:
    await cancels_itself()
    await asyncio.sleep(0)


async def ends_with_another_error() -> None:
    await cancels_itself()
    try:
        await asyncio.sleep(1)
    except asyncio.CancelledError:
        raise ValueError from None


async def awaits_what_is_cancelled() -> None:
    future = asyncio.get_running_loop().create_future()
    future.cancel()
    await future


@pytest.mark.parametrize(
    ("cancel", "timeout_s", "reasons"),
    [
        (cancels_itself, None, []),
        (cancels_itself, 60.0, ["CancelledError"]),
        *(
            (cancel, timeout_s, [reason])
            for timeout_s in (None, 60.0)
            for cancel, reason in (
                (ends_cancelled, "CancelledError"),
                (ends_with_another_error, "ValueError"),
                (awaits_what_is_cancelled, "CancelledError"),
            )
        ),
    ],
)
async def test_a_handler_that_is_cancelled_has_failed_and_others_go_on(
    cancel: Callable[[], Awaitable[None]], timeout_s: float | None, reasons: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[int] = []

    async def handle(event: feedmux.MemberEvent) -> None:
        seen.append(number(event))
        if number(event) == 2:
            await cancel()
            return
        async with asyncio.TaskGroup():  # notices whether its task was cancelled
            await asyncio.sleep(0)

    async with at_work(handle, runs(1, [1, 2], [3], [4, 5]), concurrency=1, timeout_s=timeout_s) as call:
        await call.until(lambda call: len(call.settled) + len(call.failed) == 5)
        assert seen == [1, 2, 3, 4, 5]
        assert [each.reason for each in call.failed.values()] == reasons
        assert sum("attempt 1 of an event failed" in each for each in warnings_of(caplog)) == len(reasons)
    assert call.closed


async def test_tasks_of_handlers_that_are_cancelled_lose_no_event() -> None:
    """Whatever cancels them, at whatever moment."""
    begun = asyncio.Event()
    tasks: set[Any] = set()

    async def handle(event: feedmux.MemberEvent) -> None:
        begun.set()
        tasks.add(asyncio.current_task())
        await asyncio.sleep(0)

    async with at_work(handle, runs(1, *([each] for each in range(1, 41))), concurrency=3) as call:
        await begun.wait()
        while len(call.settled) + len(call.failed) < 40:
            for task in asyncio.all_tasks():
                if task.get_name() == "feedmux-handler" and task not in tasks:
                    tasks.add(task)
                    task.cancel()
            await asyncio.sleep(0)


async def test_a_handler_that_returns_its_work_settles_nothing() -> None:
    async def handle(event: feedmux.MemberEvent) -> Any:
        return asyncio.get_running_loop().create_future()

    async with serving(playing(runs(1, [1]))) as (server, client):
        with pytest.raises(TypeError, match="its work is not done"):
            await client.subscription("s").join().run(handle)
        (call,) = server.calls
        await call.until_closed()
        assert not call.settles


async def test_a_cancelled_run_settles_nothing_more() -> None:
    begun, ended = asyncio.Event(), []

    async def handle(event: feedmux.MemberEvent) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(10):
                await asyncio.sleep(0)
            ended.append(number(event) if not member.closed else None)

    for timeout_s in (None, 60.0):
        begun.clear()
        ended.clear()
        async with serving(playing(runs(1, [1]))) as (server, client):
            member = client.subscription("s").join()
            running = asyncio.create_task(member.run(handle, timeout_s=timeout_s))
            await begun.wait()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert ended == [1]
            (call,) = server.calls
            await call.until_closed()
            assert not call.settles


async def test_sigterm_drains() -> None:
    begun, gate = asyncio.Event(), asyncio.Event()

    async def handle(event: feedmux.MemberEvent) -> None:
        begun.set()
        await gate.wait()

    async with serving(playing(runs(1, [1, 2]))) as (server, client):
        member = client.subscription("s").join()
        running = asyncio.create_task(member.run(handle))
        await begun.wait()
        os.kill(os.getpid(), signal.SIGTERM)
        while not member._buffer.stopping:
            await asyncio.sleep(0.01)
        gate.set()
        await running
        (call,) = server.calls
        await call.until_closed()
        assert call.settled == {1}
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


async def test_a_handler_may_close_its_member() -> None:
    async def handle(event: feedmux.MemberEvent) -> None:
        await member.close()

    async with serving(playing(runs(1, [1, 2], [3]))) as (server, client):
        member = client.subscription("s").join()
        await member.run(handle, concurrency=1)
        (call,) = server.calls
        assert call.settled == {1}
        assert call.closed


async def test_a_function_is_no_handler_here() -> None:
    async with serving(playing(runs(1, [1]))) as (server, client):
        with pytest.raises(TypeError, match="not a coroutine function"):
            await client.subscription("s").join().run(lambda event: None)
        assert not server.calls[0].settles
    member = client.subscription("s").join()
    for arguments, error in (({"concurrency": 0}, ValueError), ({"timeout_s": 0}, ValueError)):
        with pytest.raises(error):
            await member.run(asyncio.sleep, **arguments)  # type: ignore[arg-type]


async def test_a_client_that_is_closed_waits_for_the_handlers_in_progress() -> None:
    begun, gate = asyncio.Event(), asyncio.Event()

    async def handle(event: feedmux.MemberEvent) -> None:
        begun.set()
        await gate.wait()
        assert not call.closed

    async with serving(playing(runs(1, [1, 2], [3], [4]))) as (server, client):
        member = await client.subscription("s").join()
        running = asyncio.create_task(member.run(handle, concurrency=2))
        await begun.wait()
        call = await server.call(0)
        closing = asyncio.create_task(client.close())
        while not member._buffer.stopping:
            await asyncio.sleep(0)
        await asyncio.sleep(0.05)
        gate.set()
        await closing
        with pytest.raises(feedmux.SessionClosed, match="the client was closed"):
            await running
        assert call.settled == {1, 3}
        assert call.closed


async def test_a_client_that_is_closed_keeps_what_handlers_have_at_the_limit(caplog: pytest.LogCaptureFixture) -> None:
    begun, gate = asyncio.Event(), asyncio.Event()

    async def handle(event: feedmux.MemberEvent) -> None:
        if number(event) == 2:
            begun.set()
            await gate.wait()

    async with serving(playing(runs(1, [1], [2], [3]))) as (server, client):
        member = await client.subscription("s").join(close_timeout_s=0.2, ack_interval_s=3600)
        running = asyncio.create_task(member.run(handle))
        await begun.wait()
        await client.close()
        (call,) = server.calls
        await call.ended.wait()
        assert call.settled == {1, 3}
        assert not call.closed, "the server would give event 2 to others"
        gate.set()
        with pytest.raises(feedmux.SessionClosed):
            await running
        assert warnings_of(caplog)[-1].endswith("1 of the events may be delivered again")


async def test_a_handler_may_close_its_client() -> None:
    async def handle(event: feedmux.MemberEvent) -> None:
        if number(event) == 1:
            await client.close()
        else:
            await asyncio.sleep(0.05)

    async with serving(playing(runs(1, [1], [2], [3]))) as (server, client):
        member = client.subscription("s").join()
        with pytest.raises(feedmux.SessionClosed, match="the client was closed"):
            await member.run(handle, concurrency=2)
        (call,) = server.calls
        await call.ended.wait()
        assert call.settled == {2}
        assert not call.closed


async def test_a_closed_member_says_that_others_get_the_event() -> None:
    async with serving(playing(runs(1, [1]))) as (server, client):
        async with client.subscription("s").join() as member:
            event = await member.next()
        with pytest.raises(feedmux.SessionClosed, match="others get the event"):
            event.ack()
        assert server.calls[0].closed


async def test_a_close_without_a_stream_reports_what_is_finished() -> None:
    cut = asyncio.Event()

    async def first(call: Call) -> None:
        await call.send(joined(), runs(1, [1], [2]))
        await cut.wait()
        await call.abort(grpc.StatusCode.UNAVAILABLE)

    async def second(call: Call) -> None:
        await call.send(joined(), runs(1, [1], [2]))
        await call.until_closed()

    notices: list[Notice] = []
    async with serving(first, second) as (server, client):
        async with client.subscription("s").join(on_notice=notices.append) as member:
            one = await member.next()
            two = await member.next()
            cut.set()
            while not notices:
                with suppress(TimeoutError):
                    await member.next(0.01)
            one.ack()
        call = await server.call(1)
        await call.until_closed()
        assert call.settled == {1}
        assert isinstance(notices[0], Disconnected)
        with pytest.raises(feedmux.SessionClosed):
            two.ack()


async def test_a_close_does_not_wait_for_what_the_next_host_was_told() -> None:
    async def first(call: Call) -> None:
        await call.send(joined(), runs(1, [1]))
        await call.until_settled(1)
        await call.abort(grpc.StatusCode.UNAVAILABLE)

    async def second(call: Call) -> None:
        answer = joined()
        answer.opened.epoch = 2
        await call.send(answer)
        await call.until_closed()

    async with serving(first, second) as (server, client):
        async with client.subscription("s").join() as member:
            (await member.next()).ack()
            await server.call(1)
        assert server.calls[1].closed


@pytest.mark.parametrize("ends", ["member", "client", "run"])
async def test_the_end_says_what_the_server_did_not_confirm(ends: str, caplog: pytest.LogCaptureFixture) -> None:
    """Of four events, two are stored when the server dies, and it does not come back."""
    dead = asyncio.Event()

    async def dies(call: Call) -> None:
        await call.send(joined(), runs(1, [1], [2], [3], [4], [5]))
        await call.until_settled(1, 2)
        await call.send(pb.SubscribeResponse(committed=pb.Committed(delivery_sequence=2)), progress(0))
        await dead.wait()
        await call.abort(grpc.StatusCode.UNAVAILABLE)

    async def is_away(call: Call) -> None:
        await call.abort(grpc.StatusCode.UNAVAILABLE)

    async def handle(event: feedmux.MemberEvent) -> None:
        if number(event) > 2:
            while (await server.call(0)).settled < {1, 2}:
                await asyncio.sleep(0.01)
            dead.set()
            await server.call(1)
        if number(event) == 4:
            await member.close()
        if number(event) == 5:
            raise feedmux.RetryAfter(1)

    async with serving(dies, is_away) as (server, client):
        member = await client.subscription("s").join(close_timeout_s=0.1)
        if ends == "run":
            await member.run(handle, concurrency=5)
        else:
            events = [await member.next() for _ in range(5)]
            for event in events[:2]:
                event.ack()
            await (await server.call(0)).until_settled(1, 2)
            while member.cluster_time is None:
                await asyncio.sleep(0.01)
            dead.set()
            await server.call(1)
            for event in events[2:4]:
                event.ack()
            events[4].nack()
            await (member.close() if ends == "member" else client.close())
        await member.close()
        said = [each for each in warnings_of(caplog) if "confirmed" in each]
        expected = (
            "the member ended before the server confirmed all that was settled: 3 of the events may be delivered again"
        )
        assert said == [expected]


async def test_an_end_that_the_server_confirms_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(playing(runs(1, [1], [2], [3]))) as (_, client):
        async with client.subscription("s").join() as member:
            (await member.next()).ack()
            (await member.next()).nack()
            await member.next()
        await client.close()
        assert not warnings_of(caplog)


async def test_a_client_that_is_closed_ends_its_members() -> None:
    async with serving(playing(runs(1, [1]), progress(1))) as (_, client):
        member = await client.subscription("s").join()
        await member.next()
        waiting = asyncio.create_task(member.next())
        await asyncio.sleep(0)
        await client.close()
        with pytest.raises(feedmux.SessionClosed, match="the client was closed"):
            await waiting
