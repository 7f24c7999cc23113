"""Owns the tasks of a server, so that no failed task ends the server and no task ends unnoticed.

An `asyncio.TaskGroup` alone cancels all its tasks when one of them fails, and does not report a task that ends with a
CancelledError raised by something it awaited. Here a task that fails unexpectedly is logged with its stack and counted
(`feedmux.task.failures`); a task that keeps something up to date is restarted after a pause.
"""

import asyncio
import logging
import random
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import Context
from typing import Any, Final, Self, TypeVar

from feedmux_server.cancellation import is_cancelled
from feedmux_server.core.limits.backoff import Backoff
from feedmux_server.telemetry import metrics
from feedmux_server.telemetry.observer import NOBODY, Observer

log = logging.getLogger(__name__)

T = TypeVar("T")
Work = Coroutine[Any, Any, None]

RETRY_FIRST_S: Final = 1.0
RETRY_MAX_S: Final = 60.0
RECOVERED_S: Final = 60.0
"""A task that has run for this long has recovered: its next failure counts as the first."""


def in_daemon_thread(work: Callable[[], T], name: str) -> asyncio.Future[T]:
    """Run work that may wait for others. Unlike an executor's thread, a late one does not keep the process alive."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()

    def settle(result: T | None, error: Exception | None) -> None:
        if done.done():  # cancelled
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)

    def run() -> None:
        result, failure = None, None
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 it is raised where the work is awaited
            failure = error
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, result, failure)
        # The error refers to this frame: with the name, what its other frames hold would stay open.
        del failure

    threading.Thread(target=run, daemon=True, name=name).start()
    return done


class Tasks:
    """An async context manager that waits for its tasks at its end. An error in its body cancels them."""

    def __init__(self, observer: Observer = NOBODY) -> None:
        self._group = asyncio.TaskGroup()
        self._observer = observer

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        return self

    async def __aexit__(self, *raised: Any) -> None:
        await self._group.__aexit__(*raised)

    def keep_running(self, kind: str, work: Callable[[], Work], *, of: str = "") -> asyncio.Task[None]:
        """Run `work` until it returns or the task is cancelled, and restart it whenever it fails. The task outlives the
        call that begins it, and is no part of the call's trace.

        `kind` is the metric's attribute and has few values; `of` distinguishes the tasks of one kind by name.
        """
        return self._begin(kind, self._kept(kind, work), of, Context())

    def run_once(
        self, kind: str, work: Callable[[], Work], *, of: str = "", context: Context | None = None
    ) -> asyncio.Task[None]:
        """Run `work` once, whether it succeeds or fails. The names are as in `keep_running`."""
        return self._begin(kind, self._once(kind, work), of, context)

    def _begin(self, kind: str, work: Work, of: str, context: Context | None) -> asyncio.Task[None]:
        # Prometheus sees no increase where a series begins with its first failure.
        self._observer.count(metrics.TASK_FAILURES, 0, kind)
        return self._group.create_task(work, name=f"{kind}-{of}" if of else kind, context=context)

    async def _kept(self, kind: str, work: Callable[[], Work]) -> None:
        loop, backoff = asyncio.get_running_loop(), Backoff(RETRY_FIRST_S, RETRY_MAX_S, 2.0, 0.5)
        while True:
            began_s = loop.time()
            try:
                await work()
                return
            except (Exception, asyncio.CancelledError) as error:
                if is_cancelled():
                    if isinstance(error, asyncio.CancelledError):
                        raise
                    # Nobody cancels the task twice, so it must end even if its clean-up failed.
                    self._failed(kind, error, "a task failed unexpectedly while it was being stopped")
                    return
                if loop.time() - began_s >= RECOVERED_S:
                    backoff.reset()
                delay_s = backoff.next_delay(random.random())
                self._failed(kind, error, "a task failed unexpectedly, and will be restarted", seconds=delay_s)
            await asyncio.sleep(delay_s)

    async def _once(self, kind: str, work: Callable[[], Work]) -> None:
        try:
            await work()
        except (Exception, asyncio.CancelledError) as error:
            if is_cancelled() and isinstance(error, asyncio.CancelledError):
                raise
            self._failed(kind, error, "a task failed unexpectedly")

    def _failed(self, kind: str, error: BaseException, what: str, **more: float) -> None:
        task = asyncio.current_task()
        numbers = {name: round(value, 1) for name, value in more.items()}
        log.error(what, exc_info=error, extra={"task": kind if task is None else task.get_name(), **numbers})
        self._observer.count(metrics.TASK_FAILURES, 1, kind)
