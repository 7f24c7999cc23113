"""The synchronous session: the same machine behind a thread, so only what the thread adds is tested here."""

import asyncio
import gc
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Any

import pytest
from bson.codec_options import CodecOptions, TypeDecoder, TypeRegistry

import feedmux
from feedmux.session import _drain
from feedmux.v1 import change_feed_pb2 as pb
from feedmux.window import CreditWindow, Grant
from tests.tables import over
from tests.unit.client.beside import QUICK, using
from tests.unit.client.scripted_server import Call, ScriptedServer, batch, joined, opened, play, runs
from tests.unit.client.test_async_member import playing

PACKAGE = Path(feedmux.__file__).parent


async def test_iterates_acks_and_closes() -> None:
    def work(client: feedmux.Client) -> list[int]:
        seen = []
        with client.subscription("s").open() as session:
            for event in session:
                seen.append(event.document["n"])
                session.ack(event)
                if len(seen) == 3:
                    break
            assert session.try_next() is None
            with pytest.raises(TimeoutError):
                session.next(0.01)
        assert list(session) == []
        with pytest.raises(StopIteration):
            session.next()
        return seen

    async with ScriptedServer(play(opened(), batch(1, [1, 2]), batch(3, [3]))) as server:
        assert await using(server, work) == [1, 2, 3]
        assert server.calls[0].acks[-1] == 3
        assert server.calls[0].closed


async def test_a_loop_left_and_entered_again_goes_on() -> None:
    def work(client: feedmux.Client) -> list[int]:
        with client.subscription("s").open() as session:
            seen = [next(iter(session)).document["n"] for _ in range(2)]
            seen.append(next(session).document["n"])
            seen += [document["n"] for document in next(session.batches()).documents]
            return seen

    async with ScriptedServer(play(opened(), batch(1, range(1, 6)))) as server:
        assert await using(server, work) == [1, 2, 3, 4, 5]


async def test_what_is_taken_while_credit_is_granted_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user takes all events after the connection has counted them, and before it says when to be woken next."""
    counted, taken = threading.Event(), threading.Event()
    refill = CreditWindow.refill

    def refill_slowly(self: CreditWindow, taken_events: int, taken_bytes: int) -> Grant | None:
        grant = refill(self, taken_events, taken_bytes)
        if grant is not None and not counted.is_set():
            counted.set()
            taken.wait()
        return grant

    async def script(call: Call) -> None:
        await call.send(opened(), *(batch(number, [number]) for number in range(1, 5)))
        await call.until(lambda call: call.granted_events >= 8)
        await call.send(batch(5, [5]))
        await call.until_closed()

    def work(client: feedmux.Client) -> list[int]:
        with client.subscription("s").open(window_events=4) as session:
            while session._queue.qsize() < 4:
                time.sleep(0.01)
            seen = [next(session).sequence]
            counted.wait()
            seen += [next(session).sequence for _ in range(3)]
            taken.set()
            return [*seen, next(session).sequence]

    monkeypatch.setattr(CreditWindow, "refill", refill_slowly)
    async with ScriptedServer(script) as server, asyncio.timeout(60):
        assert await using(server, work) == [1, 2, 3, 4, 5]


class WatchedQueue:
    """A session's queue that says when somebody waits at it."""

    def __init__(self, queue: Any) -> None:
        self._queue = queue
        self.waiting = threading.Event()

    def get(self, *arguments: Any) -> Any:
        self.waiting.set()
        return self._queue.get(*arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)


@pytest.mark.parametrize("waiting", ["next", "iterate", "batches"])
async def test_close_from_another_thread_wakes_who_waits(waiting: str) -> None:
    def work(client: feedmux.Client) -> None:
        session = client.subscription("s").open()
        queue = WatchedQueue(session._queue)
        session._queue = queue  # type: ignore[assignment]

        def close() -> None:
            queue.waiting.wait()
            session.close()

        threading.Thread(target=close, daemon=True).start()
        if waiting == "next":
            with pytest.raises(StopIteration):
                session.next()
        elif waiting == "iterate":
            assert list(session) == []
        else:
            assert list(session.batches()) == []
        session.close()

    async with ScriptedServer(play(opened())) as server:
        await using(server, work)


def test_nobody_takes_an_item_while_those_before_it_are_taken_back() -> None:
    """The connection takes back what waits, and puts it again without the notices that a new one replaces."""
    queue, taken = SimpleQueue[Any](), list[int]()
    for number in range(100):
        queue.put(number)

    def as_another_thread(*_: object) -> None:
        with suppress(Empty):
            taken.append(queue.get_nowait())

    sys.setprofile(as_another_thread)
    try:
        drained: list[Any] = _drain(queue)
    finally:
        sys.setprofile(None)
    assert taken
    assert drained == list(range(len(taken), 100))


class Interrupted(Exception):
    """What a signal handler raises, for example after a time limit."""


class Interrupts:
    """Raises where Python calls signal handlers within the client's code: where a function begins, and after a call."""

    def __init__(self) -> None:
        self.places = Counter[str]()
        self._random = random.Random(1)
        self._left = 0

    def arm(self) -> None:
        """Raise at one of the next of these places."""
        self._left = self._random.randrange(1, 50)
        sys.setprofile(self._profile)

    def _profile(self, frame: FrameType, kind: str, _: object) -> None:
        code = frame.f_code
        if kind in {"call", "c_return"} and Path(code.co_filename).parent == PACKAGE:
            self._left -= 1
            if not self._left:
                self.places[code.co_name] += 1
                raise Interrupted


@pytest.mark.parametrize("way", ["next", "iterate", "batches"])
async def test_nothing_is_lost_where_a_signal_handler_raises(way: str) -> None:
    """Neither events nor notices nor the wake-up for more credit: the window is as large as a batch."""
    size, count = 2, 500
    interrupts, heard = Interrupts(), list[feedmux.Notice]()

    def taken(session: feedmux.Session) -> Iterator[feedmux.Event]:
        if way == "batches":
            for batch in session.batches():
                sys.setprofile(None)
                yield from batch
                interrupts.arm()
        elif way == "iterate":
            for event in session:
                sys.setprofile(None)
                yield event
                interrupts.arm()
        else:
            event = session.next(60)
            sys.setprofile(None)
            yield event

    def work(client: feedmux.Client) -> list[int]:
        seen, interrupted = list[int](), 0
        with client.subscription("s").open(window_events=size, on_notice=heard.append) as session:
            while len(seen) < size * count:
                interrupts.arm()
                try:
                    for event in taken(session):
                        seen.append(event.sequence)
                        interrupts.arm()
                        with suppress(Interrupted):
                            session.ack(event)
                        sys.setprofile(None)
                        if len(seen) == size * count:
                            break
                except Interrupted:
                    interrupted += 1
                finally:
                    sys.setprofile(None)
            session.ack()
        assert interrupted > count / 10
        return seen

    async def script(call: Call) -> None:
        await call.send(opened())
        for first in range(1, size * count, size):
            await call.until(lambda call, end=first + size - 1: call.granted_events >= end)  # type: ignore[misc]
            gap = pb.SubscribeResponse(notice=pb.Notice(gap=pb.Notice.Gap(reason=str(first))))
            await call.send(gap, batch(first, range(first, first + size)))
        await call.until_closed()

    async with ScriptedServer(script) as server:
        assert await using(server, work) == list(range(1, size * count + 1))
        assert server.calls[0].acked == size * count
    assert [notice.reason for notice in heard if isinstance(notice, feedmux.Gap)] == [
        str(first) for first in range(1, size * count, size)
    ]
    assert interrupts.places.keys() >= {"_get", "_settle", "_take", "_begin_at", "_say", "_wake_if_due", "_keep"}


@pytest.mark.parametrize("closes", ["session", "client"])
async def test_a_closed_session_accepts_no_ack(closes: str) -> None:
    def work(client: feedmux.Client) -> None:
        session = client.subscription("s").open()
        one, two = next(session), next(session)
        session.ack(one)
        if closes == "session":
            session.close()
        else:
            client.close()
        session.ack(one)
        with pytest.raises(feedmux.SessionClosed, match="before this ack"):
            session.ack(two)
        with pytest.raises(feedmux.SessionClosed, match="before this ack"):
            session.ack()

    async with ScriptedServer(play(opened(), batch(1, [1, 2, 3]))) as server:
        await using(server, work)
        assert server.calls[0].acked == 1


ACKING = """
import asyncio, signal, sys
import feedmux
from feedmux.settlements import Settlements

def signalling(of, name):
    before = getattr(of, name)
    def after(*arguments):
        before(*arguments)
        if armed:
            armed.pop()
            signal.raise_signal(signal.SIGTERM)
    setattr(of, name, after)

def session():
    with feedmux.Client(address) as client:
        session = client.subscription("s").open()
        one, two = session.next(60), session.next(60)
        session.close()
        yield from (lambda: session.ack(one), lambda: session.ack(two))

async def member():
    async with feedmux.AsyncClient(address) as client, client.subscription("s").join() as member:
        one, two = await member.next(60), await member.next(60)
        signal.signal(signal.SIGTERM, lambda *_: two.ack())
        armed.append(1)
        one.ack()

_, address, kind = sys.argv
armed = []
if kind == "member":
    signalling(Settlements, "settle")
    asyncio.run(member())
else:
    signalling(feedmux.SessionClosed, "__init__")
    one, two = session()
    signal.signal(signal.SIGTERM, lambda *_: two())
    armed.append(1)
    try:
        one()
    except feedmux.SessionClosed:
        pass
assert not armed
print("acked")
"""


@pytest.mark.parametrize("kind", ["session", "member"])
async def test_a_signal_handler_acks_where_it_interrupts_an_ack(kind: str) -> None:
    """Of an asynchronous member, and of a session that is closed: its ack calls no other Python code."""
    script = playing(runs(1, [1], [2])) if kind == "member" else play(opened(), batch(1, [1, 2]))
    async with ScriptedServer(script) as server, asyncio.timeout(60):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", ACKING, server.address, kind, stdout=asyncio.subprocess.PIPE
        )
        try:
            assert process.stdout is not None
            assert (await process.stdout.read()).strip() == b"acked"
            assert await process.wait() == 0
            assert kind == "session" or server.calls[0].settled == {1, 2}
        finally:
            if process.returncode is None:
                process.kill()


async def test_close_within_the_loop_ends_it() -> None:
    def work(client: feedmux.Client) -> int:
        count = 0
        with client.subscription("s").open() as session:
            for _ in session:
                count += 1
                session.close()
        return count

    async with ScriptedServer(play(opened(), batch(1, range(1, 50)))) as server:
        assert await using(server, work) == 1


async def test_threads_share_the_events() -> None:
    def work(client: feedmux.Client) -> list[int]:
        seen: list[int] = []
        with client.subscription("s").open() as session:

            def note(what: Iterable[feedmux.Event]) -> None:
                for event in what:
                    seen.append(event.sequence)
                    if len(seen) == 1000:
                        threading.Thread(target=session.close).start()

            def loop() -> None:
                note(session)

            def whole() -> None:
                note(event for each in session.batches() for event in each)

            def tries() -> None:
                with suppress(StopIteration):
                    while True:
                        note(filter(None, [session.try_next()]))

            threads = [threading.Thread(target=way) for way in (loop, loop, whole, tries)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
        return sorted(seen)

    batches = [batch(first, range(first, first + 5)) for first in range(1, 1000, 5)]
    async with ScriptedServer(play(opened(), *batches)) as server:
        assert await using(server, work) == list(range(1, 1001))


class Meet(TypeDecoder):
    bson_type = int

    def __init__(self) -> None:
        self.begun = threading.Event()
        self._both = threading.Barrier(2)

    def transform_bson(self, value: int) -> int:
        self.begun.set()
        self._both.wait(60)
        return value


async def test_threads_share_the_documents_of_a_change_stream() -> None:
    def work(client: feedmux.Client) -> list[int]:
        meet = Meet()
        options: CodecOptions[Any] = CodecOptions(type_registry=TypeRegistry([meet]))
        with client["d"].get_collection("c", codec_options=options).watch() as stream, ThreadPoolExecutor(2) as threads:
            first = threads.submit(stream.next)
            meet.begun.wait(60)
            return [each.result()["n"] for each in (first, threads.submit(stream.next))]

    async with ScriptedServer(play(opened(), batch(1, [1]), batch(2, [2]))) as server:
        assert await using(server, work) == [1, 2]


async def test_a_session_dropped_without_close_ends_its_call() -> None:
    gone = asyncio.Event()

    async def script(call: Call) -> None:
        await call.send(opened())
        try:
            await asyncio.Event().wait()
        finally:
            gone.set()

    def work(client: feedmux.Client) -> None:
        client.subscription("s").open()
        gc.collect()

    async with ScriptedServer(script) as server:
        await using(server, work)
        async with asyncio.timeout(60):
            await gone.wait()


async def test_notices_come_in_order_in_the_user_s_thread() -> None:
    heard: list[tuple[object, int]] = []
    gap = pb.SubscribeResponse(notice=pb.Notice(gap=pb.Notice.Gap(reason="policy")))

    def work(client: feedmux.Client) -> None:
        def on_notice(notice: feedmux.Notice) -> None:
            heard.append((notice, threading.get_ident()))

        with client.subscription("s").open(on_notice=on_notice) as session:
            next(session)
            while session._queue.qsize() < 2:  # the notice, and the batch after it
                time.sleep(0.01)
            assert heard == []
            next(session)
            assert heard == [(feedmux.Gap((0, 0), (0, 0), "policy"), threading.get_ident())]

    async with ScriptedServer(play(opened(), batch(1, [1]), gap, batch(2, [2]))) as server:
        await using(server, work)


async def asynchronous(_: feedmux.Notice) -> None:
    raise AssertionError


@over(
    ("on_notice", "word"), [(asynchronous, "coroutine function"), (lambda notice: asynchronous(notice), "coroutine:")]
)
async def test_on_notice_is_no_coroutine_function(on_notice: Any, word: str) -> None:
    def work(client: feedmux.Client) -> None:
        for enter in (client.subscription("s").open, client.subscription("s").join):
            with pytest.raises(TypeError, match=f"{word}.*AsyncClient"), enter(on_notice=on_notice) as opened_one:
                next(opened_one)

    away = pb.SubscribeResponse(notice=pb.Notice(degraded=pb.Notice.Degraded(dependency="state", unavailable=True)))

    async def script(call: Call) -> None:
        await call.send(joined() if call.open.join else opened(), away)
        await call.until_closed()

    async with ScriptedServer(script) as server:
        await using(server, work)


async def test_on_notice_may_take_events() -> None:
    def work(client: feedmux.Client) -> list[int]:
        def on_notice(_: feedmux.Notice) -> None:
            seen.append(-session.next().sequence)

        seen: list[int] = []
        with client.subscription("s").open(on_notice=on_notice) as session:
            for event in session:
                seen.append(event.sequence)
                if event.sequence == 5:
                    break
        return seen

    away = pb.SubscribeResponse(notice=pb.Notice(degraded=pb.Notice.Degraded(dependency="state", unavailable=True)))
    async with ScriptedServer(play(opened(), batch(1, [1]), away, batch(2, [2, 3]), batch(4, [4, 5]))) as server:
        assert await using(server, work) == [1, -2, 3, 4, 5]


async def test_a_batch_taken_within_the_loop_over_events_is_not_handed_out_twice() -> None:
    def work(client: feedmux.Client) -> list[list[int]]:
        seen: list[list[int]] = []
        with client.subscription("s").open() as session:
            for event in session:
                seen.append([event.document["n"]])
                if event.sequence == 2:
                    seen.append([document["n"] for document in next(session.batches()).documents])
                if event.sequence == 6:
                    break
        return seen

    async with ScriptedServer(play(opened(), batch(1, [1, 2, 3, 4]), batch(5, [5, 6]))) as server:
        assert await using(server, work) == [[1], [2], [3, 4], [5], [6]]


@pytest.mark.parametrize("given", [None, "", b"token", "a b", "schlüssel"])
async def test_a_token_function_that_gives_no_token_is_unavailable(given: Any) -> None:
    with (
        feedmux.Client("127.0.0.1:1", token=lambda: given) as client,
        pytest.raises(feedmux.Unavailable, match="the token function failed") as caught,
    ):
        await asyncio.to_thread(client.get_subscription, "s")
    assert "schl" not in str(caught.value)


async def test_a_token_function_that_waits_holds_up_no_other_session() -> None:
    asked, may_end = threading.Event(), threading.Event()

    def waits() -> str:
        asked.set()
        may_end.wait()
        return "token"

    def work(client: feedmux.Client) -> None:
        def open_late() -> None:
            with feedmux.Client(server.address, token=waits, session=QUICK) as other:
                other.subscription("s").open().close()

        opening = threading.Thread(target=open_late, daemon=True)
        opening.start()
        try:
            asked.wait()
            with client.subscription("s").open() as session:
                assert session.next().sequence == 1
        finally:
            may_end.set()
        opening.join()

    async with ScriptedServer(play(opened(), batch(1, [1]))) as server:
        await using(server, work)


async def test_open_ends_at_its_timeout_while_a_token_function_waits() -> None:
    may_end = threading.Event()

    def waits() -> str:
        may_end.wait()
        return "token"

    def work() -> None:
        with feedmux.Client("127.0.0.1:1", token=waits, timeout_s=0.1) as client:
            with pytest.raises(feedmux.Unavailable):
                client.subscription("s").open(open_timeout_s=0.1)
            with pytest.raises(feedmux.Unavailable, match="token function"):
                client.get_subscription("s")

    try:
        async with asyncio.timeout(60):
            await asyncio.to_thread(work)
    finally:
        may_end.set()


async def test_a_session_does_not_wait_for_what_a_fork_has_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    def work(client: feedmux.Client) -> None:
        with client.subscription("s").open() as session, monkeypatch.context() as forked:
            forked.setattr(session._background_loop, "_process", 0)
            for use in (session.next, session.try_next, lambda: next(session.batches()), session.close):
                with pytest.raises(RuntimeError, match="fork first"):
                    use()

    async with ScriptedServer(play(opened())) as server:
        await using(server, work)


AT_EXIT = """
import atexit, sys, threading, time

threads = []

def is_stopped(thread):
    frame, codes = sys._current_frames().get(thread.ident), []
    while frame is not None:
        codes.append(frame.f_code)
        frame = frame.f_back
    return BackgroundLoop.check.__code__ in codes[1:]

def wait():
    while any(each.is_alive() and not is_stopped(each) for each in threads):
        time.sleep(0.01)

atexit.register(wait)  # runs after what feedmux registers: time to complain
import feedmux
from feedmux.background_loop import BackgroundLoop

def read(take):
    while True:
        try:
            take()
        except TimeoutError:
            pass

client = feedmux.Client(sys.argv[1])
sessions = [client.subscription("s").open() for _ in range(2)]
members = [client.subscription("s").join() for _ in range(2)]
for take in (sessions[0].next, sessions[1].try_next, members[0].next, lambda: members[1].next(0)):
    threads.append(threading.Thread(target=read, args=(take,), daemon=True))
    threads[-1].start()
"""


async def test_daemon_threads_end_with_the_program_without_a_word() -> None:
    async def script(call: Call) -> None:
        await call.send(joined() if call.open.join else opened())
        await call.until_closed()

    async with ScriptedServer(script) as server:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", AT_EXIT, server.address, stderr=asyncio.subprocess.PIPE
        )
        _, said = await asyncio.wait_for(process.communicate(), 60)
    assert (process.returncode, said) == (0, b"")
