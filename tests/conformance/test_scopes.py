"""Collection, database, cluster: what belongs to each, and how MongoDB is asked."""

import asyncio
import json

import bson
import pytest

from tests.conformance.asked import logged
from tests.conformance.conftest import Site
from tests.conformance.same import assert_same, scoped
from tests.conformance.statements import DRIVERS, FEEDMUX, SERVER, shows
from tests.documents import Documents
from tests.integration.servers import until
from tests.integration.wire import feed, refused

NAMESPACES = "Change Stream Namespace Scopes"


@shows(SERVER, NAMESPACES, "a collection's stream has its events, a database's those of all its collections")
@shows(SERVER, NAMESPACES, "the cluster's stream has the events of all databases")
@shows(DRIVERS, "Driver API", "watch on a collection, a database and the client")
@pytest.mark.parametrize("scope", ["collection", "database", "cluster"])
async def test_what_belongs_to_a_scope(site: Site, database: Documents, scope: str) -> None:
    neighbour = site.client[database.name + "_neighbour"]

    def act() -> None:
        database.c.insert_one({"_id": "collection"})
        database.d.insert_one({"_id": "database"})
        neighbour.c.insert_one({"_id": "cluster"})

    try:
        seen = await assert_same(site, scoped(scope, database.name), act)
    finally:
        site.client.drop_database(neighbour)
    everything = ["collection", "database", "cluster"]
    assert [event["documentKey"]["_id"] for event in seen.documents] == everything[: everything.index(scope) + 1]


@shows(DRIVERS, "Driver API", "a database's stream leaves out system collections")
@shows(DRIVERS, "Driver API", "the cluster's stream leaves out config, local and admin")
@pytest.mark.parametrize("scope", ["database", "cluster"])
async def test_what_is_left_out(site: Site, database: Documents, scope: str) -> None:
    database.create_collection("c")

    def act() -> None:
        database["system.js"].insert_one({"_id": "f", "value": 1})
        database.create_collection("seen", viewOn="c", pipeline=[])
        site.client.admin[database.name].insert_one({"_id": 1})
        site.client.admin[database.name].drop()
        site.client.local.command({"insert": database.name, "documents": [{"_id": 1}]})
        site.client.local[database.name].drop()
        database.c.insert_one({"_id": 1})

    seen = await assert_same(site, scoped(scope, database.name), act)
    assert [event["ns"] for event in seen.documents if event["operationType"] == "insert"] == [
        {"db": database.name, "coll": "c"}
    ]


@shows(FEEDMUX, "Bad input", "internal databases and collections are rejected without asking MongoDB")
@pytest.mark.parametrize(
    "names", [("admin",), ("admin", "c"), ("local", "oplog.rs"), ("config", "c"), ("d", "system.views")]
)
async def test_internal_names(site: Site, names: tuple[str, ...]) -> None:
    outcome = await refused(site.api.watch(feed(*names)).opened())
    assert (outcome.code, outcome.reason) == ("PERMISSION_DENIED", "NAMESPACE_DENIED")
    assert "code" not in outcome.metadata


@shows(
    DRIVERS,
    "Helper Method",
    "collection: aggregate names it; database: aggregate 1; the getMores name what it returned",
)
@shows(DRIVERS, "Helper Method", "the first stage is $changeStream, the user's follow; an empty pipeline is allowed")
@shows(SERVER, "Consuming Events from a Change Stream", "getMore on `$cmd.aggregate` for a database")
@pytest.mark.parametrize("scope", ["collection", "database"])
async def test_the_commands(site: Site, database: Documents, scope: str) -> None:
    with logged(database) as asked:
        wanted = scoped(scope, database.name)
        wanted.pipeline.extended_json = json.dumps([{"$match": {"a": 1}}, {"$unset": "b"}])
        receivers = [site.api.watch(each) for each in (wanted, scoped(scope, database.name))]
        for receiver in receivers:
            await receiver.opened()
        await until(lambda: len({command["getMore"] for command in asked.get_mores}) == 2)
        for receiver in receivers:
            receiver.cancel()
        aggregates, get_mores = asked.aggregates, asked.get_mores
    assert {command["aggregate"] for command in aggregates} == {"c" if scope == "collection" else 1}
    by_length = sorted(([*map(dict, command["pipeline"])] for command in aggregates), key=len)
    assert [[next(iter(stage)) for stage in stages] for stages in by_length] == [
        ["$changeStream"],
        ["$changeStream", "$match", "$unset"],
    ]
    assert all("allChangesForCluster" not in stage for stage in asked.stages)
    collection = "c" if scope == "collection" else "$cmd.aggregate"
    assert {command["collection"] for command in get_mores} == {collection}


@shows(DRIVERS, "Helper Method", "cluster: aggregate 1 on admin with allChangesForCluster")
@shows(SERVER, "`allChangesForCluster` (public)", "is set for the cluster's stream")
async def test_the_commands_for_the_cluster(site: Site, database: Documents) -> None:
    comment = f"cluster of {database.name}"
    with logged(site.client.admin, comment) as asked:
        receiver = site.api.watch(feed(comment=bson.encode({"comment": comment})))
        await receiver.opened()
        await until(lambda: asked.get_mores)
        receiver.cancel()
        [aggregate], get_mores = asked.aggregates, asked.get_mores
    assert aggregate["aggregate"] == 1
    assert aggregate["pipeline"][0]["$changeStream"]["allChangesForCluster"] is True
    assert {command["collection"] for command in get_mores} == {"$cmd.aggregate"}


@shows(SERVER, "Change Stream Guarantees", "one order: that of the oplog, over collections and databases")
@shows(SERVER, "Change Stream Guarantees", "each matching event once, none left out")
async def test_many_writers(site: Site, database: Documents) -> None:
    def write(writer: int) -> None:
        for n in range(150):
            database[f"c{writer % 3}"].insert_one({"_id": writer * 1000 + n})
            if n % 5 == 0:
                database[f"c{writer % 3}"].delete_one({"_id": writer * 1000 + n})

    async def act() -> None:
        await asyncio.gather(*(asyncio.to_thread(write, writer) for writer in range(4)))

    # Written while feedmux reads.
    seen = await assert_same(site, feed(database.name), lambda: asyncio.run(act()))
    assert len(seen.documents) == 4 * 180
