"""The state shared by the user's side and the network's side of a member of a group.

The user's side, in one thread or in several, takes events and settles them; the connection brings events and reports
what is settled. A lock protects both, because what an event costs here is small beside its handling.
"""

import logging
import os
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, Final

from feedmux.errors import SessionClosed
from feedmux.member_event import MemberEvent
from feedmux.outcomes import Outcome
from feedmux.session_buffer import Ended, Item, QueuedNotice, UserSide, without_replaced
from feedmux.settlements import Settlements

_log = logging.getLogger("feedmux")

current_worker: Final[ContextVar[object]] = ContextVar("feedmux_worker", default=None)
"""The thread or task of `run` in which a handler calls, to close the client for example."""


class MemberBuffer(UserSide):
    """Shared state of one member."""

    __slots__ = (
        "_has_warned", "_items", "_late", "_must_wake", "_process", "_reports_soon", "_woken", "cluster_time", "ended",
        "is_at_work", "keeps", "lock", "notify", "settlements", "stopping",
    )  # fmt: skip

    def __init__(self, window_events: int, notify: Callable[[int], None], lock: AbstractContextManager[Any]) -> None:
        super().__init__(self._put)
        self.lock = lock
        """Protects everything here."""
        self.notify = notify
        """Called with the lock held, from any thread: so many takers have something to take."""
        self.settlements = Settlements(window_events, self)
        self.stopping = False
        """Set by the user: nothing more is handed out; what is in hand may be settled."""
        self.is_at_work: Callable[[object], bool] = lambda _: False
        """Set by `run`: whether handlers are in progress, apart from that of this worker."""
        self.keeps = False
        """Set before `closing`: handlers are still in progress, so the session ends without Close, and what they work
        on is not given to others before `reconnect_time` is over."""
        self.ended: Ended | None = None
        self.cluster_time: tuple[int, int] = (0, 0)
        """Set by the connection: all members have settled everything up to here."""
        self._items: deque[MemberEvent | QueuedNotice] = deque()
        """Notices; and events in hand that their takers did not get."""
        self._woken = False
        self._must_wake = False
        """The connection has work, and may not know: a signal handler has raised before it was woken."""
        self._reports_soon = False
        self._process = os.getpid()
        self._late = 0
        """Events whose handler has ended after the member had."""
        self._has_warned = False

    def take(self) -> MemberEvent | QueuedNotice | Ended | None:
        """Return what comes next for a taker; None: nothing yet. After the end, always an Ended. With the lock held."""
        self.check_process()
        if self.stopping or self.closing:
            return Ended(self.ended_by)
        if self._must_wake:
            self._wake()
        if self._items:
            item = self._items[0]
            del self._items[0]  # A signal handler may raise after a call such as `popleft`.
            return item
        return self.settlements.take() or self.ended

    def put_back(self, item: MemberEvent | QueuedNotice | Ended | None) -> None:
        """Hand out again, before all others, what its taker did not get, and wake another taker instead."""
        with self.lock:
            if isinstance(item, MemberEvent | QueuedNotice):
                self._items.appendleft(item)
            self.notify(1)

    def settle(self, event: MemberEvent, outcome: Outcome) -> None:
        """Take note of what became of an event. Raises SessionClosed, and RuntimeError in a forked process."""
        self.check_process()
        wakes = False
        with self.lock:
            if event.outcome is None:
                if self.closing or self.ended is not None:
                    raise SessionClosed("the member is closed: others get the event")
                ready = self.settlements.ready
                wakes = self._settle(event, outcome)
                if self.settlements.ready > ready:
                    self.notify(1)
        if wakes or self._must_wake:
            self._wake()

    def settle_quietly(self, event: MemberEvent, outcome: Outcome) -> None:
        """Settle an event for its handler, who cannot do anything about a member that is closed."""
        try:
            self.settle(event, outcome)
        except SessionClosed:
            self._note_late()

    def settle_and_take(self, event: MemberEvent, outcome: Outcome) -> MemberEvent | None:
        """Settle an event for its handler, and return another one that waits: the next of the same run, if it has
        any."""
        self.check_process()
        wakes = is_late = False
        with self.lock:
            if event.outcome is None:
                is_late = self.closing or self.ended is not None
                wakes = not is_late and self._settle(event, outcome)
            found = None if self.stopping or self.closing else self.settlements.take()
        if wakes:
            self._wake()
        if is_late:
            self._note_late()
        return found

    def _settle(self, event: MemberEvent, outcome: Outcome) -> bool:
        """Return whether the connection must be woken, without the lock."""
        must_wake, self._must_wake = self._must_wake, True
        self.settlements.settle(event, outcome)
        wakes = must_wake or (not self._woken and (not self._reports_soon or self.settlements.must_report))
        self._woken = self._woken or wakes
        self._must_wake = wakes
        return wakes

    def _wake(self) -> None:
        self.wake()
        self._must_wake = False

    def check_process(self) -> None:
        """Raise RuntimeError in a forked process: the connection is in its parent."""
        if self._process != os.getpid():
            raise RuntimeError("a member belongs to the process that joined: join after the fork")

    def begin_work(self, *, reports_soon: bool) -> None:
        """The connection looks for what was settled. With `reports_soon` it will look again by itself, and is woken
        before that only if a report cannot wait. With the lock held."""
        self._woken, self._reports_soon = False, reports_soon

    def stop(self) -> None:
        """Hand out nothing more."""
        with self.lock:
            self.stopping = True
            self.notify(_ALL)

    def close(self) -> None:
        """End the session: the server gives what is not settled to others, unless handlers are in progress."""
        keeps = self.is_at_work(None)
        with self.lock:
            self.ended_by = None
            self.keeps = self.keeps or keeps
            self.closing = True
            self.notify(_ALL)
        self.wake()

    def warn_unconfirmed(self) -> None:
        with self.lock:
            count = self.settlements.unconfirmed + self._late if not self._has_warned else self._late
            self._has_warned, self._late = True, 0
        if count:
            _log.warning(
                "the member ended before the server confirmed all that was settled: %d of the events may be delivered"
                " again",
                count,
            )

    def _note_late(self) -> None:
        with self.lock:
            self._late += 1
            has_warned = self._has_warned
        if has_warned:
            self.warn_unconfirmed()

    def _put(self, item: Item) -> None:
        with self.lock:
            if isinstance(item, Ended):
                self.ended = self.ended or item
                self.notify(_ALL)
            elif isinstance(item, QueuedNotice):
                self._items = deque([*without_replaced(self._items, item.notice), item])
                self.notify(1)


_ALL = 1 << 30
