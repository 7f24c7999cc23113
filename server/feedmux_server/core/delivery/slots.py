"""Slots for reading history, by streams in addition to the live stream of their feed, shared fairly among tenants.

A stream keeps its slot while it reads. When another subscriber waits, a stream that rests gives way at once, and one
that reads when its turn is over: it ends, its subscribers take what its ring still has, and then wait like the others.
So slots go round, whether clients read or not.

`Slots` checks only feeds with several streams and waiting subscribers, never all feeds. Pure; the pumps ask for their
next step here.
"""

from collections import Counter

from feedmux_server.core.delivery.feed_streams import FeedStreams
from feedmux_server.core.delivery.shared_stream import SharedStream, StreamState
from feedmux_server.core.delivery.stream_steps import Step, next_step
from feedmux_server.core.delivery.subscriber import Subscriber
from feedmux_server.core.limits.account import Accounts

_RESTS = frozenset({StreamState.PAUSED, StreamState.IDLE, StreamState.RECOVERING})


class Slots:
    """The slots of one process."""

    def __init__(self, most: int, accounts: Accounts) -> None:
        """`most` streams may read history at a time."""
        self._most = most
        self._accounts = accounts
        self._several: dict[FeedStreams, None] = {}
        """Feeds with more than one stream, or with one that copies documents."""
        self._waiting: dict[str, dict[int, tuple[FeedStreams, Subscriber]]] = {}
        """The waiting subscribers by tenant, in the order of the tenants' turns; the oldest of each tenant first."""
        self._gave_way: dict[SharedStream, FeedStreams] = {}
        """Streams that gave way and whose rings are still being read, the oldest first. At most as many as there are
        slots: clients that do not read would fill the memory with rings, and their feeds with streams to search."""

    def changed(self, streams: FeedStreams) -> None:
        """Note that a stream of the feed was opened or closed."""
        if len(streams.open) > 1 or any(stream.copies for stream in streams.open):
            self._several[streams] = None
        else:
            self._several.pop(streams, None)

    def waits(self, streams: FeedStreams, subscriber: Subscriber) -> None:
        self._waiting.setdefault(subscriber.tenant, {})[subscriber.id] = streams, subscriber
        for each in self._several:
            for stream in each.open.beside():
                if stream.state in _RESTS:
                    stream.poke()  # the others take their next step anyway

    def waits_no_longer(self, subscriber: Subscriber) -> None:
        waiting = self._waiting[subscriber.tenant]
        del waiting[subscriber.id]
        if not waiting:
            del self._waiting[subscriber.tenant]

    @property
    def wanted(self) -> bool:
        """Whether a subscriber waits for a slot."""
        return bool(self._waiting)

    def used(self) -> Counter[str]:
        """The number of streams that read history, by the tenants that they serve. Additional streams at the present
        count as far as they exceed the tenant's quota `shared_streams`."""
        used: Counter[str] = Counter()
        beside: Counter[str] = Counter()
        for streams in self._several:
            for stream in streams.open.beside():
                counted = beside if stream.at_present else used
                counted.update(stream.account.tenants.keys())
        for tenant, count in beside.items():
            # Each is a cursor, as a feed is.
            account = self._accounts.of(tenant)
            used[tenant] += max(0, count - max(0, account.quotas.shared_streams - len(account.feeds)))
        return used

    def may_catch_up(self, tenant: str) -> bool:
        """Whether a tenant may have another stream that reads history: if a slot is free, and nobody has waited for
        it."""
        if self._free <= 0:
            return False
        used = self.used()
        return self._fits(tenant, used) and self._next(used) in (None, tenant)

    def next_step(self, streams: FeedStreams, stream: SharedStream, *, turn_over: bool) -> Step:
        """What the pump of a stream does next. `turn_over`: it has read for as long as a stream may while others wait
        for slots."""
        step = next_step(stream, streams.open)
        reads = step is Step.READ
        if step is Step.END or (reads and not turn_over) or not self._waiting or not streams.open.is_catch_up(stream):
            return step
        used, mine = self.used(), stream.account.tenants
        used.subtract(mine.keys())
        tenant = self._next(used)
        # A slot in use goes to no tenant that has more of them.
        gives_way = tenant is not None and (not reads or used[tenant] <= max(used[each] for each in mine))
        return Step.GIVE_WAY if gives_way else step

    def give_way(self, streams: FeedStreams, stream: SharedStream) -> None:
        """End a stream, and give its slot to a subscriber that waits."""
        for tenant in stream.account.tenants:
            if tenant in self._waiting:
                self._waiting[tenant] = self._waiting.pop(tenant)  # it has just had its turn
        streams.give_way(stream)
        if stream.subscribers:
            self._gave_way[stream] = streams
        if len(self._gave_way) > self._most:
            oldest, of_feed = next(iter(self._gave_way.items()))
            del self._gave_way[oldest]
            if oldest in of_feed.open:  # otherwise its pump is about to end
                of_feed.close(oldest)
        self.admit()

    def closed(self, stream: SharedStream) -> None:
        """Note that the pump of a stream has ended."""
        self._gave_way.pop(stream, None)
        self.admit()

    def admit(self) -> None:
        """Give the free slots to waiting subscribers. Call this when a slot may have become free, before the
        subscribers of the stream that had it join again."""
        while self._waiting and self._free > 0 and (tenant := self._next(self.used())) is not None:
            waiting = self._waiting.pop(tenant)
            self._waiting[tenant] = waiting  # this tenant's next turn is last
            streams, subscriber = next(iter(waiting.values()))
            streams.admit(subscriber)

    def stop(self) -> None:
        """Give no more slots."""
        self._most = 0

    @property
    def _free(self) -> int:
        return self._most - sum(streams.open.catch_up_count for streams in self._several)

    def _next(self, used: Counter[str]) -> str | None:
        """The waiting tenant that gets the next slot: of those that have the fewest, the one whose turn it is."""
        found: str | None = None
        for tenant in self._waiting:
            if self._fits(tenant, used) and (found is None or used[tenant] < used[found]):
                found = tenant
                if not used[tenant]:
                    break
        return found

    def _fits(self, tenant: str, used: Counter[str]) -> bool:
        return used[tenant] < self._accounts.of(tenant).quotas.catch_up_streams
