"""Members of a group, a process each, and a reader of an ordinary subscription to compare them with."""

import asyncio
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pymongo import MongoClient, ReplaceOne, WriteConcern

import feedmux
from bench.backlog import FIRST_ID, Backlog, find_padding, operation_time, order
from bench.crew import Crew, Gate, Job
from bench.readers import CheckFailed, feed_of
from bench.report import Figures, progress
from bench.settings import COLLECTION, DATABASE
from bench.stage import Stage

WINDOW_EVENTS = 64
"""The clients' default."""
_WRITE_BATCH = 5_000
_POLL_S = 0.5
"""A poll takes as much of the server's CPU as a hundred events."""


@dataclass(frozen=True, slots=True)
class Task:
    """What a process does: `name` is its subscription, `work_s` how long it waits for each event."""

    address: str
    name: str
    count: int
    work_s: float
    window_events: int = WINDOW_EVENTS


@dataclass(frozen=True, slots=True)
class Done:
    """What a process did: which document it got with which number, in order."""

    began_s: float
    ended_s: float
    numbers: list[tuple[int, int]]
    cpu_s: float


def load(client: MongoClient[dict[str, Any]], count: int, keys: int) -> Backlog:
    """Replace `keys` documents in turn, `count` times in all; the field `quantity` counts. Closes the client."""
    progress(f"writing {count:,} events of {keys:,} documents")
    with client:
        padding = find_padding(client)
        start = operation_time(client)
        orders = client[DATABASE].get_collection(COLLECTION, write_concern=WriteConcern(1))
        for first in range(0, count, _WRITE_BATCH):
            numbers = range(first, min(first + _WRITE_BATCH, count))
            documents = [order(FIRST_ID + number % keys, padding) | {"quantity": number} for number in numbers]
            orders.bulk_write([ReplaceOne({"_id": each["_id"]}, each, upsert=True) for each in documents])
        client[DATABASE].get_collection("marks", write_concern=WriteConcern("majority")).insert_one({})
    return Backlog(start, count, 0, padding)


def work_in_group(gate: Gate, task: Task) -> Done:
    """Join, and settle every event after the work, one after another, until the parent says stop."""
    return asyncio.run(_work(gate, task))


async def _work(gate: Gate, task: Task) -> Done:
    numbers: list[tuple[int, int]] = []
    ended_s = 0.0

    async def handle(event: feedmux.MemberEvent) -> None:
        nonlocal ended_s
        document = event.document["fullDocument"]
        if task.work_s:
            await asyncio.sleep(task.work_s)
        numbers.append((document["_id"], document["quantity"]))
        ended_s = time.monotonic()

    async with feedmux.AsyncClient(task.address) as client:
        await client.get_subscription(task.name)
        began_s = await gate.wait_async()
        cpu_s = time.process_time()
        member = client.subscription(task.name).join(window_events=task.window_events)
        running = asyncio.create_task(member.run(handle, concurrency=1 if task.work_s else 8))
        await asyncio.to_thread(gate.stopped.wait)
        await member.close()
        await running
    return Done(began_s, ended_s, numbers, time.process_time() - cpu_s)


def work_alone(gate: Gate, task: Task) -> Done:
    """Do the same with an ordinary subscription."""
    return asyncio.run(_alone(gate, task))


async def _alone(gate: Gate, task: Task) -> Done:
    numbers: list[tuple[int, int]] = []
    async with feedmux.AsyncClient(task.address) as client:
        await client.get_subscription(task.name)
        began_s = await gate.wait_async()
        cpu_s = time.process_time()
        async with client.subscription(task.name).open() as session:
            async for event in session:
                document = event.document["fullDocument"]
                if task.work_s:
                    await asyncio.sleep(task.work_s)
                numbers.append((document["_id"], document["quantity"]))
                session.ack(event)
                if len(numbers) == task.count:
                    break
            ended_s = time.monotonic()
    return Done(began_s, ended_s, numbers, time.process_time() - cpu_s)


class Works:
    """Runs workers over one backlog. Every run has its own subscription and shared stream."""

    def __init__(self, stage: Stage, backlog: Backlog) -> None:
        self._stage = stage
        self._backlog = backlog
        self._runs = 0

    async def in_group(self, members: int, work_s: float = 0.0, window_events: int = WINDOW_EVENTS) -> Figures:
        name = await self._create(feedmux.Group())
        task = Task(self._stage.endpoint, name, self._backlog.count, work_s, window_events)
        return await self._measured([(work_in_group, task)] * members, name)

    async def alone(self, work_s: float = 0.0) -> Figures:
        """By one reader without a group."""
        task = Task(self._stage.endpoint, await self._create(None), self._backlog.count, work_s)
        return await self._measured([(work_alone, task)], "")

    async def _create(self, group: feedmux.Group | None) -> str:
        self._runs += 1
        name = f"workers-{self._runs}"
        async with feedmux.AsyncClient(self._stage.endpoint) as client:
            await client.create_subscription(name, feed_of(name), start=self._backlog.start, group=group)
        return name

    async def _measured(self, jobs: list[tuple[Job, Task]], group: str) -> Figures:
        async with Crew(jobs) as crew:
            before = self._stage.cpu()
            crew.go()
            if group:
                await self._until_settled(group)
                crew.stop()
            done: list[Done] = await crew.results()
            used = self._stage.cpu() - before
        _check((each.numbers for each in done), self._backlog.count)
        elapsed_s = max(each.ended_s for each in done) - min(each.began_s for each in done)
        cpu_s = {"client": sum(each.cpu_s for each in done), "server": used.server, "mongod": used.mongod}
        return {
            "events_per_s": self._backlog.count / elapsed_s,
            "cores_allow_events_per_s": len(os.sched_getaffinity(0)) * self._backlog.count / sum(cpu_s.values()),
            "elapsed_s": elapsed_s,
            "events": self._backlog.count,
        } | {f"{name}_cpu_us_per_event": used_s * 1e6 / self._backlog.count for name, used_s in cpu_s.items()}

    async def _until_settled(self, name: str) -> None:
        async with feedmux.AsyncClient(self._stage.endpoint) as client:
            newest = (await client.resolve("latest", feed_of(name))).cluster_time
            assert newest is not None
            while (stored := (await client.get_subscription(name)).cluster_time) is None or stored < newest:
                await asyncio.sleep(_POLL_S)


def _check(parts: Iterable[list[tuple[int, int]]], count: int) -> None:
    """Every event was handled once, and each process had those of a document in order."""
    numbers: list[int] = []
    for part in parts:
        newest: dict[int, int] = {}
        for document, number in part:
            if newest.get(document, -1) > number:
                raise CheckFailed(f"event {number} of document {document} came after {newest[document]}")
            newest[document] = number
            numbers.append(number)
    if sorted(numbers) != list(range(count)):
        raise CheckFailed(f"{len(numbers)} events were handled, {len(set(numbers))} different ones, of {count}")
