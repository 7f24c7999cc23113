"""Streams that a tenant was the last to leave, and that still hold a cursor for it: they wait for clients to reconnect.

Every cursor that a tenant caused counts until it is closed, so a tenant gets no more cursors by opening and leaving
feeds in turn.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from typing import NamedTuple

from feedmux_server.clock import monotonic_s
from feedmux_server.core.delivery.shared_stream import SharedStream
from feedmux_server.core.delivery.stream_steps import OpenStreams
from feedmux_server.core.limits.account import Account, Accounts
from feedmux_server.core.limits.quota import UNLIMITED, exceeded

_CLOSE_WAIT_S = 3.0
"""How long an opening waits for cursors of its tenant that are being closed; a running getMore must end first."""


class _Abandoned(NamedTuple):
    """A stream without a subscriber."""

    tenant: str
    """The last that left it."""
    stream: SharedStream
    feed: Hashable
    others: OpenStreams
    """All streams of the feed."""
    task: asyncio.Task[None]
    """Ends when its cursor is closed."""


class AbandonedStreams:
    """The abandoned streams of one process."""

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts
        self._streams: dict[int, _Abandoned] = {}
        """By stream id, until the stream closes or has a subscriber again."""
        self._by_tenant: defaultdict[str, set[int]] = defaultdict(set)
        """The same by tenant."""

    def add(self, stream: SharedStream, feed: Hashable, others: OpenStreams, task: asyncio.Task[None]) -> None:
        """Note that the last subscriber of a stream of `feed` has left. `task` is that of its pump."""
        self.discard(stream.id)
        self._streams[stream.id] = _Abandoned(stream.last_tenant, stream, feed, others, task)
        self._by_tenant[stream.last_tenant].add(stream.id)

    def discard(self, number: int) -> None:
        """Note that the stream has a subscriber again, or is closed."""
        known = self._streams.pop(number, None)
        if known is not None:
            self._by_tenant[known.tenant].discard(number)
            if not self._by_tenant[known.tenant]:
                del self._by_tenant[known.tenant]

    @asynccontextmanager
    async def holding(self, tenant: str, feed: Hashable) -> AsyncIterator[None]:
        """Count `feed` against the tenant's quota inside the block. Raises QUOTA_EXCEEDED."""
        await self.make_room(tenant, feed)
        account = self._accounts.of(tenant)
        account.feeds.open(feed)
        try:
            yield
        finally:
            account.feeds.close(feed)

    async def make_room(self, tenant: str, feed: Hashable) -> None:
        """Close what the tenant keeps open without use, the oldest first, until one more stream of `feed` fits its
        quotas: readers that wait for a next plan, and streams that wait for clients to reconnect.

        Call this right before `Account.feeds.open`, which raises QUOTA_EXCEEDED if there is still no room.
        """
        account = self._accounts.of(tenant)
        account.feeds.give_up_spares(feed)
        deadline_s = monotonic_s() + _CLOSE_WAIT_S
        while closing := self._to_close(account, feed):
            if monotonic_s() > deadline_s:
                raise exceeded("shared_streams", account.quotas.shared_streams)
            for each in closing:
                each.stream.close_early()
            # Do not wait for all of them: another tenant may join one of the streams meanwhile, which keeps it open.
            await asyncio.wait([each.task for each in closing], timeout=0.1, return_when=asyncio.FIRST_COMPLETED)
            account.feeds.give_up_spares(feed)

    def _to_close(self, account: Account, feed: Hashable) -> list[_Abandoned]:
        """Streams that the tenant has left and that, together with `feed` and the feeds it reads, exceed its quota."""
        room = account.quotas.shared_streams - len({*account.feeds, feed})
        if account.quotas.shared_streams == UNLIMITED or room < 0:
            return []
        found: list[_Abandoned] = []
        for number in sorted(self._by_tenant.get(account.tenant, ())):
            each = self._streams[number]
            if each.stream.subscribers:
                self.discard(number)
            elif each.stream.holds_cursor_for and (each.feed != feed or each.others.is_beside(each.stream)):
                found.append(each)
        return found[: max(0, len(found) - room)]
