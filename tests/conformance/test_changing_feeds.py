"""A subscription whose filter or options change keeps its position, whatever the position is."""

from typing import Any

import bson
import pytest

from feedmux.v1 import change_feed_pb2 as wire
from feedmux.v1 import feed_pb2
from tests.conformance.conftest import Site, on_both_versions
from tests.conformance.faults import Documents, failing, insert, kinds
from tests.conformance.statements import FEEDMUX, SERVER, shows
from tests.integration.servers import until
from tests.integration.wire import MANY, Event, Session, feed, refused

SPLIT = '{"$changeStreamSplitLargeEvent": {}}'
SECTION = "Positions: resuming"


@pytest.fixture
def name(database: Documents) -> str:
    return f"sub-{database.name}"


async def taken_and_acked(session: Session, count: int) -> list[Event]:
    events = await session.take(count)
    await session.ack_and_wait(count)
    await session.close()
    return events


async def transaction(database: Documents, count: int) -> None:
    """Inserts 0 to `count` - 1, alternately into `c` and `d`, in one transaction."""
    with database.client.start_session() as session, session.start_transaction():
        for n in range(count):
            database["cd"[n % 2]].insert_one({"n": n}, session=session)


async def unread(site: Site, scope: str) -> None:
    """Wait until no ring holds the position, so that the server must ask MongoDB."""

    async def gone() -> bool:
        return not await site.api.streams(scope)

    await until(gone)


@shows(
    SERVER,
    "Resume Tokens",
    "MongoDB does not find a token that another $match hides; feedmux continues after that event all the same",
)
async def test_a_filter_that_hides_the_position(site: Site, database: Documents, name: str) -> None:
    api = site.api
    await api.create(name, feed(database.name, "c"))
    session = await api.open(name)
    insert(database, range(10))
    await taken_and_acked(session, 5)
    odd = '[{"$match": {"fullDocument.n": {"$mod": [2, 1]}}}]'
    await api.update(["feed"], name=name, feed=feed(database.name, "c", odd))
    again = await api.open(name)
    assert await again.numbers(3) == [5, 7, 9]
    await again.ack_and_wait(1)
    await again.close()
    even = '[{"$match": {"fullDocument.n": {"$mod": [2, 0]}}}]'
    await api.update(["feed"], name=name, feed=feed(database.name, "c", even))
    third = await api.open(name)
    assert await third.numbers(2) == [6, 8]
    assert not third.notices
    await third.close()


OPTIONS: dict[str, dict[str, Any]] = {
    "full_document": {"full_document": "updateLookup"},
    "full_document_before_change": {"full_document_before_change": "whenAvailable"},
    "show_expanded_events": {"show_expanded_events": True},
    "collation": {"collation": bson.encode({"locale": "de"})},
    "comment": {"comment": bson.encode({"comment": "changed"})},
    "read_preference": {"read_preference": "primaryPreferred"},
    "read_concern": {"read_concern": "majority"},
    "batch_size": {"batch_size": 2},
}


@pytest.mark.parametrize("option", OPTIONS)
@shows(FEEDMUX, SECTION, "Changing an option, and changing it back, does not change the position")
async def test_an_option_changes(site: Site, database: Documents, name: str, option: str) -> None:
    api = site.api
    plain, other = feed(database.name, "c"), feed(database.name, "c", **OPTIONS[option])
    await api.create(name, plain)
    begun = 0
    insert(database, range(100, 101))
    for wanted in (plain, other, plain):
        await api.update(["feed"], name=name, feed=wanted)
        session = await api.open(name)
        if not begun:
            assert await session.numbers(1) == [100]
            begun = 1
        insert(database, range(2))
        assert [each.n for each in await session.take(2)] == [0, 1]
        await session.ack_and_wait(session.received)
        await session.close()


@shows(FEEDMUX, SECTION, "A position at an event that only showExpandedEvents shows serves the feed without it")
async def test_a_position_at_an_expanded_event(site: Site, database: Documents, name: str) -> None:
    api = site.api
    await api.create(name, feed(database.name, "c", show_expanded_events=True))
    session = await api.open(name)
    insert(database, range(1))
    database.c.create_index("n")
    insert(database, range(1, 3))
    events = await taken_and_acked(session, 3)
    assert kinds(events) == ["create", "insert", "createIndexes"]
    await api.update(["feed"], name=name, feed=feed(database.name, "c"))
    again = await api.open(name)
    assert await again.numbers(2) == [1, 2]
    await again.close()


@pytest.mark.parametrize("hides", ["the place", "what follows", "nothing"])
@shows(
    FEEDMUX,
    SECTION,
    "The position stays the same in the middle of a transaction, whose events share one cluster time",
)
async def test_in_the_middle_of_a_transaction(site: Site, database: Documents, name: str, hides: str) -> None:
    api, acked = site.api, 4
    insert(database, [-1], "c")
    insert(database, [-1], "d")
    await api.create(name, feed(database.name))
    session = await api.open(name)
    await transaction(database, 12)
    insert(database, range(12, 14))
    await taken_and_acked(session, acked)
    hidden = {"the place": [acked - 1], "what follows": [acked], "nothing": []}[hides]
    pipeline = f'[{{"$match": {{"fullDocument.n": {{"$nin": {hidden}}}}}}}]'
    await api.update(["feed"], name=name, feed=feed(database.name, pipeline=pipeline))
    again = await api.open(name)
    expected = [n for n in range(acked, 14) if n not in hidden]
    assert await again.numbers(len(expected)) == expected
    await again.close()


@pytest.mark.parametrize("acked", ["insert", "drop", "invalidate"])
@shows(FEEDMUX, SECTION, "The position stays the same around a drop and its invalidate, which is not delivered twice")
async def test_at_an_invalidate(site: Site, database: Documents, name: str, acked: str) -> None:
    api, order = site.api, ["insert", "drop", "invalidate"]
    count = order.index(acked) + 1
    await api.create(name, feed(database.name, "c"), on_invalidate=feed_pb2.ON_INVALIDATE_CONTINUE)
    session = await api.open(name, credit=wire.Credit(events=count, bytes=1 << 20))
    insert(database, range(1))
    database.drop_collection("c")
    insert(database, range(1, 3))
    assert kinds(await taken_and_acked(session, count)) == order[:count]
    await api.update(
        ["feed", "on_invalidate"],
        name=name,
        feed=feed(database.name, "c", '[{"$match": {"x": {"$exists": false}}}]'),
        on_invalidate=feed_pb2.ON_INVALIDATE_STOP,
    )
    again = await api.open(name)
    if acked == "invalidate":
        assert await again.numbers(2) == [1, 2]
        await again.close()
    else:
        assert kinds(await again.take(3 - count)) == order[count:]
        await again.ack(3 - count)  # without it the server waits for the acknowledgement
        assert (await again.end()).reason == "FEED_INVALIDATED"


@shows(FEEDMUX, SECTION, "A client that saw the invalidate continues after it by what it last acknowledged")
async def test_after_an_invalidate_by_the_clients_last_ack(site: Site, database: Documents, name: str) -> None:
    api = site.api
    await api.create(name, feed(database.name, "c"))
    session = await api.session(name, credit=MANY)
    epoch = (await session.opened()).epoch
    insert(database, range(1))
    database.drop_collection("c")
    insert(database, range(1, 3))
    assert kinds(await session.take(3)) == ["insert", "drop", "invalidate"]
    await session.close()
    for pipeline in ("", '[{"$match": {"operationType": {"$ne": "update"}}}]'):
        await api.update(["feed"], name=name, feed=feed(database.name, "c", pipeline))
        acked = wire.LastAcked(position=session.position, epoch=epoch)
        again = await api.session(name, credit=MANY, last_acked=acked)
        opened = await again.opened()
        assert await again.numbers(2) == [1, 2]
        await again.close()
        epoch = opened.epoch


@pytest.mark.parametrize(
    ("first", "acked", "hides"), [("plain", 5, True), ("split", 5, False), ("plain", 12, False), ("split", 12, True)]
)
@shows(
    FEEDMUX,
    SECTION,
    "Plain streams and streams with the split stage number their tokens differently; the position is the same in"
    " both, also in the middle of a transaction",
)
@on_both_versions
async def test_across_token_versions(
    site: Site, database: Documents, name: str, first: str, acked: int, hides: bool
) -> None:
    if site.version < (6, 0, 9):
        pytest.skip("this MongoDB has no $changeStreamSplitLargeEvent")
    api = site.api
    insert(database, [-1], "c")
    insert(database, [-1], "d")
    match = f'{{"$match": {{"fullDocument.n": {{"$ne": {acked - 1 if hides else -9}}}}}}}'
    pipelines = {"plain": ["", f"[{match}]"], "split": [f"[{SPLIT}]", f"[{match}, {SPLIT}]"]}
    await api.create(name, feed(database.name, pipeline=pipelines[first][0]))
    session = await api.open(name)
    await transaction(database, 12)
    insert(database, range(12, 15))
    await taken_and_acked(session, acked)
    second = "split" if first == "plain" else "plain"
    await api.update(["feed"], name=name, feed=feed(database.name, pipeline=pipelines[second][1]))
    again = await api.open(name)
    assert await again.numbers(15 - acked) == list(range(acked, 15))
    await again.ack_and_wait(15 - acked)
    await again.close()
    # And back, from a token that the other version made.
    insert(database, range(15, 17))
    await api.update(["feed"], name=name, feed=feed(database.name, pipeline=pipelines[first][0]))
    third = await api.open(name)
    assert await third.numbers(2) == [15, 16]
    await third.close()


@pytest.mark.parametrize("first", ["plain", "split"])
@shows(
    FEEDMUX,
    SECTION,
    "The position is the same in both token versions at an invalidate, and at one of an idle stream",
)
@on_both_versions
async def test_across_token_versions_at_an_invalidate(site: Site, database: Documents, name: str, first: str) -> None:
    if site.version < (6, 0, 9):
        pytest.skip("this MongoDB has no $changeStreamSplitLargeEvent")
    api = site.api
    pipelines = ["", f"[{SPLIT}]"] if first == "plain" else [f"[{SPLIT}]", ""]
    await api.create(name, feed(database.name, "c", pipelines[0]), on_invalidate=feed_pb2.ON_INVALIDATE_CONTINUE)
    session = await api.open(name, credit=wire.Credit(events=3, bytes=1 << 20))
    insert(database, range(1))
    database.drop_collection("c")
    insert(database, range(1, 3))
    await taken_and_acked(session, 3)
    for pipeline in (pipelines[1], pipelines[0]):
        await api.update(["feed"], name=name, feed=feed(database.name, "c", pipeline))
        again = await api.open(name)
        assert await again.numbers(2) == [1, 2]
        await again.close()


LOOKUP = '[{"$match": {"operationType": "update", "fullDocument.state": "open"}}]'


@pytest.mark.parametrize("how", ["a new session", "a resumed stream"])
@shows(
    FEEDMUX,
    SECTION,
    "An unchanged feed whose updateLookup and $match come to hide the resume point continues after it",
)
async def test_a_lookup_that_hides_the_position(site: Site, database: Documents, name: str, how: str) -> None:
    api, scope = site.api, f"{database.name}.c"
    await api.create(name, feed(database.name, "c", LOOKUP, full_document="updateLookup"))
    session = await api.open(name)
    database.c.insert_many([{"_id": key, "n": key, "state": "new"} for key in range(4)])
    database.c.update_one({"_id": 0}, {"$set": {"state": "open"}})
    assert await session.numbers(1) == [0]
    await session.ack_and_wait(1)
    if how == "a new session":
        await session.close()
        await unread(site, scope)
        # From now on the lookup of the event that was acknowledged finds another state.
        database.c.update_one({"_id": 0}, {"$set": {"state": "closed"}})
        database.c.update_many({"_id": {"$in": [1, 2]}}, {"$set": {"state": "open"}})
        session = await api.open(name)
        assert await session.numbers(2) == [1, 2]
    else:
        with failing(site.client, scope, "getMore", "aggregate", times=None, errorCode=6) as point:
            await point.hit()
            database.c.update_one({"_id": 0}, {"$set": {"state": "closed"}})
            database.c.update_many({"_id": {"$in": [1, 2]}}, {"$set": {"state": "open"}})
        assert await session.numbers(2) == [1, 2]
    database.c.update_one({"_id": 3}, {"$set": {"state": "open"}})
    assert await session.numbers(1) == [3]
    await session.close()


@shows(FEEDMUX, "UpdateSubscription", "Scope and name are the subscription's own and do not change")
async def test_the_scope_does_not_change(site: Site, database: Documents, name: str) -> None:
    await site.api.create(name, feed(database.name, "c"))
    outcome = await refused(site.api.update(["feed"], name=name, feed=feed(database.name, "d")))
    assert (outcome.code, outcome.reason) == ("INVALID_ARGUMENT", "MESSAGE_INVALID")
    kept = await site.api.get(name)
    assert kept.feed == feed_pb2.Feed(source="main", database=database.name, collection="c")


@on_both_versions
async def test_an_option_that_shows_the_event_of_the_position_is_taken_away(site: Site, database: Documents) -> None:
    """MongoDB still has the event, so it was not restored."""
    name = database.name
    await site.api.create(name, feed(database.name, extra_options=["showSystemEvents"]))
    session = await site.api.open(name)
    database["system.js"].insert_one({"_id": "f", "value": 1})
    await session.take(1)
    await session.ack_and_wait(1)
    await session.close()
    insert(database, [2])
    await site.api.update(["feed"], name=name, feed=feed(database.name))
    again = await site.api.open(name)
    assert await again.numbers(1) == [2]
    again.cancel()
