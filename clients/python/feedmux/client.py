"""The synchronous client. Each method runs a coroutine of `api` through the background loop, or opens a `Session`."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Self, Unpack

from feedmux.api import Api, make_feed
from feedmux.background_loop import background_loop
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
from feedmux.member import Member
from feedmux.member_base import member_options
from feedmux.options import SessionArguments
from feedmux.session import Session
from feedmux.session_base import OnNotice
from feedmux.watch import WatchClient


class Client(WatchClient):
    """A connection to feedmux.

    `target` is `host:port`, or any gRPC target. Pass either `api_key` or `token`, which is a JWT or an API key, or a
    function that returns one and is called before every call. `tls` is True for the system's root certificates, or a
    `Tls`. `source` names the MongoDB deployment in the server's configuration. `timeout_s` limits the duration of unary
    calls. `session` holds the default options of sessions, and `codec_options` is the default for `watch()`. The client
    connects at the first call. Safe to use from several threads.
    """

    def subscription(self, name: str) -> "Subscription":
        """Return the durable subscription of that name, without a call to the server."""
        return Subscription(self._api, name)

    def dead_letters(self, name: str) -> "DeadLetters":
        """Return the dead letters of the group of that name, without a call to the server."""
        return DeadLetters(self._api, name)

    def feed(self, feed: Feed | None = None, **fields: Unpack[FeedArguments]) -> "InlineFeed":
        """Return a feed whose position the caller stores, without a call to the server.

        Pass a `Feed`, or its fields as arguments.
        """
        return InlineFeed(self._api, make_feed(feed, fields))

    def create_subscription(
        self, name: str, feed: Feed | None = None, **arguments: Unpack[CreateArguments]
    ) -> SubscriptionInfo:
        """Create a durable subscription to a `Feed`, or to its fields given as arguments. The default `start` is now.

        With a `group` (`feedmux.Group()`), any number of members share the events, in order per key. If the
        subscription exists with the same definition, nothing changes; with a different definition, this raises
        SubscriptionExists.
        """
        return background_loop().call(self._api.create(name, feed, **arguments))

    def get_subscription(self, name: str) -> SubscriptionInfo:
        """Return the subscription. Raises SubscriptionNotFound."""
        return background_loop().call(self._api.get(name))

    def list_subscriptions(self, page_size: int = 100) -> Iterator[SubscriptionInfo]:
        """Iterate over all subscriptions of the tenant, by name. Pages are fetched as they are needed."""
        token = ""
        while True:
            page, token = background_loop().call(self._api.page(page_size, token))
            yield from page
            if not token:
                return

    def update_subscription(self, name: str, **arguments: Unpack[UpdateArguments]) -> SubscriptionInfo:
        """Change the given fields and keep the position.

        A `group` makes the subscription a group, or changes it; None makes it an ordinary subscription again. `etag`
        guards against a concurrent update by another client.
        """
        return background_loop().call(self._api.update(name, **arguments))

    def seek_subscription(self, name: str, to: StartLike) -> SubscriptionInfo:
        """Move the stored position, forwards or backwards."""
        return background_loop().call(self._api.seek(name, to))

    def delete_subscription(self, name: str, *, etag: str = "", allow_missing: bool = False) -> None:
        """Delete a subscription. Raises SubscriptionNotFound unless `allow_missing`."""
        background_loop().call(self._api.delete(name, etag, allow_missing))

    def resolve(self, start: StartLike, feed: Feed | None = None) -> ResolvedPosition:
        """Return the position that a start stands for, for storing.

        Without a feed: a position in the whole deployment.
        """
        return background_loop().call(self._api.resolve(start, feed or Feed()))

    def close(self) -> None:
        """Close the open sessions, after sending their acks, then the connection.

        Handlers of a member's `run` that are in progress have the member's `close_timeout_s` to end. What is still
        running then keeps its event for the group's reconnect time, as does a handler that calls this.

        A thread or task that waits for an event of such a session, or requests another one, gets SessionClosed. The
        client can be used again: the next call reconnects. In a signal handler that has interrupted feedmux itself,
        this only asks for the end.
        """
        background_loop().end(self._api.transport.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Subscription:
    """A durable subscription, by name."""

    def __init__(self, api: Api, name: str) -> None:
        self._api = api
        self.name = name

    def open(
        self, *, takeover: bool = False, on_notice: OnNotice | None = None, **options: Unpack[SessionArguments]
    ) -> Session:
        """Open a session. `options` are fields of SessionOptions, such as `window_events`.

        Raises SubscriptionNotFound; SubscriptionBusy unless `takeover`; HistoryLost; any FeedmuxError.
        """
        chosen = replace(self._api.settings.session, **options)
        return Session(self._api.transport, self._api.subscription_opening(self.name, takeover), chosen, on_notice)

    def join(self, *, on_notice: OnNotice | None = None, **options: Unpack[SessionArguments]) -> Member:
        """Join the group of the subscription as a member. `options` are fields of SessionOptions.

        `window_events` (default 64) is the most events that the member has unsettled; `ack_interval_s` (default 0.02)
        the longest delay before settled ones are reported. Raises GroupMismatch if the subscription is no group;
        GroupsUnsupported from an older server; SubscriptionNotFound; HistoryLost; any FeedmuxError.
        """
        chosen = member_options(self._api.settings.session, options)
        return Member(self._api.transport, self._api.subscription_opening(self.name, takeover=False), chosen, on_notice)

    def create(self, feed: Feed | None = None, **arguments: Unpack[CreateArguments]) -> SubscriptionInfo:
        """Create the subscription, as `Client.create_subscription` does."""
        return background_loop().call(self._api.create(self.name, feed, **arguments))

    def get(self) -> SubscriptionInfo:
        """Return the subscription. Raises SubscriptionNotFound."""
        return background_loop().call(self._api.get(self.name))

    def update(self, **arguments: Unpack[UpdateArguments]) -> SubscriptionInfo:
        """Update the subscription, as `Client.update_subscription` does."""
        return background_loop().call(self._api.update(self.name, **arguments))

    def seek(self, to: StartLike) -> SubscriptionInfo:
        """Move the stored position, forwards or backwards."""
        return background_loop().call(self._api.seek(self.name, to))

    def delete(self, *, etag: str = "", allow_missing: bool = False) -> None:
        """Delete the subscription. Raises SubscriptionNotFound unless `allow_missing`."""
        background_loop().call(self._api.delete(self.name, etag, allow_missing))


class DeadLetters:
    """The dead letters of a group, by the name of its subscription."""

    def __init__(self, api: Api, name: str) -> None:
        self._calls = DeadLetterCalls(api, name)
        self.name = name

    def list(self, *, key: Key | None = None, page_size: int = 100) -> Iterator[DeadLetter]:
        """Iterate over the letters, or those of one `documentKey`, in the order in which they failed, without their
        events. Pages are fetched as they are needed. Raises SubscriptionNotFound."""
        token = ""
        while True:
            page, token = background_loop().call(self._calls.page(key, page_size, token))
            yield from page
            if not token:
                return

    def get(self, id: str) -> DeadLetter:
        """Return a letter with its event. Raises NotFound if it was discarded or has expired."""
        return background_loop().call(self._calls.get(id))

    def discard(self, ids: Iterable[str] | None = None, *, key: Key | None = None, everything: bool = False) -> int:
        """Delete letters, by their ids, or all of a `documentKey`, or everything. Return how many there were."""
        return background_loop().call(self._calls.discard(ids, key, everything))

    def replay(self, ids: Iterable[str] | None = None, *, key: Key | None = None, everything: bool = False) -> Replay:
        """Let letters be delivered again to the group: by their ids, or all of a `documentKey`, or everything. Of a
        quarantined key, all letters are, in order."""
        return background_loop().call(self._calls.replay(ids, key, everything))


class InlineFeed:
    """A feed whose position the user stores."""

    def __init__(self, api: Api, feed: Feed) -> None:
        self._api = api
        self.feed = feed

    def open(
        self, start: StartLike | None = None, *, on_notice: OnNotice | None = None, **options: Unpack[SessionArguments]
    ) -> Session:
        """Open a session at `start` (default: now). `options` are fields of SessionOptions."""
        chosen = replace(self._api.settings.session, **options)
        return Session(self._api.transport, self._api.feed_opening(self.feed, start), chosen, on_notice)

    def explain(self, start: StartLike | None = None) -> Explanation:
        """Return what `open` would do, without doing it. A rejection is part of the result, not an error."""
        return background_loop().call(self._api.explain(self.feed, start))

    def resolve(self, start: StartLike) -> ResolvedPosition:
        """Return the position that a start stands for in this feed."""
        return background_loop().call(self._api.resolve(start, self.feed))
