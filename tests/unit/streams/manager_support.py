"""A manager without MongoDB: real pumps, streams and sessions over events that the tests write."""

import asyncio
from bisect import bisect_left
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from feedmux.v1 import change_feed_pb2 as wire
from feedmux_server.core.delivery.feed_streams import StreamLimits
from feedmux_server.core.delivery.replay_buffer import ReplayBuffer, RingLimits
from feedmux_server.core.delivery.shared_stream import SharedStream
from feedmux_server.core.delivery.stream_steps import RestLimits
from feedmux_server.core.delivery.taken import BSON, Delivery
from feedmux_server.core.delivery.wide_plan import WideLimits
from feedmux_server.core.errors import FeedmuxError
from feedmux_server.core.events.chunk import cut_batch
from feedmux_server.core.feeds.feed import FeedSpec, Scope
from feedmux_server.core.feeds.stream_key import StreamKey, stream_key
from feedmux_server.core.limits.account import Accounts
from feedmux_server.core.limits.quota import Quotas
from feedmux_server.core.positions.join_point import JoinPoint
from feedmux_server.core.positions.position import PositionEncoder
from feedmux_server.core.positions.position_keys import PositionKeys
from feedmux_server.rpc.response_encoder import ResponseEncoder
from feedmux_server.sessions.outputs import Output
from feedmux_server.sessions.session import Reading, Session, SessionPolicy
from feedmux_server.source.deployment import Source
from feedmux_server.source.oplog import Oplog
from feedmux_server.source.reader import Batch
from feedmux_server.source.timeline import SourceTimeline
from feedmux_server.streams.key_streams import KeyStreams, ManagerLimits
from feedmux_server.streams.manager import StreamManager
from feedmux_server.streams.pump import PumpLimits
from feedmux_server.streams.upstream import Reader
from feedmux_server.supervision import Tasks
from feedmux_server.telemetry.observer import NOBODY
from tests.sim.events import event
from tests.unit.core.delivery.streams_support import mark, token

MESSAGE_BYTES = 1024 * 1024


def rings_of(manager: StreamManager) -> list[ReplayBuffer]:
    """All rings of the stream manager."""
    own = [stream.ring for each in manager.keyed() for stream in each.streams.open]
    return own + [wide.ring for wide in manager.wide.streams()]


@dataclass(slots=True, eq=False)
class Log:
    """The events of one feed, counted from 1. `base` is added to each event number, so that feeds can be told apart."""

    base: int
    events: list[bytes] = field(default_factory=list)
    complete_time: int = 0
    """What a read without events reports."""
    error: FeedmuxError | None = None
    """What ends the feed after its events."""

    def write(self, count: int, padding: int = 0) -> None:
        for _ in range(count):
            number = len(self.events) + 1
            self.events.append(event(self.base + number, token(number), padding).data)


class Forgetful:
    """Stands for the handle of a committer; stores nothing."""

    def submit(
        self, position: bytes, cluster_time: int, order: bytes, delivery_sequence: int, *, moves_back: bool = False
    ) -> None: ...

    def delivered(self, cluster_time: int) -> None: ...

    async def flush(self, timeout_s: float) -> None: ...


class LogReader:
    """A change stream over a log."""

    def __init__(self, log: Log, stream: SharedStream, chunk_bytes: int) -> None:
        self._log = log
        self._stream = stream
        self._chunk_bytes = chunk_bytes
        self.is_open = False

    @property
    def has_cursor(self) -> bool:
        return self.is_open

    async def open(self) -> None:
        self.is_open = True

    async def read(self) -> Batch:
        place = self._stream.ring.newest
        first = bisect_left(range(len(self._log.events)), True, key=lambda n: token(n + 1).is_after(place))
        new = self._log.events[first : first + 50]
        if not new and self._log.error is not None:
            raise self._log.error
        await asyncio.sleep(0 if new else 0.005)
        end = mark(first + len(new)) if new else place
        chunks = cut_batch(b"".join(new), place, end, 0.0, bytes_max=self._chunk_bytes)
        return Batch(chunks, end, exhausted=False, complete_time=0 if new else self._log.complete_time)

    def interrupt(self) -> None: ...

    async def close(self) -> None:
        self.is_open = False


@dataclass(slots=True, eq=False)
class World:
    manager: StreamManager
    logs: dict[StreamKey, Log]
    sessions: list[Session] = field(default_factory=list)

    def feed(self, name: str) -> tuple[StreamKey, Log]:
        """The feed of the database `name`."""
        key = stream_key(FeedSpec(Scope("main", name, "c")))
        return key, self.logs.setdefault(key, Log(1_000_000 * (len(self.logs) + 1)))

    def session(
        self,
        key: StreamKey,
        tenant: str,
        after: int | JoinPoint,
        wire_format: str = BSON,
        *,
        durable: bool = False,
        heartbeat_s: float = 10.0,
        credit: int = 1 << 20,
    ) -> "Client":
        """Begin a session after event `after`, or at a position. It ends with the world at the latest."""
        positions = PositionEncoder(PositionKeys([bytes(32)]), bytes(8), key.short)
        encoder = ResponseEncoder(positions, wire_format, MESSAGE_BYTES)
        at = after if isinstance(after, JoinPoint) else JoinPoint(mark(after), exact=True)
        reading = Reading(key, tenant, at, positions, SessionPolicy(heartbeat_s), encoder.payload_max, wire_format)
        session = Session.begin(self.manager, reading, (lambda _: Forgetful()) if durable else None)
        session.grant(100_000, credit)
        self.sessions.append(session)
        return Client(session, encoder, wire_format)

    def evict(self) -> bool:
        """Evict the oldest chunk of the largest ring, as the memory budget does."""
        rings = [ring for ring in rings_of(self.manager) if len(ring) > 1]
        if rings:
            max(rings, key=lambda ring: ring.bytes).drop_oldest()
        return bool(rings)


@dataclass(slots=True, eq=False)
class Client:
    """Reads a session as `rpc.session_lifecycle` writes it; grants back the credit for the events that it sees."""

    session: Session
    encoder: ResponseEncoder
    wire_format: str
    events: list[bytes] = field(default_factory=list)

    async def next(self) -> Output | None:
        output = await self.session.next_output()
        if isinstance(output, Delivery):
            self.session.written(output)
            seen = self._seen(output)
            self.events += seen
            self.session.grant(len(seen), sum(map(len, seen)))
        return output

    async def take(self, count: int) -> list[bytes]:
        """Read until `count` events have arrived in all."""
        while len(self.events) < count:
            await self.next()
        return self.events

    def close(self) -> None:
        self.session.close()

    def _seen(self, delivery: Delivery) -> list[bytes]:
        responses = [wire.SubscribeResponse.FromString(frame) for frame in self.encoder.frames(delivery)]
        if responses[0].HasField("event_fragment"):
            return [b"".join(response.event_fragment.data for response in responses)]
        (response,) = responses
        if self.wire_format != BSON:
            return [text.encode() for text in response.batch.json]
        data, found, at = response.batch.bson, list[bytes](), 0
        while at < len(data):
            size = int.from_bytes(data[at : at + 4], "little")
            found.append(data[at : at + size])
            at += size
        return found


@asynccontextmanager
async def world(
    monkeypatch: pytest.MonkeyPatch,
    *,
    chunk_bytes: int = 2000,
    ring_bytes: int = 1 << 20,
    memory_bytes: int = 1 << 30,
    quotas: Quotas | None = None,
    unacked_max: int = 50_000,
    unused_stream_s: float = 0.05,
    slots: int = 32,
) -> AsyncIterator[World]:
    """Run a manager whose streams read logs."""
    logs: dict[StreamKey, Log] = {}
    monkeypatch.setattr(
        KeyStreams, "_reader_at", lambda self, stream: cast(Reader, LogReader(logs[self.key], stream, chunk_bytes))
    )
    commands: Any = SimpleNamespace(name="main")
    timeline = SourceTimeline(commands, cast(Oplog, None), NOBODY)
    source = SimpleNamespace(name="main", clock=SimpleNamespace(known_time=1 << 63), timeline=timeline)
    limits = ManagerLimits(
        streams=StreamLimits(RingLimits(bytes_max=ring_bytes), read_ahead_bytes=ring_bytes // 2, join_distance_s=0),
        pump=PumpLimits(coalesce_s=0.0, rest=RestLimits(unused_stream_s=unused_stream_s)),
        memory_bytes_max=memory_bytes,
        unacked_events_max=unacked_max,
        catch_up_max=slots,
        wide=WideLimits(enabled=False),
    )
    accounts = Accounts(lambda _: quotas or Quotas(), lambda: asyncio.get_running_loop().time())
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    ready: asyncio.Future[StreamManager] = asyncio.get_running_loop().create_future()

    async def run() -> None:  # a group of tasks must begin and end in one task
        async with Tasks() as tasks:
            manager = StreamManager({"main": cast(Source, source)}, limits, tasks, accounts)
            ready.set_result(manager)
            await done
            manager.stop()
            await manager.renderers.chunks.close()
            await manager.renderers.large.close()

    running = asyncio.create_task(run())
    made = World(await ready, logs)
    try:
        yield made
    finally:
        for session in made.sessions:  # a session that a failed test left open would otherwise open streams forever
            session.close()
        done.set_result(None)
        await running
