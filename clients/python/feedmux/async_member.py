"""The asynchronous member of a group: like `member`, on the user's own event loop. Handlers are coroutines."""

import asyncio
import inspect
import signal
import threading
from collections.abc import AsyncIterator, Callable, Generator
from functools import partial
from typing import Any, Final, Self

from feedmux.errors import SessionClosed
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
from feedmux.session_base import OnNotice
from feedmux.session_buffer import Ended, QueuedNotice
from feedmux.stream_keeper import Opening, finish
from feedmux.transport import Transport

_TURN_S: Final = 0.0005
"""How long handlers that never wait keep the event loop from its other tasks. A turn of it for each event would cost as
much as the rest of what this client does for an event, and each report would be of few events."""
_STOPPING_S: Final = 10.0
"""How long a cancelled handler may take to end before it counts as one that cannot be stopped."""


class _Arrivals:
    """Wakes the tasks that wait for events, from any thread."""

    def __init__(self) -> None:
        self.here = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    def notify(self, _: int) -> None:
        if threading.get_ident() == self._thread:
            self.here.set()
            return
        try:
            self._loop.call_soon_threadsafe(self.here.set)
        except RuntimeError:
            return  # The loop is closed: nobody waits.


class AsyncMember(MemberBase):
    """Events of a group that this member gets, as an asynchronous iterator, or for `run`.

    `async with client.subscription(name).join() as member`, or `member = await client.….join()`. Settle each event, by
    its `ack`, `nack` or `reject`: the next event of its key comes only then, and the window makes room. Notices are
    passed to `on_notice`, a function or a coroutine function, before what follows is handed out; without it they are
    logged.
    """

    def __init__(
        self, transport: Transport, opening: Opening, options: SessionOptions, on_notice: OnNotice | None
    ) -> None:
        lock = threading.RLock()  # a signal handler may settle an event while its thread is inside the buffer
        super().__init__(MemberBuffer(options.window_events, lambda _: None, lock), on_notice)
        self._transport = transport
        self._opening = opening
        self._options = options
        self._arrivals: _Arrivals | None = None
        self._connection: MemberConnection | None = None
        self._task: asyncio.Task[None] | None = None
        self._workers: _Workers | None = None

    def __await__(self) -> Generator[Any, None, Self]:
        return self._open().__await__()

    async def __aenter__(self) -> Self:
        return await self._open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def __aiter__(self) -> AsyncIterator[MemberEvent]:
        while (event := await self._take()) is not None:
            yield event
            await asyncio.sleep(0)

    async def __anext__(self) -> MemberEvent:
        return await self.next()

    async def next(self, timeout_s: float | None = None) -> MemberEvent:
        """Return the next event, after waiting for it at most `timeout_s` seconds (None: without a limit).

        Raises TimeoutError; StopAsyncIteration after `close()`; the FeedmuxError that ended the member.
        """
        left_s = wait_s(timeout_s)
        event = await self._take(None if left_s is None else asyncio.get_running_loop().time() + left_s)
        if event is None:
            raise StopAsyncIteration
        return event

    async def run(self, handler: Handler, *, concurrency: int = 8, timeout_s: float | None = None) -> None:
        """Pass each event to the handler, `concurrency` at the same time, and those of a key one after another.

        An event is settled when its handler returns. A handler that raises returns its event, which is delivered again,
        with the error's text as the reason; `raise feedmux.RetryAfter(seconds)` says when, and
        `raise feedmux.Reject("…")` makes the event a dead letter. After `timeout_s` seconds a handler is cancelled, and
        its event has failed; so it has if anything but `run` cancels the handler. SystemExit, and whatever else is no
        Exception, ends `run`, and the event has failed; after KeyboardInterrupt, others get it.

        Returns after `close()` or SIGTERM (unless the program handles that itself), when the handlers in progress have
        ended; then the member is closed, and others get what it has left. Raises the FeedmuxError that ended the
        member, and TimeoutError when all handlers have exceeded `timeout_s` and cannot be stopped.
        """
        check_run(handler, concurrency, timeout_s, asynchronous=True)
        await self._open()
        if self._workers is not None:
            raise RuntimeError("the member runs already")
        workers = self._workers = _Workers(self._buffer, handler, concurrency, timeout_s)
        self._buffer.is_at_work = workers.are_at_work
        try:
            with sigterm(self._buffer.stop, _on_sigterm):
                await workers.run(self._take)
        finally:
            self._workers = None
            try:
                await self.close()
            finally:
                workers.ended.set()

    async def close(self, timeout_s: float | None = None) -> None:
        """Report what is settled, give the rest to other members, and end. Waits at most `timeout_s` (default 5)
        seconds for the server. While `run` runs, wait until it returns; in a handler, only ask for it.

        What the server has not confirmed then may be delivered again; a warning is logged.
        """
        most_s = wait_s(self._options.close_timeout_s if timeout_s is None else timeout_s)
        workers = self._workers
        if workers is not None:
            self._buffer.stop()
            if not workers.is_inside():
                await workers.ended.wait()
            return
        self._buffer.close()
        if self._task is not None:
            await finish(self._task, most_s)
            self._buffer.close_ended()

    async def _open(self) -> Self:
        if self._connection is None:
            self._arrivals = _Arrivals()
            self._buffer.notify = self._arrivals.notify
            self._connection = MemberConnection(self._transport, self._opening, self._options, self._buffer)
            self._task = self._connection.launch(self)
        await self._connection.wait_opened()
        return self

    async def _take(self, deadline_s: float | None = None) -> MemberEvent | None:
        if self._arrivals is None:
            raise SessionClosed("the member has not joined: use `async with` or `await`")
        buffer, here = self._buffer, self._arrivals.here
        while True:
            with buffer.lock:
                item = buffer.take()
                if item is None:
                    here.clear()
            match item:
                case None:
                    async with asyncio.timeout_at(deadline_s):
                        await here.wait()
                case QueuedNotice():
                    await self._pass_on(item)
                case Ended():
                    end(item)
                    return None
                case event:
                    return event

    async def _pass_on(self, item: QueuedNotice) -> None:
        result = self._say(item.notice)
        if not inspect.isawaitable(result):
            return
        try:
            await result
        except asyncio.CancelledError:  # the next call passes it on again
            self._buffer.put_back(item)
            raise


class _Workers:
    """The handlers of one `run`."""

    def __init__(self, buffer: MemberBuffer, handler: Handler, concurrency: int, timeout_s: float | None) -> None:
        self._buffer = buffer
        self._handler = handler
        self._concurrency = concurrency
        self._timeout_s = timeout_s
        self.ended = asyncio.Event()
        self._tasks: dict[asyncio.Task[None], MemberEvent | None] = {}
        """And the event in progress of each."""
        self._stuck: dict[asyncio.Task[None], None] = {}
        """Those of `_tasks` whose handler does not end."""
        self._changed = asyncio.Event()
        self._fatal: BaseException | None = None
        self._runner: asyncio.Task[Any] | None = None
        """The task of `run`; `_cancels` is how often it had been cancelled before."""
        self._cancels = 0
        self._cancels_handlers = False
        self._loop = asyncio.get_running_loop()
        self._turn_ends_s: float | None = None
        """When the handlers that run in this turn of the event loop let others run; None before the first has ended."""

    async def run(self, take: Callable[[], Any]) -> None:
        error: BaseException | None = None
        self._runner = asyncio.current_task()
        self._cancels = self._runner.cancelling() if self._runner is not None else 0
        try:
            while await self._has_slot() and (event := await take()) is not None:
                task = asyncio.create_task(self._work(event), name="feedmux-handler")
                self._tasks[task] = event
                task.add_done_callback(self._done)
            await self._drain()
        except Exception as failure:  # noqa: BLE001 - raised when the handlers have ended
            error = failure
            await self._drain()
        finally:
            self._buffer.stop()
            self._cancels_handlers = True
            for task in self._tasks:
                task.cancel()
            if left := self._not_stuck():
                await asyncio.wait(left)
        if self._fatal is not None:
            raise self._fatal
        if error is not None:
            raise error

    def is_inside(self) -> bool:
        """Whether the caller is a handler, or in the task of `run`, which cannot wait for its own end."""
        return current_worker.get() in self._tasks or asyncio.current_task() is self._runner

    def are_at_work(self, apart_from: object) -> bool:
        """Whether handlers are in progress, apart from that of this task, and those that have exceeded their time."""
        return any(task is not apart_from for task in self._not_stuck())

    def _not_stuck(self) -> list[asyncio.Task[None]]:
        return [task for task in self._tasks if task not in self._stuck]

    async def _has_slot(self) -> bool:
        while len(self._tasks) >= self._concurrency and self._fatal is None:
            self._changed.clear()
            await self._changed.wait()
        return self._fatal is None

    async def _drain(self) -> None:
        while self._fatal is None and self._not_stuck():
            self._changed.clear()
            await self._changed.wait()

    @property
    def _is_ending(self) -> bool:
        """Whether `run` cancels the handlers, or was cancelled with them: others get their events."""
        runner = self._runner
        return self._cancels_handlers or (runner is not None and runner.cancelling() > self._cancels)

    def _done(self, task: asyncio.Task[None]) -> None:
        event = self._tasks.pop(task, None)
        self._changed.set()
        try:
            error = task.exception()
        except asyncio.CancelledError as cancelled:
            # By its own handler, or by something else that is not `run`.
            if event is not None and event.outcome is None and not self._is_ending:
                self._buffer.settle_quietly(event, failure_of(event, cancelled))
            return
        if error is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if self._fatal is None:
            self._fatal = error
        self._buffer.stop()
        self._changed.set()

    async def _work(self, first: MemberEvent) -> None:
        """Handle an event, and then others, as long as some wait."""
        me = asyncio.current_task()
        assert me is not None
        current_worker.set(me)
        event: MemberEvent | None = first
        while event is not None:
            timeout_s = self._timeout_s
            outcome = await (self._call(event) if timeout_s is None else self._call_in_time(event, timeout_s))
            if outcome is None:
                return
            if me.cancelling():
                # Its handler has cancelled this task, and no other handler is to notice: `run` starts another task.
                self._tasks[me] = None
                self._buffer.settle_quietly(event, outcome)
                return
            event = self._tasks[me] = self._buffer.settle_and_take(event, outcome)
            now_s = self._loop.time()
            if self._turn_ends_s is None:
                self._turn_ends_s = now_s + _TURN_S
                self._loop.call_soon(self._turn_ended)
            elif now_s >= self._turn_ends_s:
                await asyncio.sleep(0)

    def _turn_ended(self) -> None:
        self._turn_ends_s = None

    async def _call(self, event: MemberEvent) -> Outcome | None:
        """Return what became of the event; None if it is not settled, because the program ends."""
        try:
            result = self._handler(event)
            if not inspect.isawaitable(result):
                self._fail(TypeError("the handler is not a coroutine function: use feedmux.Client for functions"))
                return None
            check_result(await result)
        except WorkNotDone as error:
            self._fail(error)
            return None
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return failure_of(event, error)
        except KeyboardInterrupt as error:  # of a Ctrl-C, whatever the handler does
            self._fail(error)
            return None
        except GeneratorExit:  # the loop has ended
            raise
        except Exception as error:  # noqa: BLE001 - the event has failed, and not this loop
            return failure_of(event, error)
        except BaseException as error:  # noqa: BLE001 - such as SystemExit: raised by `run`
            # One that ends each of its workers becomes a dead letter.
            self._buffer.settle_quietly(event, failure_of(event, error))
            self._fail(error)
            return None
        return DONE

    async def _call_in_time(self, event: MemberEvent, timeout_s: float) -> Outcome | None:
        call = asyncio.create_task(self._call(event), name="feedmux-handler-call")
        try:
            await asyncio.wait((call,), timeout=timeout_s)
            if call.done():
                return call.result()
            call.cancel()
            outcome = too_late(timeout_s)
            self._buffer.settle_quietly(event, outcome)
            await asyncio.wait((call,), timeout=_STOPPING_S)
            if not call.done():
                await self._wait_stuck(call, timeout_s)
            return outcome
        except asyncio.CancelledError:
            call.cancel()
            if event.outcome is None:
                await asyncio.wait((call,), timeout=_STOPPING_S)  # others get its event only then
                if call.done() and not call.cancelled():
                    return call.result()
            raise

    async def _wait_stuck(self, call: asyncio.Task[Outcome | None], timeout_s: float) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._stuck[task] = None
        self._changed.set()
        if len(self._stuck) == self._concurrency:
            self._fail(all_stuck(self._concurrency, timeout_s))
        try:
            await asyncio.wait((call,))
        finally:
            self._stuck.pop(task, None)


def _on_sigterm(react: Callable[[], None]) -> Callable[[], Any]:
    loop = asyncio.get_running_loop()
    try:
        loop.add_signal_handler(signal.SIGTERM, react)
    except (NotImplementedError, RuntimeError):
        return lambda: None  # not on this platform
    return partial(loop.remove_signal_handler, signal.SIGTERM)
