"""Transactions: all their events, in their order, with what names the transaction."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from bson import encode
from pymongo.client_session import ClientSession

from tests.conformance.conftest import Site
from tests.conformance.same import assert_same, scoped
from tests.conformance.statements import EVENTS, FEEDMUX, SERVER, UPDATES, shows
from tests.documents import Documents
from tests.integration.wire import at, feed


@contextmanager
def transaction(site: Site) -> Iterator[ClientSession]:
    with site.client.start_session() as session, session.start_transaction():
        yield session


@shows(EVENTS, "Change Events", "lsid and txnNumber stand in events of a transaction, and only there")
@shows(EVENTS, "Change Events", "events of a transaction have the clusterTime of its commit")
@shows(EVENTS, "Change Events", "retryable writes are no transactions: no lsid, no txnNumber")
@shows(UPDATES, "Description", "lsid and txnNumber together name the transaction")
@shows(SERVER, "Change Stream Guarantees", "only what was committed is delivered")
@pytest.mark.parametrize("scope", ["collection", "database", "cluster"])
async def test_lsid_and_txn_number(site: Site, database: Documents, scope: str) -> None:
    database.c.insert_one({"_id": 0})
    database.d.insert_one({"_id": 0})

    def act() -> None:
        database.c.insert_one({"_id": 1})
        with transaction(site) as session:
            database.c.insert_one({"_id": 2}, session=session)
            database.d.insert_one({"_id": 2}, session=session)
            database.c.update_one({"_id": 2}, {"$set": {"a": 1}}, session=session)
            database.c.replace_one({"_id": 2}, {"b": 1}, session=session)
            database.c.delete_one({"_id": 2}, session=session)
        with site.client.start_session() as session:
            session.start_transaction()
            database.c.insert_one({"_id": "aborted"}, session=session)
            session.abort_transaction()
        database.c.insert_many([{"_id": 3}, {"_id": 4}])

    seen = await assert_same(site, scoped(scope, database.name), act)
    inside = [event for event in seen.documents if "txnNumber" in event]
    assert len(inside) == (4 if scope == "collection" else 5)
    assert len({(event["lsid"]["id"], event["txnNumber"], event["clusterTime"]) for event in inside}) == 1
    outside = [event for event in seen.documents if event not in inside]
    assert [event["documentKey"]["_id"] for event in outside] == [1, 3, 4]
    assert not any("lsid" in event for event in outside)


@shows(
    UPDATES,
    "Description",
    "a transaction of several oplog entries: each event once, in order, under one lsid and txnNumber",
)
@shows(SERVER, "`$_internalChangeStreamUnwindTransaction`", "what one oplog entry holds comes as single events")
async def test_a_transaction_of_more_than_16_mb(site: Site, database: Documents) -> None:
    database.c.insert_one({"_id": 0})
    pad = "x" * 1_000_000

    def act() -> None:
        with transaction(site) as session:
            for n in range(1, 21):
                database.c.insert_one({"_id": n, "pad": pad}, session=session)
            database.c.update_many({"_id": {"$lt": 3}}, {"$set": {"n": 1}}, session=session)

    seen = await assert_same(site, feed(database.name, "c"), act, kinds=["insert"] * 20 + ["update"] * 3)
    assert sum(map(len, seen.events)) > 20_000_000
    assert len({(event["lsid"]["id"], event["txnNumber"]) for event in seen.documents}) == 1


@shows(FEEDMUX, "Resuming", "between events that share one cluster time, exactly the next ones come")
async def test_resuming_between_the_events_of_a_transaction(site: Site, database: Documents) -> None:
    database.c.insert_one({"_id": 0})

    def act() -> None:
        with transaction(site) as session:
            database.c.insert_many([{"_id": n} for n in range(1, 501)], session=session)
        database.c.insert_one({"_id": 501})

    seen = await assert_same(site, feed(database.name, "c"), act, kinds=["insert"] * 501)
    # Wherever the number of an event takes one byte more in its token.
    for number in (*range(130), *range(250, 260), *range(495, 500)):
        # A feed that no other shares reads MongoDB, not what a shared stream retains.
        own = feed(database.name, "c", comment=encode({"comment": str(number)}))
        watched = site.api.watch(own, at(resume_after=encode(seen.documents[number]["_id"])))
        following = seen.events[number + 1 : 501][:2]
        assert [each.data for each in await watched.take(len(following))] == following
        watched.cancel()


@shows(SERVER, "`$_internalChangeStreamUnwindTransaction`", "definitions inside a transaction come as events too")
async def test_collections_made_in_a_transaction(site: Site, database: Documents) -> None:
    def act() -> None:
        with transaction(site) as session:
            database.create_collection("c", session=session, check_exists=False)
            database.c.create_index("n", session=session)
            database.c.insert_one({"_id": 1}, session=session)

    seen = await assert_same(site, feed(database.name, show_expanded_events=True), act)
    assert seen.kinds == ["create", "createIndexes", "insert"]


@shows(EVENTS, "Change Events", "two transactions of one session differ in txnNumber")
async def test_transactions_of_one_session(site: Site, database: Documents) -> None:
    database.c.insert_one({"_id": 0})

    def act() -> None:
        with site.client.start_session() as session:
            for n in range(1, 4):
                with session.start_transaction():
                    database.c.insert_one({"_id": n}, session=session)
                    database.c.delete_one({"_id": n}, session=session)

    seen = await assert_same(site, feed(database.name, "c"), act, kinds=["insert", "delete"] * 3)
    assert len({event["txnNumber"] for event in seen.documents}) == 3
    assert len({event["lsid"]["id"] for event in seen.documents}) == 1
