"""The asynchronous client: the names of `client`, on the user's own event loop."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from bson.codec_options import CodecOptions

from feedmux.api import Api, make_feed, settings
from feedmux.async_session import AsyncSession
from feedmux.async_watch import AsyncWatchClient
from feedmux.feeds import (
    Explanation,
    Feed,
    OnHistoryLost,
    OnInvalidate,
    Pipeline,
    ResolvedPosition,
    StartLike,
    SubscriptionInfo,
)
from feedmux.options import SessionOptions
from feedmux.seat import OnNotice
from feedmux.target import Tls, Token
from feedmux.watch_target import TargetOptions


class AsyncClient(AsyncWatchClient):
    """A connection to feedmux.

    `target` is `host:port`, or any gRPC target. `api_key`, or `token`: a JWT, or a function that returns a fresh one.
    `tls` is True for the system's roots, or a `Tls`. `source` names the MongoDB deployment in the server's
    configuration. `timeout_s` bounds the unary calls. `session` are the defaults of sessions, `codec_options` those of
    `watch()`. Nothing connects before the first call; each event loop
    that uses the client has a connection of its own.
    """

    def __init__(
        self,
        target: str,
        *,
        api_key: str | None = None,
        token: Token | None = None,
        source: str = "main",
        tls: bool | Tls = False,
        timeout_s: float = 30.0,
        session: SessionOptions | None = None,
        codec_options: CodecOptions[Any] | None = None,
        channel_options: Sequence[tuple[str, int | str]] = (),
    ) -> None:
        chosen = settings(target, api_key, token, source, tls, timeout_s, session, codec_options, channel_options)
        super().__init__(Api(chosen), TargetOptions(chosen.codec_options))

    def subscription(self, name: str) -> "AsyncSubscription":
        """A durable subscription by name. Nothing is sent."""
        return AsyncSubscription(self._api, name)

    def feed(
        self,
        feed: Feed | None = None,
        *,
        database: str | None = None,
        collection: str | None = None,
        pipeline: Pipeline | str | None = None,
        **options: Any,
    ) -> "AsyncInlineFeed":
        """A feed whose place you keep: a `Feed`, or its fields as arguments. Nothing is sent."""
        if pipeline is not None:
            options["pipeline"] = pipeline
        return AsyncInlineFeed(self._api, make_feed(feed, database, collection, options))

    async def create_subscription(
        self,
        name: str,
        feed: Feed | None = None,
        *,
        database: str | None = None,
        collection: str | None = None,
        start: StartLike | None = None,
        on_invalidate: OnInvalidate = "stop",
        on_history_lost: OnHistoryLost = "fail",
        **options: Any,
    ) -> SubscriptionInfo:
        """Creates a durable subscription of a `Feed`, or of its fields as arguments; `start` is by default now.

        The same content again changes nothing; other content raises SubscriptionExists.
        """
        chosen = make_feed(feed, database, collection, options)
        return await self._api.create(name, chosen, start, on_invalidate, on_history_lost)

    async def get_subscription(self, name: str) -> SubscriptionInfo:
        """Raises SubscriptionNotFound."""
        return await self._api.get(name)

    def list_subscriptions(self, page_size: int = 100) -> AsyncIterator[SubscriptionInfo]:
        """All of the tenant's subscriptions, by name; asks for a page when it is needed."""
        return self._api.every(page_size)

    async def update_subscription(
        self,
        name: str,
        *,
        feed: Feed | None = None,
        on_invalidate: OnInvalidate | None = None,
        on_history_lost: OnHistoryLost | None = None,
        etag: str = "",
    ) -> SubscriptionInfo:
        """Changes what is given; the position stays. `etag` guards against another's update in between."""
        return await self._api.update(name, feed, on_invalidate, on_history_lost, etag)

    async def seek_subscription(self, name: str, to: StartLike) -> SubscriptionInfo:
        """Moves the stored position, also backwards."""
        return await self._api.seek(name, to)

    async def delete_subscription(self, name: str, *, etag: str = "", allow_missing: bool = False) -> None:
        """Deletes one. Raises SubscriptionNotFound unless `allow_missing`."""
        await self._api.delete(name, etag, allow_missing)

    async def resolve(self, start: StartLike, feed: Feed | None = None) -> ResolvedPosition:
        """The position that a start stands for, to be stored; of the whole deployment without a feed."""
        return await self._api.resolve(start, feed or Feed())

    async def close(self) -> None:
        """Closes the open sessions, with their acks, then the connection.

        Whoever waits in one of these sessions, or asks it for more, gets SessionClosed. The client may be used again:
        the next call connects.
        """
        await self._api.link.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class AsyncSubscription:
    """A durable subscription, by name."""

    def __init__(self, api: Api, name: str) -> None:
        self._api = api
        self.name = name

    def open(self, *, takeover: bool = False, on_notice: OnNotice | None = None, **options: Any) -> AsyncSession:
        """A session, opened by `async with` or `await`. `options` are fields of SessionOptions.

        Raises SubscriptionNotFound; SubscriptionBusy unless `takeover`; HistoryLost; any FeedmuxError.
        """
        chosen = replace(self._api.settings.session, **options)
        return AsyncSession(self._api.link, self._api.subscription_opening(self.name, takeover), chosen, on_notice)

    async def create(
        self,
        feed: Feed | None = None,
        *,
        database: str | None = None,
        collection: str | None = None,
        start: StartLike | None = None,
        on_invalidate: OnInvalidate = "stop",
        on_history_lost: OnHistoryLost = "fail",
        **options: Any,
    ) -> SubscriptionInfo:
        """As `AsyncClient.create_subscription`."""
        chosen = make_feed(feed, database, collection, options)
        return await self._api.create(self.name, chosen, start, on_invalidate, on_history_lost)

    async def get(self) -> SubscriptionInfo:
        """Raises SubscriptionNotFound."""
        return await self._api.get(self.name)

    async def update(
        self,
        *,
        feed: Feed | None = None,
        on_invalidate: OnInvalidate | None = None,
        on_history_lost: OnHistoryLost | None = None,
        etag: str = "",
    ) -> SubscriptionInfo:
        """As `AsyncClient.update_subscription`."""
        return await self._api.update(self.name, feed, on_invalidate, on_history_lost, etag)

    async def seek(self, to: StartLike) -> SubscriptionInfo:
        """Moves the stored position, also backwards."""
        return await self._api.seek(self.name, to)

    async def delete(self, *, etag: str = "", allow_missing: bool = False) -> None:
        """Deletes it. Raises SubscriptionNotFound unless `allow_missing`."""
        await self._api.delete(self.name, etag, allow_missing)


class AsyncInlineFeed:
    """A feed whose place the user keeps."""

    def __init__(self, api: Api, feed: Feed) -> None:
        self._api = api
        self.feed = feed

    def open(
        self, start: StartLike | None = None, *, on_notice: OnNotice | None = None, **options: Any
    ) -> AsyncSession:
        """A session at `start` (now), opened by `async with` or `await`. `options` are fields of SessionOptions."""
        chosen = replace(self._api.settings.session, **options)
        return AsyncSession(self._api.link, self._api.feed_opening(self.feed, start), chosen, on_notice)

    async def explain(self, start: StartLike | None = None) -> Explanation:
        """What `open` would do, without doing it. A refusal is part of the answer."""
        return await self._api.explain(self.feed, start)

    async def resolve(self, start: StartLike) -> ResolvedPosition:
        """The position that a start stands for in this feed."""
        return await self._api.resolve(start, self.feed)
