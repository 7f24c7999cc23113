"""Where a change stream begins in MongoDB's terms, and what it returns that was read before."""

from typing import Any

import bson
import pytest
from bson.timestamp import Timestamp

from feedmux_server.core.errors import FragmentsChanged
from feedmux_server.core.events.chunk import Chunk, cut_batch
from feedmux_server.core.feeds.feed import FeedSpec, Scope
from feedmux_server.core.feeds.stream_key import stream_key
from feedmux_server.core.positions.join_point import JoinPoint
from feedmux_server.core.positions.resume_token import Given, ResumeToken
from feedmux_server.source.stream_request import StreamRequest
from tests.sim.events import BEGIN, event, event_token
from tests.tables import over
from tests.unit.core.delivery.streams_support import mark, token
from tests.unit.core.positions.test_long_tokens import document as long_document
from tests.unit.core.positions.test_long_tokens import key_string

KEY = stream_key(FeedSpec(Scope("main", "shop", "orders")))
INVALIDATE = event_token(BEGIN + 10, invalidate=True)


def timestamp(cluster_time: int) -> Timestamp:
    return Timestamp(cluster_time >> 32, cluster_time & 0xFFFF_FFFF)


def start(request: StreamRequest) -> dict[str, Any]:
    """The option with which the stream begins; a token as the bytes that it came from."""
    stage = request.stages()[0]["$changeStream"]
    found = {name: stage[name] for name in ("resumeAfter", "startAfter", "startAtOperationTime") if name in stage}
    return {name: value if isinstance(value, Timestamp) else bson.encode(value) for name, value in found.items()}


@over(
    ("at", "wanted"),
    [
        (JoinPoint(token(1), exact=True), {"resumeAfter": token(1).raw}),
        (JoinPoint(INVALIDATE, exact=True), {"startAfter": INVALIDATE.raw}),
        (JoinPoint(token(1), native="resume_after"), {"resumeAfter": token(1).raw}),
        (JoinPoint(token(1), native="start_after"), {"startAfter": token(1).raw}),
        (JoinPoint(token(1)), {"startAtOperationTime": timestamp(token(1).cluster_time)}),
        (JoinPoint(INVALIDATE), {"startAtOperationTime": timestamp(INVALIDATE.cluster_time + 1)}),
    ],
)
def test_the_option_of_a_start(at: JoinPoint, wanted: dict[str, Any]) -> None:
    assert start(StreamRequest(KEY, at)) == wanted


def chunk(*numbers: int) -> Chunk:
    data = b"".join(event(n, token(n)).data for n in numbers)
    [made] = cut_batch(data, mark(0), token(numbers[-1]), 0.0, bytes_max=1 << 20)
    return made


def counts(chunks: list[Chunk]) -> list[int]:
    return [each.count for each in chunks]


def test_a_start_at_a_time_drops_what_was_read_before() -> None:
    request = StreamRequest(KEY, JoinPoint(token(3)))
    request.stages()
    assert counts(request.after([chunk(1, 2)])) == []
    kept = request.after([chunk(2, 3, 4), chunk(5)])
    assert counts(kept) == [1, 1]
    assert kept[0].start == token(3)
    assert counts(request.after([chunk(1)])) == [1], "only until the first event after the position"


def parts(count: int, size: int = 0) -> list[Chunk]:
    """An event in so many fragments, each of which is a chunk, or whole; `size` is that of its `_id`."""
    if size:
        tokens = [key_string("x" * size, version=2, fragment=n) for n in range(count)] or [
            key_string("x" * size, version=2)
        ]
        raw = [bson.decode(long_document(each)) for each in tokens]
    else:
        raw = [bson.decode(each.raw) for each in part_tokens(count)]
    fields = [{"splitEvent": {"fragment": n + 1, "of": count}} for n in range(count)] or [{}]
    events = [{"_id": each} | more for each, more in zip(raw, fields, strict=True)]
    return cut_batch(b"".join(map(bson.encode, events)), mark(0), None, 0.0, bytes_max=1, split=True)


def part_tokens(count: int) -> list[ResumeToken]:
    return [event_token(BEGIN, fragment=n) for n in range(count)] or [event_token(BEGIN, version=2)]


@over(
    ("place", "now", "left"),
    [
        (event_token(BEGIN, fragment=0).event_start(), 2, 2),
        (event_token(BEGIN, fragment=1).event_start(), 0, 1),
        (event_token(BEGIN, fragment=1).after_event(), 3, 0),
        (event_token(BEGIN, fragment=1).after_event(), 0, 0),
        (event_token(BEGIN, version=2).after_event(), 2, 0),
        (event_token(BEGIN, fragment=0), 2, 1),
        (event_token(BEGIN, fragment=1), 2, 0),
    ],
)
def test_an_event_that_another_feed_has_in_other_fragments(place: ResumeToken, now: int, left: int) -> None:
    request = StreamRequest(KEY, JoinPoint(place))
    assert start(request) == {"startAtOperationTime": timestamp(BEGIN)}
    kept = request.after(parts(now))
    assert len(kept) == left
    assert not kept or kept[0].start == place


@over("size", [0, 10_000])
@over("now", [0, 1, 2])
def test_a_fragment_that_is_no_more(size: int, now: int) -> None:
    """Of a token of a client or a long one, MongoDB is asked for the time, and cannot say so."""
    place = parts(3, size)[2].end.given_as(Given.AS_TIME)
    request = StreamRequest(KEY, JoinPoint(place))
    request.stages()
    with pytest.raises(FragmentsChanged):
        request.after(parts(now, size))
    assert request.after(parts(3, size)) == []


@over("at", [JoinPoint(token(3), exact=True), JoinPoint(mark(3)), JoinPoint(INVALIDATE)])
def test_any_other_start_drops_nothing(at: JoinPoint) -> None:
    request = StreamRequest(KEY, at)
    request.stages()
    assert counts(request.after([chunk(1, 2)])) == [2]


def test_the_start_of_a_user_stays_until_the_first_event() -> None:
    request = StreamRequest(KEY, JoinPoint(token(1), native="start_after"))
    request.advance(mark(2), has_events=False)
    assert start(request) == {"startAfter": mark(2).raw}
    request.advance(token(3), has_events=True)
    assert start(request) == {"resumeAfter": token(3).raw}


def test_of_a_long_token_mongodb_is_asked_for_its_time() -> None:
    """Unless a client gave the token, and MongoDB is to judge it."""
    long = ResumeToken.from_client(long_document(key_string("x" * 9_000, 7)))
    request = StreamRequest(KEY, JoinPoint(long.as_summary(), exact=True))
    assert start(request) == {"startAtOperationTime": timestamp(long.cluster_time)}
    assert not request.by_time(), "it is the same request"
    keys = ["x" * 9_000 + each for each in ("a", "b", "", "c")]  # of four shards, in any order of their digests
    data = b"".join(bson.encode({"_id": {"_data": key_string(key, 7).hex().upper()}}) for key in keys)
    [kept] = request.after(cut_batch(data, mark(0), None, 0.0, bytes_max=1 << 20))
    assert kept.bson is not None
    assert (kept.count, bson.decode(kept.bson.data)["_id"]) == (1, bson.decode(long_document(key_string(keys[-1], 7))))
    assert start(StreamRequest(KEY, JoinPoint(long, native="resume_after"))) == {"resumeAfter": long.raw}


def test_only_a_token_of_feedmux_can_be_replaced_by_its_time() -> None:
    request = StreamRequest(KEY, JoinPoint(token(1), exact=True))
    assert request.by_time()
    assert start(request) == {"startAtOperationTime": timestamp(token(1).cluster_time)}
    assert not request.by_time()
    assert not StreamRequest(KEY, JoinPoint(token(1), native="resume_after")).by_time()
