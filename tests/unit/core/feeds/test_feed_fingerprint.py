from dataclasses import fields, replace
from typing import Any

import bson
import pytest

from feedmux_server.core.errors import FeedmuxError
from feedmux_server.core.feeds.feed import FeedSpec, Scope
from feedmux_server.core.feeds.feed_fingerprint import check_fingerprint, feed_fingerprint
from feedmux_server.core.feeds.pipeline_policy import pipeline_from_extended_json
from tests.tables import over

STAGES = [{"$match": {"operationType": "insert", "fullDocument.n": {"$gt": 3}}}, {"$unset": "a"}]
SPEC = FeedSpec(Scope("main", "shop", "orders"), pipeline=bson.encode({"pipeline": STAGES}))
CHANGES: list[dict[str, Any]] = [
    {"scope": Scope("other", "shop", "orders")},
    {"scope": Scope("main", "shopo", "rders")},
    {"scope": Scope("main", "shop")},
    {"scope": Scope("main")},
    {"pipeline": b""},
    {"pipeline": bson.encode({"pipeline": STAGES[::-1]})},
    {"full_document": "updateLookup"},
    {"full_document_before_change": "updateLookup"},
    {"show_expanded_events": True},
    {"match_collection_uuid_for_update_lookup": True},
    {"extra_options": ("showCommitTimestamp",)},
    {"extra_options": ("ignoreRemovedShards", "showCommitTimestamp")},
    {"collation": bson.encode({"locale": "de"})},
    {"read_concern": "local"},
]
OTHERS = [replace(SPEC, **each) for each in CHANGES]
SAME = [
    replace(SPEC, comment=bson.encode({"comment": "x"})),
    replace(SPEC, batch_size=7),
    replace(SPEC, max_await_time_ms=3),
    replace(SPEC, bounded=True),
    replace(SPEC, read_preference="secondary"),
    replace(SPEC, full_document="default"),
    replace(SPEC, full_document_before_change="off"),
    replace(SPEC, read_concern="majority"),
]


def test_every_field_that_decides_what_comes_separates_feeds() -> None:
    assert len({feed_fingerprint(each) for each in (SPEC, *OTHERS)}) == len(OTHERS) + 1
    told = {
        field.name
        for field in fields(FeedSpec)
        for other in (*OTHERS, *SAME)
        if getattr(other, field.name) != getattr(SPEC, field.name)
    }
    assert told == {field.name for field in fields(FeedSpec)}, "a new field: decide which kind it is"


@over("same", SAME)
def test_what_changes_no_event_changes_no_fingerprint(same: FeedSpec) -> None:
    assert feed_fingerprint(same) == feed_fingerprint(SPEC)
    check_fingerprint(same, feed_fingerprint(SPEC))


@over(
    "text",
    [
        '[{"$match": {"operationType": "insert", "fullDocument.n": {"$gt": 3}}}, {"$unset": "a"}]',
        '[ {"$match":{"operationType":"\\u0069nsert","fullDocument.n":{"$gt":{"$numberInt":"3"}}}},\n{"$unset":"a"}]',
    ],
)
def test_the_notation_does_not_matter(text: str) -> None:
    assert feed_fingerprint(replace(SPEC, pipeline=pipeline_from_extended_json(text))) == feed_fingerprint(SPEC)


def test_no_pipeline_and_an_empty_one_are_the_same() -> None:
    none = replace(SPEC, pipeline=b"")
    assert feed_fingerprint(replace(SPEC, pipeline=bson.encode({"pipeline": []}))) == feed_fingerprint(none)


def test_the_fingerprint_is_stable_over_releases() -> None:
    """Spark's checkpoints contain the fingerprint: if it changes, every query fails at its next start."""
    assert feed_fingerprint(SPEC).hex() == "c33339a7d1a727283e3d29b99434ce5b"


@over(
    ("given", "reason"),
    [(b"x", "FEED_CHANGED"), (feed_fingerprint(SPEC)[:8], "FEED_CHANGED"), (bytes(65), "MESSAGE_INVALID")],
)
def test_another_fingerprint_is_rejected(given: bytes, reason: str) -> None:
    with pytest.raises(FeedmuxError) as caught:
        check_fingerprint(SPEC, given)
    assert (caught.value.reason, caught.value.field) == (reason, "feed_fingerprint")


def test_no_fingerprint_is_accepted() -> None:
    check_fingerprint(SPEC, b"")
