"""Values as messages, and messages as values."""

import math
from collections import ChainMap, UserList, deque
from datetime import UTC, datetime
from typing import Any

import bson
import pytest
from bson import SON
from bson.datetime_ms import DatetimeMS
from bson.errors import InvalidDocument
from bson.raw_bson import RawBSONDocument

from feedmux import requests
from feedmux.feeds import Feed, OnHistoryLost, OnInvalidate
from feedmux.positions import FeedPosition
from feedmux.requests import subscription_value
from feedmux.v1 import change_feed_pb2, feed_pb2, subscriptions_pb2
from feedmux_server.core.feeds.feed import Scope, route_of
from tests.tables import over
from tests.unit.client.scripted_server import token

WHOLE = Feed(
    "shop",
    "orders",
    [{"$match": {"at": datetime(2026, 11, 21, tzinfo=UTC)}}],
    full_document="updateLookup",
    full_document_before_change="required",
    show_expanded_events=True,
    collation={"locale": "de"},
    comment={"why": [1]},
    batch_size=5,
    max_await_time_ms=6,
    read_preference="nearest",
    read_concern="majority",
    match_collection_uuid_for_update_lookup=True,
    source="second",
    extra_options=("showCommitTimestamp", "ignoreRemovedShards"),
)


def test_policies_of_a_newer_server_read_as_their_defaults() -> None:
    # on_invalidate and on_history_lost, fields 3 and 4: 99 is a value that nobody knows.
    stored = subscriptions_pb2.Subscription.FromString(b"\x0a\x01s\x18\x63\x20\x63")
    info = subscription_value(stored)
    assert (int(stored.on_invalidate), info.name) == (99, "s")
    assert (info.on_invalidate, info.on_history_lost) == ("stop", "fail")


@over("on_invalidate", ["stop", "continue"])
@over("on_history_lost", ["fail", "earliest", "snapshot"])
def test_policies_come_back_as_they_were(on_invalidate: OnInvalidate, on_history_lost: OnHistoryLost) -> None:
    stored = requests.subscription_message("s", None, on_invalidate, on_history_lost)
    info = subscription_value(stored)
    assert (info.on_invalidate, info.on_history_lost) == (on_invalidate, on_history_lost)


@over("feed", [WHOLE, Feed(source="main"), Feed("shop", pipeline='[{"$match": {}}]', source="main")])
def test_a_feed_comes_back_as_it_was(feed: Feed) -> None:
    found = requests.feed_value(requests.feed_message(feed, "main"))
    naive = bson.decode(bson.encode({"pipeline": feed.pipeline}))["pipeline"]
    assert found.pipeline == naive
    for name in Feed.__dataclass_fields__.keys() - {"pipeline"}:
        assert getattr(found, name) == getattr(feed, name), name


@over("given", ["showCommitTimestamp", {"showCommitTimestamp": False}])
def test_options_are_a_list_of_names(given: Any) -> None:
    with pytest.raises(TypeError, match="a list of names"):
        requests.feed_message(Feed("shop", extra_options=given), "main")


@over("feed", [Feed(""), Feed("shop", ""), Feed("", "orders")])
def test_an_empty_name_does_not_widen_a_feed(feed: Feed) -> None:
    with pytest.raises(ValueError, match=r"(database|collection) is empty"):
        requests.feed_message(feed, "main")


def test_the_source_of_a_client_is_that_of_feeds_without_one() -> None:
    assert requests.feed_message(Feed("shop"), "second").source == "second"
    assert requests.feed_message(WHOLE, "main").source == "second"


def test_values_that_bson_cannot_hold_are_refused() -> None:
    with pytest.raises(InvalidDocument):
        requests.feed_message(Feed("shop", pipeline=[{"$match": {"x": object()}}]), "main")


def test_a_condition_is_sent_whatever_its_value() -> None:
    nothing = [None, [None], {"a": None}, {}, [], "", 0, False, math.nan, SON(a=None), ChainMap({"a": None})]
    stages = [{"$match": {"fullDocument.owner": value}} for value in nothing]
    for value, stage in zip(nothing, stages, strict=True):
        message = requests.feed_message(Feed("shop", pipeline=[stage], collation={"a": value}, comment=value), "main")
        if value is not None:
            assert message.comment == bson.encode({"comment": value})
        assert message.pipeline.bson == bson.encode({"pipeline": [stage]})
        assert message.collation == bson.encode({"a": value})


def test_an_empty_text_is_sent_for_the_server_to_reject() -> None:
    message = requests.feed_message(Feed("shop", "orders", ""), "main")
    assert message.pipeline.WhichOneof("notation") == "extended_json"


def test_what_is_no_list_of_stages_is_refused() -> None:
    """A generator's stages were sent once: the second session of the feed had no condition."""
    stages = [{"$match": {"fullDocument.owner": "x"}}]
    generator = (each for each in stages)
    wrong: list[Any] = [iter(stages), generator, map(dict, stages), stages[0], {}, set(), 0, False, b"", b"[]"]
    for each in wrong:
        feed = Feed("shop", pipeline=each)
        for _ in range(2):
            with pytest.raises(TypeError, match="pipeline is a list of stages"):
                requests.feed_message(feed, "main")
    lists: list[Any] = [tuple(stages), deque(stages), UserList(stages)]
    for each in lists:
        feed = Feed("shop", pipeline=each)
        for _ in range(2):
            assert requests.feed_message(feed, "main").pipeline.bson == bson.encode({"pipeline": stages})


@over(("database", "collection"), [(None, None), ("shop", None), ("shop", "orders.eu")])
def test_a_route_is_the_one_that_the_server_reports(database: str | None, collection: str | None) -> None:
    message = requests.feed_message(Feed(database, collection), "main")
    assert requests.route_of(message) == route_of(Scope("main", database or "", collection or ""))


def test_the_last_ack_is_a_position_or_else_a_token() -> None:
    raw = bson.encode(token(1))
    both = requests.last_acked_message(FeedPosition(b"P", raw), 3)
    assert (both.WhichOneof("place"), both.position, both.epoch) == ("position", b"P", 3)
    assert requests.last_acked_message(FeedPosition(token=raw), 3).resume_token == raw


def test_formats() -> None:
    assert requests.format_message("extended_json_canonical") == 3
    with pytest.raises(ValueError, match="format is one of bson, extended_json_relaxed, extended_json_canonical"):
        requests.format_message("json")  # type: ignore[arg-type]


def test_what_an_explanation_leaves_out_is_unknown() -> None:
    found = requests.explanation_value(change_feed_pb2.ExplainResponse(stream_key="k"))
    assert (found.refusal, found.oplog_headroom_s, found.images, found.withheld) == (None, None, (), ())


def test_a_date_that_python_cannot_hold_comes_back_too() -> None:
    far = Feed("shop", pipeline=[{"$match": {"at": {"$lt": DatetimeMS(1 << 60)}}}], comment=DatetimeMS(1 << 60))
    message = requests.feed_message(far, "main")
    assert requests.feed_message(requests.feed_value(message), "main") == message


SAMPLES = {
    "a name twice": (b"\x0aa\0" * 2),
    "a DBRef out of order": b"\x10$id\0\1\0\0\0\x02$ref\0\2\0\0\0c\0",
    "a symbol": b"\x0ea\0\2\0\0\0s\0",
    "undefined": b"\x06a\0",
    "a regular expression with an option of its own": b"\x0ba\0^a\0xz\0",
}


@over("content", SAMPLES.values())
def test_a_stored_filter_can_be_sent_again_as_it_was(content: bytes) -> None:
    match = RawBSONDocument((len(content) + 5).to_bytes(4, "little") + content + b"\0")
    stored = feed_pb2.Feed(
        source="main", pipeline=feed_pb2.Pipeline(bson=bson.encode({"pipeline": [{"$match": match}]}))
    )
    assert requests.feed_message(requests.feed_value(stored), "") == stored
