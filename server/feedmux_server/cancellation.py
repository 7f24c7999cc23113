"""Makes sure that a cancellation is not lost.

In Python 3.11 `asyncio.wait_for` returns a result, instead of raising CancelledError, to a task that is cancelled in
the same turn of the event loop in which the result arrives (python/cpython#86296; fixed in 3.12). pymongo uses
`wait_for` to send every message and to open every connection. A task that asks MongoDB in a loop would continue
forever, and code that waits for the task to end would wait forever too.

This module also frees memory: an error that pymongo raises refers to frames that refer to the error, and to the buffer
for a reply that was in flight, up to 48 MB. Python would find that cycle only at its next full collection, minutes
later. In the same way it closes the socket of a connection that was still being opened, which pymongo leaves open.
"""

import asyncio
import socket
import traceback
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


def is_cancelled() -> bool:
    """Return whether this task itself is cancelled: awaiting something that was cancelled raises the same error."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def cancellable(call: Awaitable[T]) -> T:
    """Return or raise what `call` does, but raise CancelledError if this task was cancelled meanwhile."""
    task = asyncio.current_task()
    assert task is not None
    before = task.cancelling()
    try:
        return await call
    except BaseException as error:
        _empty_frames(error, is_cancelled=task.cancelling() > before)
        raise
    finally:
        if task.cancelling() > before:
            raise asyncio.CancelledError


def _empty_frames(error: BaseException, *, is_cancelled: bool) -> None:
    """Release what the frames of the traceback refer to. The traceback itself stays."""
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        each = left.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            if is_cancelled:
                _close_sockets(each)
            traceback.clear_frames(each.__traceback__)
            left += (each.__cause__, each.__context__)


def _close_sockets(error: BaseException) -> None:
    for frame, _ in traceback.walk_tb(error.__traceback__):
        for value in frame.f_locals.values():
            if isinstance(value, socket.socket):
                value.close()
