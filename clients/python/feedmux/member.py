"""The synchronous member of a group: iterate or run handlers in threads. Its network side runs in the background loop's
thread."""

import asyncio
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, Self

from feedmux.background_loop import background_loop, shared
from feedmux.errors import FeedmuxError
from feedmux.member_base import (
    Handler,
    MemberBase,
    WorkNotDone,
    all_stuck,
    check_result,
    check_run,
    end,
    failure_of,
    sigterm,
    too_late,
)
from feedmux.member_buffer import MemberBuffer, current_worker
from feedmux.member_connection import MemberConnection
from feedmux.member_event import MemberEvent
from feedmux.options import SessionOptions, wait_s
from feedmux.outcomes import DONE, Outcome
from feedmux.session_base import OnNotice, check_on_notice, check_said
from feedmux.session_buffer import QueuedNotice
from feedmux.stream_keeper import Opening, finish_for, open_stream
from feedmux.transport import Transport


class Member(MemberBase):
    """Events of a group that this member gets, as an iterator, or for `run`. `join()` returns it.

    Settle each event, by its `ack`, `nack` or `reject`: the next event of its key comes only then, and the window makes
    room. Safe to use from several threads; each event goes to one of them, and those of a key one after another.
    Notices are passed to `on_notice`, in a thread that takes events; without it they are logged.
    """

    def __init__(
        self, transport: Transport, opening: Opening, options: SessionOptions, on_notice: OnNotice | None
    ) -> None:
        """Join, and return when the server has accepted the member. Raises FeedmuxError."""
        check_on_notice(on_notice)
        lock = threading.RLock()
        self._arrivals = shared(lock)
        super().__init__(MemberBuffer(options.window_events, self._arrivals.notify, lock), on_notice)
        self._options = options
        self._workers: _Workers | None = None
        self._background_loop = background_loop()
        self._task = self._background_loop.call(
            open_stream(MemberConnection, self, transport, opening, options, self._buffer)
        )

    def __iter__(self) -> Iterator[MemberEvent]:
        while (event := self._take(None)) is not None:
            yield event

    def __next__(self) -> MemberEvent:
        return self.next()

    def next(self, timeout_s: float | None = None) -> MemberEvent:
        """Return the next event, after waiting for it at most `timeout_s` seconds (None: without a limit).

        Raises TimeoutError; StopIteration after `close()`; the FeedmuxError that ended the member. If a signal handler
        raises while it waits, the next call continues.
        """
        left_s = wait_s(timeout_s)
        event = self._take(None if left_s is None else time.monotonic() + left_s)
        if event is None:
            raise StopIteration
        return event

    def run(self, handler: Handler, *, concurrency: int = 8, timeout_s: float | None = None) -> None:
        """Pass each event to the handler, in `concurrency` threads, and those of a key one after another.

        An event is settled when its handler returns. A handler that raises returns its event, which is delivered again,
        with the error's text as the reason; `raise feedmux.RetryAfter(seconds)` says when, and
        `raise feedmux.Reject("…")` makes the event a dead letter. After `timeout_s` seconds the event of a handler has
        failed; its thread cannot be stopped, and takes no other event before the handler ends. What a handler returns
        is ignored, but for coroutines, generators and futures, whose work is not done: these end `run` with a
        TypeError. SystemExit, and whatever else is no Exception, ends `run`, and the event has failed; the other
        handlers in progress have `close_timeout_s` to end.

        Returns after `close()` or SIGTERM (unless the program handles that itself), when the handlers in progress have
        ended; then the member is closed, and others get what it has left. KeyboardInterrupt, and SystemExit from a
        signal's handler, are raised only then; a second one at once. Raises the FeedmuxError that ended the member, and
        TimeoutError when all handlers have exceeded `timeout_s`.
        """
        check_run(handler, concurrency, timeout_s, asynchronous=False)
        self._buffer.check_process()
        if self._workers is not None:
            raise RuntimeError("the member runs already")
        workers = _Workers(self._buffer, handler, concurrency, timeout_s, self._options.close_timeout_s)
        self._workers = workers
        self._buffer.is_at_work = workers.are_at_work
        try:
            with sigterm(workers.stop, _on_sigterm):
                workers.run(self._take)
        finally:
            self._workers = None
            try:
                self.close()
            finally:
                workers.ended.set()

    def close(self, timeout_s: float | None = None) -> None:
        """Report what is settled, give the rest to other members, and end. Waits at most `timeout_s` (default 5)
        seconds for the server. While `run` runs, wait until it returns; in a handler, or in a signal handler that has
        interrupted feedmux itself, only ask for it.

        What the server has not confirmed then may be delivered again; a warning is logged.
        """
        most_s = wait_s(self._options.close_timeout_s if timeout_s is None else timeout_s)
        self._buffer.check_process()
        workers = self._workers
        if workers is not None:
            self._buffer.stop()
            if not workers.is_inside():
                workers.ended.wait()
            return
        self._buffer.close()
        self._background_loop.end(finish_for(self._buffer, self._task, most_s))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _take(self, deadline_s: float | None) -> MemberEvent | None:
        buffer = self._buffer
        while True:
            buffer.check_process()
            self._background_loop.check()
            item = None
            try:
                with buffer.lock:
                    while (item := buffer.take()) is None:
                        left_s = None if deadline_s is None else deadline_s - time.monotonic()
                        if left_s is not None and left_s <= 0:
                            break
                        self._arrivals.wait(left_s)
                match item:
                    case MemberEvent():
                        return item
            except BaseException:  # raised by a signal handler: nobody would settle an event that is not returned
                buffer.put_back(item)
                raise
            match item:
                case None:
                    raise TimeoutError
                case QueuedNotice():
                    check_said(self._say(item.notice))
                case _:
                    self._background_loop.check()  # it may be of the interpreter's exit
                    end(item)
                    return None


_STOP: Final = "stop"
_CHANGED: Final = "changed"
_SIGNALS_S: Final = 0.5
"""How often `run` wakes: a signal that arrives just before a wait begins does not end that wait."""


class _Workers:
    """The threads of one `run`. They are daemons: a handler that never ends does not keep the process."""

    def __init__(
        self, buffer: MemberBuffer, handler: Handler, concurrency: int, timeout_s: float | None, stopping_s: float
    ) -> None:
        self._buffer = buffer
        self._handler = handler
        self._concurrency = concurrency
        self._timeout_s = timeout_s
        self._stopping_s = stopping_s
        """How long the handlers in progress may take to end after one has ended the program."""
        self.ended = threading.Event()
        self._signals: queue.SimpleQueue[str] = queue.SimpleQueue()
        """To the thread of `run`. A signal handler may put into a SimpleQueue at any moment."""
        self._lock = threading.RLock()
        self._shared = shared(self._lock)
        self._began: dict[threading.Thread, tuple[MemberEvent, float]] = {}
        """By thread, the event in progress, and when its time is over."""
        self._threads: list[threading.Thread] = []
        self._ended: set[threading.Thread] = set()
        self._stuck: set[threading.Thread] = set()
        """The threads whose handler has exceeded its time."""
        self._fatal: BaseException | None = None
        self._until_s = float("inf")
        """When `run` ends at the latest."""
        self._runner = threading.get_ident()

    def stop(self) -> None:
        """Ask `run` to return when the handlers in progress have ended. For signal handlers, which may not lock."""
        self._signals.put(_STOP)

    def is_inside(self) -> bool:
        """Whether the caller is a handler, or on the thread of `run`, which cannot wait for its own end."""
        return threading.current_thread() in self._threads or threading.get_ident() == self._runner

    def run(self, take: Callable[[float | None], MemberEvent | None]) -> None:
        interrupt: BaseException | None = None
        is_needed = True
        while is_needed:
            try:
                while interrupt is None and len(self._threads) < self._concurrency:
                    thread = threading.Thread(target=self._work, args=(take,), name="feedmux-handler", daemon=True)
                    self._threads.append(thread)
                    thread.start()
                # While handlers are in progress, or may be, that are waited for.
                while time.monotonic() < self._until_s and self.are_at_work(None):
                    self._wait()
                is_needed = False
            except (KeyboardInterrupt, SystemExit) as error:  # raised by handlers of signals
                if interrupt is not None:
                    raise  # At the second one, nothing is waited for.
                interrupt = error
                self._buffer.stop()
        if self._fatal is not None:
            raise self._fatal
        if interrupt is not None:
            raise interrupt

    def are_at_work(self, apart_from: object) -> bool:
        """Whether handlers are in progress, or may be, apart from that of this thread, and those that have exceeded
        their time."""
        with self._lock:
            return any(
                each.is_alive() and each not in self._ended and each not in self._stuck and each is not apart_from
                for each in self._threads
            )

    def _wait(self) -> None:
        """Wait until something happens, or the time of a handler is over."""
        left_s = min(_SIGNALS_S, self._until_s - time.monotonic())
        with self._lock:
            if self._began:
                left_s = min(left_s, min(until_s for _, until_s in self._began.values()) - time.monotonic())
        try:
            if self._signals.get(timeout=max(0.0, left_s)) is _STOP:
                self._buffer.stop()
        except queue.Empty:
            if self._timeout_s is not None:
                self._end_late(self._timeout_s)

    def _end_late(self, timeout_s: float) -> None:
        now_s, late = time.monotonic(), []
        with self._lock:
            for thread, (event, until_s) in list(self._began.items()):
                if until_s <= now_s:
                    late.append(event)
                    self._stuck.add(thread)
                    del self._began[thread]
            all_are = len(self._stuck) == self._concurrency
        for event in late:
            self._buffer.settle_quietly(event, too_late(timeout_s))
        if all_are:
            self._fail(all_stuck(self._concurrency, timeout_s))

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            self._fatal = self._fatal or error
            # All may end before an error of the member is raised: they end for it alone.
            if not isinstance(error, FeedmuxError):
                self._until_s = min(self._until_s, time.monotonic() + self._stopping_s)
        self._buffer.stop()
        self._signals.put(_CHANGED)

    def _work(self, take: Callable[[float | None], MemberEvent | None]) -> None:
        current_worker.set(threading.current_thread())
        try:
            event = take(None)
            while event is not None:
                outcome = self._handle(event)
                if outcome is None:
                    break
                event = self._buffer.settle_and_take(event, outcome) or take(None)
        except BaseException as error:  # noqa: BLE001 - raised by `run`
            self._fail(error)
        finally:
            with self._lock:
                self._ended.add(threading.current_thread())
            self._signals.put(_CHANGED)

    def _handle(self, event: MemberEvent) -> Outcome | None:
        """Return what became of the event; None if it is not settled, because the program ends."""
        me = threading.current_thread()
        if self._timeout_s is not None:
            with self._lock:
                self._began[me] = event, time.monotonic() + self._timeout_s
        try:
            check_result(self._handler(event))
        except WorkNotDone as error:
            self._fail(error)
            return None
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - the event has failed, and not this thread
            return failure_of(event, error)
        except BaseException as error:  # noqa: BLE001 - such as SystemExit: raised by `run`
            # Not by a signal, which no such thread gets. So the event has failed: one that ends each of its workers
            # becomes a dead letter.
            self._buffer.settle_quietly(event, failure_of(event, error))
            self._fail(error)
            return None
        finally:
            if self._timeout_s is not None:
                with self._lock:
                    self._began.pop(me, None)
                    self._stuck.discard(me)
        return DONE


def _on_sigterm(react: Callable[[], None]) -> Callable[[], Any]:
    before = signal.signal(signal.SIGTERM, lambda _number, _frame: react())
    return partial(signal.signal, signal.SIGTERM, before)
