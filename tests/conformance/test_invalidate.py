"""Drop, rename and dropDatabase in each scope: what comes, what ends the stream, and how a consumer continues."""

from collections.abc import Callable
from typing import Any

import bson
import pytest

from feedmux.v1 import feed_pb2
from tests.conformance.conftest import Site
from tests.conformance.faults import insert, kinds, watching
from tests.conformance.statements import DRIVERS, EVENTS, FEEDMUX, SERVER, shows
from tests.documents import Documents
from tests.integration.wire import Receiver, Refused, at, feed

SECTION = "Change Stream Invalidate Events"


def scoped(database: Documents, scope: str) -> feed_pb2.Feed:
    return {
        "collection": feed(database.name, "c"),
        "database": feed(database.name),
        "cluster": feed(pipeline=f'[{{"$match": {{"ns.db": "{database.name}"}}}}]'),
    }[scope]


def drop(database: Documents) -> None:
    database.drop_collection("c")


def rename(database: Documents) -> None:
    database.c.rename("renamed")


def rename_onto(database: Documents) -> None:
    """Another collection replaces the watched collection."""
    database.other.rename("c", dropTarget=True)


def drop_database(database: Documents) -> None:
    database.client.drop_database(database.name)


WHAT_COMES: dict[tuple[Callable[[Documents], None], str], list[str]] = {
    (drop, "collection"): ["drop", "invalidate"],
    (drop, "database"): ["drop"],
    (drop, "cluster"): ["drop"],
    (rename, "collection"): ["rename", "invalidate"],
    (rename, "database"): ["rename"],
    (rename, "cluster"): ["rename"],
    (rename_onto, "collection"): ["rename", "invalidate"],
    (rename_onto, "database"): ["rename"],
    (rename_onto, "cluster"): ["rename"],
    (drop_database, "collection"): ["drop", "invalidate"],
    (drop_database, "database"): ["drop", "drop", "dropDatabase", "invalidate"],
    (drop_database, "cluster"): ["drop", "drop", "dropDatabase"],
}
CASES = [pytest.param(*case, id=f"{case[0].__name__}-{case[1]}") for case in WHAT_COMES]


def assert_invalidated(outcome: Refused) -> None:
    assert (outcome.code, outcome.reason, outcome.domain) == ("FAILED_PRECONDITION", "FEED_INVALIDATED", "feedmux")


@shows(EVENTS, "invalidate Event", "dropDatabase ends the streams of its collections too")
@shows(EVENTS, "drop Event", "on a database's stream a drop is an event like others")
@shows(DRIVERS, "Driver API", "startAfter follows a collection that was dropped and made again, and misses nothing")
@shows(EVENTS, "invalidate Event", "resumeAfter does not go past an invalidate, startAfter does")
@shows(SERVER, "Resuming Change Streams", "resumeAfter rejects the token of an invalidate, startAfter takes it")
@shows(FEEDMUX, "MongoDB says", "resumeAfter at an invalidate: FAILED_PRECONDITION START_AFTER_REQUIRED")
@pytest.mark.parametrize(("happens", "scope"), CASES)
@shows(SERVER, SECTION, "A collection's stream ends with invalidate at drop, rename and dropDatabase")
@shows(SERVER, SECTION, "A database's stream ends with invalidate at dropDatabase only")
@shows(SERVER, SECTION, "A cluster's stream never ends with invalidate")
@shows(EVENTS, "invalidate", "drop, rename and dropDatabase come in order, invalidate after them")
async def test_what_comes_in_each_scope(
    site: Site, database: Documents, happens: Callable[[Documents], None], scope: str
) -> None:
    insert(database, range(1))
    insert(database, range(1), "other")
    wanted = scoped(database, scope)
    watch = await watching(site, wanted)
    insert(database, range(1, 2))
    happens(database)
    insert(database, range(2, 4), "c")
    expected = WHAT_COMES[happens, scope]
    events = await watch.take(1 + len(expected))
    assert kinds(events) == ["insert", *expected]
    if expected[-1] != "invalidate":
        assert await watch.numbers(2) == [2, 3]
        watch.cancel()
        return
    assert "documentKey" not in events[-1].document
    assert_invalidated(await watch.end())
    # The position after the invalidate works, and so does its token by start_after, but not by resume_after.
    token = bson.encode(events[-1].document["_id"])
    for start in (at(position=watch.position), at(start_after=token)):
        again = await watching(site, wanted, start)
        assert await again.numbers(2) == [2, 3]
        again.cancel()
    outcome = await site.api.watch(wanted, at(resume_after=token)).end()
    assert (outcome.code, outcome.reason) == ("FAILED_PRECONDITION", "START_AFTER_REQUIRED")
    assert outcome.metadata["code"] == "260"
    assert "start_after" in outcome.message


@shows(EVENTS, "invalidate Event", "resumed at the drop, a stream gives the invalidate again and ends")
@pytest.mark.parametrize("option", ["resume_after", "start_after", "position"])
@shows(SERVER, "Resuming Change Streams", "Resumed after the drop itself, a stream shows the invalidate again")
async def test_resuming_between_drop_and_invalidate(site: Site, database: Documents, option: str) -> None:
    wanted = scoped(database, "collection")
    watch = await watching(site, wanted)
    insert(database, range(1))
    drop(database)
    events = await watch.take(3)
    assert_invalidated(await watch.end())
    token = bson.encode(events[1].document["_id"])
    position = (await site.api.resolve(wanted, at(start_after=token))).position
    start = at(position=position) if option == "position" else at(**{option: token})
    again = await watching(site, wanted, start)
    [invalidate] = await again.take(1)
    assert invalidate.data == events[2].data
    assert_invalidated(await again.end())


HIDING = '[{"$match": {"operationType": "insert"}}]'


@shows(SERVER, SECTION, "a stream whose filter hides the invalidate ends all the same")
@pytest.mark.parametrize("scope", ["collection", "database"])
@shows(DRIVERS, "Resume Process", "A cursor that ends without a visible invalidate has ended all the same")
@shows(FEEDMUX, "Errors", "FEED_INVALIDATED comes also where the pipeline hides the event, with a position after it")
async def test_a_hidden_invalidate_ends_the_stream(site: Site, database: Documents, scope: str) -> None:
    wanted = feed(database.name, "c" if scope == "collection" else "", HIDING)
    insert(database, range(1))
    watch = await watching(site, wanted)
    insert(database, range(1, 3))
    assert await watch.numbers(2) == [1, 2]
    drop_database(database)
    assert_invalidated(await watch.end())
    insert(database, range(3, 5))
    again = await watching(site, wanted, at(position=watch.position))
    assert await again.numbers(2) == [3, 4]
    again.cancel()


@pytest.mark.parametrize("hidden", [False, True], ids=["shown", "hidden"])
@pytest.mark.parametrize(
    ("happens", "scope"), [(drop, "collection"), (rename, "collection"), (drop_database, "database")]
)
@shows(
    FEEDMUX,
    "Policies",
    "on_invalidate CONTINUE delivers the events and continues, again and again, and over reopening",
)
async def test_continue(
    site: Site, database: Documents, happens: Callable[[Documents], None], scope: str, hidden: bool
) -> None:
    api, name = site.api, f"sub-{database.name}"
    wanted = feed(database.name, "c" if scope == "collection" else "", HIDING if hidden else "")
    await api.create(name, wanted, on_invalidate=feed_pb2.ON_INVALIDATE_CONTINUE)
    session = await api.open(name)
    for generation in range(3):
        insert(database, [generation])
        assert await session.numbers(1) == [generation]
        happens(database)
        if not hidden:
            assert kinds([(await _until_invalidate(session))[-1]]) == ["invalidate"]
        database.drop_collection("renamed")
    await session.ack_and_wait(session.received)
    await session.close()
    insert(database, [9])
    again = await api.open(name)
    assert await again.numbers(1) == [9]
    assert not again.notices
    await again.close()


async def _until_invalidate(session: Receiver) -> list[Any]:
    events = await session.take(1)
    while events[-1].document["operationType"] != "invalidate":
        events += await session.take(1)
    return events


@shows(FEEDMUX, "Streams", "One invalidate reaches every subscriber, also one that had no credit then")
async def test_every_subscriber_meets_it(site: Site, database: Documents) -> None:
    wanted = scoped(database, "collection")
    receivers = [await watching(site, wanted) for _ in range(3)]
    paused = await site.api.session(feed=wanted)
    await paused.opened()
    insert(database, range(2))
    drop(database)
    for receiver in receivers:
        assert_invalidated(await receiver.end())
        assert receiver.received == 4
    await paused.credit(100)
    assert_invalidated(await paused.end())
    assert paused.received == 4


@shows(EVENTS, "rename", "`to` names where the collection went; a stream there sees what follows")
async def test_a_renamed_collection_is_followed(site: Site, database: Documents) -> None:
    watch = await watching(site, scoped(database, "collection"))
    insert(database, range(1))
    rename(database)
    insert(database, range(1, 3), "renamed")
    events = await watch.take(3)
    assert events[1].document["to"] == {"db": database.name, "coll": "renamed"}
    assert_invalidated(await watch.end())
    moved = feed(database.name, "renamed")
    again = await watching(site, moved, at(start_after=bson.encode(events[2].document["_id"])))
    assert await again.numbers(2) == [1, 2]
    again.cancel()
