"""A task that waits for MongoDB can be cancelled at any time, even where pymongo loses the cancellation."""

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Callable

import pytest
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from pymongo import AsyncMongoClient

from feedmux_embedded import ReplicaSet, mongod
from feedmux_server.cancellation import cancellable
from feedmux_server.source.cursor import RawChangeStreamCursor
from feedmux_server.source.deployment import Source, SourceConfig

# What pymongo was opening when it was cancelled it leaves to the garbage collector, which `not_ended` calls.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

Ask = Callable[[], Awaitable[object]]


async def losing(outcome: object) -> object:
    """Ends with `outcome` when it is cancelled."""
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        if isinstance(outcome, Exception):
            raise outcome from None
    return outcome


@pytest.mark.parametrize("guard", [cancellable, mongod.cancellable], ids=["server", "embedded"])
@pytest.mark.parametrize("outcome", ["a result", ValueError()])
async def test_a_lost_cancellation_is_raised(
    outcome: object, guard: Callable[[Awaitable[object]], Awaitable[object]]
) -> None:
    task = asyncio.ensure_future(guard(losing(outcome)))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()


async def test_a_lost_timeout_is_raised() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await cancellable(losing("a result"))


async def test_what_was_cancelled_before_may_still_ask() -> None:
    async def ends_in_order() -> str:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(await cancellable(asyncio.sleep(0.01, "closed")))
        return ""

    ended: list[str] = []
    task = asyncio.create_task(ends_in_order())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
    assert ended == ["closed"]


async def test_a_timeout_within_is_no_cancellation() -> None:
    async def within() -> str:
        try:
            async with asyncio.timeout(0.01):
                await asyncio.sleep(60)
        except TimeoutError:
            return "late"
        return ""

    assert await cancellable(within()) == "late"


class Reply:
    """What a driver holds when it fails."""


@pytest.mark.parametrize("fails", [True, False])
async def test_what_failed_or_was_cancelled_holds_no_reply(fails: bool) -> None:
    held: list[weakref.ref[Reply]] = []

    async def receive() -> None:
        reply = Reply()
        held.append(weakref.ref(reply))
        try:
            if fails:
                raise OSError
            await asyncio.sleep(60)
        except (OSError, asyncio.CancelledError) as error:
            known = error  # as in pymongo: the frame is held by the error, and the error by the frame
            raise RuntimeError from known

    before = gc.isenabled()
    gc.disable()
    try:
        task = asyncio.create_task(cancellable(receive()))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        assert fails != task.cancelled()
        del task
        assert held[0]() is None
    finally:
        if before:
            gc.enable()


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
