"""Jobs for events that are read while they are written: a writer at a fixed rate, and followers that measure latency.

Followers subscribe before the start and end at their last event. The latency is the time from just before the insert,
which the writer stores in the document, until the follower has the decoded document, on one clock.
"""

import asyncio
import queue
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bson.codec_options import CodecOptions
from pymongo import MongoClient, ReplaceOne
from pymongo.errors import PyMongoError

import feedmux
from bench.backlog import order
from bench.crew import Gate
from bench.settings import COLLECTION, DATABASE

WRITER_THREADS = 4
_WARM_UP_S = 1.0


@dataclass(frozen=True, slots=True)
class Writing:
    """What to write: `rate` documents per second from `first_id`, with `per_insert` documents in each command."""

    uri: str
    first_id: int
    count: int
    rate: float
    padding: str
    per_insert: int
    keys: int = 0
    """Instead of inserting, replace so many documents in turn."""


@dataclass(frozen=True, slots=True)
class Written:
    """How well the writer kept its rate."""

    elapsed_s: float
    late_most_s: float
    inserts_ns: list[int]
    """How long MongoDB took for each command."""


@dataclass(frozen=True, slots=True)
class Followed:
    """The result of one follower."""

    times_ns: list[int]
    """Latencies from insert to document, without those of the first second."""
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Following:
    """The task of one process: a follower for each of `names`, or one follower with pymongo."""

    address: str
    count: int
    rate: float
    names: Sequence[str] = ()
    key: str = ""
    """The API key, if the server has tenants."""


def write(gate: Gate, task: Writing) -> Written:
    """Insert on schedule with the default write concern, from several threads, because each waits for the disk."""
    client: MongoClient[dict[str, Any]] = MongoClient(task.uri)
    client.admin.command("ping")
    due: queue.SimpleQueue[tuple[float, int] | None] = queue.SimpleQueue()
    late_most_s = 0.0
    inserts_ns: list[int] = []
    errors: list[Exception] = []

    def insert() -> None:
        nonlocal late_most_s
        orders = client[DATABASE][COLLECTION]
        while (job := due.get()) is not None:
            due_s, number = job
            late_most_s = max(late_most_s, time.monotonic() - due_s)
            last = min(number + task.per_insert, task.first_id + task.count)
            documents = [order(each, task.padding) for each in range(number, last)]
            began_ns = time.monotonic_ns()
            try:
                if task.keys:
                    keys = [task.first_id + each["_id"] % task.keys for each in documents]
                    pairs = zip(keys, documents, strict=True)
                    orders.bulk_write([ReplaceOne({"_id": k}, each | {"_id": k}, upsert=True) for k, each in pairs])
                else:
                    orders.insert_many(documents)
            except PyMongoError as error:
                errors.append(error)
            inserts_ns.append(time.monotonic_ns() - began_ns)

    threads = [threading.Thread(target=insert) for _ in range(WRITER_THREADS)]
    for thread in threads:
        thread.start()
    began_s = gate.wait()
    for offset in range(0, task.count, task.per_insert):
        due_s = began_s + offset / task.rate
        time.sleep(max(0.0, due_s - time.monotonic()))
        due.put((due_s, task.first_id + offset))
    for _ in threads:
        due.put(None)
    for thread in threads:
        thread.join()
    elapsed_s = time.monotonic() - began_s
    client.close()
    if errors:
        raise errors[0]
    return Written(elapsed_s, late_most_s, inserts_ns)


def follow_by_feedmux(gate: Gate, task: Following) -> Followed:
    """Follow one durable subscription event by event, and ack each event."""
    (name,) = task.names
    times: list[int] = []
    with (
        feedmux.Client(task.address, api_key=task.key or None) as client,
        client.subscription(name).open() as session,
    ):
        gate.ready()
        cpu_s = time.process_time()
        for event in session:
            document = event.document
            times.append(time.monotonic_ns() - document["fullDocument"]["sent_ns"])
            session.ack(event)
            if len(times) == task.count:
                break
        cpu_s = time.process_time() - cpu_s
    return Followed(_warm(times, task), cpu_s)


def follow_by_pymongo(gate: Gate, task: Following) -> Followed:
    """Do the same over pymongo's watch()."""
    times: list[int] = []
    client: MongoClient[dict[str, Any]] = MongoClient(task.address)
    orders = client[DATABASE].get_collection(COLLECTION, CodecOptions(document_class=dict))
    with client, orders.watch() as stream:
        gate.ready()
        cpu_s = time.process_time()
        for change in stream:
            times.append(time.monotonic_ns() - change["fullDocument"]["sent_ns"])
            if len(times) == task.count:
                break
        cpu_s = time.process_time() - cpu_s
    return Followed(_warm(times, task), cpu_s)


def acknowledge(gate: Gate, task: Following) -> list[float]:
    """Ack many durable subscriptions batch by batch, on one event loop. Return when each had its last event."""

    async def one(name: str, opened: asyncio.Semaphore) -> float:
        count = 0
        async with feedmux.AsyncClient(task.address) as client, client.subscription(name).open() as session:
            opened.release()
            async for batch in session.batches():
                count += len(batch)
                session.ack(batch)
                if count >= task.count:
                    break
        return time.monotonic()

    async def every() -> list[float]:
        opened = asyncio.Semaphore(0)
        readers = [asyncio.create_task(one(name, opened)) for name in task.names]
        for _ in readers:
            await opened.acquire()
        gate.ready()
        return await asyncio.gather(*readers)

    return asyncio.run(every())


def _warm(times: list[int], task: Following) -> list[int]:
    return times[min(len(times) // 2, int(task.rate * _WARM_UP_S)) :]
