"""Rows of events as MongoDB itself writes them: of every kind, with ids of every type, shaped by pipelines."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import bson
import pytest
from bson import Binary, Decimal128, Int64, MaxKey, ObjectId
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from pymongo import MongoClient
from pymongo.database import Database

from feedmux_embedded import ReplicaSet
from feedmux_spark.rows import default_schema, row_maker
from tests.documents import Client

IDS = [
    1, Int64(2), 2.5, Int64(1 << 60), 3.0, Decimal128("4.1"), "five", ObjectId(), Binary(b"six", 128),
    {"a": [1, None]}, datetime(2024, 1, 1, tzinfo=UTC), True, None, MaxKey(), "x" * 5000,
]  # fmt: skip
"""Several of them make tokens with `_typeBits`, or of unusual length."""


RETYPED = [7, Int64(8)]
"""Numbers in an `_id` that a replacement makes doubles."""


class Recorder:
    """A stream over one database, read raw to a mark."""

    def __init__(self, client: Client, database: str) -> None:
        self._client = client
        self._name = database

    def events(self, pipeline: Sequence[Mapping[str, Any]], **options: Any) -> list[RawBSONDocument]:
        """What happens in `changes` run between construction and here, up to the mark."""
        raw: Any = self._client.get_database(self._name, CodecOptions(document_class=RawBSONDocument))
        found: list[RawBSONDocument] = []
        with raw.watch(pipeline, **options) as stream:
            changes(self._client, self._name)
            while not found or found[-1].get("documentKey", {}).get("_id") != "mark":
                found.append(next(stream))
        return found


def changes(client: Client, name: str) -> None:
    database: Database[dict[str, Any]] = client[name]
    orders = database["orders"]
    orders.insert_many([{"_id": each, "n": 1} for each in IDS])
    orders.update_many({}, {"$inc": {"n": 1}})
    orders.replace_one({"_id": "five"}, {"replaced": True})
    with client.start_session() as session, session.start_transaction():
        for number in range(200):
            orders.insert_one({"_id": f"in transaction {number}"}, session=session)
        orders.delete_one({"_id": "five"}, session=session)
        orders.insert_one({"_id": "five"}, session=session)
    orders.delete_many({"_id": {"$in": ["five", 1]}})
    for number in RETYPED:
        orders.insert_one({"_id": {"n": number}})
        orders.replace_one({"_id": {"n": number}}, {"_id": {"n": float(number)}})
        orders.update_one({"_id": {"n": number}}, {"$set": {"n": 1}})
        orders.delete_one({"_id": {"n": number}})
    orders.create_index("n")
    orders.rename("renamed")
    database["renamed"].drop()
    database["marks"].insert_one({"_id": "mark"})


@pytest.fixture
def recorder(mongo_client: Client, database: Database[dict[str, Any]]) -> Recorder:
    database.create_collection("orders")
    return Recorder(mongo_client, database.name)


@pytest.fixture
def newer_recorder(newer_mongo: ReplicaSet) -> Iterator[Recorder]:
    with MongoClient[dict[str, Any]](newer_mongo.uri) as client:
        client.drop_database("rows_of_mongodb")
        client["rows_of_mongodb"].create_collection("orders")
        yield Recorder(client, "rows_of_mongodb")
        client.drop_database("rows_of_mongodb")


def rows_of(events: Sequence[RawBSONDocument]) -> list[dict[str, Any]]:
    raw = b"".join(bytes(event.raw) for event in events)
    (batch,) = row_maker("envelope", default_schema("envelope"), "fail").record_batches(raw)
    batch.validate(full=True)
    rows: list[dict[str, Any]] = batch.to_pylist()
    return rows


def check(events: Sequence[RawBSONDocument], rows: Sequence[Mapping[str, Any]]) -> None:
    """Every row is its event's, and they sort as they came."""
    assert len(rows) == len(events)
    for event, row in zip(events, rows, strict=True):
        decoded = bson.decode(event.raw)
        assert row["event"] == event.raw
        assert row["resume_token"] == bson.decode(event.raw, CodecOptions(document_class=RawBSONDocument))["_id"].raw
        time = decoded["clusterTime"]
        assert (row["cluster_time"].timestamp(), row["cluster_time_increment"]) == (time.time, time.inc)
        assert row["operation"] == decoded["operationType"]
        assert (row["database"], row["collection"]) == (decoded["ns"]["db"], decoded["ns"].get("coll"))
        key = decoded.get("documentKey")
        assert (row["document_key"] and bson.decode(row["document_key"])) == key
    keys = [row["sort_key"] for row in rows]
    assert keys == sorted(keys)


def test_events_of_every_kind_in_their_order(recorder: Recorder) -> None:
    events = recorder.events([], show_expanded_events=True)
    rows = rows_of(events)
    check(events, rows)
    assert {row["operation"] for row in rows} >= {
        "insert", "update", "replace", "delete", "createIndexes", "rename", "drop"
    }  # fmt: skip
    assert any("_typeBits" in bson.decode(row["resume_token"]) for row in rows)
    for number in RETYPED:
        key = {"_id": {"n": number}}
        of_one = [event for event in events if bson.decode(event.raw).get("documentKey") == key]
        assert len({event["documentKey"].raw for event in of_one}) == 2
        of_one_key = [
            row["operation"] for row in rows if row["document_key"] == bson.encode({"_id": {"n": int(number)}})
        ]
        assert of_one_key == ["insert", "replace", "update", "delete"]
    # Within a transaction the cluster time does not tell events apart; the sort key does, for one document too.
    inside = [row for row in rows if b"lsid" in row["event"] and row["document_key"] is not None]
    times = {(row["cluster_time"], row["cluster_time_increment"]) for row in inside}
    assert (len(inside), len(times)) == (202, 1)
    assert len({row["sort_key"] for row in inside}) == 202


def test_events_that_a_pipeline_has_cut_down(recorder: Recorder) -> None:
    events = recorder.events([{"$project": {"documentKey": 1}}])
    rows = rows_of(events)
    assert [row["sort_key"] for row in rows] == sorted({row["sort_key"] for row in rows})
    assert all(row["cluster_time"].year > 2020 for row in rows)
    assert (
        {row["operation"] for row in rows}
        == {row["database"] for row in rows}
        == {row["wall_time"] for row in rows}
        == {None}
    )
    assert rows[-1]["document_key"] == bson.encode({"_id": "mark"})


def test_events_that_a_pipeline_has_rebuilt(recorder: Recorder) -> None:
    stage = {
        "$replaceRoot": {
            "newRoot": {"key": "$documentKey", "documentKey": "$documentKey", "_id": "$_id", "ns": "$ns.db"}
        }
    }
    events = recorder.events([stage])
    rows = rows_of(events)
    assert [row["sort_key"] for row in rows] == sorted({row["sort_key"] for row in rows})
    assert [bson.decode(row["resume_token"]) for row in rows] == [bson.decode(event.raw)["_id"] for event in events]
    assert {row["collection"] for row in rows} == {None}


def test_tokens_of_the_other_version(newer_recorder: Recorder) -> None:
    events = newer_recorder.events([{"$changeStreamSplitLargeEvent": {}}])
    assert bson.decode(events[0].raw)["_id"]["_data"][18:22] == "2B04"
    check(events, rows_of(events))
