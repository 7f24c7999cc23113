"""A wake-up for one waiting task, with a timeout that costs one timer and no task.

Sessions and pumps wait on it by the thousand; `asyncio.wait_for` around an Event would cost a task each time.
"""

import asyncio
import contextvars

_NO_CONTEXT = contextvars.Context()
"""A copy of the caller's for each timer would be one more object to make."""


class Signal:
    """Wakes the one task that waits.

    What is set while nobody waits is not kept: who waits has looked at all it waits for since it last awaited anything.
    """

    __slots__ = ("_waiter",)

    def __init__(self) -> None:
        self._waiter: asyncio.Future[bool] | None = None

    def set(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(True)

    async def wait(self, timeout_s: float) -> bool:
        """True when it is set before the timeout."""
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
