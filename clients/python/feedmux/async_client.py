"""The asynchronous client: the same methods as in `client`, on the user's own event loop."""

from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from typing import Self, Unpack

from feedmux.api import Api, make_feed
from feedmux.async_member import AsyncMember
from feedmux.async_session import AsyncSession
from feedmux.async_watch import AsyncWatchClient
from feedmux.dead_letters import DeadLetter, DeadLetterCalls, Key, Replay
from feedmux.feeds import (
    CreateArguments,
    Explanation,
    Feed,
    FeedArguments,
    ResolvedPosition,
    StartLike,
    SubscriptionInfo,
    UpdateArguments,
)
from feedmux.member_base import member_options
from feedmux.options import SessionArguments
from feedmux.session_base import OnNotice


class AsyncClient(AsyncWatchClient):
    """A connection to feedmux.

    `target` is `host:port`, or any gRPC target. Pass either `api_key` or `token`, which is a JWT or an API key, or a
    function that returns one and is called before every call. `tls` is True for the system's root certificates, or a
    `Tls`. `source` names the MongoDB deployment in the server's configuration. `timeout_s` limits the duration of unary
    calls. `session` holds the default options of sessions, and `codec_options` is the default for `watch()`. The client
    connects at the first call, with a separate connection for each event loop that uses it.
    """

    def subscription(self, name: str) -> "AsyncSubscription":
        """Return the durable subscription of that name, without a call to the server."""
        return AsyncSubscription(self._api, name)

    def dead_letters(self, name: str) -> "AsyncDeadLetters":
        """Return the dead letters of the group of that name, without a call to the server."""
        return AsyncDeadLetters(self._api, name)

    def feed(self, feed: Feed | None = None, **fields: Unpack[FeedArguments]) -> "AsyncInlineFeed":
        """Return a feed whose position the caller stores, without a call to the server.

        Pass a `Feed`, or its fields as arguments.
        """
        return AsyncInlineFeed(self._api, make_feed(feed, fields))

    async def create_subscription(
        self, name: str, feed: Feed | None = None, **arguments: Unpack[CreateArguments]
    ) -> SubscriptionInfo:
        """Create a durable subscription to a `Feed`, or to its fields given as arguments. The default `start` is now.

        With a `group` (`feedmux.Group()`), any number of members share the events, in order per key. If the
        subscription exists with the same definition, nothing changes; with a different definition, this raises
        SubscriptionExists.
        """
        return await self._api.create(name, feed, **arguments)

    async def get_subscription(self, name: str) -> SubscriptionInfo:
        """Return the subscription. Raises SubscriptionNotFound."""
        return await self._api.get(name)

    def list_subscriptions(self, page_size: int = 100) -> AsyncIterator[SubscriptionInfo]:
        """Iterate over all subscriptions of the tenant, by name. Pages are fetched as they are needed."""
        return self._api.every(page_size)

    async def update_subscription(self, name: str, **arguments: Unpack[UpdateArguments]) -> SubscriptionInfo:
        """Change the given fields and keep the position.

        A `group` makes the subscription a group, or changes it; None makes it an ordinary subscription again. `etag`
        guards against a concurrent update by another client.
        """
        return await self._api.update(name, **arguments)

    async def seek_subscription(self, name: str, to: StartLike) -> SubscriptionInfo:
        """Move the stored position, forwards or backwards."""
        return await self._api.seek(name, to)

    async def delete_subscription(self, name: str, *, etag: str = "", allow_missing: bool = False) -> None:
        """Delete a subscription. Raises SubscriptionNotFound unless `allow_missing`."""
        await self._api.delete(name, etag, allow_missing)

    async def resolve(self, start: StartLike, feed: Feed | None = None) -> ResolvedPosition:
        """Return the position that a start stands for, for storing.

        Without a feed: a position in the whole deployment.
        """
        return await self._api.resolve(start, feed or Feed())

    async def close(self) -> None:
        """Close the open sessions, after sending their acks, then the connection.

        Handlers of a member's `run` that are in progress have the member's `close_timeout_s` to end. What is still
        running then keeps its event for the group's reconnect time, as does a handler that calls this.

        A thread or task that waits for an event of such a session, or requests another one, gets SessionClosed. The
        client can be used again: the next call reconnects.
        """
        await self._api.transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class AsyncSubscription:
    """A durable subscription, by name."""

    def __init__(self, api: Api, name: str) -> None:
        self._api = api
        self.name = name

    def open(
        self, *, takeover: bool = False, on_notice: OnNotice | None = None, **options: Unpack[SessionArguments]
    ) -> AsyncSession:
        """Return a session, which `async with` or `await` opens. `options` are fields of SessionOptions.

        Raises SubscriptionNotFound; SubscriptionBusy unless `takeover`; HistoryLost; any FeedmuxError.
        """
        chosen = replace(self._api.settings.session, **options)
        return AsyncSession(self._api.transport, self._api.subscription_opening(self.name, takeover), chosen, on_notice)

    def join(self, *, on_notice: OnNotice | None = None, **options: Unpack[SessionArguments]) -> AsyncMember:
        """Return a member of the group, which `async with` or `await` joins. `options` are fields of SessionOptions.

        `window_events` (default 64) is the most events that the member has unsettled; `ack_interval_s` (default 0.02)
        the longest delay before settled ones are reported. Raises GroupMismatch if the subscription is no group;
        GroupsUnsupported from an older server; SubscriptionNotFound; HistoryLost; any FeedmuxError.
        """
        chosen = member_options(self._api.settings.session, options)
        return AsyncMember(
            self._api.transport, self._api.subscription_opening(self.name, takeover=False), chosen, on_notice
        )

    async def create(self, feed: Feed | None = None, **arguments: Unpack[CreateArguments]) -> SubscriptionInfo:
        """Create the subscription, as `AsyncClient.create_subscription` does."""
        return await self._api.create(self.name, feed, **arguments)

    async def get(self) -> SubscriptionInfo:
        """Return the subscription. Raises SubscriptionNotFound."""
        return await self._api.get(self.name)

    async def update(self, **arguments: Unpack[UpdateArguments]) -> SubscriptionInfo:
        """Update the subscription, as `AsyncClient.update_subscription` does."""
        return await self._api.update(self.name, **arguments)

    async def seek(self, to: StartLike) -> SubscriptionInfo:
        """Move the stored position, forwards or backwards."""
        return await self._api.seek(self.name, to)

    async def delete(self, *, etag: str = "", allow_missing: bool = False) -> None:
        """Delete the subscription. Raises SubscriptionNotFound unless `allow_missing`."""
        await self._api.delete(self.name, etag, allow_missing)


class AsyncDeadLetters:
    """The dead letters of a group, by the name of its subscription."""

    def __init__(self, api: Api, name: str) -> None:
        self._calls = DeadLetterCalls(api, name)
        self.name = name

    def list(self, *, key: Key | None = None, page_size: int = 100) -> AsyncIterator[DeadLetter]:
        """Iterate over the letters, or those of one `documentKey`, in the order in which they failed, without their
        events. Pages are fetched as they are needed. Raises SubscriptionNotFound."""
        return self._calls.every(key, page_size)

    async def get(self, id: str) -> DeadLetter:
        """Return a letter with its event. Raises NotFound if it was discarded or has expired."""
        return await self._calls.get(id)

    async def discard(
        self, ids: Iterable[str] | None = None, *, key: Key | None = None, everything: bool = False
    ) -> int:
        """Delete letters, by their ids, or all of a `documentKey`, or everything. Return how many there were."""
        return await self._calls.discard(ids, key, everything)

    async def replay(
        self, ids: Iterable[str] | None = None, *, key: Key | None = None, everything: bool = False
    ) -> Replay:
        """Let letters be delivered again to the group: by their ids, or all of a `documentKey`, or everything. Of a
        quarantined key, all letters are, in order."""
        return await self._calls.replay(ids, key, everything)


class AsyncInlineFeed:
    """A feed whose position the user stores."""

    def __init__(self, api: Api, feed: Feed) -> None:
        self._api = api
        self.feed = feed

    def open(
        self, start: StartLike | None = None, *, on_notice: OnNotice | None = None, **options: Unpack[SessionArguments]
    ) -> AsyncSession:
        """Return a session at `start` (default: now), which `async with` or `await` opens.

        `options` are fields of SessionOptions.
        """
        chosen = replace(self._api.settings.session, **options)
        return AsyncSession(self._api.transport, self._api.feed_opening(self.feed, start), chosen, on_notice)

    async def explain(self, start: StartLike | None = None) -> Explanation:
        """Return what `open` would do, without doing it. A rejection is part of the result, not an error."""
        return await self._api.explain(self.feed, start)

    async def resolve(self, start: StartLike) -> ResolvedPosition:
        """Return the position that a start stands for in this feed."""
        return await self._api.resolve(start, self.feed)
