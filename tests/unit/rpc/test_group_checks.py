"""What the definition of a group may say. `test_join` has what its members may say."""

from typing import Any

import pytest

from feedmux.v1 import feed_pb2, subscriptions_pb2
from feedmux_server.core.delivery.retry import RetryPolicy
from feedmux_server.rpc.group_checks import retry_policy
from tests.tables import over
from tests.unit.rpc.service_support import NoLetters, rejected, served
from tests.virtual_time import in_virtual_time

QUARANTINE = subscriptions_pb2.AFTER_DEAD_LETTER_QUARANTINE


@pytest.mark.parametrize(
    ("letters", "group", "reason", "named"),
    [
        (False, {"reconnect_time": {"seconds": -1}}, "MESSAGE_INVALID", "reconnect_time"),
        (False, {"reconnect_time": {"seconds": 60, "nanos": 1}}, "MESSAGE_INVALID", "reconnect_time"),
        (False, {"retry_first": {"seconds": 0}}, "MESSAGE_INVALID", "retry_first"),
        (False, {"retry_first": {"seconds": -1}}, "MESSAGE_INVALID", "retry_first"),
        (False, {"retry_first": {"seconds": 86_401}}, "MESSAGE_INVALID", "retry_first"),
        (False, {"retry_most": {"nanos": 1}}, "MESSAGE_INVALID", "retry_most"),
        (False, {"retry_first": {"seconds": 2}, "retry_most": {"seconds": 1}}, "MESSAGE_INVALID", "retry_most"),
        (False, {"key_field": "customer"}, "MESSAGE_INVALID", "key_field"),
        (False, {"attempts_max": 5}, "DEAD_LETTERS_UNAVAILABLE", "attempts_max"),
        (False, {"after_dead_letter": QUARANTINE}, "DEAD_LETTERS_UNAVAILABLE", "after_dead_letter"),
        (False, {"after_dead_letter": 99}, "DEAD_LETTERS_UNAVAILABLE", "after_dead_letter"),
        (True, {"attempts_max": -1}, "MESSAGE_INVALID", "attempts_max"),
        (True, {"attempts_max": 101}, "MESSAGE_INVALID", "attempts_max"),
        (True, {"after_dead_letter": 99}, "MESSAGE_INVALID", "after_dead_letter"),
    ],
)
@in_virtual_time
async def test_what_a_group_may_not_say(letters: bool, group: dict[str, Any], reason: str, named: str) -> None:
    async with served(letters=NoLetters() if letters else None) as there:
        error = await rejected(there.create("s", group=group))
        assert error.reason == reason
        assert named in error.message


@in_virtual_time
async def test_a_group_does_not_split_events() -> None:
    splits = feed_pb2.Feed(source="main", database="db", collection="a")
    splits.pipeline.extended_json = '[{"$changeStreamSplitLargeEvent": {}}]'
    async with served() as there:
        await there.create("s", group={})
        for made in (there.create("other", feed=splits, group={}), there.update("s", feed=splits)):
            error = await rejected(made)
            assert error.reason == "GROUP_UNSUITABLE"
            assert "$changeStreamSplitLargeEvent" in error.message


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
        await there.create("group", group={})
        await there.create("copying", start={"snapshot": {}})
        for made in (
            there.create("s", group={}, start={"snapshot": {}}),
            there.seek("group", snapshot={}),
            there.update("copying", group={}),
        ):
            error = await rejected(made)
            assert error.reason == "GROUP_UNSUITABLE"
            assert "copy" in error.message
