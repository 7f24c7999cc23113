"""The collections that a copy goes through, against the model of MongoDB."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from unittest.mock import AsyncMock

import bson
import pytest
from bson.timestamp import Timestamp

from feedmux_server.core.errors import FeedmuxError
from feedmux_server.core.feeds.feed import FeedSpec, Scope
from feedmux_server.core.feeds.stream_key import StreamKey, stream_key
from feedmux_server.source import namespaces
from feedmux_server.source.answers import CollectionInfo
from feedmux_server.source.namespaces import ESTIMATED_MAX, Namespace, Namespaces
from feedmux_server.source.read_limits import ReadLimits
from feedmux_server.source.reader import Batch, ChangeStreamReader
from tests.sim.mongo import SimMongo, SimSource
from tests.tables import over
from tests.unit.simulated import connected
from tests.virtual_time import in_virtual_time

SPEC = FeedSpec(Scope("main"))


class ListedSource(SimSource):
    """Databases `b-c`, `b` and `admin` with some collections."""

    def __init__(self, mongo: SimMongo) -> None:
        super().__init__(mongo)
        self.listed = {name: CollectionInfo("collection") for name in ("é", "z", "a.b", "system.buckets.x")}
        self.lists = 0
        self.charged: list[int] = []
        self.found = ["b-c", "admin", "b"]

    async def databases(self) -> list[str]:
        return self.found

    async def collection_names(
        self, database: str, first: str, wanted: Callable[[str], bool], most: int
    ) -> tuple[list[str], int]:
        self.lists += 1
        found = sorted(name for name in self.listed if name >= first and wanted(name))
        return found[:most], len(self.listed)

    async def special_collections(self, database: str) -> dict[str, CollectionInfo]:
        return {name: info for name, info in self.listed.items() if info.capped}

    async def collection(self, database: str, name: str) -> CollectionInfo | None:
        return self.listed.get(name)

    async def estimated_count(self, database: str, name: str) -> int:
        return 2


async def made(key: StreamKey, **limits: int) -> tuple[Namespaces, ListedSource, SimMongo]:
    source, mongo = await connected(ListedSource)
    return Namespaces(source, key, ReadLimits(**limits), charge=source.charged.append), source, mongo


async def every(names: Namespaces) -> list[Namespace]:
    return [each async for each in names.names_from(("", ""))]


@pytest.mark.parametrize(("kept", "lists"), [(4, 2), (3, 4), (2, 4), (1, 8)])
@in_virtual_time
async def test_collections_come_in_mongodbs_order(kept: int, lists: int) -> None:
    """However few of their names are kept."""
    names, source, _ = await made(stream_key(SPEC), names_kept=kept)
    found, here = list[tuple[str, str]](), ("", "")
    while (following := await names.next(here, after=True)) is not None:
        found.append(here := following)
    assert found == [(database, name) for database in ("b", "b-c") for name in ("a.b", "z", "é")]
    assert source.lists == names.lists == lists
    assert found == await every(names) == sorted(found, key=lambda each: (each[0].encode(), each[1].encode()))
    assert await names.next(("b", "z"), after=False) == ("b", "z")
    assert await names.next(("b", "y"), after=False) == ("b", "z")
    names.forget()
    before = source.lists
    assert await names.next(("b", "a.b"), after=True) == await names.next(("b", "z"), after=False) == ("b", "z")
    assert source.lists == before + (2 if kept == 1 else 1)


@in_virtual_time
async def test_what_a_tenant_may_not_see_or_a_pipeline_drops_is_not_looked_at() -> None:
    source: Any
    names, source, _ = await made(stream_key(SPEC, b"policy", shows=lambda database, name: name != "z"))
    source.listed["z"] = CollectionInfo("collection", capped=True)
    assert await every(names) == [("b", "a.b"), ("b", "é"), ("b-c", "a.b"), ("b-c", "é")]
    source.charged.clear()
    await names.check()
    assert source.charged == [1, 1]
    names, source, _ = await made(stream_key(SPEC, b"policy", shows=lambda database, name: database == "b"))
    assert (await every(names), source.lists) == ([("b", "a.b"), ("b", "z"), ("b", "é")], 1)
    match = bson.encode({"pipeline": [{"$match": {"ns.coll": "é"}}]})
    names, source, _ = await made(stream_key(replace(SPEC, scope=Scope("main", "b"), pipeline=match)))
    assert (await every(names), names.may_drop) == ([("b", "é")], False)
    names, source, _ = await made(stream_key(SPEC))
    source.listed["z"] = CollectionInfo("collection", capped=True)
    for checked in (names.check(), names.next(("b", "a.b"), after=True)):
        with pytest.raises(FeedmuxError, match=r"b\.z is capped"):
            await checked
    assert await names.next(("b-c", "zz"), after=True) == ("b-c", "é"), "one that was passed is none of its business"


@in_virtual_time
async def test_what_cannot_be_asked_for_by_its_name_is_not_left_out_of_a_copy() -> None:
    source: Any
    names, source, _ = await made(stream_key(SPEC))
    source.listed["a\ufffd"] = CollectionInfo("collection")
    with pytest.raises(FeedmuxError, match="the name of collection 'a\ufffd' is not UTF-8"):
        await names.next(("", ""), after=False)
    source.found.append("b\ufffd")
    names.forget()
    with pytest.raises(FeedmuxError, match="the name of database 'b\ufffd' is not UTF-8"):
        await names.check()
    names, source, _ = await made(stream_key(SPEC, b"policy", shows=lambda database, name: "\ufffd" not in name))
    source.listed["a\ufffd"] = CollectionInfo("collection")
    assert await names.next(("", ""), after=False) == ("b", "a.b"), "to a tenant that may not see it, it is nothing"


@in_virtual_time
async def test_documents_of_many_collections_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    names, _, _ = await made(stream_key(SPEC))
    assert await names.estimate() == 12
    monkeypatch.setattr(namespaces, "ESTIMATED_MAX", 5)
    assert await names.estimate() == 0


@over("count", [10, 100, 1_000])
@in_virtual_time
async def test_each_command_counts_however_many_there_are(count: int) -> None:
    names, source, mongo = await made(stream_key(SPEC))
    source.found, source.listed = [f"d{number}" for number in range(count)], {}
    assert await names.next(("", ""), after=False) is None
    assert source.charged == [count] + [0] * source.lists == [count] + [0] * count
    source.listed = {"c": CollectionInfo("collection")}
    source.charged.clear()
    names.forget()
    assert await names.next(("", ""), after=False) == ("d0", "c")
    assert await names.estimate() == (2 * count if count <= ESTIMATED_MAX else 0)
    assert source.charged == [count, 1, 1] + [1] * (count - 1) + [1] * count
    source.charged.clear()
    reads, place = 0, mongo.mark(mongo.latest + 1)
    read = ChangeStreamReader.read

    async def counted(reader: ChangeStreamReader) -> Batch:
        nonlocal reads
        reads += 1
        return await read(reader)

    for _ in range(count):
        mongo.insert("b", "y", 0)
        mongo.rename("b", "y", "z")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ChangeStreamReader, "read", counted)
        await names.gone_after(place, mongo.latest, lambda gone: gone.to)
    assert len(source.charged) == reads + 2


@over(("elected", "durable"), [("again", True), ("once", True), ("once", False)])
@in_virtual_time
async def test_a_list_of_what_may_be_rolled_back_is_not_believed(elected: str, durable: bool) -> None:
    """Which would leave no drop, and no rename."""
    names, source, _ = await made(stream_key(SPEC))
    hello: dict[str, Any] = {"operationTime": Timestamp(7, 1), "localTime": datetime.fromtimestamp(0, UTC)}
    hello |= {"electionId": "once", "lastWrite": {"majorityOpTime": {"ts": Timestamp(7 if durable else 6, 1)}}}
    source._commands.client.admin.command = AsyncMock(side_effect=lambda _: dict(hello))  # type: ignore[method-assign]
    await source.clock.operation_time()
    names.forget()
    assert await names.next(("b", "a.b"), after=True) == ("b", "z")
    del source.listed["z"]
    hello["electionId"] = elected
    asking = asyncio.ensure_future(names.settled_time())
    await asyncio.sleep(1.0)
    assert asking.done() is durable
    hello["lastWrite"] = {"majorityOpTime": {"ts": Timestamp(7, 1)}}
    assert await asking == (7 << 32 | 1 if elected == "once" else 0)
    assert await names.next(("b", "a.b"), after=True) == ("b", "z" if elected == "once" else "é")
