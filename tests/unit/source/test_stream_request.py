"""Where a change stream begins in MongoDB's terms, and what it returns that was read before."""

from typing import Any

import bson
from bson.timestamp import Timestamp

from feedmux_server.core.events.chunk import Chunk, cut_batch
from feedmux_server.core.feeds.feed import FeedSpec, Scope
from feedmux_server.core.feeds.stream_key import stream_key
from feedmux_server.core.positions.join_point import JoinPoint
from feedmux_server.core.positions.resume_token import ResumeToken
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
