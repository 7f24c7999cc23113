"""What the scenarios about faults share: failing commands, an oplog that is overrun, what MongoDB was asked."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from typing import Any

from bson.timestamp import Timestamp
from pymongo import AsyncMongoClient
from pymongo.errors import OperationFailure, PyMongoError

from tests.conformance.conftest import Site
from tests.documents import Client, Document
from tests.documents import Documents as Documents
from tests.integration.servers import until
from tests.integration.wire import Receiver

_POSITION_LOST = 136
RESUMABLE = "ResumableChangeStreamError"
INSERTS = '[{"$match": {"operationType": "insert"}}]'


def insert(database: Documents, numbers: Iterable[int], collection: str = "c", **more: Any) -> None:
    database[collection].insert_many([{"n": n, **more} for n in numbers])


def kinds(events: Iterable[Any]) -> list[str]:
    return [event.document["operationType"] for event in events]


async def watching(site: Site, *args: Any, **kwargs: Any) -> Receiver:
    """A Watch call that is open."""
    watch = site.api.watch(*args, **kwargs)
    await watch.opened()
    return watch


# --- Failing commands.


class FailPoint:
    """A failCommand that is on."""

    def __init__(self, client: Client, mode: Any, data: Document) -> None:
        self._client = client
        self._met_before = self._set(mode, data=data)
        self.met = 0
        """How many commands it has failed; known when it is off."""

    async def hit(self, times: int = 1) -> None:
        """Waits until this many commands have failed by it."""
        command = {"waitForFailPoint": "failCommand", "timesEntered": self._met_before + times, "maxTimeMS": 20_000}
        await asyncio.to_thread(self._client.admin.command, command)

    def off(self) -> None:
        self.met = self._set("off") - self._met_before

    def _set(self, mode: Any, **more: Any) -> int:
        """How many it has failed since the server began."""
        return int(self._client.admin.command("configureFailPoint", "failCommand", mode=mode, **more)["count"])


@contextmanager
def failing(client: Client, namespace: str, *commands: str, times: int | None = 1, **how: Any) -> Iterator[FailPoint]:
    """feedmux's next `times` such commands on the namespace (all, for None) fail."""
    mode: Any = "alwaysOn" if times is None else {"times": times}
    data = {"failCommands": list(commands), "appName": "feedmux", "namespace": namespace, **how}
    point = FailPoint(client, mode, data)
    try:
        yield point
    finally:
        point.off()


# --- What MongoDB was asked.


@contextmanager
def profiled(database: Documents) -> Iterator["Profile"]:
    """Every command on the database, as the server that runs it records it."""
    # A change stream's aggregate reads the oplog and goes by its database's level, but is recorded in its own.
    databases = (database, database.client.local)
    for each in databases:
        each.command("profile", 2)
    try:
        yield Profile(database)
    finally:
        for each in databases:
            each.command("profile", 0)


class Profile:
    """MongoDB's own record of feedmux's commands."""

    def __init__(self, database: Documents) -> None:
        self._database = database

    def commands(self, name: str) -> list[Document]:
        """In the order in which they ended."""
        found = self._database["system.profile"].find({"appName": "feedmux", f"command.{name}": {"$exists": True}})
        return [each["command"] for each in found.sort("$natural", 1)]

    def starts(self) -> list[Document]:
        """The `$changeStream` stages of the aggregates, in order."""
        return [command["pipeline"][0]["$changeStream"] for command in self.commands("aggregate")]


# --- Writing.


@asynccontextmanager
async def writing(uri: str, database: str) -> AsyncIterator[list[int]]:
    """Inserts numbers one by one, again and again until each is acknowledged, whatever happens to the server.

    Yields the count so far in a list of one; the numbers run from 0 without a gap.
    """
    written = [0]

    async def write() -> None:
        async with AsyncMongoClient[Document](uri, serverSelectionTimeoutMS=1000) as client:
            collection = client[database].get_collection("c")
            while True:
                try:
                    await collection.update_one({"_id": written[0]}, {"$setOnInsert": {"n": written[0]}}, upsert=True)
                except PyMongoError:
                    await asyncio.sleep(0.05)
                    continue
                written[0] += 1
                await asyncio.sleep(0.002)

    task = asyncio.create_task(write())
    try:
        yield written
    finally:
        task.cancel()
        await asyncio.wait([task])


async def written_more(written: list[int], count: int) -> None:
    """Waits until so many more have been acknowledged."""
    wanted = written[0] + count
    await until(lambda: written[0] >= wanted)


# --- The oplog.


def now(client: Client) -> Timestamp:
    """The present operation time."""
    time: Timestamp = client.admin.command("ping")["operationTime"]
    return time


def oldest(client: Client) -> Timestamp:
    """Time of the oldest entry of the oplog."""
    while True:
        try:
            entry = client.local["oplog.rs"].find_one({}, {"ts": 1}, sort=[("$natural", 1)])
        except OperationFailure as error:
            if error.code != _POSITION_LOST:
                raise
            continue  # the entry was deleted while it was read
        assert entry is not None
        time: Timestamp = entry["ts"]
        return time


async def overrun(client: Client, database: str = "padding") -> Timestamp:
    """Writes until what the oplog holds now has left it; returns the time of its oldest entry then."""
    until_time = now(client)

    async def gone() -> bool:
        await asyncio.to_thread(client[database].padding.insert_many, [{"pad": "x" * 500_000} for _ in range(10)])
        return oldest(client) > until_time

    await until(gone, 60, every_s=0.05)
    # It is cut by another thread in steps; the next ones may come at once.
    seen = [oldest(client)]

    async def settled() -> bool:
        seen.append(oldest(client))
        return seen[-1] == seen[-2]

    await until(settled, 10, every_s=0.3)
    return seen[-1]


def rfc3339(time: Timestamp) -> str:
    return datetime.fromtimestamp(time.time, UTC).isoformat().replace("+00:00", "Z")
