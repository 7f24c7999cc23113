"""Users of the simulation: programs with the real Python client that read a subscription or a feed."""

import asyncio
from bisect import bisect_left
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import bson
import pytest

from feedmux import (
    AsyncClient,
    AsyncSession,
    Batch,
    Event,
    FeedInvalidated,
    FeedmuxError,
    Fenced,
    HistoryLost,
    SessionClosed,
    SessionOptions,
    Start,
    SubscriptionNotFound,
    TimelineForked,
)
from feedmux.feeds import OnHistoryLost
from feedmux.notices import Disconnected, Gap, Notice, Rewound, Skipped
from feedmux.target import Target
from feedmux.transport import Transport
from feedmux_server.core.positions.position import inspect_position
from feedmux_server.core.positions.resume_token import ResumeToken
from tests.sim import records
from tests.sim.mongo import PART, Entry
from tests.sim.network import Network, Node, SimChannel
from tests.sim.readers import Reader
from tests.sim.tenants import Tenant
from tests.sim.wire import number_of

_RESETS: Final = (Rewound, Skipped, Gap)


@dataclass(frozen=True, slots=True)
class SimTarget(Target):
    """The address of the simulated service."""

    network: Network | None = field(default=None, repr=False)
    node: Node | None = field(default=None, repr=False)

    def channel(self) -> Any:
        assert self.network is not None
        assert self.node is not None
        return SimChannel(self.network, self.node)


class Diary:
    """Receives what a program does with its sessions, step by step. This class records nothing."""

    def opens(self) -> None: ...

    def took(self, what: Event | Batch) -> None: ...

    def acked(self, what: Event | Batch | None) -> None: ...


Takes = Literal["batches", "events", "next", "polls", "all"]


@dataclass(slots=True)
class Habits:
    """How a user reads; drawn from the seed."""

    takes: Takes
    """The part of a session's interface that it uses."""
    ack_share: float
    """The share of taken events or batches that it acks at once."""
    think_s: float
    """The longest pause after each event or batch."""
    leave_share: float
    """The share of events or batches after which it closes the session and opens another."""
    keeps_tokens: bool
    """For a feed, it stores MongoDB's resume tokens instead of positions."""
    on_history_lost: OnHistoryLost
    options: SessionOptions


@dataclass(slots=True, eq=False)
class User(Reader):
    """A program with the real client. A `durable` user reads a subscription with its own name; others store their
    position themselves."""

    durable: bool
    habits: Habits
    subscription: str = ""
    takeover: bool = False
    once: bool = False
    """It opens one session, and does not create a missing subscription."""
    instances: set[str] = field(default_factory=set, init=False)
    """Instance ids of its sessions."""
    closes: str = field(default="", init=False)
    """What another task of the program closes while the loop reads: "client" or "session"."""
    calm: bool = field(default=False, init=False)
    """It continues reading and acks everything, without leaving."""
    needs: int = field(default=1 << 63, init=False)
    """The cluster time from which it reads again, as far as it knows."""
    got: set[int] = field(default_factory=set, init=False)
    """The numbers of all events that it has received since it began."""
    moved: bool = field(default=False, init=False)
    """Someone has moved its subscription past events."""
    sought: bool = field(default=False, init=False)
    """Someone has moved its subscription at all."""
    diary: Diary = field(default_factory=Diary, init=False)
    _token: dict[str, Any] | None = field(default=None, init=False)
    """For a feed, if it stores tokens: the token of what it received last."""
    _object: str = field(default="", init=False)
    """The name in the records of the session object that delivers."""
    _handed: list[int] = field(default_factory=list, init=False)
    _closing: asyncio.Future[None] | None = field(default=None, init=False)
    """The close of the client that is in progress."""
    _earlier: tuple[AsyncSession, Batch | Event] | None = field(default=None, init=False)
    """What it took last, and from which session."""
    _older: tuple[AsyncSession, Any, int] | None = field(default=None, init=False)
    """What it took from a session some time ago, and the number of the last event of that."""

    def _wants(self, entry: Entry) -> bool:
        return self.begins is None or entry.token.is_after(self.begins)

    @property
    def reading(self) -> bool:
        """Whether it has a session."""
        return bool(self._object)

    @property
    def stored(self) -> bytes:
        """The position that the program has stored: what it received from a feed, or acked of a subscription."""
        return self._position

    def begin_with(self, position: bytes) -> None:
        """Give it a position at which its subscription must begin."""
        self._position = position

    def kill(self) -> None:
        """End the process as SIGKILL does."""
        self._end_object()
        Reader.kill(self)

    async def _run(self) -> None:
        client = client_of(self.network, self.node, self.tenant, self.habits.options)
        try:
            if self.durable and (self._position or not self.once):
                await self._create(client)
            while not self.leaving:
                await self._read(client)
        finally:
            await client.close()

    async def _create(self, client: AsyncClient) -> None:
        while not self.leaving:
            try:
                info = await client.create_subscription(
                    self.subscription,
                    self.shape.feed(),
                    start=Start.position(self._position) if self._position else None,
                    on_invalidate="continue",
                    on_history_lost=self.habits.on_history_lost,
                )
                if self.begins is None:
                    self._begin_at(info.position)
                return
            except FeedmuxError as error:
                self.recorder.note(f"{self.name} could not create: {error}")
                if isinstance(error, HistoryLost | TimelineForked):
                    self._position, self.begins = b"", None
                await asyncio.sleep(self.rng.uniform(0.5, 2.0))

    async def _read(self, client: AsyncClient) -> None:
        """Read one session to its end."""
        try:
            async with self._opened(client) as session:
                self._begin_object(session)
                await self._take(client, session)
                self._look_at(session)
        except FeedmuxError as error:
            self.recorder.note(f"{self.name} got {type(error).__name__}: {error}")
            self.met.add(type(error).__name__)
            await asyncio.sleep(self.rng.uniform(0.2, 1.0))
            if isinstance(error, SubscriptionNotFound):
                if not self.once:
                    await self._create(client)
            elif isinstance(error, HistoryLost | TimelineForked):
                await self._begin_again(client)
            elif isinstance(error, FeedInvalidated) and not self.durable:
                self._go_on_behind(error)
            elif isinstance(error, SessionClosed) and self._closing is not None:
                await self._closing
        finally:
            self._end_object()
            self.leaving = self.leaving or self.once

    def _look_at(self, session: AsyncSession) -> None:
        """Check that the session's properties are consistent."""
        assert session.cluster_time == session.progress.cluster_time
        assert session.position == session.progress.position
        assert bool(session.epoch) is self.durable
        assert self.durable or not session.committed

    async def _begin_again(self, client: AsyncClient) -> None:
        """Begin again with what is available: the events in between are lost."""
        if not self.durable:
            self._position, self._token = b"", None
            return
        with suppress(FeedmuxError):
            await client.seek_subscription(self.subscription, Start.earliest())

    def _begin_at(self, position: bytes) -> None:
        self._keep(position)
        self.begins = inspect_position(position).token
        self.got.clear()

    def _start_at(self, token: dict[str, Any]) -> Start:
        from_invalidate = ResumeToken.decode(bson.encode(token)).from_invalidate
        return Start.start_after(token) if from_invalidate or self.rng.random() < 0.5 else Start.resume_after(token)

    def _go_on_behind(self, error: FeedInvalidated) -> None:
        """Continue after the invalidate. If the pipeline hides the invalidate event, no event that it received has this
        position."""
        if self._token is not None and error.resume_token is not None:
            self._token = dict(error.resume_token)
            self.needs = ResumeToken.decode(bson.encode(self._token)).cluster_time
        elif self._token is None:
            self._keep(error.position)

    def _keep_place(self, session: AsyncSession) -> None:
        """For a feed, store how far the program has received events."""
        if not self.habits.keeps_tokens:
            if session.position != self._position:
                self._keep(session.position)
                self._done(self.mongo.number_after(inspect_position(self._position).token))
        elif (token := session.resume_token) is not None and token != self._token:
            self._token = token
            place = ResumeToken.decode(bson.encode(token))
            self.needs = place.cluster_time
            self._done(self.mongo.number_after(place))

    def _keep(self, position: bytes) -> None:
        """Store how far the program has come."""
        if position and position != self._position:
            self._position = position
            self.needs = inspect_position(position).token.cluster_time

    @asynccontextmanager
    async def _opened(self, client: AsyncClient) -> AsyncIterator[AsyncSession]:
        if self.durable:
            opening = client.subscription(self.subscription).open(takeover=self.takeover, on_notice=self._notice)
        else:
            start = Start.position(self._position) if self._position else None
            if self._token is not None:
                start = self._start_at(self._token)
            opening = client.feed(self.shape.feed()).open(start=start, on_notice=self._notice)
        self.diary.opens()
        if self._sessions % 2:
            async with opening as session:
                yield session
            return
        session = await opening
        try:
            yield session
        finally:
            await session.close()

    async def _take(self, client: AsyncClient, session: AsyncSession) -> None:
        rng, habits = self.rng, self.habits
        while not self.leaving:
            if self.closes:
                closed, self.closes = (client if self.closes == "client" else session), ""
                self._closing = asyncio.ensure_future(closed.close())
            try:
                taken = await self._taken(session)
            except StopAsyncIteration:
                return
            except TimeoutError:
                if self.calm:
                    self._ack(session)  # also what is left over: at the limit of unacknowledged events nothing comes
                continue
            if taken is None:
                return
            self.diary.took(taken)
            self._ack_earlier(session)
            self._hand_out([number_of(event.raw) for event in (taken if isinstance(taken, Batch) else [taken])])
            if not self.durable:
                self._keep_place(session)
            if self.calm or rng.random() < habits.ack_share:
                self._ack(session, taken if rng.random() < 0.5 else None)
            self._earlier = session, taken
            if self.calm:
                continue
            self._ack_older(session, taken)
            if habits.think_s and rng.random() < 0.3:
                await asyncio.sleep(rng.uniform(0, habits.think_s))
            if rng.random() < habits.leave_share:
                return

    async def _taken(self, session: AsyncSession) -> Any:
        """Take a batch or an event; None when the session is over. Raises TimeoutError if nothing comes for a
        second."""
        takes = self.habits.takes
        if takes == "all":
            takes = self.rng.choice(("batches", "events", "next"))
        if takes == "next" and self._sessions % 2:
            return await session.next(timeout_s=1.0)
        async with asyncio.timeout(1.0):
            match takes:
                case "next":
                    return await anext(session)
                case "batches":
                    async for batch in session.batches():
                        return batch
                case "events":
                    async for event in session:
                        return event
                case "polls":
                    pause_s = 0.005
                    while (polled := await session.try_next()) is None:
                        await asyncio.sleep(pause_s)
                        pause_s = min(0.2, pause_s * 2)
                    return polled
        return None

    # Records: a session object is judged as a session, in addition to the streams that it opens.

    def _begin_object(self, session: AsyncSession) -> None:
        token = session.resume_token
        if not self.durable and not self._position and self._token is None:
            self._beginnings += 1  # from now on: earlier events do not belong to this beginning
            self._begin_at(session.position)
            self._position = b""
        # A session that was opened right before a seek begins at an outdated position.
        self._new_object("" if token is None or self.sought else token["_data"])

    def _new_object(self, place: str, *, judged: bool = True) -> None:
        self._sessions += 1
        self._object = f"{self.name} object {self._sessions}"
        self._handed.clear()
        self._older = None
        name = self.subscription if self.durable else f"{self.name} beginning {self._beginnings}"
        feed = self.shape.name_for(self.tenant.granted)
        opened = records.Opened(
            name, self._object, place, feed, stops_at_invalidate=False, judged=judged, reconnects=self.durable
        )
        self.recorder.add(opened)

    def _end_object(self) -> None:
        if self._object:
            self.recorder.add(records.Ended(self._object))
            self._object = ""

    def _hand_out(self, numbers: list[int]) -> None:
        entries = [number % PART for number in numbers]
        self.newest = max(self.newest, entries[-1])
        self.got.update(entries)
        self.recorder.add(records.Delivered(self._object, len(self._handed) + 1, tuple(map(str, numbers))))
        self._handed += entries

    def _ack(self, session: AsyncSession, what: Any = None) -> None:
        session.ack(*([] if what is None else [what]))
        self.diary.acked(what)
        if self.durable:
            self._done(1 << 60)
            self._keep(session.position)  # events are acked in order: no acked event is after it

    def _ack_older(self, session: AsyncSession, taken: Any) -> None:
        """Now and then, remember what was taken, and ack only that later; later acks remain valid."""
        if self.rng.random() < 0.1:
            self._older = session, taken, self._handed[-1]
        elif self._older is not None and self._older[0] is session and self.rng.random() < 0.1:
            _, what, number = self._older
            session.ack(what)
            self.diary.acked(what)
            if self.durable:
                self._done(number + 1)
            self._older = None

    def _ack_earlier(self, session: AsyncSession) -> None:
        """A program that acks an event of another session gets an error."""
        if self._earlier is not None and self._earlier[0] is not session:
            with pytest.raises(ValueError, match="belongs to another session"):
                session.ack(self._earlier[1])

    def _done(self, number: int) -> None:
        """Record that events before this number must not be repeated."""
        self.recorder.add(records.Acked(self._object, bisect_left(self._handed, number)))

    def _notice(self, notice: Notice) -> None:
        self.recorder.note(f"{self.name} gets {type(notice).__name__}")
        error = notice.error if isinstance(notice, Disconnected) else None
        sought = isinstance(error, Fenced) and error.metadata.get("cause") == "SEEK"
        if (sought or isinstance(notice, _RESETS)) and self._object:
            self._end_object()
            self._new_object("")

    def regranted(self) -> None:
        """Handle a change of the tenant's grants. Newly visible events come between events that are left out."""
        self.moved = True
        if self._object:
            self._end_object()
            self._new_object("", judged=False)


def client_of(
    network: Network, node: Node | None, tenant: Tenant, options: SessionOptions | None = None
) -> AsyncClient:
    client = AsyncClient("sim:1", timeout_s=10.0, session=options)
    client._api.transport = Transport(SimTarget("sim:1", tenant.key, network=network, node=node))
    return client
