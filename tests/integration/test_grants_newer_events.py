"""Events as MongoDB 7 to 9 describes them, through the stages of grants on a real MongoDB.

No such MongoDB runs here: the events are written down from its documentation, and `$documents` stands for the stream.
"""

import datetime
import uuid
from typing import Any

import bson
from bson import Binary, CodecOptions, Int64, Timestamp
from pymongo import MongoClient

from feedmux_server.core.feeds.feed import FeedSpec, Scope
from feedmux_server.core.grants.grant import Grants, make_grant
from feedmux_server.core.grants.stages import apply_grants

Event = dict[str, Any]
SECRET = "may-not-be-seen"
HIDING = (make_grant("*", "shop", "orders", None, ["secret", "items.price", "address.geo.lat"]),)
MATCHING = (make_grant("*", "shop", "orders", {"owner": "a"}, ["secret"]),)
PLAIN = (make_grant("*", "shop", "orders"),)


def event(kind: str, **fields: Any) -> Event:
    """With the fields that each event has since 8.2."""
    return {
        "_id": {"_data": "82" + uuid.uuid4().hex.upper()},
        "operationType": kind,
        "clusterTime": Timestamp(1_790_000_000, 1),
        "collectionUUID": Binary(uuid.uuid4().bytes, 4),
        "wallTime": datetime.datetime(2026, 11, 1, tzinfo=datetime.UTC),
        "ns": {"db": "shop", "coll": "orders"},
    } | fields


def update(updated: Event, removed: list[str], truncated: list[str], paths: Event) -> Event:
    document = {"_id": 1, "owner": "a", "shown": 1, "secret": SECRET}
    return event(
        "update",
        documentKey={"_id": 1},
        fullDocument=document,
        fullDocumentBeforeChange=document,
        updateDescription={
            "updatedFields": updated,
            "removedFields": removed,
            "truncatedArrays": [{"field": name, "newSize": 1} for name in truncated],
            "disambiguatedPaths": paths,
        },
        # Of a transaction over several shards.
        txnNumber=Int64(3),
        lsid={"id": Binary(uuid.uuid4().bytes, 4), "uid": b"\0" * 32},
        commitTimestamp=Timestamp(1_790_000_000, 2),
    )


def shown(client: MongoClient[Event], grants: Grants, events: list[Event], scope: Scope | None = None) -> list[Event]:
    asked = apply_grants(grants, FeedSpec(scope or Scope("main", "shop", "orders")))
    stages = bson.decode(asked.policy)["pipeline"]
    database = client.get_database("test", codec_options=CodecOptions(tz_aware=True, tzinfo=datetime.UTC))
    return list(database.aggregate([{"$documents": {"$literal": events}}, *stages]))


def test_fields_of_newer_versions_are_shown(mongo_client: MongoClient[Event]) -> None:
    changed = update({"shown": 1}, [], [], {"shown": ["shown"]})
    for grants in (HIDING, MATCHING):
        [seen] = shown(mongo_client, grants, [changed])
        assert seen["commitTimestamp"] == changed["commitTimestamp"]
        assert seen["updateDescription"]["disambiguatedPaths"] == {"shown": ["shown"]}
    created = event("create", nsType="timeseries", operationDescription={"idIndex": {"v": 2, "key": {"_id": 1}}})
    [seen] = shown(mongo_client, PLAIN, [created], Scope("main", "shop"))
    assert seen == created


def test_a_hidden_name_stands_nowhere(mongo_client: MongoClient[Event]) -> None:
    names = ["secret", "secret.deep", "items.0.price", "items.7.price.net", "address.geo.lat"]
    changed = [
        update(
            {"shown": 1} | ({name: SECRET} if place == "updated" else {}),
            ["other"] + ([name] if place == "removed" else []),
            ["list"] + ([name] if place == "truncated" else []),
            {"shown.0": ["shown", "0"]} | ({name: name.split(".")} if place == "paths" else {}),
        )
        for name in names
        for place in ("updated", "removed", "truncated", "paths")
    ]
    seen = shown(mongo_client, HIDING, changed)
    assert len(seen) == len(changed)
    for each in seen:
        assert each["updateDescription"] == {
            "updatedFields": {"shown": 1},
            "removedFields": ["other"],
            "truncatedArrays": [{"field": "list", "newSize": 1}],
            "disambiguatedPaths": {"shown.0": ["shown", "0"]},
        }
        assert SECRET.encode() not in bson.encode(each)


def test_what_is_not_known_is_withheld(mongo_client: MongoClient[Event]) -> None:
    changed = update({"shown": 1}, [], [], {})
    [seen] = shown(
        mongo_client, HIDING, [changed | {"rawUpdateDescription": {"$v": 2, "diff": {"u": {"secret": SECRET}}}}]
    )
    assert "rawUpdateDescription" not in seen
    unknown = [event(kind, operationDescription={"secret": SECRET}) for kind in ("endOfTransaction", "placementChange")]
    # A description of an index names fields.
    described = event("createIndexes", operationDescription={"indexes": [{"key": {"secret": 1}, "name": SECRET}]})
    for grants in (HIDING, MATCHING):
        assert shown(mongo_client, grants, [*unknown, described]) == []
