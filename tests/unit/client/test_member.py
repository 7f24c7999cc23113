"""The synchronous member: the same machine behind a thread, so only what threads, signals and forks add is tested
here."""

import asyncio
import signal
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import pytest

import feedmux
from tests.unit.client.beside import using
from tests.unit.client.scripted_server import Call, ScriptedServer, joined, runs
from tests.unit.client.test_async_member import number, playing
from tests.unit.client.test_session import Interrupted, Interrupts


async def test_iterates_settles_and_closes() -> None:
    def work(client: feedmux.Client) -> list[int]:
        seen = []
        with client.subscription("s").join() as member:
            for event in member:
                seen.append(number(event))
                event.ack()
                if len(seen) == 3:
                    break
            last = next(member)
            with pytest.raises(TimeoutError):
                member.next(0.01)
        with pytest.raises(StopIteration):
            member.next()
        with pytest.raises(feedmux.SessionClosed):
            last.ack()
        return seen

    async with ScriptedServer(playing(runs(1, [1, 2], [3], [4]))) as server:
        assert await using(server, work) == [1, 2, 3]
        assert server.calls[0].settled == {1, 2, 3}
        assert server.calls[0].closed


async def test_no_event_is_stuck_where_a_signal_handler_raises() -> None:
    """An event that was taken and not returned would hold up its key, and have a place in the window, for good."""
    interrupts, count = Interrupts(), 500

    def work(client: feedmux.Client) -> list[int]:
        seen, interrupted = list[int](), 0
        with client.subscription("s").join(window_events=2) as member:
            while len(seen) < count:
                try:
                    interrupts.arm()
                    event = member.next(60)
                    sys.setprofile(None)
                    seen.append(number(event))
                    interrupts.arm()
                    with suppress(Interrupted):
                        event.ack()
                    sys.setprofile(None)
                    event.ack()
                except Interrupted:
                    interrupted += 1
                finally:
                    sys.setprofile(None)
        assert interrupted > count / 10
        return seen

    async def script(call: Call) -> None:
        await call.send(joined())
        for first in range(1, count, 2):
            await call.until(lambda call, end=first - 1: len(call.settled) >= end)  # type: ignore[misc]
            await call.send(runs(first, [first, first + 1]))
        await call.until_closed()

    async with ScriptedServer(script) as server:
        assert await using(server, work) == list(range(1, count + 1))
    assert interrupts.places.keys() >= {"_take", "take"}


async def test_the_end_says_what_the_server_did_not_confirm(caplog: pytest.LogCaptureFixture) -> None:
    def work(client: feedmux.Client) -> None:
        member = client.subscription("s").join()
        events = [member.next() for _ in range(2)]
        for event in events:
            event.ack()
        member.close(0.1)

    async def silent(call: Call) -> None:
        await call.send(joined(), runs(1, [1], [2], [3]))
        await call.ended.wait()

    async with ScriptedServer(silent) as server:
        await using(server, work)
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert ["settled: 2 of" in each for each in said] == [True]


async def test_threads_share_the_events_and_those_of_a_key_are_never_in_two() -> None:
    busy: set[int] = set()
    order: dict[int, list[int]] = {key: [] for key in range(10)}
    lock = threading.Lock()

    def handle(event: feedmux.MemberEvent) -> None:
        key = number(event) % 10
        with lock:
            assert key not in busy
            busy.add(key)
        order[key].append(number(event))
        with lock:
            busy.remove(key)

    async def script(call: Call) -> None:
        await call.send(joined())
        sent = 0
        for turn in range(20):
            keys = [[100 * turn + 10 * each + key for each in range(3)] for key in range(10)]
            await call.send(runs(sent + 1, *keys))
            sent += 30
            await call.until_settled(*range(1, sent + 1))
        everything.set()
        await call.until_closed()

    def work(client: feedmux.Client) -> None:
        member = client.subscription("s").join()

        def close() -> None:
            everything.wait()
            member.close()

        closer = threading.Thread(target=close)
        closer.start()
        member.run(handle, concurrency=64)
        closer.join()
        assert member.closed

    everything = threading.Event()
    async with ScriptedServer(script) as server:
        await using(server, work)
    assert not server.calls[0].failed
    assert all(seen == sorted(seen) and len(seen) == 60 for seen in order.values())


async def test_handlers_fail_reject_and_close() -> None:
    def work(client: feedmux.Client) -> None:
        def handle(event: feedmux.MemberEvent) -> None:
            match number(event):
                case 1:
                    raise ValueError("bad")
                case 3:
                    raise feedmux.Reject("never")
                case 4:
                    raise asyncio.CancelledError("of a loop that the handler ran")
                case 5:
                    member.close()

        member = client.subscription("s").join()
        member.run(handle, concurrency=1)

    async with ScriptedServer(playing(runs(1, [1, 2], [3], [4], [5, 6]))) as server:
        await using(server, work)
        (call,) = server.calls
        assert call.settled == {5}
        assert {sequence: (each.reason, each.reject) for sequence, each in call.failed.items()} == {
            1: ("ValueError: bad", False),
            3: ("never", True),
            4: ("CancelledError: of a loop that the handler ran", False),
        }
        assert call.closed


async def test_threads_that_exceed_their_time_take_no_other_event() -> None:
    gate = threading.Event()

    def work(client: feedmux.Client) -> None:
        handled: list[int] = []

        def handle(event: feedmux.MemberEvent) -> None:
            handled.append(number(event))
            if number(event) in (1, 4):
                gate.wait()

        member = client.subscription("s").join()
        with pytest.raises(TimeoutError, match="all 2 handlers"):
            member.run(handle, concurrency=2, timeout_s=0.1)
        assert sorted(handled) == [1, 3, 4]

    async with ScriptedServer(playing(runs(1, [1, 2], [3], [4], [5]))) as server:
        try:
            await using(server, work)
        finally:
            gate.set()
        assert server.calls[0].failed.keys() == {1, 4}
        assert server.calls[0].failed[1].reason == "the handler has not ended within 0.1 s"


class Ends(BaseException):
    """No Exception."""


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit(3), Ends, GeneratorExit])
async def test_an_event_that_ends_the_program_has_failed(error: Any) -> None:
    kind = error if isinstance(error, type) else type(error)

    def work(client: feedmux.Client) -> None:
        def handle(event: feedmux.MemberEvent) -> None:
            raise error

        with pytest.raises(kind):
            client.subscription("s").join().run(handle, concurrency=1)

    async with ScriptedServer(playing(runs(1, [1], [2]))) as server:
        await using(server, work)
        assert server.calls[0].closed
        assert server.calls[0].settled == set()
        (reason,) = [each.reason for each in server.calls[0].failed.values()]
        assert reason.startswith(kind.__name__)


@pytest.mark.parametrize("is_in_time", [True, False])
async def test_a_handler_that_ends_the_program_frees_no_key_of_another(is_in_time: bool) -> None:
    begun, gate = threading.Event(), threading.Event()

    def work(client: feedmux.Client) -> None:
        def handle(event: feedmux.MemberEvent) -> None:
            if number(event) == 1:
                begun.wait()
                threading.Timer(0.1, gate.set if is_in_time else print).start()
                raise SystemExit(3)
            begun.set()
            gate.wait()

        member = client.subscription("s").join(close_timeout_s=60 if is_in_time else 0.2)
        with pytest.raises(SystemExit):
            member.run(handle, concurrency=2)

    async with ScriptedServer(playing(runs(1, [1], [2, 3]))) as server:
        await using(server, work)
        (call,) = server.calls
        await call.ended.wait()
        assert call.failed.keys() == {1}
        assert call.settled == ({2} if is_in_time else set())
        assert call.closed == is_in_time
        gate.set()


@pytest.mark.parametrize("is_in_time", [True, False])
async def test_a_client_that_is_closed_waits_for_the_handlers_in_progress(is_in_time: bool) -> None:
    begun, other, gate = threading.Event(), threading.Event(), threading.Event()

    def work(client: feedmux.Client) -> None:
        def handle(event: feedmux.MemberEvent) -> None:
            if number(event) == 1:
                other.wait()
                begun.set()
                gate.wait()
            else:
                other.set()

        def run() -> None:
            with pytest.raises(feedmux.SessionClosed, match="the client was closed"):
                member.run(handle, concurrency=2)
            ended.set()

        ended = threading.Event()
        member = client.subscription("s").join(close_timeout_s=60 if is_in_time else 0.2)
        threading.Thread(target=run).start()
        begun.wait()
        if is_in_time:
            threading.Timer(0.1, gate.set).start()
        client.close()
        gate.set()
        assert ended.wait(30)

    async with ScriptedServer(playing(runs(1, [1, 2], [3]))) as server:
        await using(server, work)
        (call,) = server.calls
        await call.ended.wait()
        assert call.settled == ({1, 3} if is_in_time else {3})
        assert call.closed == is_in_time


async def coroutine(event: feedmux.MemberEvent) -> None: ...


def generator(event: feedmux.MemberEvent) -> Iterator[int]:
    yield 1


async def asynchronous_generator(event: feedmux.MemberEvent) -> AsyncIterator[int]:
    yield 1


def future(event: feedmux.MemberEvent) -> Any:
    return Future()


@pytest.mark.parametrize("handler", [lambda event: coroutine(event), generator, asynchronous_generator, future])
async def test_a_handler_that_returns_its_work_settles_nothing(handler: Any) -> None:
    def work(client: feedmux.Client) -> None:
        with pytest.raises(TypeError, match="its work is not done"):
            client.subscription("s").join().run(handler)

    async with ScriptedServer(playing(runs(1, [1]))) as server:
        await using(server, work)
        assert not server.calls[0].settles


async def test_a_coroutine_function_is_no_handler_here() -> None:
    def work(client: feedmux.Client) -> None:
        with client.subscription("s").join() as member, pytest.raises(TypeError, match="a coroutine function"):
            member.run(coroutine)

    async with ScriptedServer(playing(runs(1, [1]))) as server:
        await using(server, work)


PROGRAM = """
import sys, time
import feedmux

def handle(event):
    if event.document["n"] == 1:
        print("begun", flush=True)
        while not member._buffer.stopping:
            time.sleep(0.01)

with feedmux.Client(sys.argv[1]) as client:
    member = client.subscription("s").join()
    try:
        member.run(handle, concurrency=2)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    else:
        print("returned", flush=True)
"""


HANDLED = """
import asyncio, signal, sys
import feedmux
from feedmux.background_loop import background_loop
from feedmux.settlements import Settlements

def signalling(of, name):
    before = getattr(of, name)
    def after(*arguments):
        result = before(*arguments)
        if armed:
            armed.pop()
            signal.raise_signal(signal.SIGTERM)
        return result
    setattr(of, name, after)

_, address, where, closes = sys.argv
armed = []
signalling(eval(where.rpartition(".")[0]), where.rpartition(".")[2])
with feedmux.Client(address) as client:
    member = client.subscription("s").join()
    signal.signal(signal.SIGTERM, lambda *_: eval(closes).close())
    member.next().ack()
    armed.append(1)
    try:
        while True:
            member.next(60).ack()
            background_loop().call(asyncio.sleep(0))
    except (StopIteration, feedmux.SessionClosed):
        print("ended")
    member.close()
    assert member.closed and not armed
"""


@pytest.mark.parametrize("closes", ["member", "client"])
@pytest.mark.parametrize(
    "where",
    [
        "Settlements.take",
        "Settlements.settle",
        "asyncio.run_coroutine_threadsafe",
    ],
)
async def test_a_signal_handler_closes_wherever_it_interrupts_feedmux(where: str, closes: str) -> None:
    async with ScriptedServer(playing(runs(1, [1], [2], [3]))) as server, asyncio.timeout(60):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", HANDLED, server.address, where, closes, stdout=asyncio.subprocess.PIPE
        )
        try:
            assert process.stdout is not None
            said = await process.stdout.read()
            assert said.strip() == b"ended"
            assert await process.wait() == 0
            assert server.calls[0].closed
        finally:
            if process.returncode is None:
                process.kill()


@pytest.mark.parametrize(("number_", "words"), [(signal.SIGTERM, b"returned"), (signal.SIGINT, b"interrupted")])
async def test_signals_drain(number_: signal.Signals, words: bytes) -> None:
    async with ScriptedServer(playing(runs(1, [1, 2], [3]))) as server, asyncio.timeout(60):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", PROGRAM, server.address, stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        assert await process.stdout.readline() == b"begun\n"
        await server.calls[0].until_settled(3)
        process.send_signal(number_)
        assert (await process.stdout.read()).strip() == words
        assert await process.wait() == 0
        assert server.calls[0].closed
        assert server.calls[0].settled == {1, 3}


async def test_a_second_interrupt_frees_no_key_whose_handler_is_at_work() -> None:
    async with ScriptedServer(playing(runs(1, [1, 2], [3]))) as server, asyncio.timeout(60):
        program = PROGRAM.replace("not member._buffer.stopping", "True")
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, server.address, stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        assert await process.stdout.readline() == b"begun\n"
        (call,) = server.calls
        await call.until_settled(3)
        reading = asyncio.create_task(process.stdout.read())
        while not reading.done():
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGINT)
            await asyncio.wait((reading,), timeout=1.0)
        await call.ended.wait()
        assert call.settled == {3}
        assert not call.closed


async def test_a_forked_process_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its number: gRPC itself may not survive a real fork at this moment."""

    def work(client: feedmux.Client) -> None:
        with client.subscription("s").join() as member:
            event = member.next()
            with monkeypatch.context() as forked:
                forked.setattr("feedmux.member_buffer.os.getpid", lambda: -1)
                for use in (event.ack, member.next, lambda: member.run(print), member.close):
                    with pytest.raises(RuntimeError, match="join after the fork"):
                        use()
            event.ack()

    async with ScriptedServer(playing(runs(1, [1], [2]))) as server:
        await using(server, work)
        assert server.calls[0].settled == {1}
