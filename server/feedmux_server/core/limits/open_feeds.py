"""The feeds that a tenant reads, as many as its quota `shared_streams` allows."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterator

from feedmux_server.core.limits.quota import exceeded


class OpenFeeds:
    """The open feeds of one tenant."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._counts: Counter[Hashable] = Counter()
        self._spares: dict[Hashable, Callable[[], None]] = {}
        """How to close each feed that is open only in case it is used again, the oldest first."""

    def __contains__(self, feed: Hashable) -> bool:
        return feed in self._counts

    def __iter__(self) -> Iterator[Hashable]:
        return iter(self._counts)

    def __len__(self) -> int:
        return len(self._counts)

    def open(self, feed: Hashable) -> None:
        """Count one more reader of `feed`. Raises QUOTA_EXCEEDED. Undone by `close`."""
        if self._lacks(feed):
            raise exceeded("shared_streams", self.most)
        self._counts[feed] += 1

    def close(self, feed: Hashable) -> None:
        self._counts[feed] -= 1
        if not self._counts[feed]:
            del self._counts[feed]

    def spare(self, feed: Hashable, give_up: Callable[[], None]) -> None:
        """Note that an open `feed` serves nobody now. `give_up` closes it if another feed needs the room."""
        self._spares[feed] = give_up

    def unspare(self, feed: Hashable) -> None:
        """Note that the feed is in use again, or closed."""
        self._spares.pop(feed, None)

    def give_up_spares(self, feed: Hashable) -> None:
        """Close spare feeds, the oldest first, until `feed` may be opened."""
        for other, give_up in list(self._spares.items()):
            if not self._lacks(feed):
                return
            if self._counts[other] == 1:
                self.unspare(other)
                give_up()

    def _lacks(self, feed: Hashable) -> bool:
        return feed not in self._counts and len(self._counts) >= self.most
