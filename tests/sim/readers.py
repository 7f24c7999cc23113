"""Common base of the simulation's programs: what each program reads, and how far it has come."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import Any, TypeVar

from feedmux import AsyncClient, Feed
from feedmux.feeds import FullDocument
from feedmux_server.core.positions.resume_token import ResumeToken
from tests.sim.loop import SimLoop, process
from tests.sim.mongo import SPLIT, Entry, SimMongo, matcher
from tests.sim.network import Network, Node, SimChannel
from tests.sim.tenants import Tenant, allows
from tests.sim.wire import Recorder


@dataclass(frozen=True, slots=True)
class FeedShape:
    """The feed that a user watches."""

    name: str
    database: str
    collection: str = ""
    match: tuple[tuple[str, Any], ...] = ()
    split: bool = False
    """Whether large events come in fragments."""
    looks_up: bool = False
    """Whether updates come with the present document."""

    def name_for(self, granted: str) -> str:
        """The feed's name in the records, if the tenant is granted `granted`."""
        return f"{self.name} of {granted}" if granted else self.name

    def feed(self) -> Feed:
        pipeline = [{"$match": dict(self.match)}] if self.match else []
        if self.split:
            pipeline.append(SPLIT)
        lookup: FullDocument | None = "updateLookup" if self.looks_up else None
        return Feed(self.database, self.collection or None, pipeline=pipeline or None, full_document=lookup)

    def shows(self, entry: Entry, granted: str = "") -> bool:
        """Whether the feed shows an entry; `granted` is a name of `tenants.CHOICES`."""
        if self.database != entry.database or self.collection not in ("", entry.collection, entry.to):
            return False
        if not allows(granted, entry):
            return False
        if entry.invalidates and not self.collection:
            return False
        return not self.match or _matcher(self.match)(entry.event)


@cache
def _matcher(match: tuple[tuple[str, Any], ...]) -> Callable[[dict[str, Any]], bool]:
    return matcher([{"$match": dict(match)}])


@dataclass(slots=True, eq=False)
class Reader:
    """One program; each start is a separate process."""

    loop: SimLoop
    rng: Random
    mongo: SimMongo
    network: Network
    recorder: Recorder
    name: str
    shape: FeedShape
    tenant: Tenant
    begins: ResumeToken | None = field(default=None, init=False)
    """The program must receive every event after this position, once it has begun."""
    newest: int = field(default=-1, init=False)
    """The number of the newest event that it received."""
    leaving: bool = field(default=False, init=False)
    node: Node | None = field(default=None, init=False)
    process: str = field(default="", init=False)
    failure: BaseException | None = field(default=None, init=False)
    met: set[str] = field(default_factory=set, init=False)
    """The names of the errors of its sessions and calls."""
    _starts: int = field(default=0, init=False)
    _sessions: int = field(default=0, init=False)
    _beginnings: int = field(default=0, init=False)
    _position: bytes = field(default=b"", init=False)
    """The position that the program has stored."""
    _main: "asyncio.Task[None] | None" = field(default=None, init=False)

    def wanted(self) -> Iterator[int]:
        """The numbers of all events that it must receive, as far as they are written; the newest first."""
        return (entry.number for entry in reversed(self.mongo.entries) if self.shows(entry) and self._wants(entry))

    def shows(self, entry: Entry) -> bool:
        """Whether its feed shows the entry."""
        return self.shape.shows(entry, self.tenant.granted)

    def _wants(self, entry: Entry) -> bool:
        raise NotImplementedError

    @property
    def running(self) -> bool:
        return self._main is not None and not self._main.done()

    def start(self) -> None:
        self._starts += 1
        self.process = f"{self.name}.{self._starts}"
        context = copy_context()
        context.run(process.set, self.process)
        self.node = self.network.client(self.process, context)
        self._main = self.loop.create_task(self._guarded(), name=self.process, context=context.copy())

    def kill(self) -> None:
        """End the process as SIGKILL does."""
        assert self.node is not None
        self.network.killed(self.node)
        self.loop.kill(self.process)
        self._main = None

    async def leave(self) -> None:
        """Close the program's session and end the program."""
        self.leaving = True
        if self._main is not None:
            await asyncio.wait([self._main])

    async def _guarded(self) -> None:
        try:
            await self._run()
        except Exception as error:  # noqa: BLE001 - the run fails for it
            self.failure = error

    async def _run(self) -> None:
        raise NotImplementedError


C = TypeVar("C", AsyncClient, SimChannel)


async def run_apart(
    loop: SimLoop,
    network: Network,
    name: str,
    made: Callable[[Network, Node], C],
    work: Callable[[C], Awaitable[object]],
) -> None:
    """Run `work` with a client or a channel in a separate process. Raises what `work` raises."""
    context = copy_context()
    context.run(process.set, name)
    node = network.client(name, context)

    async def run() -> None:
        client = made(network, node)
        try:
            await work(client)
        finally:
            await client.close()

    await loop.create_task(run(), name=name, context=context.copy())
