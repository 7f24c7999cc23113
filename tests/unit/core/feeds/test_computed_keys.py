"""Where two reads of an event may give it two keys."""

from typing import Any

import bson
import pytest

from feedmux_server.core.feeds.computed_keys import keys_may_differ
from feedmux_server.core.feeds.feed import FeedSpec, Scope
from feedmux_server.core.feeds.stream_key import stream_key

LOOKUP = {"full_document": "updateLookup"}
BY_LOOKUP = {"$set": {"documentKey": {"_id": "$fullDocument.customer"}}}


@pytest.mark.parametrize(
    ("stages", "options", "differ"),
    [
        ([BY_LOOKUP], LOOKUP, True),
        ([BY_LOOKUP], {"full_document": "whenAvailable"}, True),
        ([BY_LOOKUP], {"full_document_before_change": "whenAvailable"}, True),
        ([BY_LOOKUP], {"full_document": "required"}, False),
        ([BY_LOOKUP], {}, False),
        ([{"$addFields": {"ns.coll": {"$toString": "$$NOW"}}}], {}, True),
        ([{"$project": {"documentKey": {"_id": {"$rand": {}}}}}], {}, True),
        ([{"$match": {}}, {"$replaceWith": {"$mergeObjects": ["$fullDocument", "$$ROOT"]}}], LOOKUP, True),
        ([{"$match": {"documentKey._id": {"$gt": 5}}}], LOOKUP, False),
        ([{"$project": {"documentKey": {"_id": 1}, "ns": True, "name": "$fullDocument.name"}}], LOOKUP, False),
        ([{"$set": {"at": "$$NOW"}}, {"$unset": ["documentKey.region"]}], {}, False),
        ([], LOOKUP, False),
    ],
)
def test_keys_that_a_pipeline_computes(stages: list[Any], options: dict[str, Any], differ: bool) -> None:
    pipeline = bson.encode({"pipeline": stages}) if stages else b""
    assert keys_may_differ(stream_key(FeedSpec(Scope("main", "shop", "orders"), pipeline, **options))) is differ
