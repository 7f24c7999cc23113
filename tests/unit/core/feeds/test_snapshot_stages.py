"""Stages of a copy, and feeds without one. tests/integration/test_snapshot.py shows what MongoDB makes of them."""

from dataclasses import replace

import bson
import pytest

from feedmux_server.core.errors import FeedmuxError
from feedmux_server.core.feeds.feed import SIMPLE_COLLATION, FeedSpec, Scope
from feedmux_server.core.feeds.snapshot_stages import (
    bound,
    check_feed,
    check_range,
    documents,
    gate,
    may_drop,
)
from feedmux_server.core.feeds.stream_key import SPLIT, stream_key
from feedmux_server.core.positions.resume_token import Copied, ResumeToken

SPEC = FeedSpec(Scope("main", "$shop", "$orders"))
STAGES = bson.encode({"pipeline": [{"$match": {"a": 1}}]})
SYMBOL = b"\x11\x00\x00\x00\x0e_id\x00\x03\x00\x00\x00ab\x00\x00"
"""`{_id: Symbol("ab")}`, which pymongo reads as a string."""


def test_ids_go_back_to_mongodb_as_they_came() -> None:
    for stages in ([gate(Copied(SYMBOL, 1))], documents(stream_key(SPEC), Copied(SYMBOL, 1), 5 << 32)):
        assert b"\x0e$literal\x00\x03\x00\x00\x00ab\x00" in bson.encode({"stages": stages})


def test_before_the_first_document_no_change_of_a_document_passes_but_a_delete() -> None:
    assert gate(Copied()) == {"$match": {"$or": [{"operationType": "delete"}, {"documentKey": {"$exists": False}}]}}


def test_while_a_policy_runs_a_secret_is_in_the_place_of_the_token() -> None:
    pipeline = bson.encode({"pipeline": [{"$unset": "wallTime"}, {"$changeStreamSplitLargeEvent": {}}]})
    key = stream_key(replace(SPEC, pipeline=pipeline), STAGES)
    _, made, policy, put_right, user, same = documents(key, Copied(), 5 << 32, secret="s")
    [right] = [part["_id"] for part in put_right["$replaceWith"]["$mergeObjects"] if part != "$$ROOT"]
    assert made["$replaceWith"]["_id"]["_data"] == "s"
    assert ResumeToken.decode(bson.encode({"_data": right["_data"]})).cluster_time == (5 << 32) + 1
    assert (list(policy), list(user)) == (["$match"], ["$unset"])
    assert right["_data"] in repr(same)
    assert len(documents(key, Copied(), 5 << 32, secret="s", has_policy=False, has_pipeline=False)) == 2
    with pytest.raises(ValueError, match="secret"):
        documents(key, Copied(), 5 << 32)


def test_a_read_that_may_drop_documents_has_a_bound() -> None:
    assert not may_drop(stream_key(replace(SPEC, pipeline=bson.encode({"pipeline": [{SPLIT: {}}]}))))
    key = stream_key(SPEC, STAGES)
    assert may_drop(key)
    first, later = bound(key, Copied(), 10), bound(key, Copied(SYMBOL), 10)
    assert first is not None
    assert later is not None
    assert (first["skip"], "min" in first, later["skip"], later["min"].raw) == (9, False, 10, SYMBOL)
    assert bound(key, Copied(b"\x0a\x00\x00\x00\x7f_id\x00\x00"), 10) is None, "MaxKey is the last"
    assert bound(key, Copied(), 10, b"\x0a\x00\x00\x00\xff_id\x00\x00") is None, "nothing is before MinKey"
    [match, *_] = documents(key, Copied(SYMBOL), 5 << 32, SYMBOL, "s")
    assert [list(each) for each in match["$match"]["$expr"]["$and"]] == [["$gt"], ["$lte"]]


def test_a_feed_without_a_copy() -> None:
    with pytest.raises(FeedmuxError) as caught:
        check_feed(stream_key(replace(SPEC, collation=bson.encode({"locale": "fr"}))))
    assert (caught.value.status, caught.value.metadata) == ("FAILED_PRECONDITION", {"kind": "collation"})


def test_feeds_and_positions_that_are_accepted() -> None:
    check_feed(stream_key(replace(SPEC, pipeline=STAGES, full_document="updateLookup")))
    check_feed(stream_key(replace(SPEC, collation=SIMPLE_COLLATION), STAGES))
    mark = ResumeToken.high_water_mark(5 << 32)
    wide, adds = stream_key(FeedSpec(Scope("main"))), bson.encode({"pipeline": [{"$set": {"a": 1}}]})
    check_range(mark, wide, "it")
    check_range(mark.while_copying(Copied()), stream_key(SPEC), "it")
    check_range(mark.while_copying(Copied()), stream_key(replace(SPEC, pipeline=adds)), "it")
    for key, kind in (
        (wide, "mode"),
        (stream_key(replace(SPEC, pipeline=bson.encode({"pipeline": [{"$match": {}}]}))), "filter"),
        (stream_key(replace(SPEC, pipeline=bson.encode({"pipeline": [{"$redact": "$$KEEP"}]}))), "filter"),
        (stream_key(SPEC, judges_documents=True), "filter"),
    ):
        with pytest.raises(FeedmuxError, match="it is within a copy") as caught:
            check_range(mark.while_copying(Copied()), key, "it")
        assert caught.value.metadata == {"kind": kind}
