"""Events that a wide stream has put aside for a view and that the view's pump has not taken yet."""

from collections.abc import Callable

from feedmux_server.core.limits.rings import NOT_HELD, Rings

_OFFER_BYTES = 64
"""What a piece costs in addition to its events."""


class Inbox:
    """The inbox of one view. It is evicted as a whole: without the oldest events, the rest would follow a gap."""

    __slots__ = ("_evicted", "_pieces", "_rings", "bytes", "bytes_max", "grown", "read_time_s", "size_class")

    def __init__(self, bytes_max: int, rings: Rings, evicted: Callable[[], None]) -> None:
        """`evicted` is called when the inbox holds more than `bytes_max`, or when its memory is needed."""
        self.bytes = 0
        self.bytes_max = bytes_max
        self.size_class = NOT_HELD
        self.grown = 0
        """`size_class` and `grown` are for `Rings`."""
        self.read_time_s = 0.0
        """When the first of the events was read."""
        self._pieces: list[bytes] = []
        self._rings = rings
        self._evicted = evicted

    def __len__(self) -> int:
        return len(self._pieces)

    def put(self, data: bytes, read_time_s: float) -> None:
        if not self._pieces:
            self.read_time_s = read_time_s
        self._pieces.append(data)
        size = len(data) + _OFFER_BYTES
        self.bytes += size
        self._rings.changed(self, size)
        if self.bytes > self.bytes_max:
            self.drop_oldest()

    def take(self) -> bytes:
        """Remove and return all events, concatenated."""
        data = b"".join(self._pieces)
        self.clear()
        return data

    def clear(self) -> int:
        """Remove all events; return the bytes set free."""
        self._pieces.clear()
        size, self.bytes = self.bytes, 0
        self._rings.changed(self, -size)
        return size

    def unawaited(self) -> int:
        return len(self._pieces)

    def oldest_cost(self) -> int:
        return 1

    def drop_oldest(self) -> int:
        size = self.clear()
        self._evicted()
        return size
