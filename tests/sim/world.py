"""One run of the simulation: draws servers, users and faults from a seed, lets them run, and judges what happened.

A run has two parts. First everything is written, read and broken at random. Then the faults stop: every user must come
to the end within `CATCH_UP_S`, an event must arrive soon and its ack be stored soon without any heartbeat's help, and
when all have gone nothing may be left.
"""

import asyncio
import gc
import logging
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final

from feedmux import SessionOptions
from feedmux_server import clock
from feedmux_server.assembly import hub_limits
from feedmux_server.core.credit import CreditLimits
from feedmux_server.core.feed_streams import StreamLimits
from feedmux_server.core.replay_buffer import RingLimits
from feedmux_server.fanout.pump import PumpLimits
from feedmux_server.source.reader import ReadLimits
from tests.model import records
from tests.model.checkers import Violation, check
from tests.sim.faults import FAULTS, Fault
from tests.sim.loop import SimLoop, process
from tests.sim.mongo import Entry, SimMongo
from tests.sim.network import Network, Watcher
from tests.sim.redis import SimRedis
from tests.sim.servers import ServerSettings, SimServer, config_of
from tests.sim.users import FeedShape, Habits, User
from tests.sim.wire import SUBSCRIBE, Recorder, SessionWatcher, StoreWatcher, hex_of
from tests.virtual_time import VirtualClock

CATCH_UP_S: Final = 120.0
ARRIVES_S: Final = 0.7
"""An event is handed out so soon where everybody waits for it: less than a heartbeat, more than all latencies."""
STORED_S: Final = 0.3
"""And its ack is stored so soon, beside the server's interval: the client's, and the latencies."""

RECENT_S: Final = 5.0
"""Who begins now may take so long until the place is where others see it."""
MAY_MEET: Final = frozenset({"FeedInvalidated", "Fenced", "SubscriptionBusy", "Unavailable"})
"""What the faults may end a session with. No other error has a cause here."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much happens in a run."""

    name: str
    servers: tuple[int, int]
    users: tuple[int, int]
    writes: tuple[int, int]
    faults: tuple[int, int]


SMALL: Final = Size("small", (1, 2), (2, 3), (15, 40), (0, 2))
LARGE: Final = Size("large", (1, 3), (4, 8), (80, 200), (2, 7))
SIZES: Final = {size.name: size for size in (SMALL, LARGE)}


@dataclass(slots=True)
class Outcome:
    """What a run came to."""

    seed: int
    size: str
    digest: str
    steps: int
    virtual_s: float
    problems: list[str]
    history: list[records.Record] = field(repr=False, default_factory=list)
    faults: tuple[str, ...] = ()


class World:
    """One run."""

    def __init__(self, seed: int, size: Size = SMALL, say: Callable[[str], None] | None = None) -> None:
        self.seed = seed
        self.size = size
        self.rng = rng = Random(f"feedmux {size.name} {seed}")
        self.loop = SimLoop(Random(rng.random()))
        self.recorder = Recorder(self.loop.time)
        self.recorder.say = say
        self.problems: list[str] = []
        self.network = Network(self.loop, Random(rng.random()))
        self.network.watch = self._watch
        self.mongo = SimMongo(self.loop, Random(rng.random()))
        self.redis = SimRedis(self.loop, Random(rng.random()))
        self._store_watcher = StoreWatcher(self.recorder, self.redis)
        self.unacked_max = rng.choice((5, 20, 1000))
        settings = self._draw_settings()
        self.servers = [
            SimServer(self.loop, f"server{number}", settings, self.mongo, self.redis, self.network)
            for number in range(1, rng.randint(*size.servers) + 1)
        ]
        self.shapes = self._draw_shapes()
        self.users = [self._draw_user(number) for number in range(1, rng.randint(*size.users) + 1)]
        self.faults: list[Fault] = [rng.choice(FAULTS) for _ in range(rng.randint(*size.faults))]
        self.rivals: list[User] = []
        """Programs that take subscriptions of others over for a while."""
        self._calls = 0

    # Drawing.

    def _draw_settings(self) -> ServerSettings:
        rng = self.rng
        config = config_of(
            redis=(("lease_s", rng.choice((6.0, 15.0))), ("commit_interval_s", rng.choice((0.05, 0.5)))),
            wide=(("enabled", False),),
        )
        ring = RingLimits(rng.choice((5, 50, 500_000)), rng.choice((2_000, 20_000, 4 << 20)))
        limits = replace(
            hub_limits(config.limits, config.wide),
            streams=StreamLimits(ring, max(1, ring.bytes_max // 2), rng.choice((0, 5, 10))),
            pump=PumpLimits(rng.choice((0.0, 0.005, 0.2)), rng.choice((0.5, 10.0)), rng.choice((2.0, 60.0))),
            read=ReadLimits(batch_events=rng.choice((2, 10, 4_000)), max_await_ms=rng.choice((300, 1_000))),
            credit=CreditLimits(rng.choice((10, 1_000_000)), rng.choice((2_000, 64 << 20))),
            trailing_max=rng.choice((1, 2, 32)),
            unacked_events_max=self.unacked_max,
        )
        return ServerSettings(config, limits)

    def _draw_shapes(self) -> list[FeedShape]:
        everything = [
            FeedShape("db.a", "db", "a"),
            FeedShape("db.b", "db", "b"),
            FeedShape("db", "db"),
            FeedShape("db.a of 1", "db", "a", (("fullDocument.g", 1),)),
        ]
        return self.rng.sample(everything, self.rng.randint(1, 3))

    def _draw_user(self, number: int) -> User:
        rng = self.rng
        options = SessionOptions(
            window_events=rng.choice((3, 30, 16_384)),
            window_bytes=rng.choice((2_000, 8 << 20)),
            heartbeat_s=rng.choice((1.0, 10.0)),
        )
        habits = Habits(
            by_batch=rng.random() < 0.5,
            ack_share=rng.choice((0.0, 0.3, 1.0)),
            think_s=rng.choice((0.0, 0.2, 3.0)),
            leave_share=rng.choice((0.0, 0.01, 0.1)),
            options=options,
        )
        return User(
            self.loop,
            Random(rng.random()),
            self.mongo,
            self.network,
            self.recorder,
            f"user{number}",
            rng.choice(self.shapes),
            durable=rng.random() < 0.7,
            habits=habits,
            subscription=f"user{number}",
        )

    def rival_of(self, user: User) -> User:
        """One that takes its subscription over."""
        number = len(self.rivals) + 1
        habits = replace(user.habits, takeover=True)
        rival = replace(user, rng=Random(self.rng.random()), name=f"rival{number}", habits=habits)
        self.rivals.append(rival)
        return rival

    # Running.

    def run(self) -> Outcome:
        with clock.replaced(VirtualClock(self.loop)), _drawing_from(Random(self.rng.random())), _without_gc():
            with self._logged():
                try:
                    self.loop.run_until_complete(self._main())
                except Exception as error:  # noqa: BLE001 - `Stuck` above all
                    self.problems.append(f"the run did not end: {type(error).__name__}: {error}")
                self._look_at_loop()
            self.loop.bury()
            self.loop.close()
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
        await asyncio.gather(self._start_users(), self._break_things(), self._write())
        await self._calm_down()
        if await self._catch_up():
            await self._rest()
        self.recorder.add(records.Settled())
        await self._close()

    async def _start_users(self) -> None:
        for user in self.users:
            await asyncio.sleep(self.rng.uniform(0.0, 1.0))
            user.start()

    async def _write(self) -> None:
        rng = self.rng
        await asyncio.sleep(rng.uniform(0, 3.0))
        pause_s = rng.choice((0.01, 0.3, 2.0))
        for _ in range(rng.randint(*self.size.writes)):
            self.write()
            if rng.random() < 0.5:
                await asyncio.sleep(rng.uniform(0, pause_s))

    def write(self) -> None:
        rng, mongo = self.rng, self.mongo
        collection, padding, group = rng.choice("ab"), rng.choice((0, 50, 400, 3_000)), rng.randint(1, 2)
        kind = rng.random()
        if kind < 0.15:
            self.wrote(mongo.transaction("db", collection, rng.randint(2, 6), padding, g=group), whole=True)
        elif kind < 0.17:
            self.wrote(mongo.drop("db", collection))
        else:
            self.wrote(mongo.insert("db", collection, padding, g=group))

    def wrote(self, entries: list[Entry], *, whole: bool = False) -> None:
        """Notes what was written for the checkers."""
        for entry in entries:
            feeds = tuple(shape.name for shape in self.shapes if shape.shows(entry))
            self.recorder.add(
                records.Written(
                    str(entry.number),
                    hex_of(entry.token.raw),
                    feeds or ("none",),
                    f"t{entries[0].number}" if whole else "",
                    invalidate=entry.invalidates,
                )
            )

    def needed_time(self) -> int:
        """The earliest cluster time from which somebody reads, or is about to begin."""
        needed = [(int(self.loop.wall_s() - RECENT_S) << 32)]
        for user in self.users:
            stored = self._stored(user).get(b"cluster_time") if user.durable else None
            needed.append(user.needs if stored is None else int(stored))
        return min(needed)

    async def _break_things(self) -> None:
        for fault in self.faults:
            await asyncio.sleep(self.rng.uniform(0.0, 6.0))
            self.recorder.note(f"fault {fault.name}")
            await fault.happen(self)

    # The end.

    async def _calm_down(self) -> None:
        """No fault any more, and users that read on."""
        for server in self.servers:
            if not server.running:
                server.start()
        for user in self.users:
            user.calm = True
            if not user.running:
                user.start()
        self.recorder.note("calm")

    def _late(self) -> list[str]:
        """Users that have not been handed the newest event of their feed."""
        late = []
        for user in self.users:
            wanted = max((entry.number for entry in self.mongo.entries if user.shape.shows(entry)), default=-1)
            if user.newest < wanted:
                late.append(f"{user.name} has come to {user.newest} of {wanted}")
        return late

    def _unstored(self) -> list[str]:
        """Durable users whose stored position is before the newest event of their feed."""
        late = []
        for user in self.users:
            shown = [entry for entry in self.mongo.entries if user.shape.shows(entry)]
            if user.durable and shown and not self._is_stored(user, shown[-1]):
                late.append(user.name)
        return late

    def _is_stored(self, user: User, entry: Entry) -> bool:
        return int(self._stored(user).get(b"cluster_time", b"0")) >= entry.token.cluster_time

    async def _until(self, late: Callable[[], list[str]], within_s: float, every_s: float) -> list[str]:
        """What is late still, after so long at most."""
        until_s = self.loop.time() + within_s
        while found := late():
            if self.loop.time() >= until_s:
                return found
            await asyncio.sleep(every_s)
        return []

    async def _catch_up(self) -> bool:
        closed = await self._until(lambda: [user.name for user in self.users if not user.reading], CATCH_UP_S, 0.5)
        self.problems += [f"Convergent: {name} has no session after {CATCH_UP_S:g} s without faults" for name in closed]
        # Who begins only now needs an event to show that it reads.
        for collection in "ab":
            self.wrote(self.mongo.insert("db", collection, 0, g=1))
        late = await self._until(self._late, CATCH_UP_S, 0.5)
        self.problems += [f"Convergent: {each} after {CATCH_UP_S:g} s without faults" for each in late]
        unstored = await self._until(self._unstored, CATCH_UP_S, 0.5)
        self.problems += [f"Convergent: the acks of {name} are not stored" for name in unstored]
        return not late and not unstored

    async def _rest(self) -> None:
        """Nothing is under way: an event comes soon, and what is acked is stored soon."""
        await asyncio.sleep(self.rng.uniform(2.5, 3.5))
        for collection in "ab":
            self.wrote(self.mongo.insert("db", collection, 0, g=1))
        late = await self._until(self._late, ARRIVES_S, 0.05)
        self.problems += [f"Latency at rest: {each} after {ARRIVES_S:g} s" for each in late]
        stored_s = STORED_S + self.servers[0].settings.config.redis.commit_interval_s
        unstored = await self._until(self._unstored, stored_s, 0.05)
        self.problems += [
            f"Durability at rest: the ack of {each} is not stored after {stored_s:g} s" for each in unstored
        ]

    async def _close(self) -> None:
        await asyncio.gather(*(user.leave() for user in self.users))
        held = [user.name for user in self.users if user.durable and self._stored(user).get(b"nonce")]
        self.problems += [f"Nothing left: the lease of {name} is held after its close" for name in held]
        await asyncio.gather(*(server.drain() for server in self.servers))
        self.problems += [f"Nothing left: a cursor of {len(self.mongo.open)} is open"] if self.mongo.open else []

    def _stored(self, user: User) -> dict[bytes, bytes]:
        """What Redis has of its subscription."""
        return self.redis.hash_of(f"feedmux:1:{{default/{user.subscription}}}".encode())

    def _look_at_loop(self) -> None:
        parts: list[SimServer | User] = [*self.servers, *self.users, *self.rivals]
        for part in parts:
            if part.failure is not None:
                self.problems.append(f"{part.process} failed: {part.failure!r}")
        for user in (*self.users, *self.rivals):
            self.problems += [f"Resumable or loud: {user.name} met {error}" for error in sorted(user.met - MAY_MEET)]
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

    # Seen from outside.

    def _watch(self, client: str, method: str) -> Watcher:
        self._calls += 1
        if method != SUBSCRIBE:
            return Watcher()
        user = next(user for user in (*self.users, *self.rivals) if user.process == client)
        return SessionWatcher(self.recorder, f"{client}/{self._calls}", user.shape.name)

    @contextmanager
    def _logged(self) -> Iterator[None]:
        """An exception in a log line is a defect, for none of the faults is unexpected."""
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


class _Logged(logging.Handler):
    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        world = self._world
        text = f"{process.get()} logs: {record.getMessage()}"
        if record.exc_info and record.exc_info[1] is not None:
            world.problems.append(f"{text}: {record.exc_info[1]!r}")
        if world.recorder.say is not None:
            world.recorder.say(f"{world.loop.time():10.6f} {text} {_extra(record)}")


def _extra(record: logging.LogRecord) -> str:
    names = ("reason", "error", "code", "stream")
    return " ".join(f"{name}={getattr(record, name)}" for name in names if hasattr(record, name))


@contextmanager
def _drawing_from(rng: Random) -> Iterator[None]:
    """feedmux's modules draw from `rng` instead of the module `random`, from which threads of others draw too."""
    drawing = [
        module
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] in ("feedmux", "feedmux_server") and getattr(module, "random", None) is random
    ]
    for module in drawing:
        module.random = rng  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for module in drawing:
            module.random = random  # type: ignore[attr-defined]


@contextmanager
def _without_gc() -> Iterator[None]:
    """When Python looks for cycles depends on what ran before, and a coroutine that it finds runs its `finally`."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def simulate(seed: int, size: Size = SMALL, say: Callable[[str], None] | None = None) -> Outcome:
    """One run, judged."""
    return World(seed, size, say).run()
