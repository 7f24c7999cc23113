"""A wake-up for one waiting task, with a timeout that costs one timer and no task.

Sessions and pumps wait on it by the thousand; `asyncio.wait_for` around an Event would cost a task each time.
"""

import asyncio
import contextvars

_NO_CONTEXT = contextvars.Context()
"""A copy of the caller's for each timer would be one more object to make."""


class Signal:
    """Set any number of times, consumed by the one task that waits."""

    __slots__ = ("_is_set", "_waiter")

    def __init__(self) -> None:
        self._is_set = False
        self._waiter: asyncio.Future[None] | None = None

    def set(self) -> None:
        self._is_set = True
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def wait(self, timeout_s: float) -> bool:
        """True when it was set, now or before the timeout; it is unset again then."""
        if not self._is_set and timeout_s > 0:
            loop = asyncio.get_running_loop()
            self._waiter = waiter = loop.create_future()
            timer = loop.call_later(timeout_s, _expire, waiter, context=_NO_CONTEXT)
            try:
                await waiter
            finally:
                timer.cancel()
                self._waiter = None
        was_set, self._is_set = self._is_set, False
        return was_set


def _expire(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
