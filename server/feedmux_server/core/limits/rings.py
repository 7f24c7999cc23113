"""Accounts for the events that a process retains and can evict: rings, and events that wait for a view's pump.

Rings report when they grow or shrink. They are grouped by the power of two of their size, so that finding a large ring
needs no search: any ring of the highest group has at least half as many bytes as the largest.
"""

import itertools
from collections.abc import Callable
from typing import Protocol

_CLASSES = 64
NOT_HELD = -1
"""The `size_class` of a ring that has nothing to evict."""
_LAST = 0
"""The class of those with one piece left, whatever its size."""
_AT_ONCE = 256
"""Limit of last pieces evicted, or awaited rings spared, at once: a thousand would block the event loop."""
EVICTED_AT_ONCE = 200
"""What may be evicted in one turn of the event loop, in small chunks: 1 ms, or 3 ms if clients have not acknowledged
them. The turn is that of whoever needs the memory."""


class Evictable(Protocol):
    """An object that can release memory."""

    bytes: int
    size_class: int
    """For `Rings`; `NOT_HELD` to begin with."""
    grown: int
    """For `Rings`: orders them by when they grew last."""

    def __len__(self) -> int:
        """Pieces held."""

    def unawaited(self) -> int:
        """How many of the oldest pieces nobody waits for who could take them and has not had the time to."""

    def oldest_cost(self) -> int:
        """How many small pieces could be evicted in the time that `drop_oldest` takes."""

    def drop_oldest(self) -> int:
        """Evict the oldest piece, or a part of the work for that, and report it by `Rings.changed`. Returns the bytes
        set free."""


class Rings:
    """The rings of one process."""

    __slots__ = ("_by_class", "_cost", "_growths", "bytes", "in_parts")

    def __init__(self) -> None:
        self.bytes = 0
        self.in_parts: Callable[[Callable[[], bool]], None] = at_once
        """Runs a step, which is a part of the work of evicting, or for a ring that was closed, until it returns
        False."""
        self._cost = 0
        """What `evict` has done in this turn."""
        self._growths = 0
        self._by_class: list[dict[Evictable, None]] = [{} for _ in range(_CLASSES)]
        """The ring whose turn is next comes first; of those with their last piece, the least recently grown."""

    def changed(self, ring: Evictable, by: int) -> None:
        """A ring has got `by` bytes more, or fewer, when negative."""
        self.bytes += by
        if by > 0:
            self._growths += 1
            ring.grown = self._growths
        pieces = len(ring)
        wanted = ring.bytes.bit_length() if pieces > 1 else _LAST if pieces else NOT_HELD
        if wanted != ring.size_class:
            if ring.size_class != NOT_HELD:
                self._by_class[ring.size_class].pop(ring, None)
            ring.size_class = wanted
            if wanted != NOT_HELD:
                self._by_class[wanted][ring] = None
        elif wanted == _LAST and by > 0:
            del self._by_class[_LAST][ring]
            self._by_class[_LAST][ring] = None

    def evict(self, size: int) -> bool:
        """Has the largest give up their oldest pieces in turn, until `size` bytes are free; then the last pieces.
        Returns whether the time of one turn of the event loop was over before that.

        What is awaited goes when nothing else is left, and what was read last goes last: whoever had no time to take it
        reads it from MongoDB again, and under pressure for long nobody would get any of it. So the last piece of all
        stays where it is awaited.
        """
        if size <= 0:
            return False
        self._cost = 0
        spared: list[Evictable] = []
        size = self._evict_oldest(size, spared)
        if self._cost < EVICTED_AT_ONCE:
            size = self._evict_last(size, awaited=False)
        for ring in sorted(spared, key=lambda ring: ring.grown):
            while size > 0 and len(ring) > 1 and self._cost < EVICTED_AT_ONCE:
                size -= self._drop_oldest(ring)
        if self._cost < EVICTED_AT_ONCE:
            size = self._evict_last(size, awaited=True)
        return size > 0 and self._cost >= EVICTED_AT_ONCE

    def _drop_oldest(self, ring: Evictable) -> int:
        self._cost += ring.oldest_cost()
        return ring.drop_oldest()

    def _evict_oldest(self, size: int, spared: list[Evictable]) -> int:
        """Returns how much is still to be freed. Adds those that are awaited to `spared`."""
        # Each ring is asked once: it asks all its subscribers, of which none takes anything meanwhile.
        unawaited: dict[Evictable, int] = {}
        for rings in reversed(self._by_class[_LAST + 1 :]):
            awaited: list[Evictable] = []
            while rings and size > 0 and self._cost < EVICTED_AT_ONCE:
                ring = next(iter(rings))
                left = unawaited.get(ring)
                if left is None:
                    left = ring.unawaited()
                if len(awaited) < _AT_ONCE and left <= 0:
                    del rings[ring]
                    awaited.append(ring)
                    continue
                pieces = len(ring)
                size -= self._drop_oldest(ring)
                unawaited[ring] = left - (pieces - len(ring))
                if rings.pop(ring, 0) is None:
                    rings[ring] = None
            rings.update((ring, None) for ring in awaited)
            spared += awaited
        return size

    def _evict_last(self, size: int, *, awaited: bool) -> int:
        """Returns how much is still to be freed."""
        last = self._by_class[_LAST]
        most = max(0, len(last) - 1) if awaited else len(last)
        for ring in list(itertools.islice(last, min(_AT_ONCE, most))):
            if size <= 0:
                break
            if awaited or ring.unawaited() > 0:
                size -= self._drop_oldest(ring)
        return size


def at_once(step: Callable[[], bool]) -> None:
    while step():
        pass
