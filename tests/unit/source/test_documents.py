"""Which collections can be copied, and what an error of their read means."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import bson
import pytest
from pymongo.errors import AutoReconnect, OperationFailure, PyMongoError

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.feeds.feed import FeedSpec, Scope
from feedmux_server.core.feeds.stream_key import StreamKey, stream_key
from feedmux_server.core.positions.resume_token import Copied
from feedmux_server.source.answers import CollectionInfo
from feedmux_server.source.catchup_limiter import CatchupLimiter
from feedmux_server.source.cursor import RawBatch
from feedmux_server.source.deployment import Source
from feedmux_server.source.documents import DocumentsReader, NotAtThisTime, check_collection
from feedmux_server.source.read_limits import ReadLimits
from feedmux_server.source.reader import Failed
from feedmux_server.source.timed_reads import FIRST_EVENTS, TimedReads

KEY = stream_key(FeedSpec(Scope("main", "shop", "orders")))
STAGES = bson.encode({"pipeline": [{"$match": {"a": 1}}]})


class Cursor:
    """A cursor whose next batch, or error, is given."""

    def __init__(self, found: RawBatch | PyMongoError) -> None:
        self.found = found
        self.closed = 0
        self.asked: list[int] = []
        """The documents of each batch at most."""
        self.held: asyncio.Future[None] | None = None

    def ask_for(self, documents: int) -> None:
        self.asked.append(documents)

    async def next_batch(self) -> RawBatch:
        if self.held is not None:
            await self.held
        if isinstance(self.found, PyMongoError):
            raise self.found
        return self.found

    async def close(self) -> None:
        self.closed += 1


class Mongo:
    """A source with one collection."""

    name = "main"

    def __init__(self, info: CollectionInfo | FeedmuxError | None = None, **given: Any) -> None:
        self.clock = SimpleNamespace(is_mongos=given.get("is_mongos", False))
        self.history_reads = CatchupLimiter(1)
        self.logins = SimpleNamespace(is_former=lambda cursor: given.get("is_former", False))
        self.cursor = Cursor(given.get("found", RawBatch(b"", None, True)))
        self.bounds: list[int] = []
        """How many documents each read with a bound was to pass."""
        self.bound_fails: PyMongoError | None = None
        self.asked: list[list[Any]] = []
        """The stages of each read."""
        self._info, self._scans, self._opening = info, given.get("scans", False), given.get("opening")

    async def collection(self, database: str, name: str) -> CollectionInfo | None:
        if isinstance(self._info, FeedmuxError):
            raise self._info
        return self._info

    async def scans(self, database: str, name: str, stages: list[Any]) -> bool:
        if isinstance(self._scans, FeedmuxError):
            raise self._scans
        return bool(self._scans)

    async def find_id(self, *asked: Any) -> bytes:
        self.bounds.append(asked[1]["skip"] + 1)
        if self.bound_fails is not None:
            raise self.bound_fails
        return b""

    async def open_documents(self, *asked: Any) -> Cursor:
        if self._opening is not None:
            raise self._opening
        self.asked.append(asked[1])
        return self.cursor


def reader(mongo: Mongo, key: StreamKey = KEY) -> DocumentsReader:
    return DocumentsReader(cast(Source, mongo), key, ReadLimits(batch_events=10))


def failure(code: int) -> OperationFailure:
    return OperationFailure("a message of MongoDB", code, {"code": code})


@pytest.mark.parametrize(
    ("mongo", "kind"),
    [
        (Mongo(is_mongos=True), "sharded cluster"),
        (Mongo(CollectionInfo("view")), "view"),
        (Mongo(CollectionInfo("timeseries")), "time series"),
        (Mongo(CollectionInfo("collection", capped=True)), "capped"),
        (Mongo(CollectionInfo("collection", collation=True)), "collation"),
        (Mongo(CollectionInfo("collection", clustered=True), scans=True), "clustered"),
    ],
)
async def test_collections_that_cannot_be_copied(mongo: Mongo, kind: str) -> None:
    with pytest.raises(FeedmuxError) as caught:
        await check_collection(cast(Source, mongo), KEY)
    assert (caught.value.reason, caught.value.metadata) == (ErrorReason.SNAPSHOT_UNSUITABLE, {"kind": kind})


async def test_a_plan_that_may_not_be_asked_for_counts_as_a_scan() -> None:
    clustered = CollectionInfo("collection", clustered=True)
    with pytest.raises(FeedmuxError) as caught:
        await check_collection(
            cast(Source, Mongo(clustered, scans=FeedmuxError(ErrorReason.SOURCE_UNAUTHORIZED, "no"))), KEY
        )
    assert caught.value.metadata == {"kind": "clustered"}
    unavailable = Mongo(clustered, scans=FeedmuxError(ErrorReason.SOURCE_UNAVAILABLE, "no"))
    with pytest.raises(Failed):
        await reader(unavailable).check_collection()


async def test_within_a_stream_mongodb_is_asked_again_where_it_does_not_answer() -> None:
    with pytest.raises(Failed):
        await reader(Mongo(FeedmuxError(ErrorReason.SOURCE_UNAVAILABLE, "no"))).check_collection()
    with pytest.raises(FeedmuxError):
        await reader(Mongo(FeedmuxError(ErrorReason.SOURCE_UNAUTHORIZED, "no"))).check_collection()


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        (failure(239), NotAtThisTime),
        (failure(246), NotAtThisTime),
        (failure(72), NotAtThisTime),
        (AutoReconnect("closed"), Failed),
        (failure(43), Failed),
        (failure(13), FeedmuxError),
        (failure(10334), FeedmuxError),
    ],
)
async def test_what_an_error_means(error: PyMongoError, meaning: type[Exception]) -> None:
    read = reader(Mongo(found=error))
    await read.open(Copied(), 5, "t")
    with pytest.raises(meaning):
        await read.next_batch("t")
    await read.close()
    if not (isinstance(error, OperationFailure) and error.code == 43):  # of a getMore alone
        with pytest.raises(meaning):
            await reader(Mongo(opening=error)).open(Copied(), 5, "t")


async def test_the_words_of_mongodb_are_withheld_where_grants_narrow() -> None:
    """They may quote a document."""
    for key, quoted in ((KEY, True), (stream_key(KEY.spec, STAGES), False)):
        read = reader(Mongo(found=failure(16608)), key)
        await read.open(Copied(), 5, "t")
        with pytest.raises(FeedmuxError) as caught:
            await read.next_batch("t")
        assert (caught.value.reason, "a message" in caught.value.message) == (ErrorReason.PIPELINE_FAILED, quoted)


async def test_after_a_read_that_was_stopped_reads_pass_fewer_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    """First one at a time, to find the one that takes long. These say nothing of how many more a read may pass."""
    mongo = Mongo()
    read = DocumentsReader(cast(Source, mongo), stream_key(KEY.spec, STAGES), ReadLimits(batch_events=320))

    async def pass_some() -> None:
        await read.open(Copied(), 5, "t")
        await read.next_batch("t")

    await pass_some()
    monkeypatch.setattr(TimedReads, "overran", True)
    mongo.cursor.found = failure(11601)
    with pytest.raises(Failed) as caught:
        await pass_some()
    assert caught.value.at_once
    await read.close()
    mongo.cursor.found = RawBatch(b"", None, True)
    monkeypatch.setattr(TimedReads, "is_careful", True)
    await pass_some()
    await pass_some()
    mongo.bound_fails = failure(239)
    with pytest.raises(NotAtThisTime):
        await pass_some()
    mongo.bound_fails = None
    monkeypatch.setattr(TimedReads, "is_careful", False)
    await pass_some()
    assert mongo.bounds == [320, 640, 1, 1, 1, 10]


async def test_a_read_under_a_login_that_was_replaced_is_begun_again() -> None:
    read = reader(Mongo(found=failure(13), is_former=True))
    await read.open(Copied(), 5, "t")
    with pytest.raises(Failed) as caught:
        await read.next_batch("t")
    assert caught.value.at_once
    await read.close()


async def test_each_read_has_a_secret_of_its_own() -> None:
    mongo = Mongo()
    for _ in range(2):
        await reader(mongo, stream_key(KEY.spec, STAGES)).open(Copied(), 5, "t")
    secrets = {
        next(each["$replaceWith"]["_id"]["_data"] for each in stages if "$replaceWith" in each)
        for stages in mongo.asked
    }
    assert [len(each) for each in secrets] == [32, 32]


async def test_batches_are_as_large_as_makes_them_cheap() -> None:
    """Whatever the documents are: of 500 bytes, of 20 KB, of 2 MB."""
    for size, wanted in ((500, 1_000), (20_000, 125), (2_000_000, 1)):
        mongo = Mongo(found=RawBatch(bytes(FIRST_EVENTS * size), None, False))
        read = DocumentsReader(cast(Source, mongo), KEY, ReadLimits(batch_events=1_000))
        await read.open(Copied(), 5, "t")
        for _ in range(2):
            await read.next_batch("t")
        assert mongo.cursor.asked == [FIRST_EVENTS, wanted]


async def test_the_next_batch_is_read_before_it_is_asked_for_where_a_turn_is_free() -> None:
    mongo = Mongo(found=RawBatch(b"x", None, False))
    read = reader(mongo)
    await read.open(Copied(), 5, "t")
    await read.next_batch("t")
    await read.read_ahead()
    assert len(mongo.cursor.asked) == 2, "asked before the present batch is cut"
    assert (await read.next_batch("t")).data == b"x"
    assert len(mongo.cursor.asked) == 2
    await asyncio.sleep(0)
    turn = mongo.history_reads.try_begin()
    assert turn is not None, "the turn of the read has ended with it"
    await read.read_ahead()
    assert len(mongo.cursor.asked) == 2
    turn.end()
    mongo.cursor.held = asyncio.get_running_loop().create_future()
    await read.read_ahead()
    await read.close()
    assert (len(mongo.cursor.asked), mongo.cursor.closed) == (3, 1)
    assert mongo.history_reads.try_begin() is not None


async def test_a_failure_of_a_read_ahead_is_raised_where_its_batch_is_asked_for() -> None:
    read = reader(Mongo(found=failure(239)))
    await read.open(Copied(), 5, "t")
    await read.read_ahead()
    with pytest.raises(NotAtThisTime):
        await read.next_batch("t")
    await read.close()


async def test_the_last_batch_closes_the_read_and_each_read_takes_a_turn() -> None:
    mongo = Mongo()
    read = reader(mongo)
    await read.open(Copied(), 5, "t")
    turn = mongo.history_reads.try_begin()
    assert turn is not None
    assert mongo.history_reads.try_begin() is None
    turn.end()
    assert (await read.next_batch("t")).exhausted
    assert (read.is_open, mongo.cursor.closed) == (False, 1)
    assert mongo.history_reads.try_begin() is not None
