"""Cancellation that must not get lost.

In Python 3.11 `asyncio.wait_for` returns a result, and no CancelledError, to a task that is cancelled in the same turn
of the event loop in which that result has come (python/cpython#86296; 3.12 is free of it). pymongo sends every message
and opens every connection by it. A task that asks MongoDB in a loop would go on for good, and whoever waits for its
end would wait as long.

And what it leaves behind: an error that pymongo raises refers to frames that refer to it, and to the buffer for a reply
that was on its way, up to 48 MB. Python would find that cycle at its next look at everything, minutes later.
"""

import asyncio
import traceback
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
    except BaseException as error:
        _empty_frames(error)
        raise
    finally:
        if task.cancelling() > before:
            raise asyncio.CancelledError


def _empty_frames(error: BaseException) -> None:
    """Where it was raised stays known; what the frames there referred to is let go."""
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        each = left.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            traceback.clear_frames(each.__traceback__)
            left += (each.__cause__, each.__context__)
