"""What a ChangeStream returns, and what it says of itself, step by step, compared with pymongo's."""

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio
from bson import Binary, Timestamp
from pymongo.database import Database

from tests.conformance.pymongo_support import ASYNC_FEEDMUX, FEEDMUX, PAIRS, Action, Lockstep, Site
from tests.conformance.statements import PYMONGO as DOCUMENT
from tests.conformance.statements import shows

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class World:
    """A database of its own, as the writer sees it, and for each of the four."""

    both: Site
    database: Database[Document]
    sides: Lockstep

    async def watch(self, scope: str = "collection", **arguments: Any) -> Lockstep:
        """Streams on the collection `c`, the database or the cluster."""
        match scope:
            case "collection":
                return await self.sides.make(lambda each: each.c.watch(**arguments))
            case "database":
                return await self.sides.make(lambda each: each.watch(**arguments))
        pipeline = [{"$match": {"ns.db": self.database.name}}]
        return await self.both.clients.make(lambda client: client.watch(pipeline, **arguments))


@pytest_asyncio.fixture
async def world(both: Site, shared: str) -> World:
    return World(both, both.mongo[shared], await both.clients.make(lambda client: client[shared]))


def resuming(token: Document) -> Action:
    return lambda database: database.c.watch(resume_after=token)


NEWER: list[Document] = [
    {
        "$set": {
            "operationType": "endOfTransaction",
            "commitTimestamp": "$clusterTime",
            "nsType": "collection",
            "operationDescription": {"txnNumber": 7, "lsid": {"id": Binary(bytes(16), 4)}},
        }
    },
    {"$unset": ["ns", "documentKey", "fullDocument"]},
]
"""Make of each event one that MongoDB 6.0 does not have."""


def write_all_kinds(database: Database[Document]) -> None:
    """An event of each kind that leaves the collection alive."""
    c = database.c
    c.insert_one({"_id": 1, "address": {"city": "Ulm"}, "list": [1, 2, 3, 4, 5, 6, 7, 8]})
    c.update_one({"_id": 1}, {"$set": {"address.city": "Köln"}, "$unset": {"gone": 1}})
    c.update_one({"_id": 1}, [{"$set": {"list": [1, 2]}}])
    c.replace_one({"_id": 1}, {"ü": "ß", "a": {"b": None, "": 1.5}})
    c.create_index("ü")
    c.delete_one({"_id": 1})
    with database.client.start_session() as session, session.start_transaction():
        c.insert_many([{"_id": 2}, {"_id": 3}], session=session)


@shows(DOCUMENT, "ChangeStream.next", "documents are equal, field by field and type by type, in every scope")
@pytest.mark.parametrize(
    ("scope", "arguments", "count"),
    [
        ("collection", {}, 7),
        ("database", {}, 7),
        ("cluster", {"full_document": "updateLookup"}, 7),
        ("collection", {"full_document": "required", "full_document_before_change": "whenAvailable"}, 7),
        ("collection", {"show_expanded_events": True}, 8),
        ("collection", {"batch_size": 1, "comment": "why", "max_await_time_ms": 500}, 7),
    ],
    ids=str,
)
async def test_documents(world: World, scope: str, arguments: Document, count: int) -> None:
    world.database.command("collMod", "c", changeStreamPreAndPostImages={"enabled": True})
    streams = await world.watch(scope, **arguments)
    write_all_kinds(world.database)
    for _ in range(count):
        event = await streams.same(lambda each: each.next())
        await streams.tokens(event)
        assert await streams.same(lambda each: each.alive) is True


@shows(DOCUMENT, "ChangeStream.next", "types and fields of events that feedmux does not know are returned")
async def test_events_of_newer_versions(world: World) -> None:
    streams = await world.watch(pipeline=NEWER)
    world.database.c.insert_one({"_id": 1})
    event = await streams.same(lambda each: each.next())
    assert (event["operationType"], "documentKey" in event) == ("endOfTransaction", False)


@shows(DOCUMENT, "ChangeStream.resume_token", "is after each event within a batch, and after the batch at its end")
@shows(DOCUMENT, "watch", "resume_after, start_after and start_at_operation_time begin at the same event")
async def test_tokens_within_a_batch(world: World) -> None:
    with world.database.c.watch() as direct:
        world.database.c.insert_many([{"n": n} for n in range(6)])
        events = [direct.next() for _ in range(6)]
    starts: list[tuple[Document, int]] = [
        ({"resume_after": events[0]["_id"]}, 1),
        ({"start_after": events[1]["_id"]}, 2),
        ({"start_at_operation_time": events[2]["clusterTime"]}, 2),
    ]
    for arguments, first in starts:
        streams = await world.watch(**arguments)
        if "start_at_operation_time" not in arguments:
            await streams.tokens(events[first - 1], exact=True)
        for event in events[first:]:
            assert await streams.same(lambda each: each.next()) == event
            await streams.tokens(event, exact=event is not events[-1])


@shows(DOCUMENT, "ChangeStream.resume_token", "is there before the first event and after an empty try_next")
async def test_tokens_without_events(world: World) -> None:
    streams = await world.watch(max_await_time_ms=200)
    before = await streams.each(lambda each: each.resume_token)
    assert all(before.values())
    assert await streams.same(lambda each: each.try_next()) is None
    after = await streams.each(lambda each: each.resume_token)
    world.database.c.insert_one({"n": 1})
    event = await streams.same(lambda each: each.next())
    for tokens in (before, after):
        for theirs, ours in PAIRS:
            # Each side's token resumes on the other.
            for made, used in ((ours, theirs), (theirs, ours)):
                one = Lockstep({used: world.sides.sides[used]}, world.sides._made)
                stream = await one.make(resuming(tokens[made]))
                assert (await stream.each(lambda each: each.next()))[used] == event


@shows(DOCUMENT, "ChangeStream.resume_token", "a copy is returned: changing it changes nothing")
async def test_the_token_is_a_copy(world: World) -> None:
    streams = await world.watch()
    await streams.each(lambda each: each.resume_token.clear())
    assert all((await streams.each(lambda each: each.resume_token)).values())


ENDINGS: dict[str, tuple[Callable[[Database[Document]], Any], list[str], list[str]]] = {
    "drop": (lambda database: database.c.drop(), ["drop", "invalidate"], ["drop"]),
    "rename": (lambda database: database.c.rename("d"), ["rename", "invalidate"], ["rename"]),
    "dropDatabase": (
        lambda database: database.client.drop_database(database.name),
        ["drop", "invalidate"],
        ["drop", "dropDatabase", "invalidate"],
    ),
}


@shows(DOCUMENT, "Invalidate", "drop, rename and dropDatabase: the events, then alive is False and next stops")
@shows(
    DOCUMENT,
    "Invalidate",
    "resume_after at the invalidate is rejected with code 260; start_after continues after it",
)
@pytest.mark.parametrize("ending", list(ENDINGS))
@pytest.mark.parametrize("scope", ["collection", "database"])
async def test_invalidate(world: World, ending: str, scope: str) -> None:
    end, in_collection, in_database = ENDINGS[ending]
    expected = in_collection if scope == "collection" else in_database
    streams = await world.watch(scope)
    world.database.c.insert_one({"n": 1})
    assert (await streams.same(lambda each: each.next()))["operationType"] == "insert"
    end(world.database)
    for kind in expected:
        assert await streams.same(lambda each: each.alive) is True
        event = await streams.same(lambda each: each.next())
        assert event["operationType"] == kind
        await streams.tokens(event)
    if expected[-1] != "invalidate":
        assert await streams.same(lambda each: each.alive) is True
        return
    assert await streams.same(lambda each: each.alive) is False
    await streams.tokens(event, exact=True)
    assert await streams.same(lambda each: each.try_next()) is None
    assert (await streams.refused(lambda each: each.next())).kind == "StopIteration"
    await streams.tokens(event, exact=True)
    token = event["_id"]
    target = world.sides if scope == "database" else await world.sides.make(lambda each: each.c)
    raised = await target.refused(lambda each: each.watch(resume_after=token))
    assert (raised.code, raised.code_name) == (260, "InvalidResumeToken")
    if scope == "database":
        return  # MongoDB itself refuses the token once an event comes (280)
    again = await target.make(lambda each: each.watch(start_after=token))
    await again.tokens(event)
    assert await again.same(lambda each: each.alive) is True
    world.database.c.insert_one({"n": 2})
    assert (await again.same(lambda each: each.next()))["fullDocument"]["n"] == 2


@shows(DOCUMENT, "Invalidate", "where the pipeline hides the invalidate, the stream ends all the same")
async def test_a_hidden_invalidate(world: World) -> None:
    hidden = [{"$match": {"operationType": "insert"}}]
    streams = await world.watch(pipeline=hidden)
    world.database.c.insert_one({"n": 1})
    await streams.same(lambda each: each.next())
    world.database.c.drop()
    assert (await streams.refused(lambda each: each.next())).kind == "StopIteration"
    assert await streams.same(lambda each: each.alive) is False


@shows(DOCUMENT, "Iteration", "for and async for, with and async with; a loop that was left continues where it was")
async def test_iteration(world: World) -> None:
    def some(stream: Any, count: int) -> list[int]:
        numbers = []
        for event in stream:
            numbers.append(event["fullDocument"]["n"])
            if len(numbers) == count:
                break
        return numbers

    async def some_async(stream: Any, count: int) -> list[int]:
        numbers = []
        async for event in stream:
            numbers.append(event["fullDocument"]["n"])
            if len(numbers) == count:
                break
        return numbers

    def run(stream: Any) -> Any:
        if hasattr(stream, "__iter__"):
            with stream as entered:
                return entered is stream, some(stream, 2), some(stream, 3), stream.alive

        async def work() -> Any:
            async with stream as entered:
                return entered is stream, await some_async(stream, 2), await some_async(stream, 3), stream.alive

        return work()

    streams = await world.watch()
    world.database.c.insert_many([{"n": n} for n in range(5)])
    assert await streams.same(run) == (True, [0, 1], [2, 3, 4], True)
    assert await streams.same(lambda each: each.alive) is False
    assert (await streams.refused(lambda each: each.next())).kind == "StopIteration"


@shows(DOCUMENT, "ChangeStream.close", "may be called again; then alive is False, next stops, try_next is None")
async def test_close(world: World) -> None:
    streams = await world.watch()
    world.database.c.insert_one({"n": 1})
    event = await streams.same(lambda each: each.next())
    for _ in range(2):
        await streams.same(lambda each: each.close())
        assert await streams.same(lambda each: each.alive) is False
        assert await streams.same(lambda each: each.try_next()) is None
        assert (await streams.refused(lambda each: each.next())).kind == "StopIteration"
        await streams.tokens(event)


@shows(DOCUMENT, "ChangeStream.close", "from another thread or task ends a waiting next with a clean stop")
async def test_close_while_another_waits(world: World) -> None:
    streams = await world.watch()
    stream = streams.sides[FEEDMUX]
    heard: list[str] = []
    waiting = threading.Event()

    def wait() -> None:
        waiting.set()
        heard.extend(event["operationType"] for event in stream)
        heard.append("stopped")

    thread = threading.Thread(target=wait)
    thread.start()
    waiting.wait(60)
    await asyncio.to_thread(stream.close)
    await asyncio.to_thread(thread.join, 60)
    assert heard == ["stopped"]
    task = asyncio.ensure_future(streams.sides[ASYNC_FEEDMUX].next())
    await asyncio.sleep(0)
    await streams.sides[ASYNC_FEEDMUX].close()
    with pytest.raises(StopAsyncIteration):
        await asyncio.wait_for(task, 10)


@shows(DOCUMENT, "ChangeStream.try_next", "waits for max_await_time_ms, by default a second; with 0 not at all")
@pytest.mark.timeout(60)
async def test_how_long_try_next_waits(world: World) -> None:
    def timed(stream: Any) -> Any:
        begin = time.monotonic()
        if hasattr(stream, "__iter__"):
            return stream.try_next(), time.monotonic() - begin

        async def work() -> Any:
            return await stream.try_next(), time.monotonic() - begin

        return work()

    # The shortest of several, as the machine may be slow.
    waits: list[tuple[Document, float, float]] = [
        ({"max_await_time_ms": 2500}, 2.0, 20.0),
        ({}, 0.8, 2.0),
        ({"max_await_time_ms": 0}, 0.0, 0.7),
    ]
    for arguments, least_s, most_s in waits:
        streams = await world.watch(**arguments)
        shortest_s = dict.fromkeys(streams.sides, 60.0)
        while any(took_s > most_s for took_s in shortest_s.values()):
            for side, (event, took_s) in (await streams.each(timed)).items():
                assert event is None
                assert took_s >= least_s
                shortest_s[side] = min(shortest_s[side], took_s)


@shows(DOCUMENT, "ChangeStream.try_next", "returns an event at once, also a late one within its wait")
async def test_try_next_returns_events(world: World) -> None:
    streams = await world.watch(max_await_time_ms=10_000)
    writer = threading.Timer(0.3, lambda: world.database.c.insert_many([{"n": n} for n in range(3)]))
    writer.start()
    for n in range(3):
        event = await streams.same(lambda each: each.try_next())
        assert event["fullDocument"]["n"] == n
        await streams.tokens(event)
    await asyncio.to_thread(writer.join)


@shows(DOCUMENT, "ChangeStream.try_next", "the first one of a stream with a start returns what is there")
async def test_the_first_try_next(world: World) -> None:
    begin = world.both.mongo.admin.command("ping")["operationTime"]
    world.database.c.insert_many([{"n": n} for n in range(3)])
    streams = await world.watch(start_at_operation_time=begin, max_await_time_ms=0)
    event = await streams.same(lambda each: each.try_next())
    assert event["fullDocument"]["n"] == 0


@shows(DOCUMENT, "watch", "a drain loop on try_next sees everything from its start on")
async def test_draining(world: World) -> None:
    begin = world.both.mongo.admin.command("ping")["operationTime"]
    world.database.c.insert_many([{"n": n, "pad": "x" * 500} for n in range(3000)])

    def drain(stream: Any) -> Any:
        if hasattr(stream, "__iter__"):
            return [event["fullDocument"]["n"] for event in iter(stream.try_next, None)]

        async def work() -> list[int]:
            numbers = []
            while (event := await stream.try_next()) is not None:
                numbers.append(event["fullDocument"]["n"])
            return numbers

        return work()

    # On a busy machine, the first event may take longer than the second that a stream waits by default.
    streams = await world.watch(start_at_operation_time=Timestamp(begin.time, begin.inc + 1), max_await_time_ms=5_000)
    assert await streams.same(drain) == list(range(3000))
