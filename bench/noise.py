"""Noisy neighbours: jobs that use as much of the service as their tenant's quotas permit, until they are stopped."""

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
from feedmux.feeds import Format

QUOTAS = {
    "events_per_s": 5_000,
    "bytes_per_s": 3 << 20,
    "sessions": 60,
    "shared_streams": 4,
    "catch_up_streams": 1,
    "requests_per_s": 10,
    "outstanding_bytes": 8 << 20,
}
"""Quotas of a noisy tenant: with nine of them, MongoDB and the server, two cores stay well below 70 % use."""
_PAUSE_S = 0.02
_POISON = '[{"$set": {"broken": {"$divide": ["$fullDocument.quantity", 0]}}}]'


@dataclass(frozen=True, slots=True)
class Neighbour:
    """One noisy tenant."""

    key: str
    kind: str
    """A name in `KINDS`."""


@dataclass(frozen=True, slots=True)
class Noise:
    """The task of one process."""

    address: str
    start: Timestamp
    neighbours: Sequence[Neighbour]


@dataclass(slots=True)
class Made:
    """The result of one process."""

    events: int = 0
    refused: int = 0
    cpu_s: float = 0.0
    errors: list[str] = field(default_factory=list)
    """Of a kind that no quota explains."""


def make_noise(gate: Gate, noise: Noise) -> Made:
    """Make noise until the gate is stopped."""
    # Real noise comes from other machines: here it may use only the CPU that the measured processes leave.
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


def _feed(comment: str, pipeline: str = "[]") -> feedmux.Feed:
    return feedmux.Feed(database=DATABASE, collection=COLLECTION, comment=comment, pipeline=pipeline)


async def _read(
    client: feedmux.AsyncClient, feed: feedmux.Feed, start: Timestamp, made: Made, wire_format: Format = "bson"
) -> None:
    async with client.feed(feed).open(start=start, format=wire_format) as session:
        async for batch in session.batches():
            made.events += len(batch)


def _firehose(client: feedmux.AsyncClient, start: Timestamp, made: Made) -> list[Work]:
    """Read the whole backlog with eight readers, two per feed."""
    return [partial(_read, client, _feed(f"firehose {n % 4}"), start, made) for n in range(8)]


def _json(client: feedmux.AsyncClient, start: Timestamp, made: Made) -> list[Work]:
    """Read the backlog rendered as JSON, with four readers."""
    formats: tuple[Format, ...] = ("extended_json_relaxed", "extended_json_canonical")
    return [partial(_read, client, _feed("json"), start, made, formats[n % 2]) for n in range(4)]


def _laggards(client: feedmux.AsyncClient, start: Timestamp, made: Made) -> list[Work]:
    """Take a batch occasionally, with fifty readers."""

    async def dawdle() -> None:
        async with client.feed(_feed("laggards")).open(start=start, window_events=500) as session:
            async for batch in session.batches():
                made.events += len(batch)
                await asyncio.sleep(0.5)

    return [dawdle] * 50


def _poison(client: feedmux.AsyncClient, start: Timestamp, made: Made) -> list[Work]:
    """Repeatedly open feeds that fail at their first event."""
    return [partial(_read, client, _feed("poison", _POISON), start, made)] * 4


def _hammer(client: feedmux.AsyncClient, start: Timestamp, made: Made) -> list[Work]:
    """Make calls without a pause."""

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
