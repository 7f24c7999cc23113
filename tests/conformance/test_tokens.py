"""Resume tokens: which token a consumer receives, and where a stream continues."""

import asyncio
from contextlib import AbstractContextManager

import bson
import pytest
from bson import Timestamp

from feedmux.v1 import feed_pb2
from tests.conformance import faults
from tests.conformance.asked import logged
from tests.conformance.conftest import Document, Site, on_both_versions
from tests.conformance.faults import FailPoint
from tests.conformance.same import (
    Reading,
    after,
    assert_same,
    check_events,
    check_refusal,
    operation_time,
    read_directly,
    read_through,
    scoped,
    token_time,
)
from tests.conformance.statements import DRIVERS, EVENTS, FEEDMUX, SERVER, shows
from tests.documents import Documents
from tests.integration.wire import EARLIEST, LATEST, Receiver, at, feed, refused, seconds

CACHE = "Updating the Cached Resume Token"
RESUME = "Resume Process"
EXPOSE = "Exposing All Resume Tokens"
RESUMING = "Resuming Change Streams"


def failing(site: Site, database: Documents) -> AbstractContextManager[FailPoint]:
    """feedmux's connection breaks at its next getMore."""
    return faults.failing(site.client, f"{database.name}.c", "getMore", closeConnection=True)


async def failed(site: Site, database: Documents, times: int) -> None:
    """Until feedmux has resumed so often."""
    async with asyncio.timeout(60):
        while True:
            streams = await site.api.streams(f"{database.name}.c")
            if streams and max(stream.resumes for stream in streams) >= times:
                return
            await asyncio.sleep(0.02)


def history(site: Site, database: Documents) -> tuple[feed_pb2.Start, Reading]:
    """Eight events, three of them of a transaction, and where they begin."""
    database.c.insert_one({"_id": "before"})
    start = after(site)
    database.c.insert_many([{"_id": n, "n": n} for n in range(3)])
    with site.client.start_session() as session, session.start_transaction():
        for n in range(3, 6):
            database.c.insert_one({"_id": n, "n": n}, session=session)
    database.c.update_one({"_id": 1}, {"$set": {"m": 1}})
    database.c.delete_one({"_id": 2})
    return start, read_directly(site, feed(database.name, "c"), start, operation_time(site))


def token_of(event: bytes) -> bytes:
    """The event's `_id`."""
    return bson.encode(bson.decode(event)["_id"])


# --- Which token is given.


@shows(DRIVERS, CACHE, "started with startAfter or resumeAfter: that token, until something else is known")
@pytest.mark.parametrize("kind", ["resume_after", "start_after"])
async def test_the_token_at_the_start(site: Site, database: Documents, kind: str) -> None:
    _, expected = history(site, database)
    token = token_of(expected.events[2])
    receiver = site.api.watch(feed(database.name, "c"), at(**{kind: token}))
    opened = await receiver.opened()
    assert opened.resume_token == token
    receiver.cancel()


@shows(SERVER, "Change Stream Start Time", "without a start: what happens from now on")
@shows(DRIVERS, CACHE, "started with neither: no token of an event; feedmux gives the high-water mark of the start")
@pytest.mark.parametrize("kind", ["latest", "time", "earliest"])
async def test_the_token_at_a_start_by_time(site: Site, database: Documents, kind: str) -> None:
    before = operation_time(site)
    start = {"latest": LATEST, "time": after(site), "earliest": EARLIEST}[kind]
    receiver = site.api.watch(feed(database.name, "c"), start)
    opened = await receiver.opened()
    if kind == "earliest":
        assert token_time(opened.resume_token) < before
    else:
        assert token_time(opened.resume_token) > before
    receiver.cancel()


@shows(DRIVERS, CACHE, "after an event that is not the last of its batch: the event's _id")
@shows(DRIVERS, CACHE, "after the last event of a batch: its postBatchResumeToken")
@shows(DRIVERS, EXPOSE, "the token can be had after every event")
async def test_the_token_after_each_event(site: Site, database: Documents) -> None:
    start, expected = history(site, database)
    receiver = site.api.watch(feed(database.name, "c", batch_size=1), start)
    for number, event in enumerate(expected.events):
        await receiver.take(1)
        token = receiver.batches[-1].resume_token
        if number < len(expected.events) - 1:
            assert token == token_of(event)
        else:
            # MongoDB's high-water mark, or the event if nothing came after it yet.
            assert bson.decode(token)["_data"] >= bson.decode(token_of(event))["_data"]
    receiver.cancel()


@shows(DRIVERS, CACHE, "an empty batch with a postBatchResumeToken: that token")
@shows(DRIVERS, EXPOSE, "the token moves on while nothing is returned")
@shows(DRIVERS, "Not Blocking on Iteration", "tokens are to be had while batches stay empty")
@shows(DRIVERS, "Rationale", "the token passes what the pipeline does not match, and resuming from it scans less")
async def test_the_token_while_nothing_matches(site: Site, database: Documents) -> None:
    wanted = feed(database.name, "c", '[{"$match": {"operationType": "delete"}}]')
    receiver = site.api.watch(wanted, heartbeat_interval=seconds(1))
    await receiver.opened()
    first = receiver.resume_token
    for n in range(3):
        database.c.insert_one({"_id": n})
        written = operation_time(site)
        while token_time(receiver.resume_token) < written:
            await receiver.message()
    assert receiver.received == 0
    token = receiver.resume_token
    assert bson.decode(token)["_data"] > bson.decode(first)["_data"]
    database.c.delete_one({"_id": 0})
    [event] = await receiver.take(1)
    receiver.cancel()
    # The token is MongoDB's own: a direct stream takes it as well.
    for kind in ("resume_after", "start_after"):
        direct = read_directly(site, wanted, at(**{kind: token}), operation_time(site))
        assert direct.events == [event.data]


@shows(DRIVERS, CACHE, "an empty batch moves the token also of a stream that began after a token")
@pytest.mark.parametrize("kind", ["resume_after", "start_after"])
async def test_the_token_moves_after_a_start_by_token(site: Site, database: Documents, kind: str) -> None:
    """Otherwise an idle stream's position would age until the oplog no longer has it."""
    _, expected = history(site, database)
    token = token_of(expected.events[-1])
    receiver = site.api.watch(feed(database.name, "c"), at(**{kind: token}), heartbeat_interval=seconds(1))
    await receiver.opened()
    database.other.insert_one({"_id": 1})
    written = operation_time(site)
    await receiver.until(lambda: token_time(receiver.resume_token) >= written)
    moved = receiver.resume_token
    database.c.insert_one({"_id": "next"})
    [event] = await receiver.take(1)
    receiver.cancel()
    direct = read_directly(site, feed(database.name, "c"), at(resume_after=moved), operation_time(site))
    assert direct.events == [event.data]


@shows(SERVER, "Resume Token Types", "high-water marks sort before all events of their time, and resume all of them")
@shows(SERVER, "Change Stream Guarantees", "a stream continues exactly where it stopped")
@pytest.mark.parametrize("scope", ["collection", "database", "cluster"])
async def test_high_water_marks_of_every_scope(site: Site, database: Documents, scope: str) -> None:
    wanted = scoped(scope, database.name)
    receiver = site.api.watch(wanted, heartbeat_interval=seconds(1))
    await receiver.opened()
    await receiver.until(lambda: receiver.progress)
    token = receiver.resume_token
    receiver.cancel()
    for kind in ("resume_after", "start_after"):
        await assert_same(site, wanted, lambda: database.c.insert_one({}), start=at(**{kind: token}))


# --- Resuming from a token.


@shows(DRIVERS, "resumeAfter", "what follows the token, from the next entry on")
@shows(DRIVERS, "Driver API", "startAfter gives the first event after the token")
@shows(EVENTS, "Change Events", "_id is the token for resumeAfter")
@shows(SERVER, RESUMING, "the token of any event, given as resumeAfter or startAfter")
@pytest.mark.parametrize("kind", ["resume_after", "start_after"])
@on_both_versions
async def test_from_every_event(site: Site, database: Documents, kind: str) -> None:
    """Also from within a transaction. Some join a ring that has the token, others open a stream there."""
    _, expected = history(site, database)
    for number, event in enumerate(tuple(expected.events)):
        receiver = site.api.watch(feed(database.name, "c"), at(**{kind: token_of(event)}))
        rest = Reading(expected.events[number + 1 :])
        check_events(await read_through(receiver, rest), rest)
        database.c.insert_one({"_id": f"{kind} {number}"})
        [behind] = await receiver.take(1)
        assert behind.document["documentKey"]["_id"] == f"{kind} {number}"
        receiver.cancel()
        expected.events.append(behind.data)


@shows(SERVER, "Resume Tokens", "tokens of feedmux and of MongoDB's own streams are the same")
async def test_tokens_there_and_back(site: Site, database: Documents) -> None:
    start, expected = history(site, database)
    wanted = feed(database.name, "c")
    receiver = site.api.watch(wanted, start, message_bytes_max=64 * 1024)
    await receiver.take(len(expected.events))
    database.c.insert_one({"_id": "more"})
    behind = read_directly(site, wanted, at(resume_after=receiver.resume_token), operation_time(site))
    [more] = await receiver.take(1)
    receiver.cancel()
    assert behind.events == [more.data]
    assert len(expected.tokens) > 0
    for token in expected.tokens:
        direct = read_directly(site, wanted, at(resume_after=token), operation_time(site))
        again = site.api.watch(wanted, at(resume_after=token))
        check_events(await read_through(again, direct), direct)
        again.cancel()


@shows(DRIVERS, "startAtOperationTime", "changes at or after the time, the time included")
@shows(SERVER, "Change Stream Start Time", "a logical time may be given as the start")
async def test_operation_time_is_inclusive(site: Site, database: Documents) -> None:
    _, expected = history(site, database)
    for number, document in enumerate(expected.documents):
        time: Timestamp = document["clusterTime"]
        start = at(start_at_operation_time=feed_pb2.ClusterTime(seconds=time.time, increment=time.inc))
        first = next(at for at, each in enumerate(expected.documents) if each["clusterTime"] == time)
        receiver = site.api.watch(feed(database.name, "c"), start)
        rest = Reading(expected.events[first:])
        check_events(await read_through(receiver, rest), rest)
        receiver.cancel()
        assert first <= number


@shows(DRIVERS, "resumeAfter", "a token that the stream does not have is an error of the server")
@shows(SERVER, "Resume Tokens", "a token of another filter may not be found")
@shows(FEEDMUX, "Errors", "RESUME_TOKEN_NOT_FOUND (280): the feed hides the event of a token of the client's own")
@pytest.mark.parametrize("kind", ["resume_after", "start_after"])
async def test_a_token_that_is_not_there(site: Site, database: Documents, kind: str) -> None:
    _, expected = history(site, database)
    wanted = feed(database.name, "c", '[{"$match": {"operationType": "delete"}}]')
    start = at(**{kind: token_of(expected.events[0])})
    direct = read_directly(site, wanted, start, operation_time(site))
    assert direct.error is not None
    outcome = await site.api.watch(wanted, start).end()
    check_refusal(outcome, direct.error)
    assert (outcome.code, outcome.reason) == ("FAILED_PRECONDITION", "RESUME_TOKEN_NOT_FOUND")


def invalidated(site: Site, database: Documents) -> bytes:
    """The token of an invalidate of `c`."""
    database.c.insert_one({"_id": 0})
    start = after(site)
    database.c.drop()
    direct = read_directly(site, feed(database.name, "c"), start, operation_time(site))
    assert direct.kinds == ["drop", "invalidate"]
    return token_of(direct.events[-1])


@shows(
    SERVER, "Resume Tokens", "tokens belong to the settings of their stream: one of an expanded event needs them again"
)
@shows(SERVER, "`showExpandedEvents`", "a token of an event that only an expanded stream has is not found without")
@pytest.mark.parametrize("expanded", [True, False])
@on_both_versions
async def test_a_token_of_an_expanded_event(site: Site, database: Documents, expanded: bool) -> None:
    start = after(site)
    database.c.create_index("n")
    database.c.insert_one({"_id": 0})
    with_all = feed(database.name, "c", show_expanded_events=True)
    created = read_directly(site, with_all, start, operation_time(site)).events[0]
    wanted, resume = feed(database.name, "c", show_expanded_events=expanded), at(resume_after=token_of(created))
    direct = read_directly(site, wanted, resume, operation_time(site))
    receiver = site.api.watch(wanted, resume)
    if expanded:
        assert direct.kinds == ["createIndexes", "insert"]
        check_events(await read_through(receiver, direct), direct)
        receiver.cancel()
    else:
        assert direct.error is not None
        outcome = await receiver.end()
        check_refusal(outcome, direct.error)
        assert outcome.reason == "RESUME_TOKEN_NOT_FOUND"


# --- Resuming after errors: what feedmux asks of MongoDB then.


@shows(DRIVERS, RESUME, "started with startAfter and nothing returned yet: startAfter again, resumeAfter not")
@shows(DRIVERS, RESUME, "resumed after an event: resumeAfter, and startAfter no more")
async def test_start_after_is_kept_until_the_first_event(site: Site, database: Documents) -> None:
    token = invalidated(site, database)
    with logged(database) as asked:
        receiver = site.api.watch(feed(database.name, "c"), at(start_after=token), heartbeat_interval=seconds(1))
        await receiver.opened()
        for times in (1, 2):
            database.other.insert_one({})
            written = operation_time(site)
            await receiver.until(lambda: token_time(receiver.resume_token) >= written)  # noqa: B023
            with failing(site, database):
                await failed(site, database, times)
        database.c.insert_one({"_id": 1, "n": 1})
        assert await receiver.numbers(1) == [1]
        with failing(site, database):
            await failed(site, database, 3)
        database.c.insert_one({"_id": 2, "n": 2})
        assert await receiver.numbers(1) == [2]
        receiver.cancel()
        *before, last = asked.stages
    assert len(before) == 3
    for stage in before:
        assert set(stage) == {"startAfter"}
    # resumeAfter would not go past the invalidate.
    assert bson.encode(before[0]["startAfter"]) == token
    assert token_time(before[2]["startAfter"]) > token_time(token)
    assert set(last) == {"resumeAfter"}


@shows(DRIVERS, RESUME, "resumed with a cached token: resumeAfter, without startAtOperationTime")
@shows(DRIVERS, "Rationale", "the newest postBatchResumeToken is what is resumed from")
async def test_resumes_from_the_newest_token(site: Site, database: Documents) -> None:
    wanted = feed(database.name, "c", '[{"$match": {"fullDocument.n": {"$gt": 0}}}]')
    with logged(database) as asked:
        receiver = site.api.watch(wanted, after(site), heartbeat_interval=seconds(1))
        await receiver.opened()
        database.c.insert_one({"n": 1})
        [event] = await receiver.take(1)
        database.c.insert_many([{"n": 0} for _ in range(20)])
        unmatched = operation_time(site)
        await receiver.until(lambda: token_time(receiver.resume_token) >= unmatched)
        with failing(site, database):
            await failed(site, database, 1)
        database.c.insert_one({"n": 2})
        assert await receiver.numbers(1) == [2]
        receiver.cancel()
        first, second = asked.stages
    assert set(first) == {"startAtOperationTime"}
    assert set(second) == {"resumeAfter"}
    assert token_time(second["resumeAfter"]) >= unmatched > event.document["clusterTime"]


@shows(DRIVERS, RESUME, "every option of the feed is there again when it is resumed")
async def test_options_are_kept_when_resuming(site: Site, database: Documents) -> None:
    wanted = feed(
        database.name,
        "c",
        '[{"$match": {"fullDocument.word": "a"}}]',
        full_document="updateLookup",
        full_document_before_change="whenAvailable",
        show_expanded_events=True,
        collation=bson.encode({"locale": "en", "strength": 1}),
        comment=bson.encode({"comment": "kept"}),
        read_concern="majority",
    )
    with logged(database) as asked:
        receiver: Receiver = site.api.watch(wanted, after(site))
        await receiver.opened()
        with failing(site, database):
            await failed(site, database, 1)
        database.c.insert_many([{"n": 1, "word": "b"}, {"n": 2, "word": "Á"}])
        assert await receiver.numbers(1) == [2]
        receiver.cancel()
        first, second = asked.aggregates
    starts = ("startAtOperationTime", "resumeAfter")
    for command in (first, second):
        for name in starts:
            command["pipeline"][0]["$changeStream"].pop(name, None)
        for name in ("lsid", "$clusterTime"):
            command.pop(name)
    assert first == second


@shows(FEEDMUX, "Bad input", "what is no resume token is INVALID_ARGUMENT, or what MongoDB says of it")
@pytest.mark.parametrize("token", [{"_data": "no"}, {"_data": 1}, {}, {"a": 1}, {"_data": "82"}])
async def test_what_is_no_token(site: Site, database: Documents, token: Document) -> None:
    wanted, start = feed(database.name, "c"), at(resume_after=bson.encode(token))
    assert read_directly(site, wanted, start, operation_time(site)).error is not None
    outcome = await refused(site.api.watch(wanted, start).opened())
    assert outcome.code == "INVALID_ARGUMENT"
