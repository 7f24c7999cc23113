"""Streams that a tenant has left count against its quota until they are closed."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from feedmux_server.core.errors import FeedmuxError
from feedmux_server.core.limits.account import Accounts
from feedmux_server.core.limits.quota import Quotas
from feedmux_server.streams.abandoned_streams import AbandonedStreams

TENANT = "team"


class Left:
    """Two streams of the quota may be open; each of these has been left, and closes when asked."""

    def __init__(self) -> None:
        self.accounts = Accounts(lambda _: Quotas(shared_streams=2), lambda: 0.0)
        self.streams = AbandonedStreams(self.accounts)
        self.closed: list[int] = []

    def leave(self, number: int, *, subscribers: int = 0) -> None:
        loop = asyncio.get_running_loop()
        task: asyncio.Future[None] = loop.create_future()

        def close() -> None:
            self.closed.append(number)
            stream.holds_cursor_for = ""
            self.streams.discard(number)
            task.set_result(None)

        stream: Any = SimpleNamespace(
            id=number, last_tenant=TENANT, subscribers=subscribers, holds_cursor_for=TENANT, close_early=close
        )
        none_beside: Any = SimpleNamespace(is_beside=lambda _: False)
        self.streams.add(stream, f"feed {number}", none_beside, cast("asyncio.Task[None]", task))


async def test_the_oldest_are_closed_until_one_more_fits() -> None:
    left = Left()
    for number in (1, 2):
        left.leave(number)
    await left.streams.make_room(TENANT, "new")
    assert left.closed == [1]
    await left.streams.make_room("other", "new")
    assert left.closed == [1], "each tenant makes room for itself"


async def test_a_stream_that_is_read_again_is_not_closed() -> None:
    left = Left()
    left.leave(1, subscribers=1)
    left.leave(2)
    await left.streams.make_room(TENANT, "new")
    assert left.closed == []


async def test_the_stream_of_the_feed_itself_needs_no_room() -> None:
    left = Left()
    left.leave(1)
    left.accounts.of(TENANT).feeds.open("another")
    await left.streams.make_room(TENANT, "feed 1")
    assert left.closed == []


async def test_a_feed_counts_while_it_is_held() -> None:
    left = Left()
    account = left.accounts.of(TENANT)
    async with left.streams.holding(TENANT, "one"), left.streams.holding(TENANT, "two"):
        assert len(account.feeds) == 2
        with pytest.raises(FeedmuxError, match="shared_streams"):
            async with left.streams.holding(TENANT, "three"):
                pass
    assert not account.feeds
