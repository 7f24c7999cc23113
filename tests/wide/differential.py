"""Read the same feeds twice: from feedmux, as views where possible, and from MongoDB's own change streams. Both must
give the same events, byte for byte, to the end of each feed."""

import asyncio
import json
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import repeat
from random import Random
from typing import Any

import bson
import grpc.aio
from bson.codec_options import CodecOptions
from bson.int64 import Int64
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from grpc.aio import EOF
from pymongo import MongoClient
from pymongo.database import Database

from feedmux.v1 import feed_pb2
from tests.integration.wire import Api, Receiver, at, feed, refusal
from tests.wide.workload import COLLECTIONS, Workload

Options = tuple[tuple[str, Any], ...]
PIPELINES = (
    "",
    "",
    '[{"$match": {"operationType": {"$in": ["insert", "delete", "invalidate"]}}}]',
    '[{"$match": {"operationType": {"$in": ["insert", "drop", "rename", "invalidate"]}}}]',
)
"""One is drawn for each feed; each pipeline shows the insert that ends a round."""
CHANGES = ("insert", "update", "replace", "delete")
OF_TWO = COLLECTIONS[:2]
OF_DATABASES = (
    *PIPELINES,
    json.dumps([{"$match": {"ns.coll": {"$in": OF_TWO}, "operationType": {"$in": ["insert", "update"]}}}]),
)
_RAW = CodecOptions(document_class=RawBSONDocument)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A feed to compare."""

    database: str
    collection: str = ""
    options: Options = ()
    pipeline: str = ""

    @property
    def ends(self) -> int:
        """How many of the inserts that end a round this feed shows."""
        if self.collection:
            return 1
        return len(OF_TWO) if "ns.coll" in self.pipeline else len(COLLECTIONS)

    def __str__(self) -> str:
        options = "".join(f" {name}={value}" for name, value in self.options)
        return ".".join(filter(None, (self.database, self.collection))) + options + self.pipeline


@dataclass(slots=True)
class Seen:
    """The events of a feed that one side has shown."""

    events: list[bytes] = field(default_factory=list)
    ended: bool = False
    """Whether an invalidate or a dropDatabase ended the feed."""


class Direct:
    """The feed read from MongoDB's own stream, in a thread."""

    def __init__(self, client: MongoClient[dict[str, Any]], wanted: Wanted, start: Timestamp) -> None:
        self.seen = Seen()
        self._stop = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, args=(client, wanted, start), name=f"direct {wanted}")
        self._thread.start()

    def _run(self, client: MongoClient[dict[str, Any]], wanted: Wanted, start: Timestamp) -> None:
        try:
            self._read(client[wanted.database], wanted, start)
        except Exception as error:  # noqa: BLE001 raised again by `stop`
            self._error = error

    def _read(self, database: Database[dict[str, Any]], wanted: Wanted, start: Timestamp) -> None:
        stage = {"startAtOperationTime": start, **{_camel(name): value for name, value in wanted.options}}
        with database.client.start_session() as session:
            opened = database.command(
                {
                    "aggregate": wanted.collection or 1,
                    "pipeline": [{"$changeStream": stage}, *json.loads(wanted.pipeline or "[]")],
                    "cursor": {},
                },
                session=session,
                codec_options=_RAW,
            )
            first: Any = opened["cursor"]["firstBatch"]
            self.seen.events.extend(bytes(each.raw) for each in first)
            cursor: Any = opened["cursor"]["id"]
            while cursor and not self._stop.is_set():
                reply = database.command(
                    {
                        "getMore": Int64(cursor),
                        "collection": wanted.collection or "$cmd.aggregate",
                        "maxTimeMS": 100,
                    },
                    session=session,
                    codec_options=_RAW,
                )
                batch: Any = reply["cursor"]["nextBatch"]
                self.seen.events.extend(bytes(each.raw) for each in batch)
                cursor = reply["cursor"]["id"]
            self.seen.ended = not cursor
            if cursor:
                database.command(
                    {"killCursors": wanted.collection or "$cmd.aggregate", "cursors": [Int64(cursor)]}, session=session
                )

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        if self._error is not None:
            raise self._error


class Served:
    """The feed read from feedmux. The reader may move from one server to another with its position."""

    def __init__(self, api: Api, wanted: Wanted, start: Timestamp) -> None:
        self.seen = Seen()
        self.hops = 0
        self._wanted = feed(wanted.database, wanted.collection, wanted.pipeline, **dict(wanted.options))
        self._hides_its_end = "ns.coll" in wanted.pipeline
        self._at = at(start_at_operation_time=feed_pb2.ClusterTime(seconds=start.time, increment=start.inc))
        self._begin(api)

    async def hop(self, api: Api) -> None:
        events = self.seen.events
        if (
            self._hides_its_end
            or self.seen.ended
            or (events and bson.decode(events[-1])["operationType"] == "invalidate")
        ):
            return  # a new call would begin after the invalidate, as a new feed
        self.hops += 1
        await self.stop()
        self._begin(api)

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])
        self._receiver.cancel()
        if not self._task.cancelled():
            self._task.result()

    def _begin(self, api: Api) -> None:
        self._receiver = api.watch(self._wanted, self._at)
        self._task = asyncio.create_task(self._read(self._receiver))

    async def _read(self, receiver: Receiver) -> None:
        try:
            while True:
                message = await receiver.message(3600.0)
                assert message is not EOF
                events = await receiver.take(receiver.received - receiver.taken)
                self.seen.events.extend(event.data for event in events)
                self._at = at(position=receiver.position)
        except grpc.aio.AioRpcError as error:
            if refusal(error).reason != "FEED_INVALIDATED":
                raise
            self.seen.ended = True


@dataclass(frozen=True, slots=True)
class Round:
    """The result of one round of the comparison."""

    feeds: int
    events: int
    ended: int
    """Feeds that an invalidate ended."""
    hops: int
    views: int
    """The highest number of views that any server had at a time."""
    differences: list[str]


async def compare(
    apis: Sequence[Api],
    client: MongoClient[dict[str, Any]],
    seed: int,
    *,
    steps: int,
    options: Options = (),
    ddl: float | None = None,
    patience_s: float = 30.0,
    granted: bool = False,
) -> Round:
    """Run one round: random writes and DDL with readers on both sides. `apis` are the servers that feeds hop between.

    `granted` says that each collection is granted to the client separately. Feeds are then of collections, and events
    other than changes to documents come without the names of other collections: for these events, only the tokens must
    be the same.
    """
    rng = Random(seed)
    work = Workload(client, f"wide{seed}", rng, ddl=rng.choice((0.0, 0.02, 0.1)) if ddl is None else ddl)
    for _ in range(10):
        await asyncio.to_thread(work.step)
    start: Timestamp = client.admin.command("ping")["operationTime"]
    wanted = [Wanted(name, each, options, rng.choice(PIPELINES)) for name in work.databases for each in COLLECTIONS]
    if not granted:
        wanted += [Wanted(name, "", options, rng.choice(OF_DATABASES)) for name in work.databases]
    pairs = [(Served(apis[0], each, start), Direct(client, each, start)) for each in wanted]
    views = 0
    try:
        for step in range(steps):
            await asyncio.to_thread(work.step)
            if step % 20 == 0:
                await asyncio.sleep(rng.choice((0.0, 0.05, 0.4)))
                views = max([views, *[await viewed(api) for api in apis]])
            if rng.random() < 0.05:
                await rng.choice(pairs)[0].hop(rng.choice(apis))
        for name in work.databases:
            for each in COLLECTIONS:
                await asyncio.to_thread(client[name][each].insert_one, {"_id": "the end"})
        deadline_s = time.monotonic() + patience_s
        while time.monotonic() < deadline_s and not all(
            _alike(*each, granted) for each in zip(wanted, pairs, strict=True)
        ):
            await asyncio.sleep(0.05)
    finally:
        for served, direct in pairs:
            await served.stop()
            await asyncio.to_thread(direct.stop)
        for name in work.databases:
            client.drop_database(name)
    differences = [
        f"seed {seed}, {each}: {_difference(served.seen, direct.seen, granted)}"
        for each, (served, direct) in zip(wanted, pairs, strict=True)
        if not _alike(each, (served, direct), granted)
    ]
    seen = [direct.seen for _, direct in pairs]
    return Round(
        len(pairs),
        sum(len(each.events) for each in seen),
        sum(each.ended for each in seen),
        sum(served.hops for served, _ in pairs),
        views,
        differences,
    )


async def viewed(api: Api) -> int:
    """The number of a server's streams that are views now."""
    return sum(bool(each.view_of) for each in await api.streams())


def _alike(wanted: Wanted, pair: tuple[Served, Direct], granted: bool) -> bool:
    served, direct = (each.seen for each in pair)
    # Each side may have the event of its collection's creation first.
    ends = sum(b"the end" in each for each in direct.events[-2 * wanted.ends :])
    return (
        (direct.ended or ends == wanted.ends)
        and served.ended == direct.ended
        and len(served.events) == len(direct.events)
        and all(map(_same, served.events, direct.events, repeat(granted)))
    )


def _same(one: bytes, other: bytes, granted: bool) -> bool:
    if one == other or not granted:
        return one == other
    served, direct = bson.decode(one), bson.decode(other)
    return direct["operationType"] not in CHANGES and served["_id"] == direct["_id"]


def _difference(served: Seen, direct: Seen, granted: bool) -> str:
    for index, (one, other) in enumerate(zip(served.events, direct.events, strict=False)):
        if not _same(one, other, granted):
            return f"event {index} is {bson.decode(one)}, and should be {bson.decode(other)}"
    return (
        f"{len(served.events)} events of {len(direct.events)}; ended: {served.ended}, should be {direct.ended}"
        f"; MongoDB's last is {bson.decode(direct.events[-1]) if direct.events else None}"
    )


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)
