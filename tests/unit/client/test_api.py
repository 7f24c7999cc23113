"""The unary calls: the requests they make, and the arguments they refuse."""

import pickle
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import grpc
import pytest
from bson.timestamp import Timestamp

import feedmux
from feedmux.api import make_feed
from feedmux.feeds import Feed, ResolvedPosition
from feedmux.v1 import change_feed_pb2 as pb
from feedmux.v1 import subscriptions_pb2
from tests.unit.client.beside import using
from tests.unit.client.scripted_server import ScriptedServer, token


async def test_unary_calls() -> None:
    stored = subscriptions_pb2.Subscription(
        name="s",
        position=b"P",
        etag="e",
        on_invalidate="ON_INVALIDATE_CONTINUE",
        on_history_lost="ON_HISTORY_LOST_EARLIEST",
    )
    stored.feed.source = "main"
    stored.feed.pipeline.extended_json = "[]"
    resolved = pb.ResolvePositionResponse(
        position=b"R", cluster_time={"seconds": 5, "increment": 6}, time={"seconds": 5}
    )
    asked: dict[str, Any] = {}

    def reply(kind: Any, answer: Any) -> Callable[[bytes], Any]:
        def respond(raw: bytes) -> Any:
            asked[kind.__name__] = kind.FromString(raw)
            return answer(asked[kind.__name__]) if callable(answer) else answer

        return respond

    def page(request: Any) -> Any:
        more = "" if request.page_token else "next"
        return subscriptions_pb2.ListSubscriptionsResponse(subscriptions=[stored], next_page_token=more)

    unary = {
        "CreateSubscription": reply(subscriptions_pb2.CreateSubscriptionRequest, stored),
        "GetSubscription": lambda _: (grpc.StatusCode.NOT_FOUND, "SUBSCRIPTION_NOT_FOUND"),
        "ListSubscriptions": reply(subscriptions_pb2.ListSubscriptionsRequest, page),
        "UpdateSubscription": reply(subscriptions_pb2.UpdateSubscriptionRequest, stored),
        "SeekSubscription": reply(subscriptions_pb2.SeekSubscriptionRequest, stored),
        "DeleteSubscription": reply(subscriptions_pb2.DeleteSubscriptionRequest, pb.Close()),
        "ResolvePosition": reply(pb.ResolvePositionRequest, resolved),
    }

    def work(client: feedmux.Client) -> None:
        subscription = client.subscription("s")
        info = subscription.create(database="shop", collection="orders", start="earliest", on_invalidate="continue")
        assert (info.name, info.position, info.on_invalidate, info.on_history_lost) == (
            "s",
            b"P",
            "continue",
            "earliest",
        )
        assert asked["CreateSubscriptionRequest"].start.HasField("earliest")
        assert asked["CreateSubscriptionRequest"].subscription.feed.collection == "orders"
        with pytest.raises(feedmux.SubscriptionNotFound):
            subscription.get()
        assert [each.name for each in client.list_subscriptions()] == ["s", "s"]
        subscription.update(on_history_lost="fail", etag="e")
        assert asked["UpdateSubscriptionRequest"].update_mask.paths == ["on_history_lost"]
        subscription.seek(b"P9")
        assert asked["SeekSubscriptionRequest"].to.position == b"P9"
        subscription.seek(token(4))
        assert asked["SeekSubscriptionRequest"].to.start_after
        subscription.delete(allow_missing=True)
        assert asked["DeleteSubscriptionRequest"].allow_missing
        assert client.resolve("latest") == ResolvedPosition(b"R", Timestamp(5, 6), datetime.fromtimestamp(5, UTC))
        assert client.feed(database="shop").resolve("earliest").position == b"R"
        with pytest.raises(ValueError, match="on_invalidate"):
            subscription.update(on_invalidate="never")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="nothing"):
            subscription.update()
        with pytest.raises(ValueError, match="not a start"):
            subscription.seek("yesterday")  # type: ignore[arg-type]
        for required in (subscription.seek, client.resolve):
            with pytest.raises(TypeError, match="not a start: NoneType"):
                required(None)  # type: ignore[arg-type]

    async with ScriptedServer(unary=unary) as server:
        await using(server, work)


async def test_groups_are_made_changed_and_removed() -> None:
    asked: list[subscriptions_pb2.UpdateSubscriptionRequest] = []

    def create(raw: bytes) -> Any:
        return subscriptions_pb2.CreateSubscriptionRequest.FromString(raw).subscription

    def update(raw: bytes) -> Any:
        asked.append(subscriptions_pb2.UpdateSubscriptionRequest.FromString(raw))
        return asked[-1].subscription

    def work(client: feedmux.Client) -> None:
        subscription = client.subscription("s")
        group = feedmux.Group(2.5, 0.25, 60, 5, "quarantine")
        assert subscription.create(database="shop", group=group).group == group
        assert subscription.create(database="shop", group=feedmux.Group()).group == feedmux.Group()
        assert subscription.create(database="shop").group is None
        assert subscription.update(group=group).group == group
        assert subscription.update(group=None).group is None
        assert subscription.update(etag="e", on_invalidate="stop").group is None
        for wrong, error in (
            (True, TypeError),
            (feedmux.Group(float("nan")), ValueError),
            (feedmux.Group(-1), ValueError),
            (feedmux.Group("5"), TypeError),  # type: ignore[arg-type]
            (feedmux.Group(after_dead_letter="stop"), ValueError),  # type: ignore[arg-type]
        ):
            with pytest.raises(error):
                subscription.update(group=wrong)  # type: ignore[arg-type]

    async with ScriptedServer(unary={"CreateSubscription": create, "UpdateSubscription": update}) as server:
        await using(server, work)
    assert [list(each.update_mask.paths) for each in asked] == [["group"], ["group"], ["on_invalidate"]]
    assert [each.subscription.HasField("group") for each in asked] == [True, False, False]


async def test_a_server_without_groups_is_noticed() -> None:
    def drops_the_group(kind: Any) -> Callable[[bytes], Any]:
        def answer(raw: bytes) -> Any:
            stored = kind.FromString(raw).subscription
            stored.ClearField("group")
            return stored

        return answer

    def work(client: feedmux.Client) -> None:
        with pytest.raises(feedmux.GroupsUnsupported, match="'s' an ordinary subscription: delete it"):
            client.create_subscription("s", database="shop", group=feedmux.Group())
        with pytest.raises(feedmux.GroupsUnsupported, match="has not made 's' a group"):
            client.update_subscription("s", group=feedmux.Group())
        assert client.update_subscription("s", group=None).group is None

    unary = {
        "CreateSubscription": drops_the_group(subscriptions_pb2.CreateSubscriptionRequest),
        "UpdateSubscription": drops_the_group(subscriptions_pb2.UpdateSubscriptionRequest),
    }
    async with ScriptedServer(unary=unary) as server:
        await using(server, work)


def test_a_feed_is_given_whole_or_by_its_fields() -> None:
    feed = Feed("shop", "orders")
    assert make_feed(feed, {"database": None}) is feed
    assert make_feed(None, {"database": "shop", "collection": "orders"}) == feed
    for fields in ({"database": "shop"}, {"pipeline": "[]"}):
        with pytest.raises(TypeError, match="a Feed or its fields, not both"):
            make_feed(feed, fields)  # type: ignore[arg-type]


def test_a_client_has_one_credential() -> None:
    with pytest.raises(ValueError, match="api_key or token, not both"):
        feedmux.Client("localhost:1", api_key="k", token="t")


@pytest.mark.parametrize("kind", [feedmux.Client, feedmux.AsyncClient])
def test_a_key_is_not_pickled_with_its_client(kind: Any) -> None:
    client = kind("127.0.0.1:1", api_key="a-key")
    for made in (client, client.shop.orders, client.subscription("s"), client.feed(), client.dead_letters("s")):
        with pytest.raises(TypeError, match="make a client in each process"):
            pickle.dumps(made)
