"""Noisy neighbours: jobs that use as much of the service as their tenant's quotas let them, until they are stopped."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from bson.timestamp import Timestamp

import feedmux
from bench.crew import Gate
from bench.settings import COLLECTION, DATABASE

QUOTAS = {
    "events_per_s": 5_000,
    "bytes_per_s": 3 << 20,
    "streams": 60,
    "shared_streams": 4,
    "trailing_streams": 1,
    "requests_per_s": 10,
    "outstanding_bytes": 8 << 20,
}
"""What holds nine of them, with MongoDB and the server on the same two cores, well below 70 %."""
_PAUSE_S = 0.02
_POISON = '[{"$set": {"broken": {"$divide": ["$fullDocument.quantity", 0]}}}]'


@dataclass(frozen=True, slots=True)
class Neighbour:
    """One tenant of noise."""

    key: str
    kind: str
    """A name in `KINDS`."""


@dataclass(frozen=True, slots=True)
class Noise:
    """What one process makes."""

    address: str
    start: Timestamp
    neighbours: Sequence[Neighbour]


@dataclass(slots=True)
class Made:
    """What one process made."""

    events: int = 0
    refused: int = 0
    cpu_s: float = 0.0
    errors: list[str] = field(default_factory=list)
    """Of a kind that no quota explains."""


def make_noise(gate: Gate, noise: Noise) -> Made:
    """Until the gate is stopped."""
    # Noise comes from other machines: here it may use what is left, and not the CPU of who is measured.
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    return asyncio.run(_make_noise(gate, noise))


async def _make_noise(gate: Gate, noise: Noise) -> Made:
    made = Made()
    await gate.wait_async()
    made.cpu_s = -time.process_time()
    clients = [feedmux.AsyncClient(noise.address, api_key=each.key) for each in noise.neighbours]
    works = [
        asyncio.create_task(_again(work, made))
        for each, client in zip(noise.neighbours, clients, strict=True)
        for work in KINDS[each.kind](client, noise.start, made)
    ]
    await asyncio.to_thread(gate.stopped.wait)
    for each in works:
        each.cancel()
    await asyncio.wait(works)
    made.cpu_s += time.process_time()
    await asyncio.gather(*(client.close() for client in clients))
    return made


Work = Callable[[], Awaitable[None]]


async def _again(work: Work, made: Made) -> None:
    while True:
        try:
            await work()
        except feedmux.FeedmuxError as error:
            if error.reason in ("QUOTA_EXCEEDED", "PIPELINE_FAILED"):
                made.refused += 1
            else:
                made.errors.append(str(error))
        await asyncio.sleep(_PAUSE_S)


def _feed(comment: str, pipeline: str = "") -> feedmux.Feed:
    return feedmux.Feed(database=DATABASE, collection=COLLECTION, comment=comment, pipeline=pipeline)


async def _read(
    client: feedmux.AsyncClient, feed: feedmux.Feed, start: Timestamp, made: Made, wire_format: str = "bson"
) -> None:
    async with client.feed(feed).open(start=start, format=wire_format) as session:
        async for batch in session.batches():
            made.events += len(batch)


def _firehose(client: feedmux.AsyncClient, start: Timestamp, made: Made) -> list[Work]:
    """Eight that read the whole backlog, one feed each two of them."""
    return [partial(_read, client, _feed(f"firehose {n % 4}"), start, made) for n in range(8)]


def _json(client: feedmux.AsyncClient, start: Timestamp, made: Made) -> list[Work]:
    """Four that have it rendered."""
    formats = ("extended_json_relaxed", "extended_json_canonical")
    return [partial(_read, client, _feed("json"), start, made, formats[n % 2]) for n in range(4)]


def _laggards(client: feedmux.AsyncClient, start: Timestamp, made: Made) -> list[Work]:
    """Fifty that take a batch now and then."""

    async def dawdle() -> None:
        async with client.feed(_feed("laggards")).open(start=start, window_events=500) as session:
            async for batch in session.batches():
                made.events += len(batch)
                await asyncio.sleep(0.5)

    return [dawdle] * 50


def _poison(client: feedmux.AsyncClient, start: Timestamp, made: Made) -> list[Work]:
    """Feeds that fail at their first event, opened again and again."""
    return [partial(_read, client, _feed("poison", _POISON), start, made)] * 4


def _hammer(client: feedmux.AsyncClient, start: Timestamp, made: Made) -> list[Work]:
    """Calls without a pause."""

    async def call() -> None:
        await client.resolve(start)

    return [call] * 8


KINDS: dict[str, Callable[[feedmux.AsyncClient, Timestamp, Made], list[Work]]] = {
    "firehose": _firehose,
    "json": _json,
    "laggards": _laggards,
    "poison": _poison,
    "hammer": _hammer,
}
