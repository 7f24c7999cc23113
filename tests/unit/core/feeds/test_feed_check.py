"""The checks of a feed's pipeline, collation and comment, and what names their verdict."""

import json
from dataclasses import replace
from typing import Any

import bson
import pytest

from feedmux_server.core.errors import FeedmuxError
from feedmux_server.core.feeds.feed_check import FeedParts, check_parts
from tests.tables import over
from tests.unit.core.feeds.queries import PAIRS, QUERIES

MATCH = bson.encode({"pipeline": [{"$match": {"a": 1}}]})
WHERE = bson.encode({"pipeline": [{"$match": {"$where": "1"}}]})


@over(
    ("parts", "pipeline"),
    [
        (FeedParts(), b""),
        (FeedParts(is_json=True), b""),
        (FeedParts(MATCH), MATCH),
        (FeedParts(b'[{"$match": {"a": 1}}]', is_json=True), MATCH),
        (FeedParts(MATCH, collation=bson.encode({"locale": "x"}), comment=bson.encode({"comment": {"a": 1}})), MATCH),
    ],
)
def test_a_pipeline_becomes_bson(parts: FeedParts, pipeline: bytes) -> None:
    assert check_parts(parts) == pipeline


@over(
    ("parts", "reason", "field"),
    [
        (FeedParts(b"[{]", is_json=True), "PIPELINE_INVALID", "feed.pipeline"),
        (FeedParts(b"x" * 9), "BSON_INVALID", "feed.pipeline"),
        (FeedParts(bson.encode({"pipeline": [{"$out": "x"}]})), "STAGE_NOT_ALLOWED", "feed.pipeline"),
        (FeedParts(MATCH, collation=b"junk"), "BSON_INVALID", "feed.collation"),
        (FeedParts(MATCH, comment=b"junk"), "BSON_INVALID", "feed.comment"),
        (FeedParts(MATCH, comment=bson.encode({})), "MESSAGE_INVALID", "feed.comment"),
        (FeedParts(MATCH, comment=bson.encode({"x": {"comment": 1}})), "MESSAGE_INVALID", "feed.comment"),
        (FeedParts(MATCH, comment=bson.encode({"comment": 1, "x": 1})), "MESSAGE_INVALID", "feed.comment"),
    ],
)
def test_what_is_rejected_is_named(parts: FeedParts, reason: str, field: str) -> None:
    with pytest.raises(FeedmuxError) as caught:
        check_parts(parts)
    assert (caught.value.reason, caught.value.field) == (reason, field)


@over("bounded", [True, False])
def test_both_notations_have_the_same_verdict(bounded: bool) -> None:
    conditions = [{f"fullDocument.{name}": each} for name, pairs in PAIRS.items() for each in pairs]
    verdicts = []
    for stage in ({"$match": each} for each in (*conditions, *QUERIES)):
        text = FeedParts(json.dumps([stage]).encode(), is_json=True, bounded=bounded)
        assert verdict(text) == verdict(FeedParts(bson.encode({"pipeline": [stage]}), bounded=bounded))
        verdicts.append(verdict(text))
    assert {type(each) for each in verdicts} == ({bytes, tuple} if bounded else {bytes})


def verdict(parts: FeedParts) -> bytes | tuple[str, str]:
    try:
        return check_parts(parts)
    except FeedmuxError as error:
        return error.message, error.metadata["path"]


@over(
    "other",
    [
        {"pipeline": WHERE},
        {"is_json": True},
        {"bounded": False},
        {"collation": b"c"},
        {"comment": b"c"},
    ],
)
def test_a_verdict_is_of_these_parts_alone(other: dict[str, Any]) -> None:
    parts = FeedParts(MATCH)
    assert parts.digest("a") == FeedParts(bytes(MATCH)).digest("a")
    assert parts.digest("a") != parts.digest("b"), "tenants learn nothing of each other's pipelines"
    assert replace(parts, **other).digest("a") != parts.digest("a")


def test_bytes_of_one_part_do_not_pass_for_those_of_the_next() -> None:
    digests = {
        FeedParts(b"xy").digest("a"),
        FeedParts(b"x", collation=b"y").digest("a"),
        FeedParts(b"x", comment=b"y").digest("a"),
        FeedParts(b"y").digest("ax"),
    }
    assert len(digests) == 4
