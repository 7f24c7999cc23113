"""Every field of every request has a bound on its length."""

from pathlib import Path
from typing import Any

import bson
import pytest

from feedmux.v1 import change_feed_pb2, feed_pb2, operator_pb2, subscriptions_pb2
from feedmux_server.core.errors import FeedmuxError
from feedmux_server.rpc import bounds
from feedmux_server.rpc.bounds import BOUNDS, SMALL_BYTES, check_shape, unbounded
from feedmux_server.rpc.convert import parse
from feedmux_server.rpc.subscriptions import DEFINITION_BYTES_MAX
from tests.tables import over

SERVICES = [
    service
    for file in (change_feed_pb2, subscriptions_pb2, operator_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
]
PAGE = (Path(__file__).parents[3] / "docs" / "protocol.md").read_text()
ROWS = {
    "a pipeline in BSON": "feedmux.v1.Pipeline.bson",
    "a pipeline in JSON": "feedmux.v1.Pipeline.extended_json",
    "`comment`, `collation`": "feedmux.v1.Feed.comment",
    "a position": "feedmux.v1.Start.position",
    "a resume token of MongoDB": "feedmux.v1.Start.resume_after",
    "names, `instance_id`, `page_token`": "feedmux.v1.Open.instance_id",
    "any other text": "feedmux.v1.Feed.read_concern",
}
REQUESTS = {method.full_name: method.input_type for service in SERVICES for method in service.methods}


@over("method", REQUESTS)
def test_every_field_of_every_request_has_a_bound(method: str) -> None:
    assert not list(unbounded(REQUESTS[method]))


def test_a_field_without_a_bound_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(bounds.BOUNDS, "feedmux.v1.Feed.comment")
    assert "feedmux.v1.Feed.comment" in list(unbounded(REQUESTS["feedmux.v1.ChangeFeed.Subscribe"]))


def test_every_bound_is_of_a_field_there_is() -> None:
    names = {field.full_name for kind in REQUESTS.values() for field in _fields(kind)}
    assert set(BOUNDS) <= names


def _fields(kind: Any) -> list[Any]:
    found: list[Any] = []
    for field in kind.fields:
        found.append(field)
        if field.message_type is not None:
            found += _fields(field.message_type)
    return found


def refused(kind: Any, data: bytes) -> str:
    with pytest.raises(FeedmuxError) as caught:
        parse(kind, data)
    assert caught.value.status == "INVALID_ARGUMENT"
    return caught.value.reason.value


def watch(**fields: Any) -> bytes:
    return change_feed_pb2.WatchRequest(feed=feed_pb2.Feed(**fields)).SerializeToString()


def test_what_is_over_its_bound() -> None:
    kind = change_feed_pb2.WatchRequest
    assert refused(kind, watch(source="s" * 1025)) == "NAME_INVALID"
    assert refused(kind, watch(source="é" * 513)) == "NAME_INVALID"
    assert refused(kind, watch(comment=b"x" * 4097)) == "MESSAGE_INVALID"
    assert refused(kind, watch(read_concern="x" * 257)) == "MESSAGE_INVALID"
    assert refused(kind, watch(pipeline=feed_pb2.Pipeline(bson=b"x" * 65537))) == "PIPELINE_INVALID"
    assert refused(kind, watch(pipeline=feed_pb2.Pipeline(extended_json="x" * (192 * 1024 + 1)))) == "PIPELINE_INVALID"
    start = feed_pb2.Start(position=b"x" * 4097)
    assert refused(kind, change_feed_pb2.WatchRequest(start=start).SerializeToString()) == "POSITION_INVALID"
    for paths in (["feed"] * 17, ["x" * 257]):
        update = subscriptions_pb2.UpdateSubscriptionRequest()
        update.update_mask.paths.extend(paths)
        assert refused(subscriptions_pb2.UpdateSubscriptionRequest, update.SerializeToString()) == "MESSAGE_INVALID"


def test_repeated_fields_have_a_bound_in_count() -> None:
    kind, settle = change_feed_pb2.SubscribeRequest, change_feed_pb2.Settle
    many = [settle.Range(first=1, last=1)] * bounds.RANGES_MAX
    for most, more in (
        (kind(settle=settle(done=many)), kind(settle=settle(done=[*many, many[0]]))),
        (kind(open=change_feed_pb2.Open(held=[1] * 2000)), kind(open=change_feed_pb2.Open(held=[1] * 2001))),
    ):
        parse(kind, most.SerializeToString())
        assert refused(kind, more.SerializeToString()) == "MESSAGE_INVALID"
    failed = settle.Failed(reason="x" * 1025)
    assert refused(kind, kind(settle=settle(failed=[failed])).SerializeToString()) == "MESSAGE_INVALID"


def test_values_without_bounds_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Settle may hold a thousand ranges: a millisecond of the event loop."""
    visits, check = 0, bounds._check

    def visited(message: Any, path: str) -> None:
        nonlocal visits
        visits += 1
        check(message, path)

    monkeypatch.setattr(bounds, "_check", visited)
    settle = change_feed_pb2.Settle(done=[{"first": n, "last": n} for n in range(1_000)])
    settle.failed.add(delivery_sequence=1, reason="r")
    request = change_feed_pb2.SubscribeRequest(settle=settle)
    bounds.check_bounds(request, request.ByteSize())
    assert visits == 3  # the request, the Settle, and the failure


def test_a_pipeline_and_a_token_may_both_be_long() -> None:
    kind = change_feed_pb2.WatchRequest
    feed = feed_pb2.Feed(pipeline=feed_pb2.Pipeline(extended_json="x" * 120_000), comment=b"x" * 4000)
    at_bound = kind(feed=feed, start=feed_pb2.Start(start_after=b"x" * bounds.TOKEN_BYTES_MAX))
    parse(kind, at_bound.SerializeToString())
    at_bound.start.start_after += b"x"
    with pytest.raises(FeedmuxError, match="use the position"):
        parse(kind, at_bound.SerializeToString())
    other = kind(feed=feed).SerializeToString()
    # protobuf merges messages of one field, and takes the last of its values.
    assert refused(kind, other + other[:] + kind(feed=feed).SerializeToString()) == "MESSAGE_INVALID"


def test_what_is_at_its_bound() -> None:
    comment = bson.encode({"comment": "x" * 4000})
    pipeline = feed_pb2.Pipeline(extended_json="x" * 192 * 1024)
    parse(change_feed_pb2.WatchRequest, watch(source="s" * 1024, comment=comment, pipeline=pipeline))


MANY: dict[str, tuple[Any, bytes]] = {
    "paths": (subscriptions_pb2.UpdateSubscriptionRequest, b"\x12\xf0\xff\x0f" + b"\x0a\x00" * (0x3FFF0 // 2)),
    "a oneof that changes": (change_feed_pb2.Open, b"\x0a\x00\x12\x00" * 60_000),
    "a message again and again": (change_feed_pb2.Open, b"\x12\x00" * 120_000),
    "unknown fields": (change_feed_pb2.Open, b"\xf8\x7f\x00" * 80_000),
    "an unknown field": (change_feed_pb2.Open, b"\xfa\x7f\x80\x80\x0f" + b"x" * 0x3C000),
    "cut": (change_feed_pb2.Open, b"\x12\xff\xff\xff\x7f" + b"x" * 0x3C000),
    "a varint without end": (change_feed_pb2.Open, b"\xff" * 0x3C000),
}


@over("case", MANY)
def test_a_large_message_is_one_long_field(case: str) -> None:
    kind, data = MANY[case]
    with pytest.raises(FeedmuxError) as caught:
        check_shape(kind.DESCRIPTOR, data)
    assert caught.value.reason.value == "MESSAGE_INVALID"
    assert len(data) > SMALL_BYTES


def test_the_page_says_the_bounds() -> None:
    for text, field in ROWS.items():
        [row] = [line for line in PAGE.splitlines() if line.startswith(f"| {text} |")]
        assert f"| {BOUNDS[field].bytes_max:,}" in row
        assert row.endswith(f"| `{BOUNDS[field].reason.value}` |")
    assert f"as it is stored | {DEFINITION_BYTES_MAX:,} |" in PAGE
