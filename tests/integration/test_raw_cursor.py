"""What `source.cursor` relies on in pymongo's private names. If this fails after an upgrade, look there first."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import bson
import pytest
import pytest_asyncio
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from pymongo import AsyncMongoClient
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.errors import OperationFailure

from feedmux_embedded import ReplicaSet
from feedmux_server.source.cursor import Interrupted, RawBatch, RawChangeStreamCursor, aggregate_on
from tests.documents import Client, Documents
from tests.integration.servers import until
from tests.integration.wire import split

OPTIONS = {"batchSize": 3, "maxAwaitTimeMS": 50}


@pytest_asyncio.fixture(scope="session")
async def client(mongo: ReplicaSet) -> AsyncIterator[AsyncMongoClient[Any]]:
    async with AsyncMongoClient[Any](mongo.uri, appname="raw-cursor-test") as client:
        yield client


@pytest.fixture
def own(client: AsyncMongoClient[Any], database: Documents) -> AsyncDatabase[Any]:
    return client[database.name].with_options(codec_options=CodecOptions(document_class=RawBSONDocument))


async def opened(
    own: AsyncDatabase[Any], collection: str = "c", stage: dict[str, Any] | None = None, **options: Any
) -> RawChangeStreamCursor:
    stages = [{"$changeStream": stage or {}}]
    return await RawChangeStreamCursor.open(own, collection, stages, {**OPTIONS, **options})


async def some(cursor: RawChangeStreamCursor) -> RawBatch:
    """The next batch that is not empty."""
    while not (batch := await cursor.next_batch()).data:
        assert not batch.exhausted
    return batch


def ops(mongo_client: Client, database: Documents) -> list[dict[str, Any]]:
    stages: list[dict[str, Any]] = [
        {"$currentOp": {"allUsers": True, "idleCursors": True}},
        {"$match": {"ns": {"$regex": f"^{database.name}"}}},
    ]
    return [each for each in mongo_client.admin.aggregate(stages) if "cursor" in each]


async def test_batches_are_bytes_with_their_post_batch_resume_token(
    own: AsyncDatabase[Any], database: Documents
) -> None:
    cursor = await opened(own)
    database.c.insert_many([{"n": n} for n in range(5)])
    batches = [await some(cursor), await some(cursor)]
    events = [bson.decode(each) for batch in batches for each in split(batch.data)]
    assert [event["fullDocument"]["n"] for event in events] == [0, 1, 2, 3, 4]
    assert [len(split(batch.data)) for batch in batches] == [3, 2]
    # A full batch's token is its last event's.
    assert batches[0].post_batch is not None
    assert bson.decode(batches[0].post_batch) == events[2]["_id"]
    database.elsewhere.insert_one({})
    tokens = [(await cursor.next_batch()).post_batch for _ in range(4)]
    assert all(token is not None for token in tokens)
    assert bson.decode(tokens[-1] or b"")["_data"] > events[-1]["_id"]["_data"]
    await cursor.close()


@pytest.mark.parametrize("scope", ["database", "cluster"])
async def test_databases_and_the_cluster(client: AsyncMongoClient[Any], database: Documents, scope: str) -> None:
    name = database.name if scope == "database" else "admin"
    own = client[name].with_options(codec_options=CodecOptions(document_class=RawBSONDocument))
    stage = {"allChangesForCluster": True} if scope == "cluster" else {}
    stages = [{"$changeStream": stage}, {"$match": {"ns.db": database.name}}]
    cursor = await RawChangeStreamCursor.open(own, "", stages, {**OPTIONS})
    database.c.insert_one({"n": 1})
    assert bson.decode((await some(cursor)).data)["fullDocument"]["n"] == 1
    await cursor.close()


async def test_exhausted_on_invalidate(own: AsyncDatabase[Any], database: Documents) -> None:
    database.c.insert_one({})
    cursor = await opened(own)
    database.drop_collection("c")
    kinds: list[str] = []
    while True:
        batch = await cursor.next_batch()
        kinds += [bson.decode(each)["operationType"] for each in split(batch.data)]
        if batch.exhausted:
            break
    assert kinds == ["drop", "invalidate"]
    assert batch.post_batch is not None
    await cursor.close()


async def test_close_kills_the_cursor(own: AsyncDatabase[Any], database: Documents, mongo_client: Client) -> None:
    cursor = await opened(own)
    await cursor.next_batch()
    assert len({each["cursor"]["cursorId"] for each in ops(mongo_client, database)}) == 1
    assert cursor.address is not None
    await cursor.close()
    await until(lambda: not ops(mongo_client, database))


async def test_a_cancelled_read_can_be_closed(
    own: AsyncDatabase[Any], database: Documents, mongo_client: Client
) -> None:
    cursor = await opened(own, maxAwaitTimeMS=1000)
    reading = asyncio.create_task(cursor.next_batch())
    await asyncio.sleep(0.2)
    reading.cancel()
    await asyncio.wait([reading])
    await cursor.close()
    await until(lambda: not ops(mongo_client, database))


async def test_a_read_that_is_interrupted(
    client: AsyncMongoClient[Any], own: AsyncDatabase[Any], database: Documents, mongo_client: Client
) -> None:
    for n in range(5):
        cursor = await opened(own, maxAwaitTimeMS=3_600_000)
        reading = asyncio.create_task(cursor.next_batch())
        await until(lambda: [each for each in ops(mongo_client, database) if each["type"] == "op"])
        await cursor.interrupt()
        database.other.insert_one({})
        with pytest.raises(Interrupted):
            await reading
        assert not ops(mongo_client, database)
        await cursor.close()
        database.c.insert_one({"n": n})
    # MongoDB has answered, so the session is used again.
    assert 0 < len(client._topology._session_pool) <= 2


async def test_comment_and_await_time_are_sent_with_getmore(
    own: AsyncDatabase[Any], database: Documents, mongo_client: Client
) -> None:
    cursor = await opened(own, comment="canary", maxAwaitTimeMS=2000)
    reading = asyncio.create_task(cursor.next_batch())

    def seen() -> bool:
        commands = [each["command"] for each in ops(mongo_client, database) if each["type"] == "op"]
        return [(c.get("comment"), c.get("maxTimeMS"), c.get("batchSize")) for c in commands] == [("canary", 2000, 3)]

    await until(seen)
    database.c.insert_one({})
    await reading
    await cursor.close()


async def test_collation_is_sent(own: AsyncDatabase[Any], database: Documents) -> None:
    with pytest.raises(OperationFailure, match="locale"):
        await opened(own, collation={"locale": "no such"})


async def test_errors_leave_no_session_behind(client: AsyncMongoClient[Any], own: AsyncDatabase[Any]) -> None:
    for _ in range(5):
        with pytest.raises(OperationFailure):
            await opened(own, stage={"nonsense": 1})
    for _ in range(5):
        await (await opened(own)).close()
    assert len(client._topology._session_pool) <= 2


async def test_an_aggregate_on_one_server_is_read_to_its_end(client: AsyncMongoClient[Any]) -> None:
    documents = [{"n": n} for n in range(250)]  # three batches
    assert await aggregate_on(client, None, [{"$documents": documents}]) == documents


async def test_an_aggregate_that_is_not_read_to_its_end_is_closed(
    client: AsyncMongoClient[Any], mongo_client: Client
) -> None:
    def left() -> list[dict[str, Any]]:
        wanted = {"type": "idleCursor", "cursor.originatingCommand.pipeline.$documents": {"$exists": True}}
        return list(mongo_client.admin.aggregate([{"$currentOp": {"idleCursors": True}}, {"$match": wanted}]))

    fail_point = {"configureFailPoint": "failCommand"}
    failing = {"failCommands": ["getMore"], "appName": "raw-cursor-test", "errorCode": 96}
    mongo_client.admin.command({**fail_point, "mode": {"times": 1}, "data": failing})
    with pytest.raises(OperationFailure) as refused:
        await aggregate_on(client, None, [{"$documents": [{"n": n} for n in range(250)]}])
    assert refused.value.code == 96
    await until(lambda: not left())


async def test_an_open_that_is_refused_leaves_no_session(own: AsyncDatabase[Any]) -> None:
    used: list[bytes] = []
    for _ in range(20):
        with pytest.raises(OperationFailure):
            await RawChangeStreamCursor.open(own, "c", [{"$changeStream": {}}, {"$no": 1}], {**OPTIONS}, used.append)
    assert len(used) == 20
    assert len(set(used)) == 1
