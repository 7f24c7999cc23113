"""All rings of a process: their bytes together, and a large one to take from.

The rings say themselves when they grow or shrink. They are kept by the power of two that their bytes reach, so that
finding a large one looks at no other: it has at least half as many bytes as the largest.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from feedmux_server.core.replay_buffer import ReplayBuffer

_CLASSES = 64


class Rings:
    """Of one process."""

    __slots__ = ("_by_class", "bytes")

    def __init__(self) -> None:
        self.bytes = 0
        self._by_class: list[dict[ReplayBuffer, None]] = [{} for _ in range(_CLASSES)]
        """Those that have a chunk to spare; whose turn it is first."""

    def changed(self, ring: "ReplayBuffer", by: int) -> None:
        """A ring has got `by` bytes more, or fewer, when negative."""
        self.bytes += by
        wanted = ring.bytes.bit_length() if len(ring) > 1 else 0
        if wanted != ring.size_class:
            self._by_class[ring.size_class].pop(ring, None)
            ring.size_class = wanted
            if wanted:
                self._by_class[wanted][ring] = None

    def evict(self, size: int) -> None:
        """Drops oldest chunks of the largest rings in turn, until `size` bytes are free or each ring has one chunk."""
        for rings in reversed(self._by_class):
            while rings and size > 0:
                ring = next(iter(rings))
                size -= ring.drop_oldest()
                if rings.pop(ring, 0) is None:
                    rings[ring] = None
