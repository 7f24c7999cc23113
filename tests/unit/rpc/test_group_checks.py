"""What the definition of a group may say. `test_join` has what its members may say."""

from typing import Any

import pytest

from feedmux.v1 import feed_pb2, subscriptions_pb2
from feedmux_server.core.delivery.retry import RetryPolicy
from feedmux_server.rpc.group_checks import retry_policy
from feedmux_server.rpc.subscriptions import Subscriptions
from tests.tables import over
from tests.unit.rpc.service_support import NoLetters, call, refused, served
from tests.virtual_time import in_virtual_time

SPLITS = feed_pb2.Pipeline(extended_json='[{"$changeStreamSplitLargeEvent": {}}]')


@pytest.mark.parametrize(
    ("group", "reason", "named"),
    [
        ({"reconnect_time": {"seconds": -1}}, "MESSAGE_INVALID", "reconnect_time"),
        ({"reconnect_time": {"seconds": 60, "nanos": 1}}, "MESSAGE_INVALID", "reconnect_time"),
        ({"retry_first": {"seconds": 0}}, "MESSAGE_INVALID", "retry_first"),
        ({"retry_first": {"seconds": -1}}, "MESSAGE_INVALID", "retry_first"),
        ({"retry_first": {"seconds": 86_401}}, "MESSAGE_INVALID", "retry_first"),
        ({"retry_most": {"nanos": 1}}, "MESSAGE_INVALID", "retry_most"),
        ({"retry_first": {"seconds": 2}, "retry_most": {"seconds": 1}}, "MESSAGE_INVALID", "retry_most"),
        ({"key_field": "customer"}, "MESSAGE_INVALID", "key_field"),
        ({"attempts_max": 5}, "DEAD_LETTERS_UNAVAILABLE", "attempts_max"),
        ({"after_dead_letter": subscriptions_pb2.AFTER_DEAD_LETTER_QUARANTINE}, "DEAD_LETTERS_UNAVAILABLE", "after_"),
        ({"after_dead_letter": 99}, "DEAD_LETTERS_UNAVAILABLE", "after_dead_letter"),
        ({}, "GROUP_UNSUITABLE", "$changeStreamSplitLargeEvent"),
    ],
)
@in_virtual_time
async def test_what_a_group_may_not_say(group: dict[str, Any], reason: str, named: str) -> None:
    async with served() as there:
        feed = feed_pb2.Feed(source="main", database="db", collection="a")
        if reason == "GROUP_UNSUITABLE":
            feed.pipeline.CopyFrom(SPLITS)
        wanted = subscriptions_pb2.Subscription(name="s", feed=feed, group=group)
        request = subscriptions_pb2.CreateSubscriptionRequest(subscription=wanted, start={"latest": {}})
        error = await refused(Subscriptions(there.service).create, request)
        assert error.reason == reason
        assert named in error.message
        if reason == "GROUP_UNSUITABLE":  # an update may not make it so either
            await there.create("s", group={})
            update = subscriptions_pb2.UpdateSubscriptionRequest(
                subscription={"name": "s", "feed": feed}, update_mask={"paths": ["feed"]}
            )
            assert (await refused(Subscriptions(there.service).update, update)).reason == reason


@over(
    ("given", "first_s", "most_s"),
    [
        ({}, 1.0, 300.0),
        ({"retry_first": {"seconds": 10}}, 10.0, 300.0),
        ({"retry_first": {"seconds": 600}}, 600.0, 600.0),
        ({"retry_most": {"nanos": 500_000_000}}, 0.5, 0.5),
        ({"retry_first": {"seconds": 2}, "retry_most": {"seconds": 2}}, 2.0, 2.0),
    ],
)
def test_when_failed_events_are_tried_again(given: dict[str, Any], first_s: float, most_s: float) -> None:
    assert retry_policy(subscriptions_pb2.Group(**given)) == RetryPolicy(first_s, most_s)


@in_virtual_time
async def test_a_group_does_not_share_a_copy() -> None:
    async with served() as there:
        subscriptions = Subscriptions(there.service)
        feed = feed_pb2.Feed(source="main", database="db", collection="a")
        wanted = subscriptions_pb2.Subscription(name="s", feed=feed, group={})
        create = subscriptions_pb2.CreateSubscriptionRequest(subscription=wanted, start={"snapshot": {}})
        seek = subscriptions_pb2.SeekSubscriptionRequest(name="group", to={"snapshot": {}})
        update = subscriptions_pb2.UpdateSubscriptionRequest(
            subscription={"name": "copying", "group": {}}, update_mask={"paths": ["group"]}
        )
        await there.create("group", group={})
        copying = subscriptions_pb2.Subscription(name="copying", feed=feed)
        request = subscriptions_pb2.CreateSubscriptionRequest(subscription=copying, start={"snapshot": {}})
        await call(subscriptions.create, request)
        calls: list[tuple[Any, Any]] = [
            (subscriptions.create, create),
            (subscriptions.seek, seek),
            (subscriptions.update, update),
        ]
        for method, given in calls:
            error = await refused(method, given)
            assert error.reason == "GROUP_UNSUITABLE"
            assert "copy" in error.message


@pytest.mark.parametrize(
    ("group", "named"),
    [
        ({"attempts_max": -1}, "attempts_max"),
        ({"attempts_max": 101}, "attempts_max"),
        ({"after_dead_letter": 99}, "after_dead_letter"),
    ],
)
@in_virtual_time
async def test_what_a_group_with_dead_letters_may_not_say(group: dict[str, Any], named: str) -> None:
    async with served(letters=NoLetters()) as there:
        feed = feed_pb2.Feed(source="main", database="db", collection="a")
        wanted = subscriptions_pb2.Subscription(name="s", feed=feed, group=group)
        request = subscriptions_pb2.CreateSubscriptionRequest(subscription=wanted, start={"latest": {}})
        error = await refused(Subscriptions(there.service).create, request)
        assert error.reason == "MESSAGE_INVALID"
        assert named in error.message
