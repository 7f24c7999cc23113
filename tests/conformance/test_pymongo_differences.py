"""Where feedmux is not as pymongo: each line of docs/pymongo-compatibility.md that a program can notice, on both."""

import asyncio
from typing import Any

import pytest
from bson import Int64, Timestamp
from bson.codec_options import CodecOptions, TypeDecoder, TypeRegistry
from bson.datetime_ms import DatetimeMS
from pymongo import AsyncMongoClient, MongoClient

import feedmux
from feedmux_server.core.positions.resume_token import ResumeToken
from tests.conformance.pymongo_support import (
    ASYNC_FEEDMUX,
    ASYNC_PYMONGO,
    FEEDMUX,
    PYMONGO,
    Lockstep,
    Raised,
    Site,
)
from tests.conformance.statements import PYMONGO as DOCUMENT
from tests.conformance.statements import shows
from tests.tables import over

OURS, THEIRS = (FEEDMUX, ASYNC_FEEDMUX), (PYMONGO, ASYNC_PYMONGO)


async def opened(collection: Lockstep, **arguments: Any) -> tuple[Lockstep, dict[str, Raised]]:
    """The streams that were opened, and the refusals."""
    outcomes = await collection.each(lambda each: each.watch(**arguments))
    refused = {side: outcome for side, outcome in outcomes.items() if isinstance(outcome, Raised)}
    streams = Lockstep({side: outcomes[side] for side in outcomes if side not in refused}, collection._made)
    collection._made.append(streams)
    return streams, refused


@shows(DOCUMENT, "Differences", "feedmux applies the collation; pymongo takes it and does not send it")
async def test_collation(both: Site, shared: str) -> None:
    collection = await both.collection(shared, "c")
    pipeline = [{"$match": {"fullDocument.word": "strasse"}}]
    streams = await collection.make(
        lambda each: each.watch(pipeline, collation={"locale": "de", "strength": 1}, max_await_time_ms=300)
    )
    both.mongo[shared]["c"].insert_one({"word": "STRASSE"})
    seen = await streams.each(lambda each: each.try_next())
    assert {side for side, event in seen.items() if event is not None} == set(OURS)
    _, refused = await opened(collection, collation={"locale": "nowhere"})
    assert set(refused) == set(OURS)
    assert {raised.code for raised in refused.values()} == {2}


FUNCTION = {"$function": {"body": "function(){return 1}", "args": [], "lang": "js"}}


@shows(DOCUMENT, "Differences", "a start in the future is rejected; MongoDB waits for it")
@shows(DOCUMENT, "Differences", "$function and $accumulator are rejected; MongoDB runs the first")
@shows(DOCUMENT, "Differences", "over 50 stages or 64 KiB of pipeline are rejected with an OperationFailure")
@over(
    ("arguments", "code"),
    [
        ({"start_at_operation_time": Timestamp(2**32 - 1, 1)}, 2),
        ({"pipeline": [{"$set": {"a": FUNCTION}}]}, 20),
        ({"pipeline": [{"$match": {}}] * 51}, 2),
        ({"pipeline": [{"$match": {"a": "x" * 65536}}]}, 2),
    ],
)
async def test_what_only_feedmux_rejects(both: Site, shared: str, arguments: dict[str, Any], code: int) -> None:
    _, refused = await opened(await both.collection(shared, "c"), **arguments)
    assert set(refused) == set(OURS)
    assert {(raised.kind, raised.code) for raised in refused.values()} == {("OperationFailure", code)}


@shows(DOCUMENT, "Differences", "max_await_time_ms out of range or a bool is rejected by watch, not by the first step")
async def test_a_wrong_await(both: Site, shared: str) -> None:
    for wrong in (-1, 2**31, True, False):
        streams, refused = await opened(await both.collection(shared, "c"), max_await_time_ms=wrong)
        assert set(refused) == set(OURS)
        later = await streams.each(lambda each: each.try_next())
        raised = [*refused.values(), *later.values()]
        assert len({(each.kind, each.code, each.code_name) for each in raised}) == 1
        assert isinstance(wrong, bool) or set(later.values()) == set(refused.values())


@shows(DOCUMENT, "Differences", "what MongoDB meets while reading is raised by the first step, never by watch")
async def test_when_reading_fails(both: Site, shared: str) -> None:
    collection = await both.collection(shared, "c")
    written = both.mongo[shared]["c"]
    begin = both.mongo.admin.command("ping")["operationTime"]
    written.insert_one({"n": 0})
    pipeline = [{"$set": {"a": {"$divide": [1, "$fullDocument.n"]}}}]
    streams, refused = await opened(collection, pipeline=pipeline, start_at_operation_time=begin)
    assert set(refused) == set(THEIRS)
    later = await streams.each(lambda each: each.next())
    assert {(raised.kind, raised.code) for raised in [*refused.values(), *later.values()]} == {("OperationFailure", 2)}


@shows(DOCUMENT, "Differences", "a token that is cut short: OperationFailure 260, whatever MongoDB stumbles over")
async def test_a_token_cut_short(both: Site, shared: str) -> None:
    _, refused = await opened(await both.collection(shared, "c"), resume_after={"_data": "82"})
    assert {refused[side].code for side in THEIRS} == {15}
    assert {refused[side].code for side in OURS} == {260}
    assert {raised.kind for raised in refused.values()} == {"OperationFailure"}


@shows(DOCUMENT, "Differences", "resume_token is never None, also before the first event after start_at_operation_time")
async def test_a_token_from_the_start(both: Site, shared: str) -> None:
    begin = both.mongo.admin.command("ping")["operationTime"]
    both.mongo[shared]["c"].insert_one({"n": 1})
    streams = await (await both.collection(shared, "c")).make(lambda each: each.watch(start_at_operation_time=begin))
    tokens = await streams.each(lambda each: each.resume_token)
    assert {side for side, token in tokens.items() if token is None} == set(THEIRS)
    for side in OURS:
        raw = bytes.fromhex(tokens[side]["_data"])
        found = ResumeToken.from_key_string(raw)
        assert found.is_high_water_mark
        assert found.cluster_time == begin.time << 32 | begin.inc


@shows(DOCUMENT, "Differences", "after close, try_next returns None; pymongo's what is left of a batch")
async def test_try_next_after_close(both: Site, shared: str) -> None:
    streams = await (await both.collection(shared, "c")).make(lambda each: each.watch())
    both.mongo[shared]["c"].insert_many([{"n": n} for n in range(5)])
    await streams.same(lambda each: each.next())
    await streams.same(lambda each: each.close())
    left = await streams.each(lambda each: each.try_next())
    assert {side for side in OURS if left[side] is not None} == set()


@shows(DOCUMENT, "Differences", "after close of the client, watch connects again; pymongo's raises InvalidOperation")
async def test_a_closed_client(both: Site, shared: str) -> None:
    sides = {
        PYMONGO: MongoClient(both.uri),
        FEEDMUX: feedmux.Client(both.address),
        ASYNC_PYMONGO: AsyncMongoClient(both.uri),
        ASYNC_FEEDMUX: feedmux.AsyncClient(both.address),
    }
    clients = Lockstep(sides, [])
    for _ in range(2):
        await clients.same(lambda each: each.close())
    outcomes = await clients.each(lambda each: each[shared]["c"].watch())
    for side in THEIRS:
        assert outcomes[side].kind == "InvalidOperation"
    streams = Lockstep({side: outcomes[side] for side in OURS}, [])
    both.mongo[shared]["c"].insert_one({"n": 1})
    for event in (await streams.each(lambda each: each.next())).values():
        assert event["fullDocument"]["n"] == 1
    await streams.close()
    await clients.close()


class Failing(TypeDecoder):
    """Cannot decode one number."""

    bson_type = Int64

    def transform_bson(self, value: Any) -> Any:
        if value == BAD:
            raise ValueError(f"{value} is wrong")
        return value


BAD = Int64(2**40)
CUSTOM: CodecOptions[Any] = CodecOptions(type_registry=TypeRegistry([Failing()]))


@shows(DOCUMENT, "Differences", "with custom decoders, pymongo's stream continues after an event that it cannot decode")
async def test_an_event_that_custom_decoders_cannot_decode(both: Site, shared: str) -> None:
    streams = await (await both.collection(shared, "c", codec_options=CUSTOM)).make(lambda each: each.watch())
    written = both.mongo[shared]["c"]
    written.insert_one({"n": 1})
    await streams.same(lambda each: each.next())
    written.insert_one({"n": BAD})
    written.insert_one({"n": 2})
    raised = await streams.refused(lambda each: each.next(), words=False)
    assert raised.kind == "InvalidBSON"
    alive = await streams.each(lambda each: each.alive)
    assert {side for side in alive if alive[side]} == set(THEIRS)
    tokens = await streams.each(lambda each: each.resume_token)
    later = await streams.each(lambda each: each.try_next())
    assert {side: event and event["fullDocument"]["n"] for side, event in later.items()} == {
        **dict.fromkeys(THEIRS, 2),
        **dict.fromkeys(OURS, None),
    }
    for side, token in tokens.items():
        with written.watch(resume_after=token) as again:
            assert again.next()["fullDocument"]["n"] == (2 if side in THEIRS else BAD)


@shows(DOCUMENT, "Differences", "an event of the first answer that cannot be decoded: raised by watch in pymongo")
async def test_a_first_event_that_cannot_be_decoded(both: Site, shared: str) -> None:
    begin = both.mongo.admin.command("ping")["operationTime"]
    both.mongo[shared]["c"].insert_one({"at": DatetimeMS(2**55)})
    streams, refused = await opened(await both.collection(shared, "c"), start_at_operation_time=begin)
    assert set(refused) == set(THEIRS)
    later = await streams.each(lambda each: each.next())
    assert {raised.kind for raised in [*refused.values(), *later.values()]} == {"InvalidBSON"}


@shows(DOCUMENT, "Better", "a next that was cancelled or timed out leaves the stream alive, and loses nothing")
async def test_a_cancelled_next(both: Site, shared: str) -> None:
    streams = await (await both.collection(shared, "c")).make(lambda each: each.watch())
    for side, alive in ((ASYNC_PYMONGO, False), (ASYNC_FEEDMUX, True)):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(streams.sides[side].next(), 0.3)
        assert streams.sides[side].alive is alive
    both.mongo[shared]["c"].insert_one({"n": 1})
    event = await asyncio.wait_for(streams.sides[ASYNC_FEEDMUX].next(), 10)
    assert event["fullDocument"]["n"] == 1


@shows(DOCUMENT, "Better", "a read that MongoDB killed continues; pymongo's stream ends with the error")
async def test_a_killed_read(both: Site, shared: str) -> None:
    streams = await (await both.collection(shared, "c")).make(lambda each: each.watch())
    both.mongo[shared]["c"].insert_one({"n": 1})
    await streams.same(lambda each: each.next())
    point = {"configureFailPoint": "failCommand"}
    # CursorKilled, without a label
    data = {"failCommands": ["getMore"], "errorCode": 237}
    both.mongo.admin.command({**point, "mode": "alwaysOn", "data": data})
    theirs = Lockstep({side: streams.sides[side] for side in THEIRS}, [])
    ours = Lockstep({side: streams.sides[side] for side in OURS}, [])
    try:
        assert {each.code for each in (await theirs.each(lambda each: each.next())).values()} == {237}
        assert await ours.each(lambda each: each.try_next()) == dict.fromkeys(OURS)
    finally:
        both.mongo.admin.command({**point, "mode": "off"})
    both.mongo[shared]["c"].insert_one({"n": 2})
    for event in (await ours.each(lambda each: each.next())).values():
        assert event["fullDocument"]["n"] == 2
