"""What a process keeps of MongoDB's events and can do without: rings, and events that wait for a view's pump.

They say themselves when they grow or shrink. They are kept by the power of two that their bytes reach, so that finding
a large one looks at no other: it has at least half as many bytes as the largest.
"""

from typing import Protocol

_CLASSES = 64
NOT_HELD = -1
"""The `size_class` of one that has nothing to give up."""
_LAST = 0
"""The class of those with one piece left, whatever its size."""
_LAST_AT_ONCE = 256
"""A thousand small ones would keep the event loop."""


class Evictable(Protocol):
    """One that gives up memory."""

    bytes: int
    size_class: int
    """For `Rings`; `NOT_HELD` to begin with."""

    def __len__(self) -> int:
        """Pieces held."""

    def drop_oldest(self) -> int:
        """Gives up its oldest piece, and says so by `Rings.changed`. The bytes set free."""


class Rings:
    """Of one process."""

    __slots__ = ("_by_class", "bytes")

    def __init__(self) -> None:
        self.bytes = 0
        self._by_class: list[dict[Evictable, None]] = [{} for _ in range(_CLASSES)]
        """Whose turn it is first. Those with their last piece: who has grown least recently."""

    def changed(self, ring: Evictable, by: int) -> None:
        """A ring has got `by` bytes more, or fewer, when negative."""
        self.bytes += by
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

    def evict(self, size: int) -> None:
        """Has the largest give up their oldest pieces in turn, until `size` bytes are free; then the last pieces.

        One last piece stays, which has come last: its readers have yet to be told of it.
        """
        for rings in reversed(self._by_class[_LAST + 1 :]):
            while rings and size > 0:
                ring = next(iter(rings))
                size -= ring.drop_oldest()
                if rings.pop(ring, 0) is None:
                    rings[ring] = None
        last = self._by_class[_LAST]
        for _ in range(_LAST_AT_ONCE):
            if len(last) <= 1 or size <= 0:
                break
            size -= next(iter(last)).drop_oldest()
