"""What the simulation's programs have in common: what each reads, and how far it has come."""

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import Any

from feedmux import Feed
from feedmux_server.core.resume_token import ResumeToken
from tests.sim.loop import SimLoop, process
from tests.sim.mongo import SPLIT, Entry, SimMongo, matcher
from tests.sim.network import Network, Node
from tests.sim.tenants import Tenant, allows
from tests.sim.wire import Recorder


@dataclass(frozen=True, slots=True)
class FeedShape:
    """What a user watches."""

    name: str
    database: str
    collection: str = ""
    match: tuple[tuple[str, Any], ...] = ()
    split: bool = False
    """Large events come in fragments."""

    def name_for(self, granted: str) -> str:
        """In the records, where a tenant is granted that."""
        return f"{self.name} of {granted}" if granted else self.name

    def feed(self) -> Feed:
        pipeline = [{"$match": dict(self.match)}] if self.match else []
        if self.split:
            pipeline.append(SPLIT)
        return Feed(self.database, self.collection or None, pipeline=pipeline or None)

    def shows(self, entry: Entry, granted: str = "") -> bool:
        """`granted` is a name of `tenants.CHOICES`."""
        if (
            not allows(granted, entry)
            or self.database != entry.database
            or self.collection not in ("", entry.collection)
        ):
            return False
        if entry.invalidates and not self.collection:
            return False
        return not self.match or _matcher(self.match)(entry.event)


@cache
def _matcher(match: tuple[tuple[str, Any], ...]) -> Callable[[dict[str, Any]], bool]:
    return matcher([{"$match": dict(match)}])


@dataclass(slots=True, eq=False)
class Reader:
    """One program, in processes of its own."""

    loop: SimLoop
    rng: Random
    mongo: SimMongo
    network: Network
    recorder: Recorder
    name: str
    shape: FeedShape
    tenant: Tenant
    begins: ResumeToken | None = field(default=None, init=False)
    """It is to get every event after this place, once it has begun."""
    newest: int = field(default=-1, init=False)
    """The number of the newest event that it was handed."""
    leaving: bool = field(default=False, init=False)
    node: Node | None = field(default=None, init=False)
    process: str = field(default="", init=False)
    failure: BaseException | None = field(default=None, init=False)
    met: set[str] = field(default_factory=set, init=False)
    """Errors of its sessions and calls, by their names."""
    _starts: int = field(default=0, init=False)
    _sessions: int = field(default=0, init=False)
    _beginnings: int = field(default=0, init=False)
    _position: bytes = field(default=b"", init=False)
    """As the program has stored it."""
    _main: "asyncio.Task[None] | None" = field(default=None, init=False)

    def wanted(self) -> list[int]:
        """The numbers of all events that it is to be handed, as far as they are written."""
        return [entry.number for entry in self.mongo.entries if self.shows(entry) and self._wants(entry)]

    def shows(self, entry: Entry) -> bool:
        """Whether it is an event of its feed."""
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

    async def leave(self) -> None:
        """Closes its session and ends."""
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
