"""Documents with an `_id` of kilobytes and megabytes: MongoDB's resume token has it in twice its size."""

from typing import Any

import bson
import redis
from bson import Decimal128, Int64
from bson.raw_bson import RawBSONDocument
from pymongo import MongoClient

from feedmux.v1 import change_feed_pb2 as wire
from feedmux_embedded import RedisServer, ReplicaSet
from feedmux_server.core.positions.position import POSITION_BYTES_MAX
from feedmux_server.rpc.bounds import TOKEN_BYTES_MAX
from tests.documents import Documents
from tests.integration.servers import serving, settings
from tests.integration.wire import LATEST, Api, Event, at, feed, refused

KIB = 1024
SIZES = [1 * KIB, 5 * KIB, 10 * KIB, 40 * KIB, 70 * KIB, 1024 * KIB, 2500 * KIB]
TOO_LARGE = 5 * 1024 * KIB
"""MongoDB cannot send the event: the `_id` is in it four times, and twice in the postBatchResumeToken."""
NO_SHARING = bson.encode({"comment": "a stream of its own"})
SMALL_IDS = 3
TYPED: list[Any] = [Int64(1 << 40), 1.5, Decimal128("1.10"), Int64(3), 2.0]
"""Their tokens have type bits."""


def insert(database: Documents) -> int:
    """One document of each size, each of them twice with the same beginning, small ones around them, and typed ones."""
    documents: list[dict[str, Any]] = []
    for size in SIZES:
        documents += [{"_id": f"{size}-{n}"} for n in range(SMALL_IDS)]
        documents += [{"_id": "x" * size}, {"_id": "x" * size + "y"}]
    documents += [{"_id": each} for each in TYPED]
    for n, document in enumerate(documents):
        database.c.insert_one({**document, "n": n})
    return len(documents)


def token_of(event: Event) -> bytes:
    return bytes(RawBSONDocument(event.data)["_id"].raw)


def wanted(database: Documents, pipeline: str = "", **fields: Any) -> Any:
    return feed(database.name, "c", pipeline, **fields)


async def test_what_is_acknowledged_does_not_come_again(
    mongo: ReplicaSet, redis_server: RedisServer, api: Api, database: Documents, name: str
) -> None:
    """Each time on a new server, which has nothing in a ring."""
    await api.create(name, wanted(database), LATEST)
    count = insert(database)
    configuration = settings(mongo.uri, redis_server.url)
    n = 0
    while n < count:
        async with serving(configuration) as fresh:
            session = await fresh.api.open(name, credit=wire.Credit(events=4, bytes=1 << 30), instance_id="i")
            expected = list(range(n, min(n + 4, count)))
            assert await session.numbers(len(expected)) == expected
            acked = min(2, len(expected))
            await session.ack_and_wait(acked)
            await session.close()
            n += acked
    client = redis.Redis.from_url(redis_server.url)
    fields = client.hgetall(f"feedmux:1:{{default/{name}}}")
    assert len(fields[b"position"]) <= POSITION_BYTES_MAX
    assert len(fields[b"order"]) <= POSITION_BYTES_MAX
    [listed] = [each for each in (await api.page(1000)).subscriptions if each.name == name]
    assert len(listed.position) <= POSITION_BYTES_MAX


async def test_an_event_with_a_large_token_is_the_last_of_its_batch(api: Api, database: Documents, name: str) -> None:
    """So an acknowledgement within a batch never needs the large token to be sent."""
    await api.create(name, wanted(database), LATEST)
    for n in range(40):
        database.c.insert_one({"_id": f"{n}-" + "x" * (10 * KIB if n % 5 == 0 else 3 * KIB), "n": n})
    session = await api.open(name)
    events = await session.take(40)
    assert [event.n for event in events] == list(range(40))
    sizes = [len(token_of(event)) for event in events]
    last = {batch.first_delivery_sequence + batch.event_count - 1 for batch in session.batches}
    assert {event.sequence for event, size in zip(events, sizes, strict=True) if size > 8 * KIB} <= last
    assert len(session.batches) < 40
    epoch = (await api.get(name)).epoch
    session.cancel()
    for event in events[3], events[7]:  # as a client names the last event that it has acknowledged
        acked = wire.LastAcked(epoch=epoch, resume_token=token_of(event))
        again = await api.open(name, last_acked=acked, instance_id="i", takeover=True)
        assert (await again.numbers(1)) == [event.n + 1]
        again.cancel()


async def test_tokens_as_starts_have_a_bound(api: Api, database: Documents) -> None:
    receiver = api.watch(wanted(database), LATEST)
    limits = (await receiver.opened()).limits
    assert limits.resume_token_bytes_max == TOKEN_BYTES_MAX
    count = insert(database)
    events = await receiver.take(count)
    receiver.cancel()
    for event in events[:-1]:
        token = token_of(event)
        if len(token) <= limits.resume_token_bytes_max:
            for start in (at(resume_after=token), at(start_after=token)):
                again = api.watch(wanted(database, comment=NO_SHARING), start)
                assert await again.numbers(1) == [event.n + 1]
                again.cancel()
        elif len(token) < 200 * KIB:
            outcome = await refused(api.watch(wanted(database), at(resume_after=token)).opened())
            assert (outcome.code, outcome.reason) == ("INVALID_ARGUMENT", "MESSAGE_INVALID")
            assert "position" in outcome.message


async def test_an_event_that_mongodb_cannot_send_is_an_error(api: Api, database: Documents, name: str) -> None:
    await api.create(name, wanted(database), LATEST)
    database.c.insert_one({"_id": "x" * TOO_LARGE, "n": 0})
    session = await api.open(name)
    outcome = await session.end()
    assert outcome.reason == "EVENT_TOO_LARGE"
    # The feed can leave such documents out, by what the event says of them or by another collection.
    await api.update(
        ["feed"], name=name, feed=wanted(database, pipeline='[{"$match": {"fullDocument.n": {"$gt": 0}}}]')
    )
    database.c.insert_one({"_id": "small", "n": 1})
    session = await api.open(name)
    assert await session.numbers(1) == [1]
    session.cancel()


async def test_a_split_event_with_a_large_id(newer_mongo: ReplicaSet, redis_server: RedisServer, name: str) -> None:
    """A session resumes between its fragments, and a subscription does not."""
    pad = "x" * (9 << 20)
    key = {"_id": "k" * (10 * KIB)}
    images: dict[str, Any] = {"full_document": "required", "full_document_before_change": "required"}
    split = '[{"$changeStreamSplitLargeEvent": {}}]'
    async with (
        serving(settings(newer_mongo.uri, redis_server.url)) as there,
        serving(settings(newer_mongo.uri, redis_server.url)) as fresh,
    ):
        with MongoClient[dict[str, Any]](newer_mongo.uri) as client:
            database = client[name]
            database.create_collection("c", changeStreamPreAndPostImages={"enabled": True})
            database.c.insert_one({**key, "n": 0, "pad": pad})
            same = feed(name, "c", split, **images)
            await there.api.create(name, same, LATEST)
            session = await there.api.open(name, credit=wire.Credit(events=1, bytes=1 << 30), instance_id="i")
            database.c.update_one(key, {"$set": {"n": 1}})
            database.c.update_one(key, {"$set": {"n": 2}})
            positions = []
            for sequence in range(1, 5):
                [event] = await session.take(1)
                assert event.document["splitEvent"]["of"] == 2
                assert event.document["splitEvent"]["fragment"] == 2 - sequence % 2
                positions.append(session.position)
                await session.ack(sequence)
                await session.credit(1)
                if sequence == 3:
                    await session.until(lambda: session.committed)
                    break
            session.cancel()
            # Another feed may have other fragments: the event of the position comes from its start.
            for comment, fragments in (b"", [2, 1, 2]), (NO_SHARING, [1, 1, 1]):
                other = feed(name, "c", split, comment=comment, **images)
                for after, fragment in enumerate(fragments):
                    again = fresh.api.watch(other, at(position=positions[after]))
                    [event] = await again.take(1)
                    assert event.document["splitEvent"]["fragment"] == fragment
                    again.cancel()
            reopened = await fresh.api.open(name, instance_id="i")
            [event] = await reopened.take(1)
            assert event.document["splitEvent"]["fragment"] == 1, "the fragments of the second event come again"
            reopened.cancel()
            client.drop_database(name)
