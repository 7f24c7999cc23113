"""The models of the simulation do as the servers that they stand for: what both are asked, both answer alike."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

import bson
import pytest
from bson.timestamp import Timestamp
from pymongo import MongoClient
from pymongo.database import Database
from pymongo.errors import OperationFailure

from feedmux_embedded.mongod import ReplicaSet
from feedmux_embedded.redis_server import RedisServer
from feedmux_server import clock
from feedmux_server.core.errors import FeedmuxError
from feedmux_server.core.feeds.feed import FeedSpec, Scope
from feedmux_server.core.feeds.snapshot_stages import documents, gate
from feedmux_server.core.feeds.stream_key import stream_key
from feedmux_server.core.positions.resume_token import Copied, ResumeToken
from feedmux_server.source.deployment import Source, SourceConfig
from feedmux_server.store.connection import connect
from feedmux_server.store.model import CommitRequest, Lease, RestoreRequest, StoredSubscription
from feedmux_server.store.store import SubscriptionStore
from tests.integration.state_support import place
from tests.sim.documents import KEYS, Change
from tests.sim.loop import SimLoop
from tests.sim.mongo import SimMongo, SimSource
from tests.sim.redis import SimRedis, SimRedisClient
from tests.virtual_time import VirtualClock

# --- Redis: the store's scripts.

TIMES = frozenset({b"create_ms", b"update_ms", b"used_ms", b"lease_until_ms", b"nonce"})
"""Fields that differ from run to run: here it counts whether there are any."""
EPOCHS = frozenset({b"epoch", b"seek_epoch", b"commit_epoch", b"delete_epoch", b"takeover_epoch"})
"""They come from the time: here they count in the order in which they appeared."""
NAMES = ("one", "two")
OPERATIONS = 150


@dataclass(slots=True)
class Operations:
    """Random ones on two subscriptions of a tenant."""

    store: SubscriptionStore
    tenant: str
    rng: Random
    leases: list[Lease] = field(default_factory=list)
    stored: dict[str, StoredSubscription] = field(default_factory=dict)
    epochs: dict[str, dict[int, int]] = field(default_factory=dict)

    async def next(self) -> str:
        """The outcome of one operation."""
        rng, name = self.rng, self.rng.choice(NAMES)
        kind = rng.choice(("create", "get", "list", "update", "seek", "delete", "expire", "open", "open", "open"))
        if self.leases and rng.random() < 0.5:
            kind = rng.choice(("commit", "commit", "renew", "restore", "release"))
        number, etag = rng.randint(1, 9), rng.choice("xy")
        lease = rng.choice(self.leases) if self.leases else None
        try:
            return f"{kind} {name}: {await self._do(kind, name, number, etag, lease)}"
        except FeedmuxError as error:
            return f"{kind} {name}: {error.reason}"

    async def _do(self, kind: str, name: str, number: int, etag: str, lease: Lease | None) -> str:
        store, tenant, at, definition = self.store, self.tenant, place(number), etag.encode()
        where: dict[str, Any] = {"position": at.position, "cluster_time": at.cluster_time, "order": at.order}
        match kind:
            case "create":
                return self._shown(await store.create(tenant, name, definition=definition, etag=etag, **where))
            case "get":
                return self._shown(await store.get(tenant, name))
            case "list":
                page, after = await store.list(tenant, page_size=1)
                return f"{[self._shown(each) for each in page]} {after}"
            case "update":
                expected = self.rng.choice(("", "x"))
                return self._shown(
                    await store.update(tenant, name, definition=definition, etag=etag, expected_etag=expected)
                )
            case "seek":
                return self._shown(await store.seek(tenant, name, **where))
            case "delete":
                await store.delete(tenant, name, expected_etag=self.rng.choice(("", "x")))
                return "deleted"
            case "expire":
                return str(await store.expire(tenant, name, self.rng.choice((0.0, 3600.0))))
            case "open":
                instance, takeover = self.rng.choice(("", "me", "you")), self.rng.random() < 0.5
                stored, opened = await store.leases.open(tenant, name, instance_id=instance, takeover=takeover)
                self.leases.append(opened)
                self.stored[opened.nonce] = stored
                return f"{self._shown(stored)} {opened.taken_over}"
        assert lease is not None
        match kind:
            case "commit":
                return self._outcome(await store.leases.commit_many([CommitRequest(lease, at, 0)]))
            case "renew":
                return self._outcome(await store.leases.commit_many([CommitRequest(lease, None, 0)]))
            case "restore":
                await store.leases.restore_many([RestoreRequest(lease, self.stored[lease.nonce])])
                return "asked for"
        await store.leases.release(lease)
        return "released"

    def _shown(self, stored: StoredSubscription) -> str:
        epochs = [self._epoch(stored.name, each) for each in (stored.epoch, stored.seek_epoch, stored.commit_epoch)]
        return f"{stored.definition!r} {stored.etag} {stored.position!r} {epochs} {stored.owner} {stored.active}"

    def _outcome(self, outcomes: Any) -> str:
        [outcome] = outcomes
        return f"{outcome.status} {outcome.cause} {outcome.position!r}"

    def _epoch(self, name: str, epoch: int) -> int:
        known = self.epochs.setdefault(name, {})
        return known.setdefault(epoch, len(known)) if epoch else -1

    def fields(self, name: str, stored: dict[bytes, bytes]) -> dict[bytes, Any]:
        """Of a subscription's hash in Redis."""

        def shown(key: bytes, value: bytes) -> Any:
            return bool(value) if key in TIMES else self._epoch(name, int(value)) if key in EPOCHS else value

        return {key: shown(key, value) for key, value in sorted(stored.items())}


async def outcomes(
    store: SubscriptionStore, tenant: str, seed: int, hash_of: Callable[[bytes], Awaitable[dict[bytes, bytes]]]
) -> list[Any]:
    """The outcome of each operation, and what is stored after it."""
    operations = Operations(store, tenant, Random(seed))
    found: list[Any] = []
    for _ in range(OPERATIONS):
        found.append(await operations.next())
        hashes = [(name, await hash_of(f"feedmux:1:{{{tenant}/{name}}}".encode())) for name in NAMES]
        found += [operations.fields(name, stored) for name, stored in hashes]
    return found


def simulated(tenant: str, seed: int) -> list[Any]:
    loop = SimLoop(Random(seed))
    redis = SimRedis(loop, Random(seed))

    async def hash_of(key: bytes) -> dict[bytes, bytes]:
        return redis.hash_of(key)

    try:
        with clock.replaced(VirtualClock(loop)):
            store = SubscriptionStore(SimRedisClient(redis), lease_s=3600.0)  # type: ignore[arg-type]
            return loop.run_until_complete(outcomes(store, tenant, seed, hash_of))
    finally:
        loop.close()


@pytest.mark.parametrize("seed", range(6))
async def test_redis(redis_server: RedisServer, seed: int, name: str) -> None:
    client: Any = connect(redis_server.url)

    async def hash_of(key: bytes) -> dict[bytes, bytes]:
        found: dict[bytes, bytes] = await client.hgetall(key)
        return found

    try:
        store = SubscriptionStore(client, lease_s=3600.0)
        real = await outcomes(store, name, seed, hash_of)
    finally:
        await client.aclose()
    assert real == await asyncio.to_thread(simulated, name, seed)


# --- MongoDB: where change streams begin, and what they show from there.

LAST = 1_000
"""The number of the document that comes last in every stream."""
STREAMS: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "collection": ("a", []),
    "database": ("", []),
    "some of a collection": ("a", [{"$match": {"fullDocument.x": LAST}}]),
    "some of a database": ("", [{"$match": {"fullDocument.x": LAST}}]),
}
"""Collection and pipeline of each."""
Shown = list[Any]
"""Kinds and numbers of events, and how they ended: `invalidated`, or an error's code."""


class SimWriter:
    """Writes to the model, as `RealWriter` does to MongoDB."""

    def __init__(self, mongo: SimMongo) -> None:
        self._mongo = mongo

    def insert(self, collection: str, number: int) -> None:
        self._mongo.insert("db", collection, 0, x=number)

    def transaction(self, collection: str, numbers: range) -> None:
        self._mongo.transaction("db", collection, len(numbers), 0, x=numbers[0])

    def drop(self, collection: str) -> None:
        self._mongo.drop("db", collection)

    def change(self, collection: str, *changes: Change) -> None:
        self._mongo.change("db", collection, *changes)


class RealWriter:
    """Of one database."""

    def __init__(self, database: Database[dict[str, Any]]) -> None:
        self._database = database

    def insert(self, collection: str, number: int) -> None:
        self._database[collection].insert_one({"x": number})

    def transaction(self, collection: str, numbers: range) -> None:
        """The model gives all of them the first number."""
        with self._database.client.start_session() as session, session.start_transaction():
            self._database[collection].insert_many([{"x": numbers[0]} for _ in numbers], session=session)

    def drop(self, collection: str) -> None:
        self._database[collection].drop()

    def change(self, collection: str, *changes: Change) -> None:
        if len(changes) == 1:
            self._change(self._database[collection], changes[0])
            return
        with self._database.client.start_session() as session, session.start_transaction():
            for change in changes:
                self._change(self._database[collection], change, session)

    def _change(self, collection: Any, change: Change, session: Any = None) -> None:
        wanted, fields = {"_id": change.key}, dict(change.fields)
        match change.kind:
            case "upsert":
                collection.replace_one(wanted, fields, upsert=True, session=session)
            case "update":
                collection.update_one(wanted, {"$set": fields}, session=session)
            case "delete":
                collection.delete_one(wanted, session=session)


def write(to: SimWriter | RealWriter) -> None:
    to.insert("a", 1)
    to.insert("b", 2)
    to.transaction("a", range(3, 6))
    to.insert("b", 6)
    to.drop("a")
    to.insert("a", 7)
    to.transaction("b", range(8, 10))
    to.insert("a", LAST)
    to.insert("b", LAST)


async def read(source: Source, database: str, stream: str, start: dict[str, Any]) -> tuple[Shown, list[dict[str, Any]]]:
    """What a stream shows from there, and its events."""
    collection, pipeline = STREAMS[stream]
    spec = FeedSpec(Scope("main", database, collection))
    events: list[dict[str, Any]] = []
    shown: Shown = []
    try:
        cursor = await source.open_cursor(spec, [{"$changeStream": start}, *pipeline], 2, 200)
        try:
            empty = 0
            while empty < 2 and not shown and not any(_number(each) == LAST for each in events):
                batch = await cursor.next_batch()
                events += bson.decode_all(batch.data)
                empty = 0 if batch.data else empty + 1
                if batch.exhausted:
                    end = ResumeToken.decode(batch.post_batch or b"")
                    shown.append(f"invalidated, {'at' if end.from_invalidate else 'not at'} the invalidate")
        finally:
            await cursor.close()
    except OperationFailure as error:
        shown.append(error.code)
    return [*((each["operationType"], _number(each)) for each in events), *shown], events


def _number(event: dict[str, Any]) -> int | None:
    number: int | None = event.get("fullDocument", {}).get("x")
    return number


async def streams(source: Source, database: str, before: Timestamp) -> list[tuple[str, Shown]]:
    """Every stream that begins somewhere among what `write` has written after `before`."""
    found: list[tuple[str, Shown]] = []
    places: list[tuple[str, dict[str, Any]]] = []
    for stream in STREAMS:
        at = {"startAtOperationTime": before}
        while True:
            shown, events = await read(source, database, stream, at)
            found.append((f"{stream} from the beginning", shown))
            places += [(f"{stream}'s {each['operationType']} {_number(each)}", each) for each in events]
            if not events or _number(events[-1]) == LAST:
                break
            at = {"startAfter": events[-1]["_id"]}
    for stream in STREAMS:
        for label, event in places:
            mark = ResumeToken.high_water_mark(_as_int(event["clusterTime"]), 1)
            starts: dict[str, dict[str, Any]] = {
                "resumeAfter": {"resumeAfter": event["_id"]},
                "startAfter": {"startAfter": event["_id"]},
                "at the time of": {"startAtOperationTime": event["clusterTime"]},
                "at the mark of": {"resumeAfter": bson.decode(mark.raw)},
            }
            for name, start in starts.items():
                shown, _ = await read(source, database, stream, start)
                found.append((f"{stream}, {name} {label}", shown))
    return found


def _as_int(time: Timestamp) -> int:
    return time.time << 32 | time.inc


def simulated_streams() -> list[tuple[str, Shown]]:
    loop = SimLoop(Random(0))
    mongo = SimMongo(loop, Random(0))
    before = Timestamp(mongo.latest >> 32, (mongo.latest & 0xFFFF_FFFF) + 1)
    write(SimWriter(mongo))
    try:
        with clock.replaced(VirtualClock(loop)):
            return loop.run_until_complete(streams(SimSource(mongo), "db", before))
    finally:
        loop.close()


async def test_mongodb(mongo: ReplicaSet, mongo_client: MongoClient[dict[str, Any]], database: Database[Any]) -> None:
    for collection in "ab":
        database.create_collection(collection)
    now = mongo_client.admin.command("ping")["operationTime"]
    source = Source(SourceConfig("main", mongo.uri))
    try:
        await asyncio.to_thread(write, RealWriter(database))
        real = await streams(source, database.name, Timestamp(now.time, now.inc + 1))
    finally:
        await source.close()
    model = await asyncio.to_thread(simulated_streams)
    different = [
        f"{each[0]}, the model has {each[1][1]}" for each in zip(real, model, strict=True) if each[0] != each[1]
    ]
    assert not different, "\n".join(different)


# --- MongoDB: documents as of a time, and the changes to those that were copied.

IDS = (3, 7, "s1", "s2", KEYS[-1])
"""The `_id`s of the documents, in MongoDB's order."""


def change(to: SimWriter | RealWriter, now: Callable[[], int]) -> list[int]:
    """Write documents; returns the cluster times after each change."""
    times = [now()]

    def step(*changes: Change) -> None:
        to.change("c", *changes)
        times.append(now())

    def upsert(key: Any, number: int) -> Change:
        return Change("upsert", key, (("x", number),))

    for number, key in enumerate(reversed(IDS)):
        step(upsert(key, number))
    step(Change("update", "s1", (("y", 5),)))
    step(upsert(3, 6))
    step(Change("delete", 7))
    step(Change("delete", 7))
    step(Change("update", 7, (("y", 7),)))
    step(Change("update", 3, (("y", 8),)), Change("delete", IDS[-1]), upsert(7, 9))
    step(upsert("s3", LAST))
    return times


async def asked(read: Awaitable[list[Any]]) -> list[Any]:
    """What MongoDB returns, or the code of its error."""
    try:
        return await read
    except OperationFailure as error:
        return [error.code]


async def documents_of(source: Source, database: str, copied: Copied, time: int, batch: int = 2) -> list[Any]:
    """The documents that a copy reads as of a time, and the sizes of the batches."""
    key = stream_key(FeedSpec(Scope("main", database, "c")))
    cursor = await source.open_documents(key.spec, documents(key, copied, time), batch, time)
    found: list[Any] = []
    try:
        exhausted = False
        while not exhausted:
            read = await cursor.next_batch()
            events, exhausted = bson.decode_all(read.data), read.exhausted
            mark = bson.decode(ResumeToken.high_water_mark(time + 1).raw)
            assert all(each["_id"] == {**mark, "snapshot": each["documentKey"]} for each in events)
            found += [len(events), *map(_shown, events)]
    finally:
        await cursor.close()
    return found


async def changes_of(source: Source, database: str, copied: Copied, after: int) -> list[Any]:
    """The changes that a copy reads from a time on."""
    start = {"resumeAfter": bson.decode(ResumeToken.high_water_mark(after + 1).raw)}
    stages = [{"$changeStream": start}, gate(copied)]
    cursor = await source.open_cursor(FeedSpec(Scope("main", database, "c")), stages, 100, 200)
    found: list[Any] = []
    try:
        for _ in range(2):
            found += map(_shown, bson.decode_all((await cursor.next_batch()).data))
    finally:
        await cursor.close()
    return found


async def _rest_of(cursor: Any) -> list[Any]:
    """What a read still returns: few documents are in MongoDB's memory when they are asked for."""
    found: list[Any] = []
    exhausted = False
    while not exhausted:
        read = await cursor.next_batch()
        found += map(_shown, bson.decode_all(read.data))
        exhausted = read.exhausted
    return found


def _shown(event: dict[str, Any]) -> tuple[Any, ...]:
    """What an event says, without what differs between the model and MongoDB."""

    def known(fields: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in fields.items() if name in ("_id", "x", "y")}

    document = known(event["fullDocument"]) if "fullDocument" in event else None
    updated = event.get("updateDescription")
    rest = {**updated, "updatedFields": known(updated["updatedFields"])} if updated else None
    return event["operationType"], event.get("documentKey"), document, rest


async def copies(
    source: Source, database: str, writer: SimWriter | RealWriter, now: Callable[[], int]
) -> list[tuple[str, list[Any]]]:
    """What MongoDB answers to a copy while documents change, and when their collection is gone."""
    nothing = Copied()
    bounds = [nothing, *(Copied(bson.encode({"_id": each})) for each in (*IDS, 5, "s"))]
    found: list[tuple[str, list[Any]]] = []

    async def look() -> None:
        info = await source.collection(database, "c")
        found.append(("collection", [info is not None and info.kind]))

    async def ask(label: str, time: int, bound: Copied = nothing, batch: int = 2) -> None:
        read = documents_of(source, database, bound, time, batch)
        found.append((f"{label}, after {bound.up_to!r}", await asked(read)))

    await look()
    await ask("no collection", now())
    await ask("no collection, an hour ago", now() - (3600 << 32))
    times = change(writer, now)
    await look()
    for number, time in enumerate(times):
        for bound in bounds:
            await ask(f"documents after change {number}", time, bound)
    await ask("in one batch", times[-1], batch=10)
    await ask("in one full batch", times[-1], batch=4)
    await ask("in the future", times[-1] + (3600 << 32))
    await ask("before it existed, an hour ago", times[-1] - (3600 << 32))
    for bound in bounds:
        changes = await changes_of(source, database, bound, times[0])
        found.append((f"changes to what was copied up to {bound.up_to!r}", changes))
    key = stream_key(FeedSpec(Scope("main", database, "c")))
    for label, again in (("dropped", False), ("dropped and created again", True)):
        cursor = await source.open_documents(key.spec, documents(key, nothing, times[-1]), 2, times[-1])
        await cursor.next_batch()
        writer.drop("c")
        gone = now()
        if again:
            writer.change("c", Change("upsert", 1))
        found.append((f"the rest of what was {label}", await asked(_rest_of(cursor))))
        await cursor.close()
        await look()
        for when, time in (("before that", times[-1]), ("then", gone), ("now", now())):
            await ask(f"{label}, as of {when}", time)
        if not again:
            times = change(writer, now)
            await look()
    return found


def simulated_copies() -> list[tuple[str, list[Any]]]:
    loop = SimLoop(Random(0))
    mongo = SimMongo(loop, Random(0))
    now = partial(getattr, mongo, "latest")
    try:
        with clock.replaced(VirtualClock(loop)):
            return loop.run_until_complete(copies(SimSource(mongo), "db", SimWriter(mongo), now))
    finally:
        loop.close()


async def test_copies(mongo: ReplicaSet, mongo_client: MongoClient[dict[str, Any]], database: Database[Any]) -> None:
    def now() -> int:
        return _as_int(mongo_client.admin.command("ping")["operationTime"])

    source = Source(SourceConfig("main", mongo.uri))
    try:
        real = await copies(source, database.name, RealWriter(database), now)
    finally:
        await source.close()
    model = await asyncio.to_thread(simulated_copies)
    different = [f"{each[0]}, the model has {each[1]}" for each in zip(real, model, strict=True) if each[0] != each[1]]
    assert not different, "\n".join(different)
