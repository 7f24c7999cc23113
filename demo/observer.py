"""Observes the demo: what was written and received, the server's streams, and the number of MongoDB's cursors.

It makes one snapshot at a time, which `view` draws, and changes nothing.
"""

import asyncio
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import grpc.aio
from pymongo.errors import PyMongoError

from demo.cast import Actor
from demo.world import Child, World
from feedmux.v1 import operator_pb2
from feedmux_server.cancellation import cancellable

_SERVER_S = 0.4
_MONGODB_S = 0.8
_RATE_OVER_S = 1.5


@dataclass(slots=True)
class Row:
    """The present state of one subscriber."""

    name: str
    part: str
    state: str = "waits"
    received: int = 0
    rate: float = 0.0
    behind: int | None = None
    unacked: int | None = None
    sessions: int = 0


@dataclass(slots=True)
class Snapshot:
    """All figures that are shown."""

    elapsed_s: float = 0.0
    length_s: float = 0.0
    phase: str = ""
    written: int = 0
    write_rate: float = 0.0
    kinds: dict[str, int] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    streams: list[operator_pb2.SharedStream] = field(default_factory=list)
    subscribers: int = 0
    cursors: int = 0
    """The number of change-stream cursors, as MongoDB counts them."""
    memory_bytes: int = 0
    cursors_most: int = 0
    streams_most: int = 0
    subscribers_most: int = 0
    news: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=5))


class _Rate:
    """Events per second over the last moments."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def add(self, count: int) -> float:
        now_s = time.monotonic()
        self._samples.append((now_s, count))
        while now_s - self._samples[0][0] > _RATE_OVER_S:
            self._samples.popleft()
        first_s, first = self._samples[0]
        return max(0.0, (count - first) / (now_s - first_s)) if now_s - first_s > 0.1 else 0.0


class Observer:
    """Keeps `snapshot` up to date while `run` runs."""

    def __init__(self, world: World, actors: list[Actor], length_s: float) -> None:
        self._world = world
        self._actors = actors
        self.workload: Child | None = None
        self.started_s = time.monotonic()
        rows = [Row(actor.role.name, actor.role.part) for actor in actors]
        self.snapshot = Snapshot(length_s=length_s, rows=rows)
        self._rates = {row.name: _Rate() for row in rows}
        self._write_rate = _Rate()
        self._of_server: dict[str, operator_pb2.Subscriber] = {}

    def say(self, text: str) -> None:
        """Add a piece of news."""
        self.snapshot.news.append((time.monotonic() - self.started_s, text))

    def update(self) -> Snapshot:
        """Update what is known without asking the server or MongoDB."""
        now = self.snapshot
        now.elapsed_s = time.monotonic() - self.started_s
        if self.workload is not None:
            told = self.workload.told()
            now.written = told.get("written", 0)
            now.kinds = {name: told[name] for name in ("inserts", "updates", "replaces", "deletes") if name in told}
            now.write_rate = self._write_rate.add(now.written)
        for actor, row in zip(self._actors, now.rows, strict=True):
            self._update_row(actor, row, now.written)
        return now

    def _update_row(self, actor: Actor, row: Row, written: int) -> None:
        row.sessions = len(actor.children)
        tellings = [child.told() for child in actor.children]
        row.received = actor.received(self._world)
        row.rate = self._rates[row.name].add(row.received)
        change = max((told.get("change", 0) for told in tellings), default=0)
        if actor.done:
            actor.state, row.behind, row.unacked = "done", 0, 0
        elif actor.children:
            row.behind = max(0, written - change) if change or written == 0 else None
            seen = self._of_server.get(row.name)
            row.unacked = seen.events_unacked if seen else None
            if actor.state != "killed" and seen:
                actor.state = seen.state.replace("_", " ")
        row.state = actor.state

    async def run(self) -> None:
        """Ask the server and MongoDB from time to time, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._repeat(self._ask_server, _SERVER_S), name="ask-server")
            tasks.create_task(self._repeat(self._ask_mongodb, _MONGODB_S), name="ask-mongodb")

    async def _repeat(self, ask: Any, pause_s: float) -> None:
        while True:
            # If one does not answer, its last state is shown; if it is really unavailable, the demo fails elsewhere.
            with suppress(grpc.aio.AioRpcError, PyMongoError):
                await cancellable(ask())
            await asyncio.sleep(pause_s)

    async def _ask_server(self) -> None:
        world, now = self._world, self.snapshot
        answer = await world.operator.ListSharedStreams(
            operator_pb2.ListSharedStreamsRequest(), metadata=world.operator_metadata, timeout=5.0
        )
        attached = [one for stream in answer.shared_streams for one in stream.subscribers]
        everyone = [*attached, *answer.detached_subscribers]
        self._of_server = {one.subscription: one for one in everyone}
        now.streams = list(answer.shared_streams)
        now.subscribers = answer.totals.subscribers
        now.memory_bytes = answer.totals.memory_bytes
        now.streams_most = max(now.streams_most, len(now.streams))
        now.subscribers_most = max(now.subscribers_most, now.subscribers)

    async def _ask_mongodb(self) -> None:
        now = self.snapshot
        query: list[dict[str, Any]] = [
            {"$currentOp": {"allUsers": True, "idleCursors": True}},
            {"$match": {"cursor": {"$exists": True}}},
        ]
        found: set[int] = set()
        async with await self._world.mongo.admin.aggregate(query) as operations:
            async for operation in operations:
                cursor = operation["cursor"]
                stages = cursor.get("originatingCommand", {}).get("pipeline") or [{}]
                if "$changeStream" in stages[0]:
                    found.add(cursor["cursorId"])
        now.cursors = len(found)
        now.cursors_most = max(now.cursors_most, now.cursors)
