"""The user's side of a session, shared by the synchronous and the asynchronous class: positions, acks and counting.

It builds on the session buffer; `session` and `async_session` build on it and add only the waiting.
"""

import inspect
import logging
import threading
import uuid
from collections.abc import Callable, Iterator
from enum import Enum
from threading import get_ident
from typing import Any

from bson.timestamp import Timestamp

from feedmux.batches import Batch, Event
from feedmux.errors import ProtocolError, SessionClosed
from feedmux.feeds import SnapshotStatus
from feedmux.notices import Notice, SnapshotComplete, SnapshotProgress
from feedmux.positions import FeedPosition
from feedmux.session_buffer import NEVER, Ended, Item, QueuedNotice, SessionBuffer

_log = logging.getLogger("feedmux")

OnNotice = Callable[[Notice], Any]


class Everything(Enum):
    """The default of `ack`. None does not mean it: a variable without an event would ack what is in progress."""

    EVERYTHING = "everything"


def check_on_notice(on_notice: OnNotice | None) -> None:
    """Raise TypeError for a coroutine function, which the synchronous classes cannot run."""
    if inspect.iscoroutinefunction(on_notice):
        raise TypeError("on_notice is a coroutine function: use feedmux.AsyncClient, or a function")


def check_said(result: object) -> None:
    """The same for any other function, by what it has returned."""
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise TypeError(f"on_notice has returned a {type(result).__name__}: use feedmux.AsyncClient, or a function")


def instance_id() -> str:
    """Return a new name for a session object."""
    return uuid.uuid4().hex


class SessionBase:
    """The state of a session object: what it delivered and what was acked.

    A signal handler may raise in the thread that takes events, and the program may continue after that. Python calls it
    when a function begins, after a call, and at the end of a turn of a loop. So what comes from the network is always
    in one place: it moves on by assignments without a call in between, or within one call of a function in C.
    """

    def __init__(self, buffer: SessionBuffer, on_notice: OnNotice | None) -> None:
        self._buffer = buffer
        self._on_notice = on_notice
        self._acking = threading.RLock()  # a signal handler may ack while its thread is inside `ack`
        self._got: list[Item] = []
        """The next item, if it has left the queue."""
        self._unsaid: dict[int, Notice] = {}
        """By thread, a notice that it has taken and not passed on."""
        self._must_wake = False
        """The connection has work, and may not know."""
        self._current: tuple[Any, Iterator[int]] = None, iter(())
        """The current batch, and `SessionBuffer.untaken`: the events of it that have not been taken."""
        self._batch: Batch | None = None
        """The batch taken last, or the part of it that was delivered as one; delivered whole, or event by event up to
        `_last` if that is one of its events."""
        self._whole = False
        self._last: Event | None = None
        self._opened = self._progress = buffer.opened
        self._ended: Ended | None = None
        self._completion: SnapshotComplete | None = None
        """The last end of a copy that the user was told of."""

    def ack(self, what: Event | Batch | Everything = Everything.EVERYTHING) -> None:
        """Acknowledge this event or batch and all earlier events as processed; without argument, all delivered events.

        Cumulative: acking an earlier event has no effect. Cheap: acks are sent together, after at most `ack_interval_s`
        (default 100 ms). On an inline feed an ack is accepted but not stored. Raises ValueError for another session's
        event, TypeError for None, and SessionClosed once `close()` has returned: nothing sends the ack.
        """
        if type(what) is Event:
            batch = what.batch
            ordinal = batch.first_sequence + what.index
        elif what is Everything.EVERYTHING:
            if self._batch is None:
                return
            batch, ordinal = self._batch, self._handed()
        elif isinstance(what, Batch):
            batch, ordinal = what, what.last_sequence
        else:
            raise TypeError(f"an event or a batch, not {type(what).__name__}")
        buffer = self._buffer
        if batch._owner is not buffer:
            raise ValueError("the event or batch belongs to another session")
        with self._acking:
            if ordinal <= buffer.acked:
                return
            if buffer.closed:
                raise SessionClosed("the session was closed before this ack")
            buffer.acked = ordinal
        if ordinal >= buffer.alarm:
            buffer.alarm = NEVER
            self._must_wake = True
            buffer.wake()
            self._must_wake = False

    @property
    def position(self) -> bytes:
        """The position of `progress`, to be stored unchanged.

        In the middle of a batch, `resume_token` is more exact.
        """
        return self.progress.position

    @property
    def resume_token(self) -> dict[str, Any] | None:
        """MongoDB's resume token after the last delivered event; once all are delivered, that of the latest
        progress."""
        event, batch, progress = self._last, self._batch, self.progress
        if event is None or event.batch is not batch or self._whole or event.sequence <= self._opened[0]:
            return progress.resume_token
        # The server omits a long token, which only the event itself has.
        within = event.sequence < batch.last_sequence or not progress.token
        return event.resume_token if within else progress.resume_token

    @property
    def progress(self) -> FeedPosition:
        """The last position up to which everything has been delivered, or the one where the session began, or to which
        a seek moved it.

        It also advances without events, so that the position of a feed that seldom matches does not leave the oplog.
        """
        self._follow()
        after, feed_position = self._buffer.latest
        completion = self._buffer.completion  # read after `latest`: the connection sets it before
        if (
            after <= max(self._handed(), self._opened[0])
            and feed_position.position
            # Not after the end of a copy that was not handed out: a program that stores that position would miss it.
            and (completion is None or completion is self._completion)
        ):
            self._progress = after, feed_position
        batch = self._batch
        if batch is not None and self._handed() == batch.last_sequence:
            self._done(batch)
        return self._progress[1]

    @property
    def cluster_time(self) -> Timestamp | None:
        """The cluster time of `progress`."""
        return self.progress.cluster_time

    @property
    def copying(self) -> SnapshotStatus | None:
        """How far the copy is, by the last notice, while documents are still to come: the session began with
        `Start.snapshot`, or at a position of such a copy, and the notice SnapshotComplete has not come. Else None."""
        return self._buffer.copying

    @property
    def committed(self) -> bytes:
        """The stored position as last confirmed by the server; empty before the first confirmation."""
        return self._buffer.committed

    @property
    def epoch(self) -> int:
        """Grows each time the subscription is opened, by any client; 0 on inline feeds."""
        return self._buffer.epoch

    @property
    def closed(self) -> bool:
        """Whether the session was closed, or everything before the error that ended it has been delivered."""
        buffer = self._buffer
        return (buffer.closing and buffer.ended_by is None) or self._ended is not None or buffer.broken is not None

    def _handed(self) -> int:
        batch, last = self._batch, self._last
        if batch is None:
            return 0
        if self._whole:
            return batch.last_sequence
        if last is not None and last.batch is batch:
            return last.sequence
        return batch.first_sequence - 1

    def _follow(self) -> None:
        opened = self._buffer.opened
        if opened is not self._opened:
            self._opened = self._progress = opened

    def _done(self, batch: Batch) -> None:
        self._follow()
        if batch.feed_position.position and batch.last_sequence > self._progress[0]:
            self._progress = batch.last_sequence, batch.feed_position

    def _rest(self, left: list[int]) -> Batch | None:
        """Return what is left of the current batch, for a caller that takes batches, and the numbers of its events in
        `left`: until these are forgotten, `_give_back` undoes it."""
        batch, untaken = self._current
        left.extend(untaken)
        if not left:
            return None
        rest: Batch = batch.part(left[0], len(batch)) if left[0] else batch
        self._batch = rest
        self._whole = True
        return rest

    def _give_back(self, batch: Batch | None, left: list[int]) -> None:
        """Deliver the rest of a batch later, unless another thread has gone on to the next one."""
        if left and batch is not None and self._current[0] is batch:
            self._begin_at(batch, left[0])

    def _begin_at(self, batch: Batch, first: int, *, is_new: bool = False) -> None:
        """Make a batch the current one, from an event on. A new one is `_got`, and was not counted as taken."""
        buffer, last, untaken, nothing = self._buffer, batch.last_sequence, iter(range(first, len(batch))), iter(())
        events = buffer.taken_events + is_new * len(batch)
        size_bytes = buffer.taken_bytes + is_new * batch.size_bytes
        # No call stands between these: a signal handler runs before all of them, or after.
        if is_new:
            del self._got[:1]
        self._batch = batch
        self._whole = False
        self._current = batch, untaken
        buffer.untaken = untaken
        buffer.taken_events = events
        buffer.taken_bytes = size_bytes
        if last <= buffer.withdrawn:  # by a `withdraw` that has seen the iterator before this one
            self._current = batch, nothing

    def _take(self, batch: Batch) -> None:
        if self._batch is not None:
            self._done(self._batch)
        batch._owner = self._buffer
        self._begin_at(batch, 0, is_new=True)
        self._wake_if_due()

    def _wake_if_due(self) -> None:
        """Wake the connection if enough was taken for more credit, or if that, or an ack, was interrupted before."""
        buffer = self._buffer
        if buffer.taken_events >= buffer.refill_events_at or buffer.taken_bytes >= buffer.refill_bytes_at:
            buffer.refill_events_at = buffer.refill_bytes_at = NEVER
            self._must_wake = True
        if self._must_wake:
            buffer.wake()
            self._must_wake = False

    def _end(self) -> None:
        """End a closed session: silently if its user closed it, else by raising the error."""
        error = self._buffer.ended_by
        if error is not None:
            self._ended = Ended(error)
            raise error

    def _settle(self, item: Item, whole: bool) -> Batch | Notice | None:
        """Return a batch, now taken, or a notice to pass on; None at the end.

        Raises the error that ended the session.
        """
        if self._buffer.broken is not None:
            raise self._buffer.broken
        if self._buffer.closing:
            self._end()
            return None
        if isinstance(item, Batch):
            if not whole:
                self._check_events(item)
            self._take(item)
            return item
        if isinstance(item, QueuedNotice):
            thread, notice = get_ident(), item.notice
            self._unsaid[thread] = notice
            del self._got[:1]
            return notice
        self._ended = item
        if item.error is not None:
            raise item.error
        return None

    def _check_events(self, batch: Batch) -> None:
        """Raise ProtocolError, which ends the session. A loop over events pays for locating the events anyway."""
        try:
            batch.check()
        except ProtocolError as error:
            self._buffer.broken = error
            self._buffer.wake()
            raise

    def _say(self, notice: Notice) -> Any:
        """Tell the user. Return what `on_notice` has returned."""
        of_copy = isinstance(notice, SnapshotProgress | SnapshotComplete)
        copying = self._buffer.copying
        generation = copying.generation if copying is not None else None
        if isinstance(notice, SnapshotComplete):
            self._completion = notice
        if isinstance(notice, SnapshotProgress):
            self._buffer.copying = notice.status
        elif isinstance(notice, SnapshotComplete) and notice.generation == generation:
            self._buffer.copying = None  # an end of another generation is of a copy before this one
        thread = get_ident()
        if self._on_notice is not None:
            if thread in self._unsaid:
                del self._unsaid[thread]
            return self._on_notice(notice)
        self._unsaid.pop(thread, None)
        _log.log(logging.INFO if of_copy else logging.WARNING, "%s", notice)
        return None
