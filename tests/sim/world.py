"""One run of the simulation: draws servers, users and faults from a seed, lets them run, and judges what happened.

A run has two parts. First everything is written, read and broken at random. Then the faults stop: every user must reach
the end within `CATCH_UP_S`, an event must arrive soon and its ack be stored soon without the help of a heartbeat, and
nothing may be left when all users have closed.
"""

import asyncio
import gc
import logging
import random
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from io import BytesIO
from random import Random
from types import ModuleType
from typing import Any, Final
from unittest import mock

import bson
from bson import decode_file_iter
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from grpc.aio import AioRpcError

from feedmux import AsyncClient, FeedmuxError, SessionOptions
from feedmux.feeds import Format
from feedmux.v1 import change_feed_pb2 as wire
from feedmux_server import clock
from feedmux_server.assembly import manager_limits
from feedmux_server.core.delivery.credit import CreditLimits
from feedmux_server.core.delivery.feed_streams import StreamLimits
from feedmux_server.core.delivery.replay_buffer import RingLimits
from feedmux_server.core.delivery.stream_steps import RestLimits
from feedmux_server.core.delivery.wide_plan import WideLimits
from feedmux_server.core.positions.position import inspect_position
from feedmux_server.core.positions.resume_token import ResumeToken
from feedmux_server.rpc import dead_letters as rpc_dead_letters
from feedmux_server.sessions.groups import COMMIT_S
from feedmux_server.source.read_limits import ReadLimits
from feedmux_server.store.model import DAY_S
from feedmux_server.streams.pump import PumpLimits
from feedmux_server.streams.wide.stream import WideStreamLimits
from tests.sim import records
from tests.sim.checkers import check
from tests.sim.copiers import ALL_COPIED, COPIED, OTHERS, Copier, CopyHabits, Documents, Sink, version_of
from tests.sim.documents import rank_of
from tests.sim.faults import FAULTS, Fault, scenario_of
from tests.sim.history import Violation
from tests.sim.hostile import NAME as HOSTILE
from tests.sim.hostile import Hostile
from tests.sim.inspector import discrepancies
from tests.sim.letters import SimLetters
from tests.sim.loop import SimLoop, process
from tests.sim.members import Crew, CrewHabits, Member, SessionDiary, Sick, draw_habits
from tests.sim.mongo import NOOP_S, PART, Entry, Shown, SimMongo
from tests.sim.network import SUBSCRIBE, Network, SimChannel, Watcher
from tests.sim.programs import OperatorClient, Program, Ranging, Unread, Watching
from tests.sim.range_copiers import RangeCopier
from tests.sim.readers import FeedShape, Reader, run_apart
from tests.sim.redis import SimRedis
from tests.sim.servers import ServerSettings, SimServer, config_of
from tests.sim.tenants import (
    CHOICES,
    EVERYBODY,
    HIDDEN,
    HIDING,
    Tenant,
    allows,
    draw_copying,
    draw_tenants,
    draw_unequal,
    is_slowed,
    subscription_key,
)
from tests.sim.users import Habits, Takes, User, client_of
from tests.sim.wire import (
    CREW,
    MemberWatcher,
    Recorder,
    SessionWatcher,
    StoreWatcher,
    events_in,
    hex_of,
    number_of,
)
from tests.virtual_time import VirtualClock

_RAW: Final = CodecOptions(document_class=RawBSONDocument)
OF_1: Final = (("fullDocument.g", 1),)
CATCH_UP_S: Final = 120.0
SLOWED: Final = 4
"""The factor on the time limit if a tenant's quotas make its users read one after another."""
ARRIVES_S: Final = 0.7
"""A rested system delivers an event within this time: less than a heartbeat, more than all latencies."""
STORED_S: Final = 0.3
"""Its ack is stored within this time plus the server's interval: the client's interval, and the latencies."""

LOOK_EVERY: Final = 100
"""The number of moments of a run between two inspections of the servers."""

RECENT_S: Final = 5.0
"""The longest time from the choice of a new start position until others see the position."""
CURSORS_MAX: Final = 2_500
"""A run that opens more cursors reads the same events over and over."""
CROWD: Final = 30
CROWD_S: Final = 1.5
"""The time within which an unthrottled tenant has received the crowd: windows of three events take a round trip
each."""
PADDINGS: Final = ((0, 50, 400, 3_000), (0, 400, 3_000, 100_000))
"""Padding of events, in bytes; the largest events come in fragments if messages are small."""
PROGRAMS_MEET: Final = frozenset({"FAILED_PRECONDITION", "OUT_OF_RANGE"})
"""Caused by feeds that are invalidated or changed, and by lost history."""
TAKES: Final[tuple[Takes, ...]] = ("batches",) * 4 + ("next",) * 3 + ("events", "all", "polls")
RANGE_BYTES: Final = 8 << 20
"""A server with less memory has no room beside the data that one reader of a range may hold."""
READY_S: Final = 10.0
"""A server reports readiness within this time if MongoDB and Redis are available: it checks them every 2 s, twice."""
MEMORY_MIN: Final = 800_000
"""Bytes: room for little more than one large batch."""
UNUSED_S: Final = 900.0
"""The time after which subscriptions expire; no user is gone for so long."""
_DRAWN: Final = [fault for fault in FAULTS if not fault.apart]
FORMATS: Final[tuple[Format, ...]] = ("bson", "bson", "bson", "extended_json_canonical", "extended_json_relaxed")
KNOWN_S: Final = 0.5
"""A server that knows of new grants has ended every affected session within this time."""
FORK_KNOWN_S: Final = 15.0
"""A server has found out within this time that MongoDB was restored: it looks again after `source.commands` has given
up."""
MAY_MEET: Final = frozenset({"FeedInvalidated", "Unavailable"})
"""Errors that may end a session in every run; the faults add to them. No other error has a cause here."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much happens in a run."""

    name: str
    servers: tuple[int, int]
    users: tuple[int, int]
    writes: tuple[int, int]
    faults: tuple[int, int]
    copiers: tuple[int, int]
    crew_share: float
    """The share of the users of subscriptions in whose place a crew works."""


SMALL: Final = Size("small", (1, 2), (2, 3), (15, 40), (0, 2), (0, 1), 0.25)
LARGE: Final = Size("large", (1, 3), (4, 8), (80, 200), (2, 7), (0, 3), 0.0)
SIZES: Final = {size.name: size for size in (SMALL, LARGE)}


@dataclass(frozen=True, slots=True)
class Keep:
    """The parts of a drawn run that take place: by number, or as a count; None for all. Drawing does not depend on
    it."""

    faults: tuple[int, ...] | None = None
    users: tuple[int, ...] | None = None
    crews: tuple[int, ...] | None = None
    copiers: tuple[int, ...] | None = None
    servers: int | None = None
    writes: int | None = None

    def __str__(self) -> str:
        parts = [("faults", self.faults), ("users", self.users), ("crews", self.crews), ("copiers", self.copiers)]
        texts = [f"{name}={'+'.join(map(str, which))}" for name, which in parts if which is not None]
        counts = [("servers", self.servers), ("writes", self.writes)]
        return ",".join([*texts, *(f"{name}={count}" for name, count in counts if count is not None)])

    @classmethod
    def of(cls, text: str) -> "Keep":
        """Parse the output of `str`. Raises ValueError."""
        made: dict[str, Any] = {}
        for part in filter(None, text.split(",")):
            name, _, value = part.partition("=")
            if name in ("faults", "users", "crews", "copiers"):
                made[name] = tuple(int(each) for each in value.split("+") if each)
            elif name in ("servers", "writes"):
                made[name] = int(value)
            else:
                raise ValueError(f"{name!r} is none of faults, users, crews, copiers, servers and writes")
        return cls(**made)


EVERYTHING: Final = Keep()


@dataclass(slots=True)
class Outcome:
    """The result of a run."""

    seed: int
    size: str
    digest: Callable[[], str]
    steps: int
    virtual_s: float
    problems: list[str]
    history: list[records.Record] = field(repr=False, default_factory=list)
    faults: tuple[str, ...] = ()


class World:
    """One run."""

    def __init__(
        self,
        seed: int,
        size: Size = SMALL,
        say: Callable[[str], None] | None = None,
        scenario: str = "",
        keep: Keep = EVERYTHING,
    ) -> None:
        self.seed = seed
        self.size = size
        self.scenario = scenario
        self._wanted = wanted = scenario_of(scenario, seed)
        self.rng = rng = Random(f"feedmux {size.name} {seed}")
        self.loop = SimLoop(Random(rng.random()))
        self.recorder = Recorder(self.loop.time)
        self.recorder.say = say
        self.problems: list[str] = []
        self.network = Network(self.loop, Random(rng.random()))
        self.network.watch = self._watch
        self.mongo = SimMongo(self.loop, Random(rng.random()), rng.choice((1, 2)))
        if wanted and wanted.profile is not None:
            self.mongo.token_version, self.mongo.profile = 2, wanted.profile
        elif self.mongo.token_version == 2 and seed % 3 == 1:
            self.mongo.profile = replace(self.mongo.profile, early_marks=True)
        self.arrives_s = ARRIVES_S + NOOP_S * self.mongo.profile.idle_shard
        self.mongo.committed = self._committed
        self.mongo.lag_s = rng.choice((0.0, 0.01, 0.05))
        self.redis = SimRedis(self.loop, Random(rng.random()))
        self.redis.replicas = rng.choice((0, 1))
        self._store_watcher = StoreWatcher(self.recorder, self.redis)
        self.short_of_memory = wanted is not None and wanted.short_of_memory
        self.unacked_max = rng.choice((5, 20, 1000))
        self.crowds = seed % 3 == 0
        # Not modelled: how MongoDB resumes within an event that was split, but is not split under other grants.
        self.choices = [name for name in CHOICES if name != HIDING or self.mongo.token_version == 1]
        self.tenants = draw_tenants(rng, self.choices)
        if wanted and wanted.one_is_slowed:
            self.crowds, self.tenants = True, draw_unequal(rng)
        # The largest events would take minutes with a rate limit; also in a feed that splits them, because they come in
        # dozens of fragments, of which a small ring holds one.
        large = not self.tenants and rng.random() < 0.1
        self.settings = self._draw_settings()
        self.servers = [
            SimServer(self.loop, f"server{number}", self.settings, self.mongo, self.redis, self.network)
            for number in range(1, rng.randint(*size.servers) + 1)
        ]
        self.shapes = self._draw_shapes()
        large = large and not any(shape.split for shape in self.shapes)
        self.paddings = PADDINGS[self.short_of_memory or large]
        self.users = [self._draw_user(number) for number in range(1, rng.randint(*size.users) + 1)]
        self.letters = SimLetters(self.mongo)
        self.crews = self._draw_crews()
        self.programs = self._draw_programs()
        self.faults: list[Fault] = [rng.choice(_DRAWN) for _ in range(rng.randint(*size.faults))]
        if wanted:
            by_name = {fault.name: fault for fault in FAULTS}
            self.faults = [by_name[name] for name in wanted.faults]
            self.faults += [rng.choice(_DRAWN) for _ in range(wanted.drawn)]
        else:
            self._draw_restore()
        self.writes = rng.randint(*size.writes)
        self.copiers: list[Copier] = self._draw_copies()
        if wanted and wanted.only_copies:
            self.users = []
        self._keep_only(keep)
        self.rivals: list[User] = []
        """Programs that take over other programs' subscriptions for a while."""
        self._calls = 0
        self._watchers: dict[str, SessionWatcher | MemberWatcher] = {}
        """The newest watcher of each process."""
        self._administered = 0
        self._jumps = 0
        self._restored_s = 0.0
        self.loop.before_jump = self._look_inside

    def _keep_only(self, keep: Keep) -> None:
        if keep.faults is not None:
            self.faults = [self.faults[number] for number in keep.faults]
        if keep.users is not None:
            self.users = [self.users[number] for number in keep.users]
        if keep.crews is not None:
            self.crews = [self.crews[number] for number in keep.crews]
        if keep.copiers is not None:
            self.copiers = [self.copiers[number] for number in keep.copiers]
        if keep.servers is not None:
            del self.servers[keep.servers :]
        if keep.writes is not None:
            self.writes = keep.writes

    # Drawing.

    def _draw_settings(self) -> ServerSettings:
        rng, wanted = self.rng, self._wanted
        config = config_of(
            redis=(("lease_s", rng.choice((6.0, 15.0))), ("commit_interval_s", rng.choice((0.05, 0.5)))),
        )
        ring = RingLimits(rng.choice((5, 50, 500_000)), rng.choice((2_000, 20_000, 4 << 20)))
        limits = replace(
            manager_limits(config.limits, config.wide),
            streams=StreamLimits(ring, max(1, ring.bytes_max // 2), rng.choice((0, 5, 10))),
            pump=PumpLimits(
                rng.choice((0.0, 0.005, 0.2)), RestLimits(rng.choice((0.5, 10.0)), rng.choice((2.0, 60.0)))
            ),
            read=ReadLimits(
                batch_events=rng.choice((2, 10, 4_000)),
                max_await_ms=rng.choice((300, 1_000)),
                idle_reads_per_s=rng.choice((0.5, 125.0)),
                chunk_bytes_max=rng.choice((1_000, 1 << 20)),
            ),
            credit=CreditLimits(rng.choice((10, 1_000_000)), rng.choice((2_000, 64 << 20))),
            wide=WideLimits(rng.random() < 0.5, feeds_min=2, retry_s=rng.choice((1.0, 60.0))),
            catch_up_max=rng.choice((1, 2, 32)),
            unacked_events_max=self.unacked_max,
            memory_bytes_max=rng.choice((MEMORY_MIN, 1 << 30)),
            round_bytes=rng.choice((1_000, 2 << 20)),
            view_inbox_bytes=rng.choice((3_000, 4 << 20)),
            wide_stream=WideStreamLimits(RingLimits(*rng.choice(((20, 10_000), (200_000, 32 << 20))))),
        )
        if wanted and wanted.crews:
            # With less, members may not be asked what they have from a lost host.
            limits = replace(limits, memory_bytes_max=1 << 30)
        if self.short_of_memory:
            limits = replace(limits, memory_bytes_max=MEMORY_MIN)
            # Rings that only memory bounds, with many chunks each.
            streams = replace(limits.streams, ring=RingLimits())
            limits = replace(limits, streams=streams, read=replace(limits.read, chunk_bytes_max=10_000))
        if wanted and wanted.slots:
            streams = StreamLimits(RingLimits(bytes_max=20_000), 10_000, 0)
            # A step of a copy has several reads, and some tenants may cause one in two seconds.
            turn_s = 1.5 if wanted.copiers else 0.5
            pump = replace(limits.pump, rest=replace(limits.pump.rest, slot_turn_s=turn_s))
            limits = replace(limits, streams=streams, pump=pump, catch_up_max=wanted.slots)
            # With less, those who read wait for the memory of messages that other clients of their tenant do not read.
            limits = replace(limits, memory_bytes_max=1 << 30)
        unused_s = rng.choice((0.0, UNUSED_S))
        if wanted:
            unused_s = wanted.unused_s or unused_s
        unused = {"unused_subscription_days": unused_s / DAY_S}
        config = config.model_copy(update={"limits": config.limits.model_copy(update=unused)})
        return ServerSettings(config, limits, [*self.tenants], unused_s, probed=rng.random() < 0.3)

    def _draw_shapes(self) -> list[FeedShape]:
        everything = [
            FeedShape("db.a", "db", "a"),
            FeedShape("db.b", "db", "b"),
            FeedShape("db", "db"),
            FeedShape("db.a of 1", "db", "a", OF_1),
        ]
        if self.mongo.token_version == 2:
            everything += [FeedShape("db.a, split", "db", "a", split=True), FeedShape("db, split", "db", split=True)]
        if self._wanted and self._wanted.pipelines:
            everything = [
                replace(shape, name=f"{shape.name} of 1", match=OF_1) for shape in everything if not shape.match
            ]
        return self.rng.sample(everything, min(len(everything), self.rng.randint(1, 3)))

    def _draw_user(self, number: int) -> User:
        rng = self.rng
        options = SessionOptions(
            window_events=rng.choice((3, 30, 16_384)),
            window_bytes=rng.choice((2_000, 8 << 20)),
            heartbeat_s=rng.choice((1.0, 10.0)),
            message_bytes_max=rng.choice((64 << 10, 1 << 20)),
            format=rng.choice(FORMATS),
        )
        habits = Habits(
            takes=rng.choice(TAKES),
            ack_share=rng.choice((0.0, 0.3, 1.0)),
            think_s=rng.choice((0.0, 0.2, 3.0)),
            leave_share=rng.choice((0.0, 0.01, 0.1)),
            keeps_tokens=rng.random() < 0.3,
            on_history_lost=rng.choice(("fail", "earliest")),
            options=options,
        )
        return User(
            *self._parts(rng),
            f"user{number}",
            rng.choice(self.shapes),
            durable=rng.random() < 0.7,
            habits=habits,
            tenant=rng.choice(self.tenants or [Tenant(EVERYBODY)]),
            subscription=f"user{number}",
        )

    def _draw_crews(self) -> list[Crew]:
        """Let crews work in the place of some users of subscriptions. They draw from numbers of their own, so that
        without them a run is the same."""
        rng = Random(f"feedmux crews {self.size.name} {self.seed} {self.scenario}")
        wanted = self._wanted
        share = (1.0 if wanted.crews else 0.0) if wanted else self.size.crew_share
        users = self.users[:2] if wanted else self.users
        replaced = [
            user for user in users if (user.durable or wanted) and not user.shape.split and rng.random() < share
        ]
        if not replaced:
            return []
        self.users = [user for user in self.users if user not in replaced]
        self.mongo.documents = rng.choice((2, 5, 20))
        has_letters = rng.random() < 0.5 if wanted is None else wanted.letters
        if has_letters:
            self.settings.letters = self.letters
            self.letters.stored = self._set_aside
            self.letters.removed = self._removed
        deadly = rng.choice((0.0, 0.02)) if wanted is None else wanted.deadly_share
        think_s, sick = (0.0, 0.1) if wanted is None else (wanted.think_s, wanted.sick_share)
        return [
            self._draw_crew(
                rng, number, user, draw_habits(rng, has_letters=has_letters, sick=sick, deadly=deadly), think_s
            )
            for number, user in enumerate(replaced, 1)
        ]

    def _draw_crew(self, rng: Random, number: int, user: User, habits: CrewHabits, think_s: float) -> Crew:
        if think_s:
            habits = replace(habits, think_s=think_s)
        name = f"{CREW}{number}"
        crew = Crew(self.loop, Random(rng.random()), self.mongo, self.recorder, name, user.shape, user.tenant, habits)
        crew.has_memory = self.settings.limits.memory_bytes_max > MEMORY_MIN
        for each in range(1, rng.randint(2, 3) + 1):
            crew.members.append(Member(*self._parts(rng), f"{name}.{each}", user.shape, user.tenant, crew=crew))
        return crew

    def _set_aside(self, letter: dict[str, Any]) -> None:
        """A majority has a letter."""
        crew = self._crew_of(letter)
        if crew is not None:
            crew.set_aside(number_of(bytes(letter["event"])), letter["attempts"])

    def _removed(self, letter: dict[str, Any]) -> None:
        crew = self._crew_of(letter)
        if crew is not None:
            number = str(number_of(bytes(letter["event"])))
            if crew.discards_all:
                self.recorder.add(records.Discarded(crew.name, number))
            self.recorder.add(records.Removed(crew.name, number))

    def _crew_of(self, letter: dict[str, Any]) -> Crew | None:
        of = letter["tenant"], letter["subscription"]
        return next((crew for crew in self.crews if (crew.tenant.name, crew.subscription) == of), None)

    def letters_of(self, crew: Crew) -> list[dict[str, Any]]:
        """The dead letters of a crew that a majority has."""
        return self.letters.of(crew.tenant.name, crew.subscription)

    def _draw_copies(self) -> list[Copier]:
        """Draw the programs that copy a collection. They draw from numbers of their own, so that without them a run is
        the same."""
        rng = Random(f"feedmux copies {self.size.name} {self.seed} {self.scenario}")
        wanted = self._wanted
        count = wanted.copiers if wanted else rng.randint(*self.size.copiers)
        self.mongo.snapshot_window_s = rng.uniform(2.0, 60.0)
        self.mongo.read_ahead = rng.choice((0, 5, 1 << 30))
        if wanted and wanted.snapshot_window_s:
            self.mongo.snapshot_window_s, self.mongo.read_ahead = wanted.snapshot_window_s, 0
        tenant = Tenant(EVERYBODY)
        if count and self.tenants:
            tenant = draw_copying(rng)
            self.settings.tenants.append(tenant)
        if count:
            read = replace(
                self.settings.limits.read,
                batch_events=rng.choice((3, 5, 20, self.settings.limits.read.batch_events)),
                snapshot_step_s=rng.choice((0.0, 0.02, 2.0)),
                names_kept=rng.choice((1, 2, 1_000)),
            )
            self.settings.limits = replace(self.settings.limits, read=read)
        drop_share = (wanted.drop_share if wanted else 0.0) or 0.02
        wide_share = wanted.wide_share if wanted else rng.choice((0.0, 0.5))
        shapes = [ALL_COPIED if rng.random() < wide_share else COPIED for _ in range(count)]
        renames = rng.choice((0.0, 0.03, 0.2)) if ALL_COPIED in shapes else rng.choice((0.0, drop_share))
        others = OTHERS if ALL_COPIED in shapes else OTHERS[:1] if renames else ()
        self.documents = Documents(self.mongo, Random(rng.random()), drop_share, renames, others)
        self.document_writes = rng.randint(10, 60) if count else 0
        again = wanted is not None and wanted.copies_again
        return [
            self._draw_copier(rng, number, tenant, shape, copies_again=again) for number, shape in enumerate(shapes, 1)
        ]

    def _draw_copier(self, rng: Random, number: int, tenant: Tenant, shape: FeedShape, *, copies_again: bool) -> Copier:
        options = SessionOptions(
            window_events=rng.choice((3, 10, 16_384)),
            window_bytes=rng.choice((2_000, 8 << 20)),
            heartbeat_s=rng.choice((1.0, 10.0)),
        )
        sinks: tuple[Sink, ...] = "stored", "kept"
        if shape is ALL_COPIED and self.documents.rename_share:
            # A rename that comes again would be applied to what came after it, also without a copy.
            sinks = ("stored",)
        habits = CopyHabits(
            sink="kept" if copies_again else rng.choice(sinks),
            whole_batches=rng.random() < 0.5,
            ack_share=rng.choice((0.0, 0.3, 1.0)),
            think_s=rng.choice((0.0, 0.2, 1.0)),
            leave_share=rng.choice((0.0, 0.05, 0.2)),
            on_history_lost="snapshot" if copies_again else rng.choice(("fail", "earliest", "snapshot")),
            options=options,
        )
        by_ranges = habits.sink == "stored" and shape is COPIED and rng.random() < 0.5
        return (RangeCopier if by_ranges else Copier)(
            *self._parts(rng),
            f"copier{number}",
            replace(shape, looks_up=self.mongo.profile.loses_lookups),
            tenant,
            habits=habits,
            subscription=f"copier{number}",
        )

    def _parts(self, rng: Random) -> tuple[SimLoop, Random, SimMongo, Network, Recorder]:
        """What every program needs, with random numbers of its own."""
        return self.loop, Random(rng.random()), self.mongo, self.network, self.recorder

    def _draw_restore(self) -> None:
        """Draw whether MongoDB is restored. Nobody knows the lost history if Redis has lost what servers wrote there.
        As for copies, the run is otherwise the same."""
        rng = Random(f"feedmux restore {self.size.name} {self.seed}")
        if rng.random() < 0.1 and not any("SubscriptionNotFound" in fault.meets for fault in self.faults):
            (restored,) = [fault for fault in FAULTS if fault.name == "MongoDB restored"]
            self.faults.insert(rng.randint(0, len(self.faults)), restored)

    def _draw_programs(self) -> list[Program]:
        rng = self.rng
        kinds: list[type[Program]] = [kind for kind in (Watching, Ranging) if rng.random() < 0.15]
        if self.settings.limits.memory_bytes_max < RANGE_BYTES and Ranging in kinds:
            kinds.remove(Ranging)
        return [self._draw_program(kind, kind.__name__.lower()) for kind in kinds]

    def _draw_program(self, kind: type[Program], name: str) -> Program:
        rng = self.rng
        return kind(*self._parts(rng), name, rng.choice(self.shapes), rng.choice(self.tenants or [Tenant(EVERYBODY)]))

    def leave_unread(self) -> None:
        """Start a program that opens a Watch in history, and does not read it."""
        program = self._draw_program(Unread, f"unread{len(self.programs)}")
        self.programs.append(program)
        program.start()

    def rival_of(self, user: User, *, takeover: bool, creates: bool = False) -> User:
        """A program that also opens the user's subscription, once."""
        number = len(self.rivals) + 1
        rival = replace(user, rng=Random(self.rng.random()), name=f"rival{number}", takeover=takeover, once=True)
        if creates:
            rival.begin_with(user.stored)
        self.rivals.append(rival)
        return rival

    def session_of(self, crew: Crew) -> User:
        """A program that reads the crew's subscription, once it is no group any more."""
        user = self._draw_user(len(self.rivals) + 1)
        session = replace(
            user,
            name=f"session{len(self.rivals) + 1}",
            shape=crew.shape,
            tenant=crew.tenant,
            subscription=crew.subscription,
            durable=True,
            once=True,
        )
        session.diary = SessionDiary(crew)
        self.rivals.append(session)
        return session

    async def administer(self, tenant: Tenant, work: Callable[[AsyncClient], Awaitable[object]]) -> bool:
        """Run `work` with a tenant's client; returns False if another fault prevents it."""
        self._administered += 1
        try:
            name = f"admin.{self._administered}"
            await run_apart(self.loop, self.network, name, partial(client_of, tenant=tenant), work)
        except FeedmuxError as error:
            self.recorder.note(f"an administrator got {type(error).__name__}: {error}")
            return False
        return True

    async def replay(self, crew: Crew, ids: list[str] | None = None) -> bool:
        """Have letters of a crew delivered again; None: all."""
        name, everything = crew.subscription, ids is None
        return await self.administer(
            crew.tenant, lambda client: client.dead_letters(name).replay(ids, everything=everything)
        )

    async def operate(self, work: Callable[[OperatorClient], Awaitable[object]]) -> None:
        """Run `work` as an operator of one server; do nothing if another fault prevents it."""
        self._administered += 1
        name = f"operator.{self._administered}"
        try:
            await run_apart(self.loop, self.network, name, SimChannel, lambda channel: work(OperatorClient(channel)))
        except AioRpcError as error:
            self.recorder.note(f"an operator got {error.code().name} {error.details()}")
        for server in self.servers:
            if server.stopping:
                await server.drain()
                server.start()

    async def attack(self, tenant: Tenant, calls: int) -> None:
        """Let a program of the tenant send requests that no client would send."""
        self._administered += 1
        positions = [user.stored for user in self.users if user.stored]
        hostile = Hostile(Random(self.rng.random()), self.mongo, positions)

        async def work(channel: SimChannel) -> None:
            for _ in range(calls):
                self.problems += await hostile.call(channel, tenant.key)

        await run_apart(self.loop, self.network, f"{HOSTILE}.{self._administered}", SimChannel, work)

    async def grant(self, tenant: Tenant, granted: str) -> None:
        """Change a tenant's grants on all servers at this moment."""
        tenant.granted, tenant.changed_s = granted, self.loop.time()
        for user in (*self.owners, *self.rivals):
            if user.tenant is tenant:
                user.regranted()
        self.recorder.note(f"{tenant.name} is granted {granted or 'everything'}")
        await asyncio.gather(*(server.read_tenants_again() for server in self.servers))

    async def limit(self, tenant: Tenant, **quotas: int) -> None:
        """Change a tenant's quotas on all servers at this moment."""
        tenant.quotas = replace(tenant.quotas, **quotas)
        await asyncio.gather(*(server.read_tenants_again() for server in self.servers))

    # Running.

    def run(self) -> Outcome:
        numbers = _OfOneThread(self.rng.random())
        few = mock.patch.object(rpc_dead_letters, "LETTERS_MAX", 3)  # of a thousand letters, a run has none
        with clock.replaced(VirtualClock(self.loop)), _drawing_from(numbers), _without_gc(), few:
            with self._logged():
                try:
                    self.loop.run_until_complete(self._main())
                except Exception as error:  # noqa: BLE001 - `Stuck` above all
                    self.problems.append(f"the run did not end: {type(error).__name__}: {error}")
                self._look_at_loop()
            self.loop.bury()
            self.loop.close()
        self.problems += [f"the thread {name} drew from the run's numbers" for name in sorted(numbers.others)]
        self.problems += [str(violation) for violation in self._judge()]
        return Outcome(
            self.seed,
            self.size.name,
            self.recorder.digest,
            self.loop.steps,
            self.loop.time(),
            self.problems,
            self.recorder.records,
            tuple(fault.name for fault in self.faults),
        )

    async def _main(self) -> None:
        for server in self.servers:
            server.start()
        await asyncio.gather(self._start_users(), self._copy(), self._break_things(), self._write())
        await self._calm_down()
        if await self._catch_up():
            await self._rest()
            await self._crowd()
            await self._until(self._late, CATCH_UP_S, 0.5)
        self.recorder.add(records.Settled())
        await self._close()

    async def _start_users(self) -> None:
        for user in self.users:
            await asyncio.sleep(self.rng.uniform(0.0, 1.0))
            user.start()
        for member in self.members:
            await asyncio.sleep(self.rng.uniform(0.0, 1.0))
            member.start()
        for program in self.programs:
            program.start()

    async def _copy(self) -> None:
        """Start the copiers, and change documents while they copy."""
        if not self.copiers:
            return
        rng = self.documents.rng
        self.documents.fill()
        await asyncio.sleep(rng.uniform(0.0, 2.0))
        for copier in self.copiers:
            copier.start()
        pause_s = rng.choice((0.01, 0.1, 0.5))
        for _ in range(self.document_writes):
            self.documents.write([each.last_copied for each in self.copiers])
            await asyncio.sleep(rng.uniform(0.0, pause_s))

    async def _write(self) -> None:
        rng = self.rng
        await asyncio.sleep(rng.uniform(0, 3.0))
        pause_s = rng.choice((0.01, 0.3, 2.0))
        for _ in range(self.writes):
            self.write()
            if rng.random() < 0.5:
                await asyncio.sleep(rng.uniform(0, pause_s))

    def write(self) -> None:
        rng, mongo = self.rng, self.mongo
        collection, padding, group = rng.choice("ab"), rng.choice(self.paddings), rng.randint(1, 2)
        kind = rng.random()
        if kind < 0.15:
            writes = mongo.transaction
            if mongo.profile.shares_time and rng.random() < 0.5:
                writes = mongo.insert_many
            writes("db", collection, rng.randint(2, 6), padding, g=group)
        elif kind < 0.17:
            mongo.drop("db", collection)
        else:
            mongo.insert("db", collection, padding, g=group)

    async def _write_for_all(self) -> None:
        """Write events that all feeds show, in quick succession."""
        for collection in "ab":
            for group in (1, 2):
                self.mongo.insert("db", collection, 0, g=group)
                await asyncio.sleep(self.rng.uniform(0.0, 0.004))
        await asyncio.sleep(self.mongo.lag_s)

    def _committed(self, entries: list[Entry], whole: bool) -> None:
        """Record for the checkers what was written."""
        for entry in entries:
            if self.copiers and entry.database == COPIED.database and not entry.invalidates:
                for changed in _changed(entry, self.mongo):
                    self.recorder.add(changed)
            fragments = entry.shown(split=True)
            unit = f"t{entries[0].number}" if whole else f"s{entry.number}"
            if len(fragments) == 1:
                self._wrote(entry, entry.shown(split=False), self.shapes, unit if whole else "")
            else:
                for split in (False, True):
                    shapes = [shape for shape in self.shapes if shape.split is split]
                    self._wrote(entry, entry.shown(split=split), shapes, unit)

    def _wrote(self, entry: Entry, shown: list[Shown], shapes: list[FeedShape], unit: str) -> None:
        choices = CHOICES if self.tenants else ("",)
        names = [shape.name_for(granted) for shape in shapes for granted in choices if shape.shows(entry, granted)]
        for each in shown if names else ():
            place = hex_of(each.token.raw)
            key = entry.event.get("documentKey")
            written = records.Written(
                str(each.number),
                place,
                tuple(names),
                unit,
                invalidate=entry.invalidates,
                key=f"{entry.collection}/{key['_id']}" if key is not None else "",
            )
            self.recorder.add(written)

    def restored(self, copied: int) -> None:
        """Let MongoDB go back to a copy that ends with this cluster time."""
        self.mongo.restore(copied)
        self._restored_s = self.loop.time()
        self.recorder.add(records.Restored(copied, self.mongo.latest))

    def needed_time(self) -> int:
        """The earliest cluster time from which a user reads or may soon begin to read."""
        needed = [(int(self.loop.true_wall_s() - RECENT_S) << 32)]
        for user in self.owners:
            stored = self.stored_of(user).get(b"cluster_time") if user.durable else None
            # A Redis that loses its last writes has an older position.
            needed += [user.needs, user.needs if stored is None else int(stored) - (int(RECENT_S) << 32)]
        for copier in self.copiers:
            stored = self.stored_of(copier).get(b"cluster_time") if copier.durable else None
            needed += [copier.needs] if stored is None else [int(stored) - (int(RECENT_S) << 32)]
        return min([*needed, *(program.needs for program in self.programs)])

    async def _break_things(self) -> None:
        for fault in self.faults:
            await asyncio.sleep(self.rng.uniform(0.0, 6.0))
            self.recorder.note(f"fault {fault.name}")
            await fault.happen(self)

    # The end.

    async def _calm_down(self) -> None:
        """Repair everything, and let the users continue reading."""
        for server in self.servers:
            if not server.running:
                server.start()
        readers: list[User | Copier] = [*self.users, *self.copiers]
        for reader in readers:
            reader.calm = True
            if not reader.running:
                reader.start()
        for crew in self.crews:
            crew.calm = True
        for member in self.members:
            if not member.running:
                member.start()
        self.recorder.note("no more faults")

    @property
    def owners(self) -> list[User | Crew]:
        """Those who have subscriptions, or read a feed."""
        return [*self.users, *self.crews]

    @property
    def members(self) -> list[Member]:
        """Those of all crews."""
        return [member for crew in self.crews for member in crew.members]

    def _readers(self, *, slowed: bool) -> list[Reader | Crew]:
        """All readers, or those that no quota makes wait and that do not plan before they read."""
        readers: list[Reader | Crew] = [*self.users, *self.programs, *self.crews]
        if slowed:
            return readers
        return [each for each in readers if not is_slowed(each.tenant) and not isinstance(each, Ranging)]

    def _late(self, *, slowed: bool = True) -> list[str]:
        """Users that have not received the newest event of their feed."""
        late = []
        for user in self._readers(slowed=slowed):
            wanted = next(user.wanted(), -1)
            if user.newest < wanted:
                late.append(f"{user.name} has come to {user.newest} of {wanted}")
        return late

    def _unstored(self, *, slowed: bool = True) -> list[str]:
        """Durable users whose stored position is before the newest event of their feed."""
        late = []
        for user in self.owners:
            if not slowed and is_slowed(user.tenant):
                continue
            newest = next((entry for entry in reversed(self.mongo.entries) if user.shows(entry)), None)
            if user.durable and newest is not None and not self._is_stored(user, newest):
                late.append(user.name)
        return late

    def _unready(self) -> list[str]:
        return [server.name for server in self.servers if server.health is None or not server.health.ready]

    def _is_stored(self, user: User | Crew, entry: Entry) -> bool:
        position = self.stored_of(user).get(b"position")
        return position is not None and inspect_position(position).token.reaches(entry.token)

    async def _until(self, late: Callable[[], list[str]], within_s: float, every_s: float) -> list[str]:
        """What is still late after at most `within_s`."""
        until_s = self.loop.time() + within_s
        while found := late():
            if self.loop.time() >= until_s or self.mongo.cursors > CURSORS_MAX:
                return found
            await asyncio.sleep(every_s)
        return []

    async def _catch_up(self) -> bool:
        limit_s = CATCH_UP_S * (SLOWED if any(map(is_slowed, self.tenants)) else 1)
        readers: list[User | Member] = [*self.users, *self.members]
        closed = await self._until(lambda: [each.name for each in readers if not each.reading], limit_s, 0.5)
        self.problems += [f"Convergent: {name} has no session after {limit_s:g} s without faults" for name in closed]
        # A user that begins only now needs an event to show that it reads.
        await self._write_for_all()
        late = await self._until(self._late, limit_s, 0.5)
        self.problems += [f"Convergent: {each} after {limit_s:g} s without faults" for each in late]
        unstored = await self._until(self._unstored, limit_s, 0.5)
        self.problems += [f"Convergent: the acks of {name} are not stored" for name in unstored]
        if not late:
            self.problems += self._not_got()
            await self._replay_letters(limit_s)
        await self._end_copies(limit_s)
        return not late and not unstored

    async def _replay_letters(self, limit_s: float) -> None:
        """All dead letters are delivered again, and deleted. Those that are withheld stay."""
        crews = {crew.name: crew for crew in self.crews}
        left: list[str] = []
        # A handler at work may still reject its event, and a member tell a new host what it has rejected before.
        for within_s in (limit_s / 4, limit_s / 4, limit_s):
            for crew in crews.values():
                if self.letters_of(crew) and not await self.replay(crew):
                    return  # the tenant has to wait
            left = await self._until(lambda: [each for each in crews if self.letters_of(crews[each])], within_s, 0.5)
        self.problems += [
            f"Convergent: {name} has dead letters {limit_s:g} s after a replay"
            for name in left
            if not crews[name].moved
        ]

    async def _end_copies(self, limit_s: float) -> None:
        """Every copy ends, and its sink gets every change after it."""
        for _ in range(self.documents.rng.randint(0, 3) if self.copiers else 0):
            self.documents.write([])
        await asyncio.sleep(self.mongo.lag_s)
        if any(is_slowed(copier.tenant) for copier in self.copiers):
            limit_s = CATCH_UP_S * SLOWED
        copying = await self._until(lambda: [each.name for each in self.copiers if each.reached is None], limit_s, 0.5)
        self.problems += [f"Snapshot ends: {name} still copies after {limit_s:g} s without faults" for name in copying]
        late = await self._until(lambda: [each.name for each in self.copiers if each.is_late()], limit_s, 0.5)
        self.problems += [f"Convergent: {name} is late after {limit_s:g} s without faults" for name in late]
        place = hex_of(self.mongo.mark(self.mongo.visible + 1).raw)
        for copier in self.copiers:
            if not copier.is_late():
                self.recorder.add(copier.holds(place, is_last=True))

    def _not_got(self) -> Iterator[str]:
        """Events that no program received, although a program had to receive each of them sooner or later."""
        for user in self.users:
            if user.begins is None or user.moved:
                continue
            got = user.got.union(*(rival.got for rival in self.rivals if rival.subscription == user.subscription))
            missing = [number for number in user.wanted() if number not in got]
            if missing:
                yield f"At least once: {user.name} has never got {len(missing)} events, the first is {missing[-1]}"
        for crew in self.crews:
            missing = [number for number in crew.wanted() if number not in crew.settled]
            if missing and crew.begins is not None and not crew.moved:
                yield f"At least once: {crew.name} has not processed {len(missing)} events, the first is {missing[-1]}"

    async def _rest(self) -> None:
        """Check the system at rest: an event arrives soon, and its ack is stored soon."""
        await self._until(lambda: [each.name for each in self.members if each.at_work], CATCH_UP_S, 0.5)
        await asyncio.sleep(self.rng.uniform(2.5, 3.5))
        unready = await self._until(self._unready, READY_S, 0.5) if self.settings.probed else []
        self.problems += [f"Convergent: {name} is not ready after {READY_S:g} s" for name in unready]
        await self._write_for_all()
        late = await self._until(lambda: self._late(slowed=False), self.arrives_s, 0.05)
        self.problems += [f"Latency at rest: {each} after {self.arrives_s:g} s" for each in late]
        stored_s = (
            STORED_S + (COMMIT_S if self.crews else 0.0) + self.servers[0].settings.config.redis.commit_interval_s
        )
        unstored = await self._until(lambda: self._unstored(slowed=False), stored_s, 0.05)
        self.problems += [
            f"Durability at rest: the ack of {each} is not stored after {stored_s:g} s" for each in unstored
        ]
        if not late and not unstored:
            self.problems += self._unsettled()

    def _unsettled(self) -> Iterator[str]:
        """What the hosts of groups still have in their ledgers although all is settled."""
        for server in self.servers:
            for group in server.assembly.service.groups if server.assembly is not None else ():
                if not is_slowed(next(crew.tenant for crew in self.crews if crew.name == group.definition.name)):
                    ledger = group.ledger
                    left = len(ledger.events), len(ledger.keys), ledger.ready, ledger.alone, ledger.aside
                    if any(left):
                        yield f"Nothing left: {group.definition.name} has {left} events and keys at {server.name}"

    async def _crowd(self) -> None:
        """Write many events at once: they slow down tenants with a rate limit, and no other tenant."""
        if not self.crowds or not any(is_slowed(tenant) for tenant in self.tenants):
            return
        if self.settings.limits.catch_up_max < len(self.tenants):
            return  # readers that fall behind wait for each other
        for _ in range(CROWD):
            await self._write_for_all()
        limit_s = CROWD_S + NOOP_S * self.mongo.profile.idle_shard
        late = await self._until(lambda: self._late(slowed=False), limit_s, 0.05)
        self.problems += [f"Isolated: {each} after {limit_s:g} s, next to a tenant with a rate limit" for each in late]

    async def _close(self) -> None:
        durable: list[User | Copier] = [*self.users, *self.copiers]
        await asyncio.gather(*(reader.leave() for reader in (*durable, *self.programs, *self.members)))
        held = [user.name for user in durable if user.durable and self.stored_of(user).get(b"nonce")]
        # A member that waits for events which others have processed ends without Close, and its host waits for it.
        away_s = max((crew.reconnect_s for crew in self.crews), default=0.0)
        held += await self._until(self._held_by_crews, away_s + COMMIT_S, 0.05)
        self.problems += [f"Nothing left: the lease of {name} is held after its close" for name in held]
        await asyncio.gather(*(server.drain() for server in self.servers))
        self.problems += [f"Nothing left: a cursor of {len(self.mongo.open)} is open"] if self.mongo.open else []

    def _held_by_crews(self) -> list[str]:
        # A host that has not found out what a lost one had done leaves a lease that is over, and not released.
        return [crew.name for crew in self.crews if self.stored_of(crew).get(b"lease_until_ms", b"0") != b"0"]

    def stored_of(self, user: User | Copier | Crew) -> dict[bytes, bytes]:
        """The stored fields of the user's subscription in Redis."""
        return self._hash_of(user.tenant, user.subscription)

    def has_subscription(self, tenant: Tenant, name: str) -> bool:
        return b"position" in self._hash_of(tenant, name)

    def _hash_of(self, tenant: Tenant, name: str) -> dict[bytes, bytes]:
        return self.redis.hash_of(subscription_key(tenant, name))

    def _look_at_loop(self) -> None:
        parts: list[SimServer | Reader] = [
            *self.servers, *self.users, *self.rivals, *self.programs, *self.copiers, *self.members,
        ]  # fmt: skip
        for part in parts:
            if part.failure is not None:
                self.problems.append(f"{part.process} failed: {part.failure!r}")
        names = {fault.name for fault in self.faults}
        may_meet = MAY_MEET.union(*(fault.meets for fault in self.faults))
        if "another program opens" in names and len(names) > 1:
            may_meet |= {"Fenced"}  # rivals may cost a session its lease
        for user in (*self.users, *self.rivals, *self.copiers, *self.members):
            for error in sorted(user.met - may_meet):
                guarantee = "Fenced" if error in ("Fenced", "SubscriptionBusy") else "Resumable or loud"
                self.problems.append(f"{guarantee}: {user.name} got {error}")
        for copier in self.copiers:
            self.problems += copier.problems
        for program in self.programs:
            self.problems += program.problems
            self.problems += [f"Resumable or loud: {program.name} got {each}" for each in program.met - PROGRAMS_MEET]
        self.problems += [f"Isolated: {each}" for each in self.mongo.unstopped]
        if self.mongo.cursors > CURSORS_MAX:
            self.problems.append(f"Convergent: {self.mongo.cursors} cursors were opened")
        for server in self.servers:
            self.problems += server.problems
        for failure in self.loop.failures:
            self.problems.append(f"{failure.get('message')}: {failure.get('exception')!r}")
        names = {part.process for part in parts}
        left = [task.get_name() for name in sorted(names) for task in self.loop.tasks_of(name)]
        if left and not self.problems:
            self.problems.append(f"Nothing left: tasks {left}")

    def _judge(self) -> Iterator[Violation]:
        yield from check(self.recorder.records)

    # Inspection from inside.

    def _look_inside(self) -> None:
        """Inspect the servers, but not at every moment: an inspection costs more than a moment's work."""
        self._jumps += 1
        if self._jumps % LOOK_EVERY:
            return
        for server in self.servers:
            if server.assembly is not None and len(self.problems) < 10:
                self.problems += [
                    f"Consistent: {server.process}: {each}" for each in discrepancies(server.assembly.manager)
                ]

    # Observation from outside.

    def _watch(self, client: str, method: str) -> Watcher:
        self._calls += 1
        if method != SUBSCRIBE or client.startswith(HOSTILE):
            return Watcher()
        member = next((member for member in self.members if member.process == client), None)
        if member is not None:
            of_member = member.watch(f"{client}/{self._calls}", partial(self._may_tell, member))
            self._watchers[client] = of_member
            return of_member
        user = next((user for user in (*self.users, *self.rivals) if user.process == client), None)
        if user is None:
            return Watcher()
        feed = user.shape.name_for(user.tenant.granted)
        asked, answered = partial(self._may_ask, user), partial(self._may_answer, user)
        watcher = SessionWatcher(self.recorder, f"{client}/{self._calls}", feed, asked, answered)
        self._watchers[user.process] = watcher
        return watcher

    def opening(self, tenant: Tenant) -> bool:
        """Whether a session of the tenant is about to open."""
        if any(program.opening for program in self.programs if program.tenant is tenant):
            return True
        readers: list[User | Member] = [*self.users, *self.rivals, *self.members]
        return any(self.opens(reader) for reader in readers if reader.tenant is tenant)

    def opens(self, user: User | Member) -> bool:
        """Whether a session of the user is about to open."""
        watcher = self._watchers.get(user.process)
        return watcher is not None and watcher.opening

    def _may_ask(self, user: User, request: wire.Open) -> None:
        user.instances.add(request.instance_id)
        if request.takeover and user.reading:
            self.problems.append(f"Fenced: {user.name} takes over again without being asked to")

    def _may_answer(self, user: User, server: str, response: wire.SubscribeResponse) -> None:
        """Check a message that a server writes for a user."""
        if response.HasField("batch"):
            self._may_show(user.tenant, server, response.batch)
            if not user.tenant.granted:
                self._check_bytes(server, response.batch.bson, split=user.shape.split)
        elif response.HasField("committed") and not self.redis.has_lost:
            stored = self.stored_of(user).get(b"position")
            told = inspect_position(response.committed.position).token
            if stored is not None and not inspect_position(stored).token.reaches(told):
                self.problems.append(
                    f"Monotone commit: {server} reports a later stored position for {user.name} than Redis has"
                )

    def _may_tell(self, member: Member, server: str, response: wire.SubscribeResponse) -> None:
        """Check a message that a server writes for a member of a group."""
        if response.HasField("batch"):
            self._may_show(member.tenant, server, response.batch)
        elif response.HasField("committed"):
            member.crew.told(response.committed.position)

    def _may_show(self, tenant: Tenant, server: str, batch: wire.Batch) -> None:
        if self.mongo.restores and self.loop.awake_s(server, self._restored_s) > FORK_KNOWN_S:
            tokens = {event: self.mongo.written[int(event) % PART].token for event in events_in(batch)[0]}
            lost = [event for event, token in tokens.items() if self.mongo.has_lost(token)]
            if lost:
                self.problems.append(f"One history: {server} still shows the event {lost[0]}, which was lost")
        if not tenant.granted or self.loop.awake_s(server, tenant.changed_s) < KNOWN_S:
            return
        events = events_in(batch)[0]
        texts = (batch.bson, *(text.encode() for text in batch.json))
        if tenant.granted == HIDING and any(HIDDEN.encode() in text for text in texts):
            self.problems.append(f"Authorised: {server} shows {tenant.name} a hidden field in {events}")
        hidden = [event for event in events if not allows(tenant.granted, self.mongo.written[int(event) % PART])]
        if hidden:
            self.problems.append(f"Authorised: {server} shows {tenant.name} the event {hidden[0]}")

    def _check_bytes(self, server: str, data: bytes, *, split: bool) -> None:
        """Check that events have the bytes that MongoDB sent, whatever fields these have."""
        for event in decode_file_iter(BytesIO(data), _RAW):
            entry = self.mongo.entry_of(ResumeToken.decode(bson.encode(event["_id"])))  # None after a restore
            if entry is not None and all(event.raw != each.data for each in entry.shown(split=split)):
                self.problems.append(f"Complete: {server} has changed the event {entry.number}")

    @contextmanager
    def _logged(self) -> Iterator[None]:
        """Report exceptions in log lines as problems: the server expects each of the faults."""
        handler = _Logged(self)
        loggers = [logging.getLogger(name) for name in ("feedmux", "feedmux_server")]
        before = [(logger.level, logger.propagate) for logger in loggers]
        for logger in loggers:
            logger.addHandler(handler)
            logger.setLevel(logging.WARNING)
            logger.propagate = False
        try:
            yield
        finally:
            for logger, (level, propagate) in zip(loggers, before, strict=True):
                logger.removeHandler(handler)
                logger.setLevel(level)
                logger.propagate = propagate


def _changed(entry: Entry, mongo: SimMongo) -> Iterator[records.Changed]:
    """The records of a change to collections that are copied."""
    place, key = hex_of(entry.token.raw), entry.event.get("documentKey")
    if key is None:
        yield records.Changed(place, f"{entry.collection}/", "")
        if entry.to:
            yield records.Changed(place, f"{entry.to}/", "")
        for rank, document in (entry.moved or {}).items():
            yield records.Changed(place, f"{entry.to}/{rank}", version_of(document))
        return
    rank = rank_of(key["_id"])
    found = mongo.state_after(entry.database, entry.collection, entry.token).get(rank)
    yield records.Changed(place, f"{entry.collection}/{rank}", "" if found is None else version_of(found))


class _Logged(logging.Handler):
    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        world = self._world
        text = f"{process.get()} logs: {record.getMessage()}"
        if record.exc_info and record.exc_info[1] is not None and not isinstance(record.exc_info[1], Sick):
            world.problems.append(f"{text}: {record.exc_info[1]!r}")
        if world.recorder.say is not None:
            world.recorder.say(f"{world.loop.time():10.6f} {text} {_extra(record)}")


def _extra(record: logging.LogRecord) -> str:
    names = ("reason", "error", "code", "stream")
    return " ".join(f"{name}={getattr(record, name)}" for name in names if hasattr(record, name))


class _OfOneThread(Random):
    """Notes draws by other threads: such draws change the run."""

    def __init__(self, seed: float) -> None:
        super().__init__(seed)
        self._own = threading.current_thread()
        self.others: set[str] = set()

    def random(self) -> float:
        self._look()
        return super().random()

    def getrandbits(self, k: int, /) -> int:
        self._look()
        return super().getrandbits(k)

    def _look(self) -> None:
        if (thread := threading.current_thread()) is not self._own:
            self.others.add(thread.name)


@lru_cache(1)
def _drawing(modules: int) -> list[ModuleType]:
    """feedmux's modules that draw from `random`, among this number of imported modules."""
    return [
        module
        for name, module in sys.modules.copy().items()
        if name.startswith(("feedmux.", "feedmux_server.")) and getattr(module, "random", None) is random
    ]


@contextmanager
def _drawing_from(rng: Random) -> Iterator[None]:
    """Let feedmux's modules draw from `rng` instead of the module `random`, from which other threads draw too."""
    drawing = _drawing(len(sys.modules))
    for module in drawing:
        module.random = rng  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for module in drawing:
            module.random = random  # type: ignore[attr-defined]


@contextmanager
def _without_gc() -> Iterator[None]:
    """Disable garbage collection: its moments depend on what ran before, and a coroutine that it collects runs its
    `finally`."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def simulate(
    seed: int,
    size: Size = SMALL,
    say: Callable[[str], None] | None = None,
    scenario: str = "",
    keep: Keep = EVERYTHING,
) -> Outcome:
    """Run and judge one seed. `say` gets the lines of a trace."""
    return World(seed, size, say, scenario, keep).run()
