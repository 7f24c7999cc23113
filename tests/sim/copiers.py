"""Programs of the simulation that begin with the existing documents of a collection or of a database, and mirror it.

Two kinds of sinks. One stores its state together with its position, and so knows exactly where it is. The other one
keeps whatever it has applied, and acknowledges it later: after an interruption it gets some of it again.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, Literal

import bson

from feedmux import (
    AsyncClient,
    AsyncSession,
    Batch,
    FeedInvalidated,
    FeedmuxError,
    HistoryLost,
    SessionOptions,
    Start,
    SubscriptionNotFound,
    TimelineForked,
)
from feedmux.feeds import OnHistoryLost
from feedmux.notices import Gap, Notice, SnapshotComplete, SnapshotProgress
from feedmux_server.core.positions.position import inspect_position
from feedmux_server.core.positions.resume_token import ResumeToken
from tests.sim import records
from tests.sim.documents import KEYS, Change, Kind, State, apply, rank_of
from tests.sim.mongo import Entry, SimMongo
from tests.sim.readers import FeedShape, Reader
from tests.sim.users import client_of
from tests.sim.wire import hex_of

DATABASE: Final = "shop"
COLLECTION: Final = "c"
COPIED: Final = FeedShape("shop.c", DATABASE, COLLECTION)
ALL_COPIED: Final = FeedShape("shop", DATABASE)
OTHERS: Final = ("b", "d", "e")
"""Collections beside it, which are renamed at times."""


Sink = Literal["stored", "kept"]
_KINDS: Final[tuple[Kind, ...]] = ("upsert", "upsert", "update", "update", "delete")


@dataclass(frozen=True, slots=True)
class CopyHabits:
    """How a copier reads; drawn from the seed."""

    sink: Sink
    whole_batches: bool
    ack_share: float
    think_s: float
    leave_share: float
    on_history_lost: OnHistoryLost
    options: SessionOptions


@dataclass(slots=True, eq=False)
class Copier(Reader):
    """A program with the real client. What it has stored outlives its process."""

    habits: CopyHabits
    subscription: str = ""
    calm: bool = field(default=False, init=False)
    """It continues reading and acks everything, without leaving."""
    state: State = field(default_factory=dict, init=False)
    """Of a `stored` sink, what it has in memory."""
    last_copied: Any = field(default=None, init=False)
    """The `_id` of the document of a copy that came last."""
    reached: ResumeToken | None = field(default=None, init=False)
    """How far it has read; None while it copies."""
    _stored: State = field(default_factory=dict, init=False)
    """What a `stored` sink has stored with its position."""
    _begins_again: bool = field(default=True, init=False)
    """Its copy is to begin, at first or once more."""
    _told: bytes = field(default=b"", init=False)
    """The last position that was recorded."""
    _copied: str = field(default="", init=False)
    """The rank of the last document that a `stored` sink was sent, or of its position."""
    problems: list[str] = field(default_factory=list, init=False)
    _generation: int = field(default=0, init=False)
    """Of the last copy that was announced."""
    _stamps: dict[str, int] = field(default_factory=dict, init=False)
    """With which generation a sink that sweeps has applied each of its documents."""
    _must_sweep: bool = field(default=False, init=False)
    _was_replaced: bool = field(default=False, init=False)
    """Another collection was renamed to the name of the copied one."""

    @property
    def sweeps(self) -> bool:
        """Whether it keeps its documents when another copy begins, and at the end deletes what is gone."""
        return self.durable and self.habits.on_history_lost == "snapshot"

    @property
    def durable(self) -> bool:
        return self.habits.sink == "kept"

    @property
    def is_wide(self) -> bool:
        """It copies several collections. Its copy goes back at a rename, before the rename comes."""
        return not self.shape.collection

    @property
    def needs(self) -> int:
        """The cluster time from which it reads again, as far as it knows."""
        return inspect_position(self._position).token.cluster_time if self._position else 1 << 63

    def is_late(self) -> bool:
        """Whether changes are still to come, or another copy."""
        if self.reached is None or self._begins_again or self.mongo.has_lost(self.reached):
            return True
        newest = next((entry for entry in reversed(self.mongo.entries) if self._wants(entry)), None)
        return newest is not None and not self.reached.reaches(newest.token)

    def _wants(self, entry: Entry) -> bool:
        return self.shape.shows(entry)

    async def _run(self) -> None:
        client = client_of(self.network, self.node, self.tenant, self.habits.options)
        self.state = self.state if self.durable else dict(self._stored)
        try:
            while not self.leaving:
                try:
                    if self._begins_again:
                        await self._begin(client)
                    await self._read(client)
                    if not self.calm and self.rng.random() < 0.5:
                        await asyncio.sleep(self.rng.uniform(0.0, 1.0))  # changes come meanwhile
                except FeedmuxError as error:
                    self._meet(error)
                    await asyncio.sleep(self.rng.uniform(0.2, 1.0))
        finally:
            await client.close()

    async def _begin(self, client: AsyncClient) -> None:
        """Begin a copy. A sink that keeps what it has, and does not sweep, would keep what was deleted before it."""
        if not self.sweeps:
            self.state = {}
        self._stored, self.reached = {}, None
        self._position, self._was_replaced = b"", False
        if self.durable:
            await client.create_subscription(
                self.subscription,
                self.shape.feed(),
                start="snapshot",
                on_invalidate="continue",
                on_history_lost=self.habits.on_history_lost,
            )
            if self._sessions:  # it may have been there, or a server may have restored it
                await client.seek_subscription(self.subscription, Start.snapshot())
        self._begins_again = False

    def _meet(self, error: FeedmuxError) -> None:
        self.recorder.note(f"{self.name} got {type(error).__name__}: {error}")
        self.met.add(type(error).__name__)
        if isinstance(error, HistoryLost | SubscriptionNotFound | TimelineForked):
            self._begins_again = True
        elif isinstance(error, FeedInvalidated) and not self.durable:
            self._keep(error.position)

    async def _read(self, client: AsyncClient) -> None:
        """Read one session to its end."""
        async with self._opened(client) as session:
            self._sessions += 1
            if not self.durable:
                self.state = dict(self._stored)
                self._keep(session.position)
                self._copied = self._copied_at(inspect_position(session.position).token)
            within = False
            while not (self.leaving or self._begins_again):
                try:
                    taken = await self._taken(session)
                except StopAsyncIteration:
                    return
                except TimeoutError:
                    taken = None
                batch = taken if isinstance(taken, Batch) or taken is None else taken.batch
                if batch is not None and batch.snapshot and session.copying is None:
                    self.problems.append(f"Snapshot ends: {self.name} got documents after the end, and may have swept")
                if isinstance(taken, Batch):
                    within = False
                    for event in taken:
                        self._apply(event.document, taken.generation)
                elif taken is not None:
                    within = taken.sequence < taken.batch.last_sequence
                    self._apply(taken.document, taken.batch.generation)
                if self._was_replaced and batch is not None:
                    self._follow_rename(batch.position)
                self._settle(session, within_batch=within)
                if taken is not None and not self.calm and await self._hesitates():
                    return

    def _apply(self, event: dict[str, Any], generation: int) -> None:
        self._follow(generation)
        prefix = f"{event['ns']['coll']}/" if "ns" in event else f"{COLLECTION}/"
        if event["operationType"] == "rename":
            to, self._copied = f"{event['to']['coll']}/", ""  # the copy may go back
            self._was_replaced = self.shape.collection == event["to"]["coll"]
            if not self.is_wide:
                self.state.clear()
                return
            moved = {to + rank[len(prefix) :]: self.state[rank] for rank in self.state if rank.startswith(prefix)}
            apply(self.state, event, to)
            apply(self.state, event, prefix)
            self.state |= moved
            self._stamps |= dict.fromkeys(moved, self._generation)
            return
        apply(self.state, event, prefix)
        if "documentKey" in event:
            self._stamps[prefix + rank_of(event["documentKey"]["_id"])] = self._generation
        if "snapshot" in event["_id"]:
            self.last_copied = event["documentKey"]["_id"]
            rank = prefix + rank_of(self.last_copied)
            if rank <= self._copied and not self.durable and not self.is_wide:
                self.problems.append(f"Ordered: {self.name} got document {rank} after {self._copied}")
            self._copied = rank

    @asynccontextmanager
    async def _opened(self, client: AsyncClient) -> AsyncIterator[AsyncSession]:
        if self.durable:
            opening = client.subscription(self.subscription).open(on_notice=self._notice)
        else:
            start = Start.position(self._position) if self._position else Start.snapshot()
            opening = client.feed(self.shape.feed()).open(start=start, on_notice=self._notice)
        async with opening as session:
            yield session

    async def _taken(self, session: AsyncSession) -> Any:
        """Take a batch or an event. Raises TimeoutError if nothing comes for a second."""
        async with asyncio.timeout(1.0):
            if not self.habits.whole_batches:
                return await anext(session)
            async for batch in session.batches():
                return batch
        raise StopAsyncIteration

    def _settle(self, session: AsyncSession, *, within_batch: bool) -> None:
        """Store how far the sink is, or acknowledge what it has applied."""
        if self._begins_again:
            return
        if self.calm or self.rng.random() < self.habits.ack_share:
            session.ack()
        if not self.durable and not within_batch:
            self._keep(session.position)
        copying = session.copying
        self._follow(copying.generation if copying else 0)
        self.reached = None if copying or self._must_sweep else inspect_position(session.position).token

    def _follow_rename(self, position: bytes) -> None:
        """Within a copy, the documents of the collection that has the name now come. After it, a program begins another
        copy."""
        is_copying = inspect_position(position).token.copied is not None
        self._was_replaced, self._begins_again = False, self._begins_again or not is_copying

    async def _hesitates(self) -> bool:
        """Think, and say whether to close the session."""
        if self.habits.think_s and self.rng.random() < 0.3:
            await asyncio.sleep(self.rng.uniform(0, self.habits.think_s))
        return self.rng.random() < self.habits.leave_share

    def _keep(self, position: bytes) -> None:
        """Store the state with its position."""
        if position and position != self._told:
            self._position, self._stored, self._told = position, dict(self.state), position
            place = inspect_position(position).token
            is_copying = place.copied is not None
            self.recorder.add(self.holds(hex_of(place.outside_copy().raw), is_copying, self._copied_at(place)))

    def holds(self, place: str, copying: bool = False, copied: str = "", *, is_last: bool = False) -> records.Holds:
        """The record of what it holds at a position."""
        within = "" if self.is_wide else f"{COLLECTION}/"
        return records.Holds(self.name, place, shown(self.state), copying, copied, is_last, within, self.is_wide)

    def _copied_at(self, place: ResumeToken) -> str:
        """The rank of the last copied document of a position; empty for none."""
        copied = place.copied
        if copied is None or not (copied.up_to or copied.collection):
            return ""
        rank = rank_of(bson.decode(copied.up_to)["_id"]) if copied.up_to else ""
        return f"{copied.collection or COLLECTION}/{rank}"

    def _notice(self, notice: Notice) -> None:
        self.recorder.note(f"{self.name} gets {type(notice).__name__}")
        match notice:
            case Gap():
                self._begins_again = self._begins_again or not self.sweeps
            case SnapshotProgress(status):
                self._follow(status.generation)
            case SnapshotComplete():
                self._follow(notice.generation)
                self._sweep(notice.generation)

    def _follow(self, generation: int) -> None:
        if self.sweeps and generation > self._generation:
            self._generation, self._must_sweep = generation, True

    def _sweep(self, generation: int) -> None:
        """Delete what neither a document nor a change of this generation, or of a later one, has brought."""
        if self.sweeps:
            self.state = {rank: each for rank, each in self.state.items() if self._stamps[rank] >= generation}
            self._must_sweep = self._must_sweep and generation < self._generation


def shown(state: State) -> tuple[str, ...]:
    """Documents, as the records show them."""
    return tuple(f"{rank}={version_of(state[rank])}" for rank in sorted(state))


def version_of(document: dict[str, Any]) -> str:
    """What distinguishes the contents of a document."""
    return f"{document.get('v')}.{document.get('n')}"


class Documents:
    """Writes documents of the collection, and of others beside it, at random."""

    def __init__(
        self, mongo: SimMongo, rng: Random, drop_share: float, rename_share: float, others: tuple[str, ...]
    ) -> None:
        """`others`: collections beside it. Any is renamed to the name of any other."""
        self.rng = rng
        self.rename_share = rename_share
        self._others = others
        self._mongo = mongo
        self._drop_share = drop_share
        self._keys = rng.sample(KEYS, rng.randint(5, len(KEYS)))

    def fill(self) -> None:
        """Write the documents that exist when the run begins."""
        for collection in (COLLECTION, *self._others):
            for key in self.rng.sample(self._keys, self.rng.randint(0, len(self._keys))):
                self._mongo.change(DATABASE, collection, Change("upsert", key))

    def write(self, favoured: list[Any]) -> None:
        """Change documents, or drop them all. One of the `favoured` keys is changed often; None is no key."""
        collection = self.rng.choice((COLLECTION, *self._others))
        names = (COLLECTION, *self._others)
        there = [each for each in names if self._mongo.created(DATABASE, each)]
        if there and self.rng.random() < self.rename_share:
            name = self.rng.choice(there)
            self._mongo.rename(DATABASE, name, self.rng.choice([each for each in names if each != name]))
            return
        if self.rng.random() < self._drop_share:
            self._mongo.drop(DATABASE, collection)
            return
        keys = [key for key in favoured if key is not None]
        count = self.rng.choice((1, 1, 1, 2, 4))
        changes = [self._change(keys if self.rng.random() < 0.3 else []) for _ in range(count)]
        self._mongo.change(DATABASE, collection, *changes)

    def _change(self, keys: list[Any]) -> Change:
        return Change(self.rng.choice(_KINDS), self.rng.choice(keys or self._keys))
