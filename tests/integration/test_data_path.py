"""The data path against a real MongoDB: the requested events arrive complete, in order, byte for byte."""

from typing import Any

import bson
import pytest
from pymongo.database import Database

from feedmux.v1 import change_feed_pb2 as wire
from tests.integration.wire import MANY, Api, Receiver, at, feed, seconds

Documents = Database[dict[str, Any]]


def insert(database: Documents, numbers: range, collection: str = "c", pad: int = 0) -> None:
    database[collection].insert_many([{"n": n, "pad": "x" * pad} for n in numbers])


async def watching(api: Api, *args: Any, **kwargs: Any) -> Receiver:
    receiver = api.watch(*args, **kwargs)
    await receiver.opened()
    return receiver


@pytest.mark.parametrize("scope", ["collection", "database", "cluster"])
@pytest.mark.parametrize("rpc", ["watch", "subscribe"])
async def test_scopes(api: Api, database: Documents, scope: str, rpc: str) -> None:
    wanted = {
        "collection": feed(database.name, "c"),
        "database": feed(database.name),
        "cluster": feed(pipeline=f'[{{"$match": {{"ns.db": "{database.name}"}}}}]'),
    }[scope]
    if rpc == "watch":
        receiver = await watching(api, wanted)
    else:
        receiver = await api.open(feed=wanted)
    insert(database, range(3))
    insert(database, range(100, 102), "d")
    insert(database, range(3, 5))
    if scope == "collection":
        assert await receiver.numbers(5) == [0, 1, 2, 3, 4]
    else:
        assert await receiver.numbers(7) == [0, 1, 2, 100, 101, 3, 4]
    receiver.cancel()


async def test_same_bytes_as_a_raw_change_stream(api: Api, database: Documents) -> None:
    receiver = await watching(api, feed(database.name, "c"))
    with database.c.watch() as opened:
        token = opened.resume_token
    database.c.insert_one({"_id": 1, "a": {"b": [1, 2.5, None, "é", bson.Int64(3)]}, "d": bson.Decimal128("1.10")})
    database.c.update_one({"_id": 1}, {"$set": {"a.b": 1}, "$unset": {"d": 1}})
    database.c.replace_one({"_id": 1}, {"x": bson.Binary(b"\0\1"), "far": bson.DatetimeMS(2**62)})
    database.c.delete_one({"_id": 1})
    events = await receiver.take(4)
    direct = b""
    with database.c.aggregate_raw_batches([{"$changeStream": {"resumeAfter": token}}]) as batches:
        while len(direct) < sum(len(event.data) for event in events):
            direct += batches.next()  # type: ignore[operator]
    assert b"".join(event.data for event in events) == direct
    assert bson.decode(receiver.resume_token)["_data"] >= bson.decode(events[-1].data, _FAR)["_id"]["_data"]
    receiver.cancel()


_FAR: Any = bson.CodecOptions(datetime_conversion=bson.codec_options.DatetimeConversion.DATETIME_AUTO)


# --- Where to begin.


async def test_position_and_native_tokens(api: Api, database: Documents) -> None:
    wanted = feed(database.name, "c")
    receiver = await api.session(feed=wanted, credit=wire.Credit(events=3, bytes=1 << 20))
    await receiver.opened()
    insert(database, range(8))
    events = await receiver.take(3)
    token = bson.encode(events[2].document["_id"])
    for start in (at(position=receiver.position), at(resume_after=token), at(start_after=token)):
        again = await watching(api, wanted, start)
        assert await again.numbers(5) == [3, 4, 5, 6, 7]
        again.cancel()
    assert bson.decode(receiver.resume_token) == events[2].document["_id"]
    receiver.cancel()
    # Feeds with comments of their own have no stream yet, so MongoDB must be asked.
    for start in (at(position=receiver.position), at(resume_after=token), at(start_after=token)):
        again = await watching(api, feed(database.name, "c", comment=bson.encode({"comment": str(start)})), start)
        assert await again.numbers(5) == [3, 4, 5, 6, 7]
        again.cancel()


async def test_position_fits_another_pipeline_of_the_scope(api: Api, database: Documents) -> None:
    receiver = await api.open(feed=feed(database.name), credit=wire.Credit(events=2, bytes=1 << 20))
    insert(database, range(2))
    insert(database, range(2, 5), "d")
    await receiver.take(2)
    # Its token is an event's that this pipeline hides.
    pipeline = '[{"$match": {"fullDocument.n": {"$in": [0, 1, 3, 4]}, "ns.coll": "d"}}]'
    again = await watching(api, feed(database.name, pipeline=pipeline), at(position=receiver.position))
    assert await again.numbers(2) == [3, 4]
    again.cancel()
    receiver.cancel()


# --- Formats and sizes.


async def test_two_sources_in_one_server(api: Api, database: Documents) -> None:
    receivers = [await watching(api, feed(database.name, "c", source=source)) for source in ("main", "other")]
    insert(database, range(3))
    for receiver in receivers:
        assert await receiver.numbers(3) == [0, 1, 2]
    streams = await api.streams(f"{database.name}.c")
    assert sorted(each.source for each in streams) == ["main", "other"]
    for receiver in receivers:
        receiver.cancel()


# --- Heartbeats.


@pytest.mark.parametrize("rpc", ["watch", "subscribe"])
async def test_progress_moves_without_matches(api: Api, database: Documents, rpc: str) -> None:
    wanted = feed(database.name, "c", '[{"$match": {"fullDocument.n": -1}}]')
    if rpc == "watch":
        receiver = api.watch(wanted, heartbeat_interval=seconds(1))
    else:
        receiver = await api.session(feed=wanted, credit=MANY, heartbeat_interval=seconds(1))
    opened = await receiver.opened()
    assert opened.heartbeat_interval == seconds(1)
    insert(database, range(10))
    # A high-water mark is before the events of the same cluster time.
    insert(database, range(1), "elsewhere")
    await receiver.until(lambda: len(receiver.progress) >= 2)
    first, second = receiver.progress[0].cluster_time, receiver.progress[1].cluster_time
    assert (opened.cluster_time.seconds, opened.cluster_time.increment) < (second.seconds, second.increment)
    assert (first.seconds, first.increment) <= (second.seconds, second.increment)
    again = await watching(api, feed(database.name, "c"), at(position=receiver.position))
    insert(database, range(77, 78))
    assert await again.numbers(1) == [77]
    again.cancel()
    receiver.cancel()
