"""A wake-up for one waiting task, with a timeout that costs one timer and no task.

Thousands of sessions and pumps wait on signals; `asyncio.wait_for` around an Event would cost a task for each wait.
"""

import asyncio
import contextvars

_NO_CONTEXT = contextvars.Context()
"""Avoids a copy of the caller's context, which would be one more object for each timer."""


class Wakeup:
    """Wakes the one task that waits.

    A `set` while no task waits is lost. That is safe: a task checks everything it waits for, with no `await` between
    the check and `wait`.
    """

    __slots__ = ("_waiter",)

    def __init__(self) -> None:
        self._waiter: asyncio.Future[bool] | None = None

    def set(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(True)

    async def wait(self, timeout_s: float) -> bool:
        """Wait for `set`; True if it came before the timeout."""
        if timeout_s <= 0:
            return False
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[bool] = loop.create_future()
        self._waiter = waiter
        timer = loop.call_later(timeout_s, _expire, waiter, context=_NO_CONTEXT)
        try:
            return await waiter
        finally:
            timer.cancel()
            self._waiter = None


def _expire(waiter: asyncio.Future[bool]) -> None:
    if not waiter.done():
        waiter.set_result(False)
