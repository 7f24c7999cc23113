"""Copies of existing documents: the documents, and jobs that read them through feedmux and by a bare `find`."""

import asyncio
import os
import random
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import bson
from pymongo import MongoClient, WriteConcern

import feedmux
from bench.crew import Gate
from bench.report import progress
from bench.settings import DATABASE
from feedmux.batches import BsonBatch

_INSERT_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Documents:
    """A collection of documents of one size."""

    collection: str
    count: int
    size_bytes: int
    """Of one document."""

    def load(self, client: "MongoClient[dict[str, object]]") -> None:
        progress(f"loading {self.count:,} documents of {self.size_bytes:,} bytes")
        empty = len(bson.encode({"_id": 0, "note": ""}))
        # Random, so that compression makes nothing smaller.
        note = "".join(random.Random(0).choices("abcdefghijklmnopqrstuvwxyz0123456789", k=self.size_bytes - empty))
        collection = client[DATABASE].get_collection(self.collection, write_concern=WriteConcern("majority"))
        step = max(1, _INSERT_BYTES // self.size_bytes)
        for first in range(0, self.count, step):
            numbers = range(first, min(first + step, self.count))
            collection.insert_many([{"_id": number, "note": note} for number in numbers])


@dataclass(frozen=True, slots=True)
class Copying:
    """The task of one process."""

    address: str
    documents: Documents
    name: str = ""
    """The subscription of a durable copy."""
    copies: int = 1


@dataclass(frozen=True, slots=True)
class Copied:
    """The result of one copy."""

    elapsed_s: float
    count: int
    """0: not counted."""
    size_bytes: int
    cpu_s: float
    begun_s: float = 0.0
    """Until the first documents came."""


def copy_by_feedmux(gate: Gate, task: Copying) -> Copied:
    """Copy with a durable subscription, as raw batches, and ack each."""
    return asyncio.run(_copy(gate, task))


async def _copy(gate: Gate, task: Copying) -> Copied:
    count, size_bytes, begun_s = 0, 0, 0.0
    async with feedmux.AsyncClient(task.address) as client:
        await client.get_subscription(task.name)
        began_s, cpu_s = await gate.wait_async(), time.process_time()
        async with client.subscription(task.name).open() as session:
            async for batch in session.batches():
                assert isinstance(batch, BsonBatch)
                begun_s = begun_s or time.monotonic() - began_s
                count += len(batch)
                size_bytes += len(batch.raw)
                session.ack(batch)
                if count >= task.documents.count:
                    break
            return Copied(time.monotonic() - began_s, count, size_bytes, time.process_time() - cpu_s, begun_s)


def find_by_pymongo(gate: Gate, task: Copying) -> Copied:
    """Read the same documents in the order of `_id`, as raw batches."""
    size_bytes = 0
    with MongoClient[dict[str, object]](task.address) as client:
        client.admin.command("ping")
        began_s, cpu_s = gate.wait(), time.process_time()
        for batch in client[DATABASE][task.documents.collection].find_raw_batches({}, sort=[("_id", 1)]):
            size_bytes += len(batch)
        return Copied(time.monotonic() - began_s, 0, size_bytes, time.process_time() - cpu_s)


def copy_again(gate: Gate, task: Copying) -> int:
    """Copy again and again, several copies at a time, until the gate is stopped. Returns the number of documents."""
    # Real copies go to other machines: here they may use only the CPU that the measured processes leave.
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    return asyncio.run(_copy_again(gate, task))


def find_again(gate: Gate, task: Copying) -> int:
    """Read the documents again and again by a bare `find`, `copies` at a time, until the gate is stopped. Returns the
    number of bytes."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    with MongoClient[dict[str, object]](task.address) as client, ThreadPoolExecutor(task.copies) as threads:
        collection = client[DATABASE][task.documents.collection]
        client.admin.command("ping")

        def one(_: int) -> int:
            size = 0
            while not gate.stopped.is_set():
                for batch in collection.find_raw_batches({}, sort=[("_id", 1)]):
                    size += len(batch)
                    if gate.stopped.is_set():
                        break
            return size

        gate.wait()
        return sum(threads.map(one, range(task.copies)))


async def _copy_again(gate: Gate, task: Copying) -> int:
    count = 0
    wanted = feedmux.Feed(DATABASE, task.documents.collection)

    async def one(begun: asyncio.Semaphore) -> None:
        nonlocal count
        async with feedmux.AsyncClient(task.address) as client:
            while True:
                left = task.documents.count
                async with client.feed(wanted).open(start="snapshot") as session:
                    begun.release()
                    async for batch in session.batches():
                        count, left = count + len(batch), left - len(batch)
                        if left <= 0:  # the notice of the end comes after the last batch, and no batch after it
                            break

    begun = asyncio.Semaphore(0)
    works = [asyncio.create_task(one(begun)) for _ in range(task.copies)]
    for _ in works:
        await begun.acquire()
    await gate.wait_async()
    count = 0
    await asyncio.to_thread(gate.stopped.wait)
    for work in works:
        work.cancel()
    await asyncio.gather(*works, return_exceptions=True)
    return count
