"""Messages of the protocol as values of the core: defaults, bounds, and what is named when a field is wrong."""

from typing import Any

import bson
import pytest

from feedmux.v1 import change_feed_pb2 as wire
from feedmux.v1 import feed_pb2, subscriptions_pb2
from feedmux_server.core.delivery.taken import BSON
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.rpc import convert
from feedmux_server.rpc.bounds import TOKEN_BYTES_MAX
from tests.tables import over


def opened(heartbeat_s: float) -> wire.Open:
    return wire.Open(heartbeat_interval=convert.duration(heartbeat_s))


ZERO = [feed_pb2.Start(start_at_operation_time={"increment": increment}) for increment in (0, 1)]
"""No event has such a time."""
WRONG: list[tuple[Any, ErrorReason, str]] = [
    (lambda: convert.start(feed_pb2.Start(time={"seconds": -1})), ErrorReason.MESSAGE_INVALID, "start.time"),
    (lambda: convert.start(feed_pb2.Start(time={"seconds": 0})), ErrorReason.MESSAGE_INVALID, "start.time"),
    (lambda: convert.start(feed_pb2.Start(time={"seconds": 2**32})), ErrorReason.MESSAGE_INVALID, "start.time"),
    *((lambda at=at: convert.start(at), ErrorReason.MESSAGE_INVALID, "start.start_at_operation_time") for at in ZERO),
    (lambda: convert.start(feed_pb2.Start(start_after=b"x")), ErrorReason.BSON_INVALID, "start.start_after"),
    (lambda: convert.resume_token(bytes(TOKEN_BYTES_MAX + 1), "f"), ErrorReason.MESSAGE_INVALID, "f"),
    (lambda: convert.resume_token(bson.encode(dict.fromkeys("abcdefghi", 1)), "f"), ErrorReason.POSITION_INVALID, "f"),
    (lambda: convert.heartbeat_s(opened(0.9)), ErrorReason.MESSAGE_INVALID, "heartbeat_interval"),
    (lambda: convert.heartbeat_s(opened(60.1)), ErrorReason.MESSAGE_INVALID, "heartbeat_interval"),
    (lambda: convert.message_bytes_max(64 * 1024 - 1), ErrorReason.MESSAGE_INVALID, "message_bytes_max"),
    (lambda: convert.message_bytes_max((64 << 20) + 1), ErrorReason.MESSAGE_INVALID, "message_bytes_max"),
    (lambda: convert.wire_format(99), ErrorReason.MESSAGE_INVALID, "format"),
]


@over(("convert_", "reason", "field"), WRONG)
def test_what_is_out_of_range_is_named(convert_: Any, reason: ErrorReason, field: str) -> None:
    with pytest.raises(FeedmuxError) as caught:
        convert_()
    assert (caught.value.reason, caught.value.field) == (reason, field)


def test_what_is_a_definition() -> None:
    stored = convert.definition(subscriptions_pb2.Subscription(name="s", feed=feed_pb2.Feed(source="main")))
    assert convert.is_definition(stored)
    for garbage in (b"", b"\xff", b"x" * 16):  # the last one is an unknown field
        assert not convert.is_definition(garbage), garbage


@over("pipeline", [feed_pb2.Pipeline(extended_json=""), feed_pb2.Pipeline(bson=b"")])
def test_an_empty_pipeline_is_rejected_unless_an_earlier_version_stored_it(pipeline: feed_pb2.Pipeline) -> None:
    feed = feed_pb2.Feed(source="main", pipeline=pipeline)
    with pytest.raises(FeedmuxError) as caught:
        convert.feed_parts(feed, bounded=True)
    assert (caught.value.reason, caught.value.field) == (ErrorReason.PIPELINE_INVALID, "feed.pipeline")
    stored = convert.stored_content(convert.definition(subscriptions_pb2.Subscription(feed=feed)))
    assert convert.feed_parts(stored.feed, bounded=True).pipeline == b""


def test_defaults_and_bounds() -> None:
    assert [convert.heartbeat_s(each) for each in (wire.Open(), opened(60.0))] == [10.0, 60.0]
    assert [convert.message_bytes_max(each) for each in (0, 64 * 1024, 64 << 20)] == [1 << 20, 64 * 1024, 64 << 20]
    assert convert.wire_format(feed_pb2.FORMAT_UNSPECIFIED) == convert.wire_format(feed_pb2.FORMAT_BSON) == BSON


@over("name", ["batch_size", "max_await_time_ms"])
def test_numbers_of_a_feed_are_not_negative(name: str) -> None:
    more: dict[str, Any] = {name: -1}
    with pytest.raises(FeedmuxError) as caught:
        convert.feed_spec(feed_pb2.Feed(source="main", database="d", **more), bounded=True)
    assert caught.value.field == f"feed.{name}"


def test_options_of_newer_versions_are_known_by_name_and_in_no_order() -> None:
    feeds = [
        feed_pb2.Feed(source="main", extra_options=["showSystemEvents", "showCommitTimestamp"]),
        feed_pb2.Feed(source="main", extra_options=["showCommitTimestamp", "showSystemEvents", "showCommitTimestamp"]),
    ]
    one, other = (convert.feed_spec(feed, bounded=True) for feed in feeds)
    assert one == other
    assert one.extra_options == ("showCommitTimestamp", "showSystemEvents")
    for name in ("resumeAfter", "allChangesForCluster", ""):
        with pytest.raises(FeedmuxError, match="showRawUpdateDescription") as caught:
            convert.feed_spec(feed_pb2.Feed(source="main", extra_options=[name]), bounded=True)
        assert caught.value.field == "feed.extra_options"


def test_what_is_no_message_of_its_kind() -> None:
    with pytest.raises(FeedmuxError, match=r"WatchRequest") as caught:
        convert.parse(wire.WatchRequest, b"\x0a\xff")
    assert caught.value.reason is ErrorReason.MESSAGE_INVALID


def test_a_stored_definition_holds_what_its_user_defines_alone() -> None:
    defined: dict[str, Any] = {"feed": feed_pb2.Feed(source="main"), "on_invalidate": feed_pb2.ON_INVALIDATE_CONTINUE}
    one = subscriptions_pb2.Subscription(name="a", etag="x", epoch=7, **defined)
    assert convert.definition(one) == convert.definition(subscriptions_pb2.Subscription(name="b", **defined))
    assert subscriptions_pb2.Subscription.FromString(convert.definition(one)).name == ""


def test_the_id_of_a_copied_document_is_accepted_whatever_its_own_id_is() -> None:
    key = {name: {"deep": [1] * 20} for name in "abcdefghijkl"}
    raw = bson.encode({"_data": "82", "snapshot": {"_id": key}})
    assert convert.resume_token(raw, "t") == raw
    with pytest.raises(FeedmuxError):
        convert.resume_token(bson.encode({"_data": "82", "other": {"_id": key}}), "t")
