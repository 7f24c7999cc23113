"""The asynchronous session: like `session`, but on the user's own event loop."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Generator
from inspect import isawaitable
from typing import Any, Self

from feedmux.batches import Batch, Event
from feedmux.connection import Connection
from feedmux.errors import SessionClosed
from feedmux.notices import Notice
from feedmux.options import SessionOptions, wait_s
from feedmux.session_base import OnNotice, SessionBase
from feedmux.session_buffer import Ended, Item, QueuedNotice, SessionBuffer
from feedmux.stream_keeper import Opening, finish
from feedmux.transport import Transport


class _Queue:
    """A queue for one event loop. The queue itself is unbounded: the credit window bounds its content."""

    def __init__(self) -> None:
        self._items: deque[Item] = deque()
        self._here = asyncio.Event()

    def put(self, item: Item) -> None:
        self._items.append(item)
        self._here.set()

    def drain(self) -> list[Item]:
        items = list(self._items)
        self._items.clear()
        return items

    async def wait(self) -> None:
        """Wait for an item, or until one has been here: another task may have taken it."""
        if not self._items:
            self._here.clear()
            await self._here.wait()

    def get(self) -> Item | None:
        """Return the next item; None: nothing yet. An Ended stays there, for other waiting tasks and the next call."""
        if not self._items:
            return None
        item = self._items[0]
        return item if isinstance(item, Ended) else self._items.popleft()

    def put_back(self, item: Item) -> None:
        self._items.appendleft(item)
        self._here.set()


class AsyncSession(SessionBase):
    """Events of a durable subscription or of a feed, as an asynchronous iterator.

    `async with client.subscription(name).open() as session`, or `session = await client.….open()`. Tasks of one event
    loop may share it; each event goes to one of them. Notices are passed to `on_notice`, a function or a coroutine
    function, in the task that takes the events before and after the notice; without an `on_notice` they are logged.
    """

    def __init__(
        self, transport: Transport, opening: Opening, options: SessionOptions, on_notice: OnNotice | None
    ) -> None:
        queue = _Queue()
        super().__init__(SessionBuffer(queue.put, queue.drain), on_notice)
        self._queue = queue
        self._transport = transport
        self._opening = opening
        self._options = options
        self._connection: Connection | None = None
        self._task: asyncio.Task[None] | None = None

    def __await__(self) -> Generator[Any, None, Self]:
        return self._open().__await__()

    async def __aenter__(self) -> Self:
        return await self._open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def __aiter__(self) -> AsyncIterator[Event]:
        buffer = self._buffer
        while True:
            current = self._current
            batch, untaken = current
            for index in untaken:
                if buffer.closing:
                    break
                self._last = event = Event(batch, index)
                yield event
            # Batches may arrive as fast as they are taken: let the loop's other tasks run in between.
            await asyncio.sleep(0)
            if not await self._advance(current):
                return

    async def __anext__(self) -> Event:
        return await self.next()

    async def next(self, timeout_s: float | None = None) -> Event:
        """Return the next event, after waiting for it at most `timeout_s` seconds (None: without a limit).

        Raises TimeoutError; StopAsyncIteration after `close()`; the FeedmuxError that ended the session.
        """
        left_s = wait_s(timeout_s)
        deadline_s = None if left_s is None else asyncio.get_running_loop().time() + left_s
        while True:
            current = self._current
            if not self._buffer.closing:
                batch, untaken = current
                for index in untaken:
                    self._last = event = Event(batch, index)
                    return event
            if not await self._advance(current, deadline_s):
                raise StopAsyncIteration

    async def try_next(self) -> Event | None:
        """Return the next event if it has already arrived, else None. Raises as `next` does, except TimeoutError."""
        await asyncio.sleep(0)
        try:
            return await self.next(0)
        except TimeoutError:
            return None

    async def batches(self) -> AsyncIterator[Batch]:
        """Iterate over batches as they arrive, for bulk work.

        `async for batch in session.batches(): …; session.ack(batch)`
        """
        while True:
            current = self._current
            rest = self._rest([])
            if rest is not None:
                yield rest
                await asyncio.sleep(0)
            elif not await self._advance(current, whole=True):
                return

    async def close(self, timeout_s: float | None = None) -> None:
        """Stop delivering events, send the acks and wait at most `timeout_s` (default 5) seconds for confirmation.

        Unconfirmed acks mean repeated events in the next session, never lost events; a warning is logged. Closing again
        does nothing.
        """
        most_s = wait_s(self._options.close_timeout_s if timeout_s is None else timeout_s)
        self._buffer.ended_by = None
        self._buffer.closing = True
        if self._task is None:
            return
        self._queue.put(Ended(None))
        self._buffer.wake()
        await finish(self._task, most_s)
        self._buffer.close_ended()

    async def _open(self) -> Self:
        if self._connection is None:
            self._connection = Connection(self._transport, self._opening, self._options, self._buffer)
            self._task = self._connection.launch(self)
        await self._connection.wait_opened()
        return self

    async def _advance(self, exhausted: object, deadline_s: float | None = None, *, whole: bool = False) -> bool:
        """Make the next batch the current one, unless another task already has. Return False at the end."""
        if self._task is None:
            raise SessionClosed("the session is not open: use `async with` or `await`")
        while not self._buffer.closing:
            if self._current is not exhausted:
                return True
            item = self._queue.get()
            if item is None:
                async with asyncio.timeout_at(deadline_s):
                    await self._queue.wait()
                continue
            got = self._settle(item, whole)
            if got is None or isinstance(got, Batch):
                return got is not None
            await self._pass_on(got)
        self._end()
        return False

    async def _pass_on(self, notice: Notice) -> None:
        result = self._say(notice)
        if not isawaitable(result):
            return
        try:
            await result
        except asyncio.CancelledError:  # the next call passes it on again
            self._queue.put_back(QueuedNotice(notice))
            raise
