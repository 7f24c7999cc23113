"""Stages of a copy, and feeds without one. tests/integration/test_snapshot.py shows what MongoDB makes of them."""

from dataclasses import replace

import bson
import pytest

from feedmux_server.core.errors import FeedmuxError
from feedmux_server.core.feeds.feed import FeedSpec, Scope
from feedmux_server.core.feeds.snapshot_stages import check_feed, check_no_copy, documents, gate
from feedmux_server.core.feeds.stream_key import StreamKey, stream_key
from feedmux_server.core.positions.resume_token import Copied, ResumeToken

SPEC = FeedSpec(Scope("main", "$shop", "$orders"))
STAGES = bson.encode({"pipeline": [{"$match": {"a": 1}}]})
SYMBOL = b"\x12\x00\x00\x00\x0e_id\x00\x03\x00\x00\x00ab\x00\x00"
"""`{_id: Symbol("ab")}`, which pymongo reads as a string."""


def test_ids_go_back_to_mongodb_as_they_came() -> None:
    for stages in ([gate(Copied(SYMBOL, 1))], documents(stream_key(SPEC), Copied(SYMBOL, 1), 5 << 32)):
        assert b"\x0e$literal\x00\x03\x00\x00\x00ab\x00" in bson.encode({"stages": stages})


def test_before_the_first_document_no_change_of_a_document_passes_but_a_delete() -> None:
    assert gate(Copied()) == {"$match": {"$or": [{"operationType": "delete"}, {"documentKey": {"$exists": False}}]}}


def test_the_stages_of_documents() -> None:
    [sort, replaced] = documents(stream_key(SPEC), Copied(), (5 << 32) + 7)
    assert sort == {"$sort": {"_id": 1}}
    event = replaced["$replaceWith"]
    assert ResumeToken.decode(bson.encode({"_data": event["_id"]["_data"]})) == ResumeToken.high_water_mark(
        (5 << 32) + 8
    )
    assert event["ns"] == {"db": {"$literal": "$shop"}, "coll": {"$literal": "$orders"}}
    assert (event["clusterTime"].time, event["clusterTime"].inc) == (5, 7)


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        (stream_key(FeedSpec(Scope("main", "shop"))), "scope"),
        (stream_key(SPEC, STAGES), "grants"),
        (stream_key(replace(SPEC, pipeline=STAGES)), "pipeline"),
        (stream_key(replace(SPEC, collation=bson.encode({"locale": "fr"}))), "collation"),
    ],
)
def test_feeds_without_a_copy(key: StreamKey, kind: str) -> None:
    with pytest.raises(FeedmuxError) as caught:
        check_feed(key)
    assert (caught.value.status, caught.value.metadata) == ("FAILED_PRECONDITION", {"kind": kind})


def test_feeds_and_positions_that_are_accepted() -> None:
    check_feed(stream_key(replace(SPEC, pipeline=bson.encode({"pipeline": []}), full_document="updateLookup")))
    mark = ResumeToken.high_water_mark(5 << 32)
    check_no_copy(mark, "it")
    with pytest.raises(FeedmuxError, match="it is within a copy"):
        check_no_copy(mark.while_copying(Copied()), "it")
