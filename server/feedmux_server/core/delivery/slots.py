"""Slots for reading history, by streams in addition to the live stream of their feed, shared fairly among tenants.

`Slots` checks only feeds with several streams and waiting subscribers, never all feeds. Pure; `streams.manager` calls
`admit` when a slot may have become free.
"""

from collections import Counter
from collections.abc import Mapping

from feedmux_server.core.delivery.feed_streams import FeedStreams
from feedmux_server.core.delivery.subscriber import Subscriber
from feedmux_server.core.limits.account import Accounts


class Slots:
    """The slots of one process."""

    def __init__(self, most: int, accounts: Accounts) -> None:
        """`most` streams may read history at a time."""
        self._most = most
        self._accounts = accounts
        self._several: dict[FeedStreams, None] = {}
        """Feeds with more than one stream."""
        self._waiting: dict[str, dict[int, tuple[FeedStreams, Subscriber]]] = {}
        """The waiting subscribers by tenant, in the order of the tenants' turns; the oldest of each tenant first."""

    def changed(self, streams: FeedStreams) -> None:
        """Note that a stream of the feed was opened or closed."""
        if len(streams.open) > 1:
            self._several[streams] = None
        else:
            self._several.pop(streams, None)

    def waits(self, streams: FeedStreams, subscriber: Subscriber) -> None:
        self._waiting.setdefault(subscriber.tenant, {})[subscriber.id] = streams, subscriber

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
            for stream in streams.open:
                if streams.open.is_beside(stream):
                    counted = beside if stream.at_present else used
                    counted.update(stream.account.tenants.keys())
        for tenant, count in beside.items():
            # Each is a cursor, as a feed is.
            account = self._accounts.of(tenant)
            used[tenant] += max(0, count - max(0, account.quotas.shared_streams - len(account.feeds)))
        return used

    def may_catch_up(self, tenant: str) -> bool:
        """Whether a tenant may have another stream that reads history: while there are slots, up to a fair share."""
        return self._free > 0 and self._fits(tenant, self.used())

    def admit(self) -> bool:
        """Wake as many waiting subscribers as there are slots, tenant by tenant. Returns whether any was woken. A woken
        subscriber may join another stream, or may have left: call it again a little later."""
        free, used, woken = self._free, self.used(), False
        turn = list(self._waiting)
        while free > 0 and turn:
            for tenant in tuple(turn):
                if free <= 0:
                    break
                if tenant not in self._waiting or not self._fits(tenant, used):
                    turn.remove(tenant)
                    continue
                waiting = self._waiting.pop(tenant)
                self._waiting[tenant] = waiting  # this tenant's next turn is last
                streams, subscriber = next(iter(waiting.values()))
                streams.admit(subscriber)
                used[tenant] += 1
                free, woken = free - 1, True
        return woken

    def poke_stalled(self) -> None:
        """Wake the pumps of streams without a subscriber that has credit, so that they release their slots."""
        for streams in self._several:
            for stream in streams.open.stalled_catch_up():
                stream.poke()

    @property
    def _free(self) -> int:
        return self._most - sum(streams.open.catch_up_count for streams in self._several)

    def _fits(self, tenant: str, used: Mapping[str, int]) -> bool:
        mine = used.get(tenant, 0)
        if mine >= self._accounts.of(tenant).quotas.catch_up_streams:
            return False
        tenants = {tenant, *self._waiting}
        return len(tenants) == 1 or mine < max(1, self._most // len(tenants | set(used)))
