"""A copy once more: after lost history, a restore or a seek, a sink that sweeps ends equal to the collection."""

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
import pytest_asyncio
from pymongo import MongoClient

import feedmux
from feedmux.v1 import feed_pb2, subscriptions_pb2
from feedmux_embedded import RedisServer, ReplicaSet
from feedmux_server.sessions.session import RESTARTS_MAX
from tests.conformance.faults import overrun
from tests.documents import Client
from tests.integration.servers import SMALL_STEPS, Here, serving, settings, until
from tests.integration.test_snapshot import restarts
from tests.integration.wire import LATEST, feed, refused


@dataclass
class Sink:
    """A program that keeps what it has, each document with the generation that it has applied it with."""

    rows: dict[Any, tuple[dict[str, Any], int]] = field(default_factory=dict)
    generation: int = 0
    swept: list[int] = field(default_factory=list)
    gaps: list[feedmux.Gap] = field(default_factory=list)
    copied_ids: list[Any] = field(default_factory=list)
    """Of the documents that copies have brought."""

    def apply(self, event: feedmux.Event) -> None:
        self.generation = max(self.generation, event.batch.generation)
        change = event.document
        key = change["documentKey"]["_id"]
        if event.snapshot:
            self.copied_ids.append(key)
        if change["operationType"] == "delete":
            self.rows.pop(key, None)
        else:
            self.rows[key] = change["fullDocument"], self.generation

    def noticed(self, notice: feedmux.Notice) -> None:
        if isinstance(notice, feedmux.Gap):
            self.gaps.append(notice)
        if isinstance(notice, feedmux.SnapshotComplete):
            self.generation = max(self.generation, notice.generation)
            self.swept.append(notice.generation)
            self.rows = {key: row for key, row in self.rows.items() if row[1] >= notice.generation}

    async def read(
        self, user: feedmux.AsyncClient, name: str, enough: Callable[[], bool], *, window: int = 1000
    ) -> None:
        """Read, and acknowledge what was applied, until there is enough."""
        async with user.subscription(name).open(on_notice=self.noticed, takeover=True, window_events=window) as session:
            while not enough():
                event = await session.try_next()
                if event is not None:
                    self.apply(event)
                    session.ack()
            await session.close()

    @property
    def documents(self) -> list[dict[str, Any]]:
        return [row[0] for _, row in sorted(self.rows.items())]


def held(client: Client, database: str) -> list[dict[str, Any]]:
    return list(client[database].c.find(sort=[("_id", 1)]))


@pytest_asyncio.fixture(scope="module")
async def shallow(redis_server: RedisServer) -> AsyncIterator[tuple[ReplicaSet, Here]]:
    """A MongoDB whose oplog holds 8 MB and is cut every second."""
    async with ReplicaSet(oplog_mb=8, arguments=["--syncdelay", "1"]) as mongo:
        configuration = settings(mongo.uri, redis_server.url, unused_stream_s=0.05, **SMALL_STEPS)
        async with serving(configuration) as here:
            yield mongo, here


@pytest_asyncio.fixture
async def user(shallow: tuple[ReplicaSet, Here]) -> AsyncIterator[feedmux.AsyncClient]:
    async with feedmux.AsyncClient(f"127.0.0.1:{shallow[1].api.data_port}") as user:
        yield user


@pytest.fixture
def client(shallow: tuple[ReplicaSet, Here]) -> Iterator[Client]:
    with MongoClient[dict[str, Any]](shallow[0].uri) as client:
        yield client


@pytest.mark.parametrize("start", ["latest", "snapshot"])
async def test_what_was_deleted_while_the_oplog_rolled_over_is_gone_when_the_copy_is_done(
    user: feedmux.AsyncClient, client: Client, name: str, start: Literal["latest", "snapshot"]
) -> None:
    documents, sink = client[name].c, Sink()
    if start == "snapshot":
        documents.insert_many([{"_id": number, "v": 0} for number in range(100)])
    await user.create_subscription(name, feedmux.Feed(name, "c"), start=start, on_history_lost="snapshot")
    if start == "latest":
        documents.insert_many([{"_id": number, "v": 0} for number in range(100)])
    await sink.read(user, name, lambda: len(sink.rows) == 100 and bool(sink.swept) == (start == "snapshot"))
    before = sink.generation
    documents.delete_many({"_id": {"$lt": 30}})
    documents.update_many({"_id": {"$gte": 60}}, {"$set": {"v": 1}})
    documents.insert_many([{"_id": number, "v": 2} for number in range(100, 120)])
    await overrun(client)
    await sink.read(user, name, lambda: sink.swept[-1:] not in ([], [before]))
    assert [gap.reason for gap in sink.gaps] == ["HISTORY_LOST"]
    assert sink.documents == held(client, name)
    # It continues from there as any feed.
    documents.delete_one({"_id": 99})
    documents.insert_one({"_id": 200})
    await sink.read(user, name, lambda: 200 in sink.rows)
    assert sink.documents == held(client, name)
    assert len(sink.gaps) == 1


async def test_an_end_that_the_consumer_may_not_have_noticed_is_announced_again(
    user: feedmux.AsyncClient, client: Client, name: str
) -> None:
    """It has acknowledged all documents, and dies before it has swept; until then the stored position moves on."""
    documents, sink = client[name].c, Sink()
    documents.insert_many([{"_id": number} for number in range(10)])
    await user.create_subscription(name, feedmux.Feed(name, "c"), start="snapshot")
    async with user.subscription(name).open(heartbeat_s=1.0) as session:
        while len(sink.rows) < 10:
            sink.apply(await session.next())
        session.ack()

        async def is_past_the_copy() -> bool:
            return (await user.get_subscription(name)).snapshot is None

        await until(is_past_the_copy)
    await sink.read(user, name, lambda: len(sink.swept) > 0)
    await sink.read(user, name, lambda: len(sink.swept) > 1)
    await user.subscription(name).seek("latest")
    await sink.read(user, name, lambda: len(sink.swept) > 2)
    assert len(set(sink.swept)) == 1
    assert sink.copied_ids == list(range(10)), "no document came again"
    documents.insert_one({"_id": 10})
    await sink.read(user, name, lambda: 10 in sink.rows)
    count = len(sink.swept)
    documents.insert_one({"_id": 11})
    await sink.read(user, name, lambda: 11 in sink.rows)
    assert len(sink.swept) == count, "an event after the end was acknowledged"


async def test_the_end_of_a_former_copy_leaves_what_a_later_one_has_brought(
    user: feedmux.AsyncClient, client: Client, name: str
) -> None:
    """The position is moved back: here by a seek, as a Redis that returned to an older state would."""
    documents, sink = client[name].c, Sink()
    documents.insert_many([{"_id": number} for number in range(100)])
    await user.create_subscription(name, feedmux.Feed(name, "c"), start="snapshot")
    await sink.read(user, name, lambda: len(sink.rows) >= 60, window=10)
    within_first = (await user.get_subscription(name)).position
    await user.subscription(name).seek("snapshot")
    await sink.read(user, name, lambda: sink.copied_ids.count(20) == 2, window=10)
    documents.delete_many({"_id": {"$in": [0, 99]}})
    await user.subscription(name).seek(within_first)
    await sink.read(user, name, lambda: bool(sink.swept))
    assert sink.swept[0] < sink.generation
    documents.insert_one({"_id": 100})
    await sink.read(user, name, lambda: 100 in sink.rows)
    assert sink.documents == held(client, name)


@pytest.mark.full
async def test_a_copy_that_the_oplog_never_lets_come_to_its_end_ends_with_a_word(
    shallow: tuple[ReplicaSet, Here], user: feedmux.AsyncClient, client: Client, name: str
) -> None:
    documents, sink, before = client[name].c, Sink(), await restarts(shallow[1], "HISTORY_LOST")
    documents.insert_many([{"_id": number} for number in range(200)])
    await user.create_subscription(name, feedmux.Feed(name, "c"), start="snapshot", on_history_lost="snapshot")

    async def read_slowly() -> None:
        async with user.subscription(name).open(on_notice=sink.noticed, window_events=10) as session:
            while True:
                for _ in range(10):
                    sink.apply(await session.next())
                await overrun(client)

    with pytest.raises(feedmux.HistoryLost, match="larger oplog"):
        await read_slowly()
    assert len(sink.gaps) == RESTARTS_MAX
    assert await restarts(shallow[1], "HISTORY_LOST") == before + RESTARTS_MAX
    assert sink.swept == []


COPY = {"on_history_lost": feed_pb2.ON_HISTORY_LOST_SNAPSHOT}


async def test_what_cannot_be_copied_cannot_have_the_policy(
    shallow: tuple[ReplicaSet, Here], client: Client, name: str
) -> None:
    api = shallow[1].api
    client[name].create_collection("capped", capped=True, size=4096)
    for wanted in (feed(name), feed(name, "capped")):
        error = await refused(api.create(name, wanted, LATEST, **COPY))
        assert (error.reason, error.metadata["kind"]) == ("SNAPSHOT_UNSUITABLE", "capped")
    await api.create(name, feed(name), LATEST)
    error = await refused(api.update(["on_history_lost"], name=name, **COPY))
    assert error.reason == "SNAPSHOT_UNSUITABLE"
    group = subscriptions_pb2.Group()
    error = await refused(api.create(f"{name}2", feed(name, "c"), LATEST, group=group, **COPY))
    assert error.reason == "GROUP_UNSUITABLE"
    await api.create(f"{name}2", feed(name, "c"), LATEST, **COPY)
    error = await refused(api.update(["group"], name=f"{name}2", group=group))
    assert error.reason == "GROUP_UNSUITABLE"
