"""Three nodes: elections, killed primaries, rollbacks, and the node that a stream is read from."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack

import pytest
import pytest_asyncio
from pymongo import MongoClient, WriteConcern

from feedmux_embedded import RedisServer, ReplicaSet
from tests.conformance.conftest import NOT_AGAIN, Site
from tests.conformance.faults import failing, insert, profiled, writing, written_more
from tests.conformance.statements import DRIVERS, FEEDMUX, SERVER, shows
from tests.documents import Document, Documents
from tests.integration.servers import serving, settings, until
from tests.integration.wire import MANY, Receiver, feed, seconds


@pytest_asyncio.fixture(scope="module", params=NOT_AGAIN)
async def three(request: pytest.FixtureRequest, redis_server: RedisServer) -> AsyncIterator[Site]:
    """A replica set of three nodes; every test leaves all of them running."""
    binary = request.getfixturevalue("newer_mongod") if request.param == "6.0.27" else None
    async with ReplicaSet(nodes=3, oplog_mb=128, binary=binary) as mongo:
        with MongoClient[Document](mongo.uri) as client:
            version = tuple(client.server_info()["versionArray"][:3])
            async with serving(settings(mongo.uri, redis_server.url)) as here:
                yield Site(mongo, client, here, version)


@pytest.fixture
def documents(three: Site) -> Documents:
    """Written with a majority, and so there after every election."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    return three.client.get_database(name, write_concern=WriteConcern("majority"))


async def all_well(three: Site) -> None:
    """Waits until there is a primary and two secondaries that follow it."""

    async def well() -> bool:
        await three.mongo.wait_for_primary()
        states = await asyncio.to_thread(three.client.admin.command, "replSetGetStatus")
        return sorted(member["stateStr"] for member in states["members"]) == ["PRIMARY", "SECONDARY", "SECONDARY"]

    await until(well, 40, every_s=0.2)
    # One that has to roll back first looks well, for a moment: this write reaches it only after that.
    everywhere = three.client.get_database("everywhere", write_concern=WriteConcern(3, wtimeout=30_000))
    await asyncio.to_thread(everywhere.c.insert_one, {})
    await until(well, 40, every_s=0.2)


async def readers(three: Site, database: Documents) -> list[Receiver]:
    """A durable session, a database's and the cluster's."""
    name, api = database.name, three.api
    await api.create(name, feed(name, "c"))
    session = await api.open(name)
    watch = api.watch(feed(name))
    await watch.opened()
    cluster = await api.open(feed=feed(pipeline=f'[{{"$match": {{"ns.db": "{name}"}}}}]'), credit=MANY)
    return [session, watch, cluster]


@pytest.mark.parametrize("how", ["replSetStepDown", "kill -9"])
@shows(
    DRIVERS,
    "Resume Process",
    "After an election the stream continues at the new primary; nothing is lost or repeated",
)
@shows(SERVER, "Change Stream Guarantees", "Every event once and in order, whatever fails between")
async def test_elections(three: Site, documents: Documents, how: str) -> None:
    receivers = await readers(three, documents)
    async with writing(three.mongo.uri, documents.name) as written:
        await written_more(written, 30)
        if how == "replSetStepDown":
            admin = three.client.admin
            await asyncio.to_thread(lambda: admin.command("replSetStepDown", 10, secondaryCatchUpPeriodSecs=10))
            await three.mongo.wait_for_primary()
        else:
            killed = await three.mongo.wait_for_primary()
            await three.mongo.kill9(killed)
            await three.mongo.wait_for_primary()
            await written_more(written, 30)
            await three.mongo.restart(killed)
        await written_more(written, 30)
    total = written[0]
    for receiver in receivers:
        assert await receiver.numbers(total) == list(range(total))
        receiver.cancel()
    await all_well(three)


@shows(
    SERVER,
    "Change Stream Guarantees",
    "Only what a majority has is delivered: a write that an election rolls back is never seen",
)
async def test_what_is_rolled_back_is_never_delivered(three: Site, documents: Documents) -> None:
    mongo = three.mongo
    receivers = await readers(three, documents)
    insert(documents, [0])
    for receiver in receivers:
        assert await receiver.numbers(1) == [0]
    primary = await mongo.wait_for_primary()
    others = [node for node in range(3) if node != primary]
    for node in others:
        await mongo.kill9(node)
    with MongoClient[Document](mongo.nodes[primary].uri) as alone:
        alone.get_database(documents.name, write_concern=WriteConcern(1)).c.insert_one({"n": -1})
        assert alone[documents.name].c.count_documents({"n": -1}) == 1
        # feedmux reads from this node meanwhile, and could be given the event.
        reads = getmores(alone)
        await until(lambda: getmores(alone) > reads + 2 * len(receivers))
    await mongo.kill9(primary)
    for node in others:
        await mongo.restart(node)
    await mongo.wait_for_primary()
    await asyncio.to_thread(insert, documents, [1])
    await mongo.restart(primary)
    await all_well(three)
    insert(documents, [2])
    for receiver in receivers:
        assert await receiver.numbers(2) == [1, 2]
        receiver.cancel()
    assert documents.c.count_documents({"n": -1}) == 0


def getmores(node: MongoClient[Document]) -> int:
    return int(node.admin.command("serverStatus")["metrics"]["commands"]["getMore"]["total"])


@pytest.fixture
def nodes(three: Site) -> Iterator[list[MongoClient[Document]]]:
    """A client of each node by itself."""
    with ExitStack() as stack:
        yield [stack.enter_context(MongoClient[Document](node.uri)) for node in three.mongo.nodes]


@shows(DRIVERS, "ChangeStream", "Servers are chosen by the read preference given at the start, also when resuming")
@shows(DRIVERS, "Resume Process", "The old cursor is killed on the server that holds it, and on no other")
async def test_resuming_on_secondaries(three: Site, documents: Documents, nodes: list[MongoClient[Document]]) -> None:
    primary = await three.mongo.wait_for_primary()
    insert(documents, [0])
    with ExitStack() as stack:
        profiles = [stack.enter_context(profiled(node[documents.name])) for node in nodes]

        def asked(command: str) -> list[int]:
            return [index for index, profile in enumerate(profiles) for _ in profile.commands(command)]

        session = await three.api.open(feed=feed(documents.name, "c", read_preference="secondary"))
        await until(lambda: asked("aggregate"))
        [first] = asked("aggregate")
        with failing(nodes[first], f"{documents.name}.c", "getMore", errorCode=43) as point:
            await point.hit()
        insert(documents, [1])
        assert await session.numbers(1) == [1]
        await until(lambda: len(asked("aggregate")) == 2)
        assert primary not in asked("aggregate")
        await until(lambda: asked("killCursors"))
        assert asked("killCursors") == [first]
        session.cancel()


@shows(DRIVERS, "ChangeStream", "Where the server of a stream is gone, another of the same read preference takes over")
async def test_a_killed_secondary(three: Site, documents: Documents, nodes: list[MongoClient[Document]]) -> None:
    primary = await three.mongo.wait_for_primary()
    session = await three.api.open(feed=feed(documents.name, "c", read_preference="secondary"))
    namespace = f"{documents.name}.c"
    await until(lambda: _cursor_holders(nodes, namespace))
    [holder] = _cursor_holders(nodes, namespace)
    await three.mongo.kill9(holder)
    insert(documents, [1])
    assert await session.numbers(1) == [1]
    last = ({0, 1, 2} - {primary, holder}).pop()
    others = [node for index, node in enumerate(nodes) if index != holder]
    assert _cursor_holders(others, namespace) == [others.index(nodes[last])]
    session.cancel()
    await three.mongo.restart(holder)
    await all_well(three)


def _cursor_holders(clients: list[MongoClient[Document]], namespace: str) -> list[int]:
    stages: list[Document] = [
        {"$currentOp": {"allUsers": True, "idleCursors": True}},
        {"$match": {"ns": namespace, "cursor": {"$exists": True}}},
    ]
    return [index for index, client in enumerate(clients) if list(client.admin.aggregate(stages))]


@shows(
    FEEDMUX,
    "Resuming",
    "Without a primary the sessions stay open, and are notified that MongoDB is unavailable and available again",
)
async def test_no_primary_for_a_while(three: Site, documents: Documents) -> None:
    session = await three.api.open(feed=feed(documents.name, "c"), heartbeat_interval=seconds(1))
    insert(documents, [0])
    assert await session.numbers(1) == [0]
    primary = await three.mongo.wait_for_primary()
    other = (primary + 1) % 3
    await three.mongo.kill9(other)
    await three.mongo.kill9(primary)
    await session.until(lambda: session.notices)
    assert session.notices[0].degraded.unavailable
    await three.mongo.restart(other)
    await three.mongo.restart(primary)
    await all_well(three)
    insert(documents, [1])
    assert await session.numbers(1) == [1]
    await session.until(lambda: len(session.notices) == 2)
    assert not session.notices[1].degraded.unavailable
    session.cancel()
