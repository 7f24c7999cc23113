"""Jobs that read a backlog to its last event: through feedmux, and from MongoDB by pymongo.

Both connect before the start and subscribe after it, so that opening counts and nothing is read early. A reader
records the number of events and the last `_id`; `check` compares both with what was written.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import bson
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from pymongo import MongoClient

import feedmux
from bench.backlog import FIRST_ID, Backlog
from bench.crew import Crew, Gate
from bench.report import Figures
from bench.settings import COLLECTION, DATABASE
from bench.stage import Stage
from feedmux.batches import BsonBatch

How = Literal["events", "batches", "batches inline"]
PROCESSES_OF_FEEDMUX = 2
PROCESSES_OF_PYMONGO = 8


@dataclass(frozen=True, slots=True)
class Task:
    """The task of one process of readers. `names` has one name for each reader of a durable subscription."""

    address: str
    start: Timestamp
    count: int
    names: Sequence[str] = ()
    readers: int = 1
    counts: Sequence[int] = ()
    """The number of events for each reader, if they differ."""
    comment: str = ""
    raw: bool = False


@dataclass(frozen=True, slots=True)
class Read:
    """The result of one reader."""

    began_s: float
    ended_s: float
    count: int
    size_bytes: int
    last_id: int


@dataclass(frozen=True, slots=True)
class Share:
    """The result of one process."""

    reads: list[Read]
    cpu_s: float


class CheckFailed(Exception):
    """A reader did not read what was written, so the figures are invalid."""


def feed_of(comment: str) -> feedmux.Feed:
    """Return the measured feed. Its comment is part of a shared stream's key, so that runs share nothing."""
    return feedmux.Feed(database=DATABASE, collection=COLLECTION, comment=comment)


def events_by_feedmux(gate: Gate, task: Task) -> Share:
    """Read with a user's plain loop, which decodes every document and acks every event."""
    (name,) = task.names
    count = last_id = 0
    with feedmux.Client(task.address) as client:
        client.get_subscription(name)
        began_s, cpu_s = gate.wait(), time.process_time()
        with client.subscription(name).open() as session:
            for event in session:
                document = event.document
                session.ack(event)
                count += 1
                if count == task.count:
                    break
            ended_s, cpu_s = time.monotonic(), time.process_time() - cpu_s
            last_id = document["documentKey"]["_id"]
    return Share([Read(began_s, ended_s, count, 0, last_id)], cpu_s)


def events_by_pymongo(gate: Gate, task: Task) -> Share:
    """Read with the same loop over pymongo's watch()."""
    clients = [MongoClient[dict[str, Any]](task.address) for _ in range(task.readers)]
    for client in clients:
        client.admin.command("ping")
    reads: list[Read] = []
    threads = [threading.Thread(target=lambda c=client: reads.append(_watch(c, task))) for client in clients]
    gate.wait()
    cpu_s = time.process_time()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    cpu_s = time.process_time() - cpu_s
    for client in clients:
        client.close()
    if len(reads) < task.readers:
        raise RuntimeError("a reader failed; see its traceback above")
    return Share(reads, cpu_s)


def batches_by_feedmux(gate: Gate, task: Task) -> Share:
    """Read with many subscribers on one event loop, each with its own client and channel, and one ack per batch."""
    return asyncio.run(_batches(gate, task))


async def _batches(gate: Gate, task: Task) -> Share:
    clients = [feedmux.AsyncClient(task.address) for _ in range(len(task.names) or task.readers)]
    await asyncio.gather(*(client.resolve(task.start) for client in clients))
    began_s = await gate.wait_async()
    cpu_s = time.process_time()

    async def read(client: feedmux.AsyncClient, name: str, wanted: int) -> Read:
        if name:
            opening = client.subscription(name).open()
        else:
            opening = client.feed(feed_of(task.comment)).open(start=task.start)
        count = size_bytes = 0
        async with opening as session:
            async for batch in session.batches():
                assert isinstance(batch, BsonBatch)
                count += len(batch)
                size_bytes += len(batch.raw)
                if name:
                    session.ack(batch)
                if count >= wanted:
                    break
            ended_s = time.monotonic()
            last_id = bson.decode(batch.raw_event(len(batch) - 1))["documentKey"]["_id"]
        return Read(began_s, ended_s, count, size_bytes, last_id)

    names = task.names or [""] * task.readers
    counts = task.counts or [task.count] * len(names)
    reads = await asyncio.gather(*(read(*each) for each in zip(clients, names, counts, strict=True)))
    cpu_s = time.process_time() - cpu_s
    await asyncio.gather(*(client.close() for client in clients))
    return Share(reads, cpu_s)


def _watch(client: MongoClient[dict[str, Any]], task: Task) -> Read:
    began_s = time.monotonic()
    document_class: Any = RawBSONDocument if task.raw else dict
    orders = client[DATABASE].get_collection(COLLECTION, CodecOptions(document_class=document_class))
    count = 0
    with orders.watch(start_at_operation_time=task.start) as stream:
        for change in stream:
            count += 1
            if count == task.count:
                ended_s, last_id = time.monotonic(), change["documentKey"]["_id"]
                break
    return Read(began_s, ended_s, count, 0, last_id)


@dataclass(frozen=True, slots=True)
class Reading:
    """The figures of one run of one side."""

    elapsed_s: float
    """From the start to the last event of the last reader."""
    events: int
    size_bytes: int
    client_cpu_s: float
    server_cpu_s: float
    mongod_cpu_s: float

    @property
    def figures(self) -> Figures:
        per_event_us = 1e6 / self.events
        return {
            "events_per_s": self.events / self.elapsed_s,
            "elapsed_s": self.elapsed_s,
            "events": self.events,
            "client_cpu_us_per_event": self.client_cpu_s * per_event_us,
            "server_cpu_us_per_event": self.server_cpu_s * per_event_us,
            "mongod_cpu_us_per_event": self.mongod_cpu_s * per_event_us,
        }


class Contest:
    """Runs readers over one backlog. Every reading has its own subscriptions and shared stream."""

    def __init__(self, stage: Stage, backlog: Backlog) -> None:
        self._stage = stage
        self._backlog = backlog
        self._readings = 0

    async def subscription(self) -> str:
        """Create a durable subscription to the backlog, to be read by a program in another language."""
        self._readings += 1
        name = f"reader-{self._readings}"
        await self._subscribe([name], f"reading {self._readings}")
        return name

    async def by_feedmux(self, how: How, readers: int, comment: str = "") -> Reading:
        """Read with `readers` subscribers, in the number of processes that performs best."""
        self._readings += 1
        comment = comment or f"reading {self._readings}"
        task = Task(self._stage.endpoint, self._backlog.start, self._backlog.count, comment=comment)
        names = [f"reader-{self._readings}-{number}" for number in range(readers)]
        if durable := how != "batches inline":
            await self._subscribe(names, comment)
        processes = min(readers, PROCESSES_OF_FEEDMUX)
        shares = [names[number::processes] for number in range(processes)]
        job = events_by_feedmux if how == "events" else batches_by_feedmux
        tasks = [replace(task, names=share if durable else (), readers=len(share)) for share in shares]
        return await self._read([(job, task) for task in tasks], self._backlog.count)

    async def by_pymongo(self, readers: int, count: int, *, raw: bool) -> Reading:
        """Read with `readers` of `watch()`, each for the first `count` events."""
        processes = min(readers, PROCESSES_OF_PYMONGO)
        task = Task(self._stage.mongo.uri, self._backlog.start, count, raw=raw)
        tasks = [replace(task, readers=len(range(number, readers, processes))) for number in range(processes)]
        return await self._read([(events_by_pymongo, task) for task in tasks], count)

    async def _subscribe(self, names: Sequence[str], comment: str) -> None:
        async with feedmux.AsyncClient(self._stage.endpoint) as client:
            for name in names:
                await client.create_subscription(name, feed_of(comment), start=self._backlog.start)

    async def _read(self, jobs: Sequence[tuple[Callable[[Gate, Task], Share], Task]], count: int) -> Reading:
        async with Crew(jobs) as crew:
            before = self._stage.cpu()
            crew.go()
            shares: list[Share] = await crew.results()
            used = self._stage.cpu() - before
        reads = [read for share in shares for read in share.reads]
        for read in reads:
            if read.count != count or read.last_id != FIRST_ID + count - 1:
                raise CheckFailed(f"read {read.count} events up to {read.last_id}, not {count}")
        return Reading(
            max(read.ended_s for read in reads) - min(read.began_s for read in reads),
            sum(read.count for read in reads),
            sum(read.size_bytes for read in reads),
            sum(share.cpu_s for share in shares),
            used.server,
            used.mongod,
        )
