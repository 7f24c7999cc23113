"""Decides how long a read waits for events, and whether it needs a permit to read history. Never waits itself."""

from collections.abc import Callable

from feedmux_server.clock import monotonic_s
from feedmux_server.source.deployment import Source
from feedmux_server.source.read_limits import ReadLimits

BACKLOG_BYTES = 256 * 1024
"""A batch of this size means that MongoDB has more."""
HISTORY_S = 15
"""A reader this far behind the newest known cluster time reads history, however few events match: an idle MongoDB still
writes a no-op every 10 s, which moves readers at the head."""
HISTORY_AWAIT_MS = 10
"""A read of history waits at MongoDB's newest entry for at most this long, because other readers wait for its turn. A
mongos waits for its shards meanwhile, and gets the usual time."""
IDLE_S = 8.0
"""A read of a feed without events waits for at most this long, if no subscriber wants to know progress. Its position
stays recent enough to need no permit for reads of history."""


class ReadPace:
    """The pace of one reader."""

    def __init__(
        self,
        source: Source,
        limits: ReadLimits,
        is_watched: Callable[[], bool],
        is_awaited: Callable[[], bool] = lambda: False,
    ) -> None:
        """`is_watched` says whether a subscriber wants to know how far the stream has read, and `is_awaited` whether a
        plan waits to know that nothing follows."""
        self._source = source
        self._limits = limits
        self._is_watched = is_watched
        self._is_awaited = is_awaited
        self.is_behind = False
        """The last batch was a large one: there is more, and it is read in turns."""
        self._at_end_s: float | None = None
        """When a read last returned no events: MongoDB had reached its newest entry. None if the last had events."""

    def saw(self, size: int, *, exhausted: bool) -> None:
        """A read returned `size` bytes of events."""
        self.is_behind = size >= BACKLOG_BYTES and not exhausted
        self._at_end_s = None if size else monotonic_s()

    def needs_permit(self, cluster_time: int) -> bool:
        """Whether MongoDB scans its oplog for the batch after `cluster_time`, including the first batch and small
        batches. A lagging secondary counts as at its end."""
        if self.is_behind:
            return True
        if self._at_end_s is not None and monotonic_s() - self._at_end_s < HISTORY_S:
            return False
        return self._source.clock.known_time - cluster_time > HISTORY_S << 32

    @property
    def history_wait_ms(self) -> int:
        """How long a read of history waits."""
        usual = self._limits.max_await_ms
        return usual if self._source.clock.is_mongos else min(usual, HISTORY_AWAIT_MS)

    @property
    def wait_ms(self) -> int:
        """How long any other read waits."""
        usual = self._limits.max_await_ms
        if self._at_end_s is None and self._is_awaited():
            return self.history_wait_ms  # once: this read returns events, or the next one waits as usual
        if self._at_end_s is None or self._is_watched():
            return usual
        share_s = min(IDLE_S, self._source.cursors / self._limits.idle_reads_per_s)
        return max(usual, int(share_s * 1000))
