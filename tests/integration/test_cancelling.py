"""A task that waits for MongoDB can be cancelled at any time, even where pymongo loses the cancellation."""

import asyncio
import gc
from collections.abc import Awaitable, Callable

import pytest
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from pymongo import AsyncMongoClient

from feedmux_embedded import ReplicaSet
from feedmux_server.source.cursor import RawChangeStreamCursor
from feedmux_server.source.deployment import Source, SourceConfig

# What pymongo was opening when it was cancelled it leaves to the garbage collector, which `not_ended` calls.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

Ask = Callable[[], Awaitable[object]]


async def ask_for_good(ask: Ask) -> None:
    while True:
        await ask()


async def not_ended(ask: Ask, turns_max: int) -> list[int]:
    """After how many turns of the event loop a cancellation was of no effect."""
    lost = []
    for turns in range(turns_max):
        task = asyncio.create_task(ask_for_good(ask))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task}, timeout=60)
        if not task.done():
            lost.append(turns)
            while not task.done():
                task.cancel()
                await asyncio.sleep(0.01)
        assert task.cancelled()
        del task  # Its traceback refers to what it was opening.
    gc.collect()
    return lost


async def test_a_new_connection(mongo: ReplicaSet) -> None:
    assert await not_ended(mongo.wait_for_primary, 300) == []


async def test_a_source(mongo: ReplicaSet) -> None:
    async def ask() -> None:
        source = Source(SourceConfig("main", mongo.uri))
        try:
            await source.oplog.state()
        finally:
            await source.close()

    assert await not_ended(ask, 300) == []


async def test_a_cursor(mongo: ReplicaSet) -> None:
    async with AsyncMongoClient[RawBSONDocument](mongo.uri) as client:
        database = client["cancelling"].with_options(codec_options=CodecOptions(document_class=RawBSONDocument))

        async def ask() -> None:
            options = {"batchSize": 1, "maxAwaitTimeMS": 1}
            cursor = await RawChangeStreamCursor.open(database, "c", [{"$changeStream": {}}], options)
            try:
                for _ in range(20):
                    await cursor.next_batch()
            finally:
                await cursor.close()

        assert await not_ended(ask, 300) == []
