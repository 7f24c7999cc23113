"""Crews of the simulation: programs with the real client that share a subscription as the members of a group."""

import asyncio
from collections.abc import Callable, Iterator
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from feedmux import (
    AsyncClient,
    Batch,
    Event,
    FeedmuxError,
    Group,
    HistoryLost,
    MemberEvent,
    Reject,
    RetryAfter,
    SessionOptions,
    Start,
    SubscriptionNotFound,
    TimelineForked,
)
from feedmux.feeds import OnHistoryLost
from feedmux.notices import Gap, Notice
from feedmux.v1 import change_feed_pb2 as wire
from feedmux_server.core.limits.quota import UNLIMITED
from feedmux_server.core.positions.position import inspect_position
from feedmux_server.core.positions.resume_token import ResumeToken
from tests.sim import records
from tests.sim.loop import SimLoop
from tests.sim.mongo import Entry, SimMongo
from tests.sim.readers import FeedShape, Reader
from tests.sim.tenants import Tenant, is_slowed
from tests.sim.users import Diary, client_of
from tests.sim.wire import MemberWatcher, Recorder, number_of

RECONNECT_DEFAULT_S: Final = 5.0
_NOTICED_S: Final = 0.1
"""A server notices the loss of a connection less than this time before the client."""
_TRIES: Final = (1, 1, 2, 3)


class Sick(Exception):
    """A handler cannot process an event."""


@dataclass(frozen=True, slots=True)
class CrewHabits:
    """How a crew works; drawn from the seed."""

    group: Group
    concurrency: int
    window_events: int
    window_bytes: int
    timeout_s: float | None
    think_s: float
    """The longest time for an event."""
    sick_share: float
    """The share of events that fail once or more."""
    reject_share: float
    """The share of events that are rejected at once."""
    deadly_share: float
    """The share of events that end the process which handles them, once or more."""
    leave_share: float
    """The share of events after which a member closes and joins again."""
    on_history_lost: OnHistoryLost
    options: SessionOptions


@dataclass(slots=True, eq=False)
class Crew:
    """What the members of a group have in common: their subscription, and what they have done."""

    loop: SimLoop
    rng: Random
    mongo: SimMongo
    recorder: Recorder
    name: str
    """Also that of the subscription."""
    shape: FeedShape
    tenant: Tenant
    habits: CrewHabits
    members: "list[Member]" = field(default_factory=list)
    has_memory: bool = True
    """Whether servers have room for what its members tell of a lost host."""
    calm: bool = False
    """The members process everything, without leaving."""
    begins: ResumeToken | None = None
    """Every event after this position must be processed."""
    sought: bool = False
    moved: bool = False
    """Someone has moved the subscription past events."""
    is_group: bool = True
    """Whether the subscription is a group now."""
    discards_all: bool = False
    """A program discards all its letters, also those that are written meanwhile."""
    newest: int = -1
    """The number of the newest event that a member began to process, or that was set aside."""
    settled: set[int] = field(default_factory=set)
    """The numbers of the events that were processed or set aside."""
    attempts: dict[int, int] = field(default_factory=dict)
    """How often the events of dead letters were delivered before."""
    position: bytes = b""
    """The stored position, as a member was told."""
    _fates: dict[int, list[str]] = field(default_factory=dict)
    """What is to happen to an event, delivery by delivery, before it can be processed."""
    _context: Context = field(default_factory=copy_context)

    @property
    def durable(self) -> bool:
        return True

    @property
    def subscription(self) -> str:
        return self.name

    @property
    def stored(self) -> bytes:
        return self.position

    @property
    def needs(self) -> int:
        """The cluster time from which it reads again, as far as it knows."""
        return inspect_position(self.position).token.cluster_time if self.position else 1 << 63

    @property
    def failure(self) -> BaseException | None:
        return next((each.failure for each in self.members if each.failure is not None), None)

    @property
    def reconnect_s(self) -> float:
        given = self.habits.group.reconnect_time_s
        return RECONNECT_DEFAULT_S if given is None else given

    def wanted(self) -> Iterator[int]:
        """The numbers of all events that it must process, as far as they are written; the newest first."""
        return (
            entry.number
            for entry in reversed(self.mongo.entries)
            if self.shows(entry) and (self.begins is None or entry.token.is_after(self.begins))
        )

    def shows(self, entry: Entry) -> bool:
        """Whether its feed shows the entry."""
        return self.shape.shows(entry, self.tenant.granted)

    def regranted(self) -> None:
        """Handle a change of the tenant's grants."""
        self.skipped()

    def skipped(self) -> None:
        """Events may be skipped, or come again."""
        self.moved = True
        self.recorder.add(records.Skipped(self.name))

    def told(self, position: bytes) -> None:
        """A member was told a stored position."""
        self.position = position

    def fate(self, number: int) -> str:
        """What happens to an event this time: "" if it can be processed."""
        if self.calm:
            return ""
        fates = self._fates.get(number)
        if fates is None:
            rng, habits, drawn = self.rng, self.habits, self.rng.random()
            kind = ""
            for name, share in (
                ("sick", habits.sick_share),
                ("rejected", habits.reject_share),
                ("deadly", habits.deadly_share),
            ):
                if not kind and drawn < share:
                    kind = name
                drawn -= share
            fates = self._fates[number] = [kind] * rng.choice(_TRIES) if kind else []
        return fates.pop() if fates else ""

    def set_aside(self, number: int, attempts: int) -> None:
        self.settled.add(number)
        self.attempts[number] = attempts
        self.newest = max(self.newest, number)
        group = self.habits.group
        quarantines = group.after_dead_letter == "quarantine"
        self.recorder.add(records.SetAside(self.name, str(number), group.attempts_max, quarantines))

    def later(self, delay_s: float, what: Any, *args: Any) -> None:
        """Call `what` outside of every process."""
        self.loop.call_later(delay_s, what, *args, context=self._context.copy())

    async def create(self, client: AsyncClient, member: "Member") -> None:
        """Create the subscription, or find it."""
        while not member.leaving:
            try:
                info = await client.create_subscription(
                    self.name,
                    self.shape.feed(),
                    start=Start.position(self.position) if self.position else None,
                    on_invalidate="continue",
                    on_history_lost=self.habits.on_history_lost,
                    group=self.habits.group,
                )
                if self.begins is None:
                    self.position = info.position
                    self.begins = inspect_position(info.position).token
                return
            except FeedmuxError as error:
                if not self.is_group:
                    return
                self.recorder.note(f"{member.name} could not create: {type(error).__name__} {error}")
                if isinstance(error, HistoryLost | TimelineForked):
                    self.skipped()
                    self.position, self.begins = b"", None
                await asyncio.sleep(member.rng.uniform(0.5, 2.0))


@dataclass(slots=True, eq=False)
class Member(Reader):
    """One member of a crew."""

    crew: Crew
    closes: str = field(default="", init=False)
    """Whatever it is: it closes soon."""
    watcher: MemberWatcher | None = field(default=None, init=False)
    """That of its newest session."""
    at_work: int = field(default=0, init=False)
    """How many events it processes, also such as it has lost to others meanwhile."""
    _closing: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    def _wants(self, entry: Entry) -> bool:
        return self.crew.begins is None or entry.token.is_after(self.crew.begins)

    @property
    def reading(self) -> bool:
        return self.watcher is not None and self.watcher.is_open

    def watch(self, session: str, answered: Callable[[str, wire.SubscribeResponse], None]) -> MemberWatcher:
        """The watcher of a call of Subscribe."""
        name, feed = self.process, self.shape.name_for(self.tenant.granted)
        self.watcher = watcher = MemberWatcher(
            self.recorder, session, self.crew.name, name, feed, answered, lambda: self._lost(name)
        )
        watcher.notes_sent = not is_slowed(self.tenant)
        watcher.is_asked_for_claims = self.crew.has_memory and self.tenant.quotas.outstanding_bytes == UNLIMITED
        return watcher

    def _lost(self, name: str) -> None:
        """It has no session any more: if it gets none soon, others get what it has."""
        lost = self.watcher
        self.crew.later(max(0.0, self.crew.reconnect_s - _NOTICED_S), self._gave_up, name, lost)

    def _gave_up(self, name: str, lost: MemberWatcher) -> None:
        if self.process == name and (self.watcher is lost or not self.reading):
            self.recorder.add(records.Left(self.crew.name, name, overdue=True))

    def left_for_good(self) -> None:
        """Others get what it has in hand."""
        self.recorder.add(records.Left(self.crew.name, self.process, for_good=True))

    def start(self) -> None:
        self.watcher = None
        self._closing = asyncio.Event()
        Reader.start(self)

    def kill(self) -> None:
        """End the process as SIGKILL does."""
        self.left_for_good()
        Reader.kill(self)

    async def leave(self) -> None:
        self.leaving = True
        self._closing.set()
        await Reader.leave(self)

    async def _run(self) -> None:
        crew = self.crew
        client = client_of(self.network, self.node, self.tenant, crew.habits.options)
        try:
            await crew.create(client, self)
            while not self.leaving:
                await self._work(client)
        finally:
            await client.close()

    async def _work(self, client: AsyncClient) -> None:
        """Be a member once."""
        habits = self.crew.habits
        member = client.subscription(self.crew.name).join(
            on_notice=self._notice, window_events=habits.window_events, window_bytes=habits.window_bytes
        )

        async def close() -> None:
            await self._closing.wait()
            await member.close()

        closer = asyncio.create_task(close())
        try:
            await member.run(self._handle, concurrency=habits.concurrency, timeout_s=habits.timeout_s)
            await self._pause(0.0, 0.5)
        except FeedmuxError as error:
            self.recorder.note(f"{self.name} got {type(error).__name__}: {error}")
            if not self._closing.is_set():
                self.met.add(type(error).__name__)
            await self._pause(0.2, 1.0)
            if isinstance(error, SubscriptionNotFound):
                await self.crew.create(client, self)
            elif isinstance(error, HistoryLost | TimelineForked):
                await self._begin_again(client)
        finally:
            closer.cancel()
            if not self.leaving:
                self._closing.clear()
            self.left_for_good()

    async def _pause(self, least_s: float, most_s: float) -> None:
        await asyncio.sleep(self.rng.uniform(least_s, most_s))

    async def _begin_again(self, client: AsyncClient) -> None:
        """Begin again with what is available: the events in between are lost."""
        self.crew.skipped()
        try:
            await client.seek_subscription(self.crew.name, Start.earliest())
        except FeedmuxError as error:
            self.recorder.note(f"{self.name} could not seek: {error}")

    def _notice(self, notice: Notice) -> None:
        self.recorder.note(f"{self.name} gets {type(notice).__name__}")
        if isinstance(notice, Gap):
            self.crew.skipped()

    async def _handle(self, event: MemberEvent) -> None:
        self.at_work += 1
        try:
            await self._process_it(event)
        finally:
            self.at_work -= 1

    async def _process_it(self, event: MemberEvent) -> None:
        crew, rng, habits, number = self.crew, self.rng, self.crew.habits, number_of(event.raw)
        crew.newest = max(crew.newest, number)
        now_s, name = self.loop.time, str(number)
        session = self.watcher.name if self.watcher is not None else ""
        self.recorder.add(records.Started(crew.name, self.process, session, name, event.attempt, now_s()))
        fate = crew.fate(number)
        try:
            if not crew.calm and habits.think_s and rng.random() < 0.5:
                await asyncio.sleep(rng.uniform(0, habits.think_s))
            if fate == "deadly":
                crew.later(0.0, self._die, self.process)
                await asyncio.sleep(1e9)
        except asyncio.CancelledError:
            self._handled(event, "failed", self._due_s(event))
            raise
        if not crew.calm and rng.random() < habits.leave_share:
            self._closing.set()
        if fate == "sick" and rng.random() < 0.5:
            self._handled(event, "failed", self._due_s(event))
            raise Sick(number)
        if fate == "sick":
            delay_s = rng.choice((0.0, 0.2, 5.0))
            self._handled(event, "failed", now_s() + delay_s)
            raise RetryAfter(delay_s)
        if fate == "rejected":
            self._handled(event, "rejected", 0.0)
            raise Reject("bad")
        crew.settled.add(number)
        self._handled(event, "done", 0.0)

    def _due_s(self, event: MemberEvent) -> float:
        """Before this time an event does not come again that fails now, whatever chance says."""
        group, before = self.crew.habits.group, self.crew.attempts.get(number_of(event.raw), 0)
        assert group.retry_first_s is not None
        assert group.retry_most_s is not None
        failures = max(0, event.attempt - 1 - before)
        return self.loop.time() + min(group.retry_most_s, group.retry_first_s * 2.0**failures) / 2

    def _handled(self, event: MemberEvent, result: str, until_s: float) -> None:
        waiting = event.run.waiting
        following = str(number_of(waiting[0].raw)) if waiting else ""
        self.recorder.add(
            records.Handled(self.crew.name, self.process, str(number_of(event.raw)), result, following, until_s)
        )

    def _die(self, name: str) -> None:
        """An event has ended the process."""
        if self.process == name and self.running:
            self.kill()
            self.crew.later(self.rng.uniform(0.0, 3.0), self._restart, name)

    def _restart(self, name: str) -> None:
        if self.process == name and not self.running and not self.leaving:
            self.start()


class SessionDiary(Diary):
    """Notes what an ordinary session of a subscription has processed that is a group before and after it."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew
        self._taken: list[int] = []

    def opens(self) -> None:
        self._taken.clear()

    def took(self, what: Event | Batch) -> None:
        self._taken += [number_of(event.raw) for event in (what if isinstance(what, Batch) else [what])]

    def acked(self, what: Event | Batch | None) -> None:
        """Acks are cumulative."""
        crew, taken = self._crew, self._taken
        if what is not None:
            last = number_of((list(what)[-1] if isinstance(what, Batch) else what).raw)
            taken = taken[: taken.index(last) + 1] if last in taken else []
        for number in taken:
            crew.settled.add(number)
            crew.recorder.add(records.Handled(crew.name, "a session", str(number), "done"))
        del self._taken[: len(taken)]


def draw_habits(rng: Random, *, has_letters: bool, sick: float, deadly: float) -> CrewHabits:
    """Draw the habits of a crew. `sick` and `deadly` are the shares of such events."""
    attempts_max = rng.choice((0, 2, 3)) if has_letters else 0
    return CrewHabits(
        group=Group(
            reconnect_time_s=rng.choice((None, 1.0, 5.0)),
            retry_first_s=rng.choice((0.1, 1.0)),
            retry_most_s=rng.choice((2.0, 8.0)),
            attempts_max=attempts_max,
            after_dead_letter=rng.choice((None, "quarantine")) if has_letters else None,
        ),
        concurrency=rng.choice((1, 2, 8)),
        window_events=rng.choice((1, 4, 64)),
        window_bytes=rng.choice((2_000, 8 << 20)),
        timeout_s=rng.choice((None, None, 1.0)),
        think_s=rng.choice((0.0, 0.2, 3.0)),
        sick_share=rng.choice((0.0, sick)),
        reject_share=rng.choice((0.0, sick / 2)) if has_letters else 0.0,
        deadly_share=deadly,
        leave_share=rng.choice((0.0, 0.02, 0.1)),
        on_history_lost=rng.choice(("fail", "earliest")),
        options=SessionOptions(heartbeat_s=rng.choice((1.0, 10.0)), message_bytes_max=rng.choice((64 << 10, 1 << 20))),
    )
