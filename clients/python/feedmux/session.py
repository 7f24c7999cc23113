"""The synchronous session: iterate, ack, close. Its network side runs in the background loop's thread.

Whole batches cross threads through one queue; no work per event crosses threads. The credit window bounds the queue.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import repeat
from queue import Empty, SimpleQueue
from typing import Any, Self

from feedmux.background_loop import background_loop
from feedmux.batches import Batch, Event, new_event
from feedmux.connection import Connection
from feedmux.notices import Notice
from feedmux.options import SessionOptions, wait_s
from feedmux.session_base import OnNotice, SessionBase, check_on_notice, check_said
from feedmux.session_buffer import Ended, Item, SessionBuffer
from feedmux.stream_keeper import Opening, finish_for, open_stream
from feedmux.transport import Transport


class Session(SessionBase):
    """Events of a durable subscription or of a feed, as an iterator. `open()` returns it.

    Safe to use from several threads; each event goes to one of them. `close()` from another thread wakes a waiting
    `next()`. Notices are passed to `on_notice`, in the thread that takes the events before and after the notice;
    without an `on_notice` they are logged.
    """

    def __init__(
        self, transport: Transport, opening: Opening, options: SessionOptions, on_notice: OnNotice | None
    ) -> None:
        """Open the session, and return when the server has opened it. Raises FeedmuxError."""
        check_on_notice(on_notice)
        queue: SimpleQueue[Item] = SimpleQueue()
        buffer = SessionBuffer(queue.put, lambda: _drain(queue))
        super().__init__(buffer, on_notice)
        self._queue = queue
        self._options = options
        self._lock = threading.Lock()
        self._background_loop = background_loop()
        self._task = self._background_loop.call(open_stream(Connection, self, transport, opening, options, buffer))

    def __iter__(self) -> Iterator[Event]:
        buffer = self._buffer
        while True:
            current = self._current
            batch, untaken = current
            event = new_event(Event)
            # What makes an event is called before it is taken; see `SessionBase`.
            for index in untaken:
                if buffer.closing:
                    break
                event.batch = batch
                event.index = index
                self._last = event
                yield event
                event = new_event(Event)
            if not self._advance(current, None):
                return

    def __next__(self) -> Event:
        return self.next()

    def next(self, timeout_s: float | None = None) -> Event:
        """Return the next event, after waiting for it at most `timeout_s` seconds (None: without a limit).

        Raises TimeoutError; StopIteration after `close()`; the FeedmuxError that ended the session. If a signal handler
        raises while it waits, nothing is lost: the next call continues.
        """
        left_s = wait_s(timeout_s)
        deadline_s = None if left_s is None else time.monotonic() + left_s
        while True:
            current = self._current
            batch, untaken = current
            event = new_event(Event)
            if not self._buffer.closing:
                for index in untaken:
                    event.batch = batch
                    event.index = index
                    self._last = event
                    return event
            if not self._advance(current, deadline_s):
                raise StopIteration

    def try_next(self) -> Event | None:
        """Return the next event if it has already arrived, else None. Raises as `next` does, except TimeoutError."""
        try:
            return self.next(0)
        except TimeoutError:
            return None

    def batches(self) -> Iterator[Batch]:
        """Iterate over batches as they arrive, for bulk work:

        `for batch in session.batches(): …; session.ack(batch)`.
        """
        while True:
            got: Batch | Notice | None = None
            left: list[int] = []
            current = None
            try:
                with self._lock:
                    current = self._current[0]
                    rest = self._rest(left)
                    if rest is None:
                        got = self._get(None, whole=True)
                if rest is not None:
                    del left[:]
                    yield rest
                    continue
            except BaseException:
                self._give_back(current, left)
                raise
            if got is None:
                return
            if not isinstance(got, Batch):
                check_said(self._say(got))

    def close(self, timeout_s: float | None = None) -> None:
        """Stop delivering events, send the acks and wait at most `timeout_s` (default 5) seconds for confirmation.

        Unconfirmed acks mean repeated events in the next session, never lost events; a warning is logged. Closing again
        does nothing. In a signal handler that has interrupted feedmux itself, this only asks for the end.
        """
        most_s = wait_s(self._options.close_timeout_s if timeout_s is None else timeout_s)
        self._buffer.ended_by = None
        self._buffer.closing = True
        self._queue.put(Ended(None))
        self._buffer.wake()
        self._background_loop.end(finish_for(self._buffer, self._task, most_s))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _advance(self, exhausted: object, deadline_s: float | None) -> bool:
        """Make the next batch the current one, unless another thread already has. Return False at the end."""
        while True:
            left_s = -1.0 if deadline_s is None else max(0.0, deadline_s - time.monotonic())
            owned: list[bool] = []
            try:
                _keep(owned, self._lock.acquire, True, left_s)
                if not owned[0]:
                    raise TimeoutError
                if self._current is not exhausted:
                    return True
                got = self._get(deadline_s, whole=False)
            finally:
                if owned and owned[0]:
                    self._lock.release()
            if got is None or isinstance(got, Batch):
                return got is not None
            # The lock is released here: `on_notice` may take events itself.
            check_said(self._say(got))

    def _get(self, deadline_s: float | None, whole: bool) -> Batch | Notice | None:
        if self._buffer.closing:
            self._end()
            return None
        self._background_loop.check()
        self._wake_if_due()
        if (unsaid := self._unsaid.get(threading.get_ident())) is not None:
            return unsaid
        if not self._got:
            left_s = None if deadline_s is None else deadline_s - time.monotonic()
            try:
                _keep(self._got, self._queue.get, left_s is None or left_s > 0, left_s)
            except Empty:
                raise TimeoutError from None
        item = self._got[0]  # an Ended stays there, for other waiting threads and the next call
        if isinstance(item, Ended):  # maybe of the interpreter's exit
            self._background_loop.check()
        return self._settle(item, whole)


def _keep(into: list[Any], call: Callable[..., Any], *arguments: Any) -> None:
    """Append what a function in C returns: a signal handler runs before or after both, never in between."""
    into.extend(map(call, *((argument,) for argument in arguments)))


def _drain(queue: SimpleQueue[Item]) -> list[Item]:
    items: list[Item] = []
    with suppress(Empty):
        # In one step of the interpreter: no other thread may take the second item before the first is put back.
        items.extend(map(queue.get, repeat(False)))
    return items
