"""What a tenant's clients have not acknowledged: the bytes delivered, and what is retained for it outside the rings."""

from bisect import bisect_left, insort
from collections.abc import Callable
from itertools import count

from feedmux_server.core.limits.quota import UNLIMITED
from feedmux_server.core.limits.rings import at_once


class Backlog:
    """What all tenants' unacknowledged events retain outside the rings: chunks that the rings have evicted."""

    def __init__(self) -> None:
        self.bytes = 0
        self.bytes_max = UNLIMITED
        """Above it, tenants with more than an equal share of it are sent nothing more until they acknowledge."""
        self.tenants: dict[Outstanding, None] = {}
        """The tenants that have a part of the backlog."""
        self.in_turns: Callable[[Callable[[], bool]], None] = at_once
        """Runs a step, which wakes some of those who wait, in turns of the event loop until it returns False."""

    @property
    def share(self) -> float:
        return self.bytes_max / max(1, len(self.tenants))


class Outstanding:
    """The part of one tenant."""

    def __init__(self, bytes_max: int, backlog: Backlog) -> None:
        self.bytes_max = bytes_max
        """The quota `outstanding_bytes`."""
        self.bytes = 0
        """Bytes delivered to durable subscriptions and not yet acknowledged."""
        self.backlog_bytes = 0
        """Bytes that unacknowledged events retain outside the rings."""
        self._backlog = backlog
        self._noted = False
        self._waiting = _Line()
        """Who waits for room."""
        self._members = _Line()
        """Who waits for the quota alone."""
        self._places = count()
        self._woken: dict[Callable[[], None] | None, int] = {}
        """The places of those who were woken: one that finds its room taken by another waits at its former place."""
        self._woken_next = 0
        """How many are woken in the next turn; 0 while nobody is being woken."""

    @property
    def has_room(self) -> bool:
        """Whether more may be outstanding. Like credit, one delivery may overdraw it."""
        return self.within_quota and self.backlog_fits

    @property
    def within_quota(self) -> bool:
        """Whether more may be outstanding, whatever is retained outside the rings."""
        return self.bytes < self.bytes_max

    @property
    def backlog_fits(self) -> bool:
        """Whether what the tenant's events retain outside the rings is within its quota and its share."""
        if self.backlog_bytes >= self.bytes_max:
            return False
        return self._backlog.bytes < self._backlog.bytes_max or self.backlog_bytes < self._backlog.share

    def note_backlog(self) -> bool:
        """Return True once each time the backlog reaches its bound."""
        if self._noted or self.backlog_fits:
            return False
        self._noted = True
        return True

    def hold(self, size: int, wake: Callable[[], None] | None = None) -> None:
        """Count bytes delivered to a durable subscription. `wake` is that of a session that may have waited for it."""
        self.bytes += size
        if wake in self._woken:
            del self._woken[wake]

    def release(self, size: int) -> None:
        """Undo `hold`: the bytes are acknowledged, or the session has ended."""
        self.bytes -= size
        self._wake_if_room()

    def retain(self, size: int) -> None:
        """Count `size` more bytes retained outside the rings (fewer, when negative)."""
        backlog = self._backlog
        was_full = backlog.bytes >= backlog.bytes_max
        self.backlog_bytes += size
        backlog.bytes += size
        if size > 0:
            backlog.tenants[self] = None
            return
        left = not self.backlog_bytes and self in backlog.tenants
        if left:
            del backlog.tenants[self]
        if self.backlog_fits:
            self._noted = False
        # Others may have room now if the backlog is full no more, or if their share has grown.
        concerns_all = was_full and (left or backlog.bytes < backlog.bytes_max)
        for each in [self, *backlog.tenants] if concerns_all else (self,):
            each._wake_if_room()

    def when_room(self, wake: Callable[[], None]) -> None:
        """Call `wake` once, as soon as there may be room, and those who have waited for longer have been woken."""
        self._wait(self._waiting, wake)

    def when_within_quota(self, wake: Callable[[], None]) -> None:
        """The same for what leaves the backlog when it is delivered: it does not wait until the backlog fits."""
        self._wait(self._members, wake)

    def _wait(self, line: "_Line", wake: Callable[[], None]) -> None:
        if wake not in line.places:
            place = self._woken.pop(wake, None)
            line.add(next(self._places) if place is None else place, wake)

    def waits_no_longer(self, wake: Callable[[], None]) -> None:
        """Undo both: otherwise the ended sessions of a tenant that never acknowledges are kept."""
        self._waiting.remove(wake)
        self._members.remove(wake)
        self._woken.pop(wake, None)

    def bound(self, bytes_max: int) -> None:
        """Apply another quota from now on."""
        self.bytes_max = bytes_max
        self._wake_if_room()

    def _wake_if_room(self) -> None:
        if not self._woken_next and self._next_woken():
            self._woken_next = 1
            self._backlog.in_turns(self._wake_some)

    def _next_woken(self) -> "_Line | None":
        """The line whose first one has waited longest of all that there may be room for."""
        waiting = self._waiting if self._waiting.places and self.has_room else None
        members = self._members if self._members.places and self.within_quota else None
        if waiting is None or members is None:
            return waiting or members
        return min(waiting, members, key=_Line.first)

    def _wake_some(self) -> bool:
        """Wake one, and as long as there is room left in the next turn, twice as many each time. An acknowledgement may
        make room for a single event, and hundreds of sessions may wait. One that is woken has taken its events by the
        next turn; where it needs none, or has to wait for something else, the room is left for the others.

        Returns whether others may have to be woken.
        """
        for _ in range(self._woken_next):
            line = self._next_woken()
            if line is None:
                self._woken_next = 0
                return False
            place, wake = line.pop()
            self._woken[wake] = place
            wake()
        self._woken_next *= 2
        return True


class _Line:
    """Those who wait, by their places."""

    __slots__ = ("_order", "places")

    def __init__(self) -> None:
        self._order: list[tuple[int, Callable[[], None]]] = []
        self.places: dict[Callable[[], None], int] = {}

    def first(self) -> int:
        return self._order[0][0]

    def add(self, place: int, wake: Callable[[], None]) -> None:
        self.places[wake] = place
        insort(self._order, (place, wake), key=_place)

    def pop(self) -> tuple[int, Callable[[], None]]:
        place, wake = self._order.pop(0)
        del self.places[wake]
        return place, wake

    def remove(self, wake: Callable[[], None]) -> None:
        place = self.places.pop(wake, None)
        if place is not None:
            del self._order[bisect_left(self._order, place, key=_place)]


def _place(entry: tuple[int, Callable[[], None]]) -> int:
    return entry[0]
