"""Cancellation that must not get lost.

In Python 3.11 `asyncio.wait_for` returns a result, and no CancelledError, to a task that is cancelled in the same turn
of the event loop in which that result has come (python/cpython#86296; 3.12 is free of it). pymongo sends every message
and opens every connection by it. A task that asks MongoDB in a loop would go on for good, and whoever waits for its
end would wait as long.
"""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


async def cancellable(call: Awaitable[T]) -> T:
    """What `call` returns or raises, and CancelledError if this task was cancelled meanwhile."""
    task = asyncio.current_task()
    assert task is not None
    before = task.cancelling()
    try:
        return await call
    finally:
        if task.cancelling() > before:
            raise asyncio.CancelledError
