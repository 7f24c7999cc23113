"""The synchronous client. Everything it does is a coroutine of `api` or a `Session`, run through the portal."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from bson.codec_options import CodecOptions

from feedmux.api import Api, make_feed, settings
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
from feedmux.portal import portal
from feedmux.seat import OnNotice
from feedmux.session import Session
from feedmux.target import Tls, Token
from feedmux.watch import WatchClient
from feedmux.watch_target import TargetOptions


class Client(WatchClient):
    """A connection to feedmux.

    `target` is `host:port`, or any gRPC target. `api_key`, or `token`: a JWT, or a function that returns a fresh one.
    `tls` is True for the system's roots, or a `Tls`. `source` names the MongoDB deployment in the server's
    configuration. `timeout_s` bounds the unary calls. `session` are the defaults of sessions, `codec_options` those of
    `watch()`. Nothing connects before the first call. Safe to use from several threads.
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

    def subscription(self, name: str) -> "Subscription":
        """A durable subscription by name. Nothing is sent."""
        return Subscription(self._api, name)

    def feed(
        self,
        feed: Feed | None = None,
        *,
        database: str | None = None,
        collection: str | None = None,
        pipeline: Pipeline | str | None = None,
        **options: Any,
    ) -> "InlineFeed":
        """A feed whose place you keep: a `Feed`, or its fields as arguments. Nothing is sent."""
        if pipeline is not None:
            options["pipeline"] = pipeline
        return InlineFeed(self._api, make_feed(feed, database, collection, options))

    def create_subscription(
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
        return portal().call(self._api.create(name, chosen, start, on_invalidate, on_history_lost))

    def get_subscription(self, name: str) -> SubscriptionInfo:
        """Raises SubscriptionNotFound."""
        return portal().call(self._api.get(name))

    def list_subscriptions(self, page_size: int = 100) -> Iterator[SubscriptionInfo]:
        """All of the tenant's subscriptions, by name; asks for a page when it is needed."""
        token = ""
        while True:
            page, token = portal().call(self._api.page(page_size, token))
            yield from page
            if not token:
                return

    def update_subscription(
        self,
        name: str,
        *,
        feed: Feed | None = None,
        on_invalidate: OnInvalidate | None = None,
        on_history_lost: OnHistoryLost | None = None,
        etag: str = "",
    ) -> SubscriptionInfo:
        """Changes what is given; the position stays. `etag` guards against another's update in between."""
        return portal().call(self._api.update(name, feed, on_invalidate, on_history_lost, etag))

    def seek_subscription(self, name: str, to: StartLike) -> SubscriptionInfo:
        """Moves the stored position, also backwards."""
        return portal().call(self._api.seek(name, to))

    def delete_subscription(self, name: str, *, etag: str = "", allow_missing: bool = False) -> None:
        """Deletes one. Raises SubscriptionNotFound unless `allow_missing`."""
        portal().call(self._api.delete(name, etag, allow_missing))

    def resolve(self, start: StartLike, feed: Feed | None = None) -> ResolvedPosition:
        """The position that a start stands for, to be stored; of the whole deployment without a feed."""
        return portal().call(self._api.resolve(start, feed or Feed()))

    def close(self) -> None:
        """Closes the open sessions, with their acks, then the connection.

        Whoever waits in one of these sessions, or asks it for more, gets SessionClosed. The client may be used again:
        the next call connects.
        """
        portal().call(self._api.link.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Subscription:
    """A durable subscription, by name."""

    def __init__(self, api: Api, name: str) -> None:
        self._api = api
        self.name = name

    def open(self, *, takeover: bool = False, on_notice: OnNotice | None = None, **options: Any) -> Session:
        """Opens a session. `options` are fields of SessionOptions, such as `window_events`.

        Raises SubscriptionNotFound; SubscriptionBusy unless `takeover`; HistoryLost; any FeedmuxError.
        """
        chosen = replace(self._api.settings.session, **options)
        return Session(self._api.link, self._api.subscription_opening(self.name, takeover), chosen, on_notice)

    def create(
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
        """As `Client.create_subscription`."""
        chosen = make_feed(feed, database, collection, options)
        return portal().call(self._api.create(self.name, chosen, start, on_invalidate, on_history_lost))

    def get(self) -> SubscriptionInfo:
        """Raises SubscriptionNotFound."""
        return portal().call(self._api.get(self.name))

    def update(
        self,
        *,
        feed: Feed | None = None,
        on_invalidate: OnInvalidate | None = None,
        on_history_lost: OnHistoryLost | None = None,
        etag: str = "",
    ) -> SubscriptionInfo:
        """As `Client.update_subscription`."""
        return portal().call(self._api.update(self.name, feed, on_invalidate, on_history_lost, etag))

    def seek(self, to: StartLike) -> SubscriptionInfo:
        """Moves the stored position, also backwards."""
        return portal().call(self._api.seek(self.name, to))

    def delete(self, *, etag: str = "", allow_missing: bool = False) -> None:
        """Deletes it. Raises SubscriptionNotFound unless `allow_missing`."""
        portal().call(self._api.delete(self.name, etag, allow_missing))


class InlineFeed:
    """A feed whose place the user keeps."""

    def __init__(self, api: Api, feed: Feed) -> None:
        self._api = api
        self.feed = feed

    def open(self, start: StartLike | None = None, *, on_notice: OnNotice | None = None, **options: Any) -> Session:
        """Opens a session at `start`, by default now. `options` are fields of SessionOptions."""
        chosen = replace(self._api.settings.session, **options)
        return Session(self._api.link, self._api.feed_opening(self.feed, start), chosen, on_notice)

    def explain(self, start: StartLike | None = None) -> Explanation:
        """What `open` would do, without doing it. A refusal is part of the answer."""
        return portal().call(self._api.explain(self.feed, start))

    def resolve(self, start: StartLike) -> ResolvedPosition:
        """The position that a start stands for in this feed."""
        return portal().call(self._api.resolve(start, self.feed))
