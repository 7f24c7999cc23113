"""The asynchronous session: like `session`, but on the user's own event loop."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Generator
from typing import Any, Self

from feedmux.batches import Batch, Event
from feedmux.connection import Connection
from feedmux.errors import SessionClosed
from feedmux.notices import Notice
from feedmux.options import SessionOptions, wait_s
from feedmux.session_base import OnNotice, SessionBase
from feedmux.session_buffer import Ended, Item, SessionBuffer
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

    async def get(self) -> Item:
        while not self._items:
            self._here.clear()
            await self._here.wait()
        return self._items.popleft()

    def get_nowait(self) -> Item | None:
        return self._items.popleft() if self._items else None


class AsyncSession(SessionBase):
    """Events of a durable subscription or of a feed, as an asynchronous iterator.

    `async with client.subscription(name).open() as session`, or `session = await client.….open()`. For one task at a
    time. Notices are passed to `on_notice` in order, between events; without an `on_notice` they are logged.
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
            batch, untaken = self._current
            for index in untaken:
                if buffer.closing:
                    break
                self._last = event = Event(batch, index)
                yield event
            # Batches may arrive as fast as they are taken: let the loop's other tasks run in between.
            await asyncio.sleep(0)
            if await self._get(whole=False) is None:
                return

    async def __anext__(self) -> Event:
        return await self.next()

    async def next(self, timeout_s: float | None = None) -> Event:
        """Return the next event, after waiting for it at most `timeout_s` seconds (None: without a limit).

        Raises TimeoutError; StopAsyncIteration after `close()`; the FeedmuxError that ended the session.
        """
        while True:
            if not self._buffer.closing:
                batch, untaken = self._current
                for index in untaken:
                    self._last = event = Event(batch, index)
                    return event
            async with asyncio.timeout(wait_s(timeout_s)):
                if await self._get(whole=False) is None:
                    raise StopAsyncIteration

    async def try_next(self) -> Event | None:
        """Return the next event if it has already arrived, else None. Raises as `next` does, except TimeoutError."""
        self._check()
        await asyncio.sleep(0)
        while not self._buffer.closing:
            batch, untaken = self._current
            for index in untaken:
                self._last = event = Event(batch, index)
                return event
            item = self._queue.get_nowait()
            if item is None:
                return None
            got = self._accept(item, whole=False)
            if got is None:
                break
            if not isinstance(got, Batch):
                self._say(got)
        self._end()
        raise StopAsyncIteration

    async def batches(self) -> AsyncIterator[Batch]:
        """Iterate over batches as they arrive, for bulk work.

        `async for batch in session.batches(): …; session.ack(batch)`
        """
        while True:
            rest = self._rest([])
            if rest is not None:
                yield rest
                await asyncio.sleep(0)
            elif await self._get(whole=True) is None:
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
        if self._task is not None:
            return self
        connection = Connection(self._transport, self._opening, self._options, self._buffer)
        self._task = connection.launch(self)
        await connection.wait_opened()
        return self

    async def _get(self, whole: bool) -> Batch | None:
        self._check()
        while not self._buffer.closing:
            got = self._accept(await self._queue.get(), whole)
            if got is None or isinstance(got, Batch):
                return got
            self._say(got)
        self._end()
        return None

    def _accept(self, item: Item, whole: bool) -> Batch | Notice | None:
        if isinstance(item, Ended):
            self._queue.put(item)  # Put back for the next call.
        return self._settle(item, whole)

    def _check(self) -> None:
        if self._task is None:
            raise SessionClosed("the session is not open: use `async with` or `await`")
