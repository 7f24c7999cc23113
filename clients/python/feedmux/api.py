"""The unary calls as coroutines, shared by `client` and `async_client`, and the settings of both clients.

Every call raises FeedmuxError.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, NoReturn, Unpack

from google.protobuf import empty_pb2, field_mask_pb2

from feedmux import requests
from feedmux.errors import GroupsUnsupported, InvalidArgument, SnapshotUnsupported
from feedmux.feeds import (
    UNCHANGED,
    Explanation,
    Feed,
    FeedArguments,
    Group,
    OnHistoryLost,
    OnInvalidate,
    ResolvedPosition,
    Start,
    StartLike,
    SubscriptionInfo,
    Unchanged,
    as_start,
)
from feedmux.options import SessionOptions
from feedmux.session_base import instance_id
from feedmux.stream_keeper import Opening
from feedmux.target import Target
from feedmux.transport import Transport
from feedmux.v1 import change_feed_pb2, feed_pb2, subscriptions_pb2


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings that a client was made with."""

    target: Target
    source: str
    timeout_s: float
    session: SessionOptions


class Api:
    """The unary calls of one client."""

    def __init__(self, chosen: Settings) -> None:
        self.settings = chosen
        self.transport = Transport(chosen.target)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a feedmux client, and what it has made, cannot be pickled or deep-copied, because it has a connection and"
            " credentials: make a client in each process"
        )

    def subscription_opening(self, name: str, takeover: bool) -> Opening:
        """Return what `open()` of a subscription opens."""
        return Opening(subscription=name, takeover=takeover, instance_id=instance_id())

    def feed_opening(self, feed: Feed, start: StartLike | None) -> Opening:
        """Return what `open()` of a feed opens."""
        message = requests.feed_message(feed, self.settings.source)
        chosen = None if start is None else as_start(start)
        return Opening(feed=message, start=chosen, instance_id=instance_id(), route=requests.route_of(message))

    async def explain(self, feed: Feed, start: StartLike | None) -> Explanation:
        request = change_feed_pb2.ExplainRequest(feed=requests.feed_message(feed, self.settings.source))
        if start is not None:
            request.start.CopyFrom(requests.start_message(as_start(start)))
        answer = await self._call("ChangeFeed", "Explain", request, change_feed_pb2.ExplainResponse)
        return requests.explanation_value(answer)

    async def resolve(self, start: StartLike, feed: Feed) -> ResolvedPosition:
        answer = await self._resolve(as_start(start), requests.feed_message(feed, self.settings.source))
        return ResolvedPosition(
            answer.position,
            requests.timestamp_value(answer.cluster_time) if answer.HasField("cluster_time") else None,
            requests.time_value(answer.time) if answer.HasField("time") else None,
        )

    async def _resolve(self, start: Start, feed: feed_pb2.Feed) -> change_feed_pb2.ResolvePositionResponse:
        request = change_feed_pb2.ResolvePositionRequest(feed=feed, start=requests.start_message(start))
        response_type = change_feed_pb2.ResolvePositionResponse
        try:
            answer: change_feed_pb2.ResolvePositionResponse = await self._call(
                "ChangeFeed", "ResolvePosition", request, response_type
            )
        except InvalidArgument as error:
            if start.kind == "snapshot" and "start is required" in str(error):  # the server sees an empty `Start`
                raise SnapshotUnsupported("would begin at the present") from error
            raise
        if start.kind == "snapshot" and not answer.HasField("snapshot"):
            raise SnapshotUnsupported("would begin at the present")
        return answer

    async def _stored_start(self, start: Start, feed: feed_pb2.Feed) -> Start:
        """Return what to send where the server stores the start.

        A server that is older than copies would store the present for `snapshot`, and a call that is repeated at a
        newer replica would find nothing wrong. It rejects the position of a copy.
        """
        if start.kind != "snapshot":
            return start
        return Start.position((await self._resolve(start, feed)).position)

    async def nothing_between(self, feed: Feed, after: bytes, until: bytes) -> bool:
        """Return whether MongoDB has no event of the feed in (after, until]. False if that is not known yet."""
        message = requests.feed_message(feed, self.settings.source)
        request = change_feed_pb2.PlanRangeRequest(feed=message, after=after, until=until, events_max=1, bytes_max=1)
        answer = await self._call("ChangeFeed", "PlanRange", request, change_feed_pb2.PlanRangeResponse)
        return bool(answer.caught_up) and not answer.event_count

    async def create(
        self,
        name: str,
        feed: Feed | None = None,
        *,
        start: StartLike | None = None,
        on_invalidate: OnInvalidate = "stop",
        on_history_lost: OnHistoryLost = "fail",
        group: Group | None = None,
        **fields: Unpack[FeedArguments],
    ) -> SubscriptionInfo:
        chosen = None if start is None else as_start(start)
        wanted = requests.feed_message(make_feed(feed, fields), self.settings.source)
        message = requests.subscription_message(name, wanted, on_invalidate, on_history_lost)
        if group is not None:
            message.group.CopyFrom(requests.group_message(group))
        if chosen is not None:
            chosen = await self._stored_start(chosen, wanted)
        request = subscriptions_pb2.CreateSubscriptionRequest(
            subscription=message, start=requests.start_message(chosen) if chosen else None
        )
        info = self._value(await self._subscription("CreateSubscription", request))
        if group is not None and info.group is None:
            raise GroupsUnsupported(f"has made {name!r} an ordinary subscription: delete it")
        return info

    async def get(self, name: str) -> SubscriptionInfo:
        return self._value(await self._get(name))

    async def _get(self, name: str) -> subscriptions_pb2.Subscription:
        return await self._subscription("GetSubscription", subscriptions_pb2.GetSubscriptionRequest(name=name))

    async def page(self, page_size: int, page_token: str) -> tuple[list[SubscriptionInfo], str]:
        request = subscriptions_pb2.ListSubscriptionsRequest(page_size=page_size, page_token=page_token)
        response_type = subscriptions_pb2.ListSubscriptionsResponse
        answer = await self._call("Subscriptions", "ListSubscriptions", request, response_type)
        return [self._value(each) for each in answer.subscriptions], answer.next_page_token

    async def every(self, page_size: int) -> AsyncIterator[SubscriptionInfo]:
        token = ""
        while True:
            page, token = await self.page(page_size, token)
            for each in page:
                yield each
            if not token:
                return

    async def update(
        self,
        name: str,
        *,
        feed: Feed | None = None,
        on_invalidate: OnInvalidate | None = None,
        on_history_lost: OnHistoryLost | None = None,
        group: Group | Unchanged | None = UNCHANGED,
        etag: str = "",
    ) -> SubscriptionInfo:
        message = requests.subscription_message(
            name,
            requests.feed_message(feed, self.settings.source) if feed else None,
            on_invalidate,
            on_history_lost,
        )
        message.etag = etag
        given = {"feed": feed, "on_invalidate": on_invalidate, "on_history_lost": on_history_lost}
        paths = [path for path, value in given.items() if value is not None]
        if group is not UNCHANGED:
            paths.append("group")
            if group is not None:
                message.group.CopyFrom(requests.group_message(group))
        if not paths:
            raise ValueError("nothing to update")
        mask = field_mask_pb2.FieldMask(paths=paths)
        request = subscriptions_pb2.UpdateSubscriptionRequest(subscription=message, update_mask=mask)
        info = self._value(await self._subscription("UpdateSubscription", request))
        if isinstance(group, Group) and info.group is None:
            raise GroupsUnsupported(f"has not made {name!r} a group")
        return info

    async def seek(self, name: str, to: StartLike) -> SubscriptionInfo:
        chosen = as_start(to)
        if chosen.kind == "snapshot":
            chosen = await self._stored_start(chosen, (await self._get(name)).feed)
        request = subscriptions_pb2.SeekSubscriptionRequest(name=name, to=requests.start_message(chosen))
        return self._value(await self._subscription("SeekSubscription", request))

    async def delete(self, name: str, etag: str, allow_missing: bool) -> None:
        request = subscriptions_pb2.DeleteSubscriptionRequest(name=name, etag=etag, allow_missing=allow_missing)
        await self._call("Subscriptions", "DeleteSubscription", request, empty_pb2.Empty)

    async def _subscription(self, method: str, request: Any) -> subscriptions_pb2.Subscription:
        message: subscriptions_pb2.Subscription = await self._call(
            "Subscriptions", method, request, subscriptions_pb2.Subscription
        )
        return message

    def _value(self, message: subscriptions_pb2.Subscription) -> SubscriptionInfo:
        info = requests.subscription_value(message)
        if info.routing_key:
            self.transport.routes[info.name] = info.routing_key
        return info

    async def _call(self, service: str, method: str, request: Any, response_type: Any) -> Any:
        return await self.transport.unary(service, method, request, response_type, self.settings.timeout_s)


def make_feed(feed: Feed | None, fields: FeedArguments) -> Feed:
    """Return the feed given as a Feed or by its fields.

    Raises TypeError for both together, or for an unknown field.
    """
    if feed is not None and any(value is not None for value in fields.values()):
        raise TypeError("give a Feed or its fields, not both")
    return Feed(**fields) if feed is None else feed
