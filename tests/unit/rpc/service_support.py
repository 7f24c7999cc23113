"""The RPCs of a whole server over the simulated MongoDB and Redis, called without gRPC."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from google.protobuf.message import Message

from feedmux.v1 import change_feed_pb2 as wire
from feedmux.v1 import feed_pb2, subscriptions_pb2
from feedmux_server.assembly import assemble
from feedmux_server.config.server import Config
from feedmux_server.core.errors import FeedmuxError
from feedmux_server.core.feeds.feed import Scope
from feedmux_server.credentials import Credentials
from feedmux_server.rpc.auth import ANONYMOUS
from feedmux_server.rpc.caller import identified
from feedmux_server.rpc.resolve_position import ResolvePosition
from feedmux_server.rpc.service import Service
from feedmux_server.rpc.subscribe import Subscribe
from feedmux_server.rpc.subscriptions import Subscriptions
from feedmux_server.supervision import Tasks
from feedmux_server.telemetry.audit import AuditEvent
from feedmux_server.telemetry.observer import NOBODY
from tests.sim.mongo import SimMongo, SimSource
from tests.sim.redis import SimRedis, SimRedisClient
from tests.unit.simulated import connected, sim_redis

FEED = feed_pb2.Feed(source="main", database="db", collection="a")
INLINE: dict[str, Any] = {"feed": FEED, "start": {"latest": {}}}


class Audited:
    """Keeps what is recorded in the audit log."""

    def __init__(self) -> None:
        self.events: list[tuple[AuditEvent, str]] = []

    def record(self, event: AuditEvent, *, subscription: str = "", **_: object) -> None:
        self.events.append((event, subscription))


@dataclass
class Context:
    """What a handler uses of gRPC's context; keeps the messages that were written."""

    written: list[bytes] = field(default_factory=list)

    def peer(self) -> str:
        return "ipv4:10.0.0.1:5"

    async def write(self, data: bytes) -> None:
        await asyncio.sleep(0)  # as gRPC's
        self.written.append(data)


@dataclass
class Served:
    service: Service
    mongo: SimMongo
    redis: SimRedis
    audit: Audited

    async def create(self, name: str, **more: Any) -> subscriptions_pb2.Subscription:
        start = more.pop("start", {"latest": {}})
        wanted = subscriptions_pb2.Subscription(name=name, feed=more.pop("feed", FEED), **more)
        request = subscriptions_pb2.CreateSubscriptionRequest(subscription=wanted, start=start)
        data = await call(Subscriptions(self.service).create, request)
        return subscriptions_pb2.Subscription.FromString(data)

    async def update(self, name: str, *paths: str, **fields: Any) -> subscriptions_pb2.Subscription:
        """Without paths, the fields that are given are changed."""
        request = subscriptions_pb2.UpdateSubscriptionRequest(
            subscription={"name": name, **fields}, update_mask={"paths": paths}
        )
        data = await call(Subscriptions(self.service).update, request)
        return subscriptions_pb2.Subscription.FromString(data)

    async def seek(self, name: str, **to: Any) -> subscriptions_pb2.Subscription:
        data = await call(Subscriptions(self.service).seek, subscriptions_pb2.SeekSubscriptionRequest(name=name, to=to))
        return subscriptions_pb2.Subscription.FromString(data)

    async def position(self, **more: Any) -> bytes:
        """The present position of the feed, or that of another start."""
        data = await call(ResolvePosition(self.service), wire.ResolvePositionRequest(**INLINE | more))
        return wire.ResolvePositionResponse.FromString(data).position


class Stream:
    """The client's end of one call of Subscribe."""

    def __init__(self, there: Served, **fields: Any) -> None:
        self._requests: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._context = Context()
        if fields:
            self.send(open=wire.Open(**fields))
        handler: Any = Subscribe(there.service)
        self.task: asyncio.Task[None] = asyncio.create_task(handler(self._sent(), self._context))

    async def _sent(self) -> AsyncIterator[bytes]:
        while (data := await self._requests.get()) is not None:
            yield data

    def send(self, **message: Any) -> None:
        self.send_bytes(wire.SubscribeRequest(**message).SerializeToString())

    def send_bytes(self, data: bytes) -> None:
        self._requests.put_nowait(data)

    def half_close(self) -> None:
        self._requests.put_nowait(None)

    async def opened(self) -> wire.Opened:
        async with asyncio.timeout(600):  # of virtual time
            while not self._context.written:
                await asyncio.sleep(0.01)
        return self.received[0].opened

    @property
    def received(self) -> list[wire.SubscribeResponse]:
        return [wire.SubscribeResponse.FromString(data) for data in self._context.written]

    async def error(self) -> FeedmuxError:
        return await rejected(self.task)


async def call(handler: Any, request: Message, context: Context | None = None) -> Any:
    return await handler(request.SerializeToString(), context or Context())


async def rejected(made: Awaitable[object]) -> FeedmuxError:
    with pytest.raises(FeedmuxError) as caught:
        await made
    return caught.value


async def refused(handler: Any, request: Message) -> FeedmuxError:
    return await rejected(call(handler, request))


class NoLetters:
    """A collection for dead letters that nobody writes to."""

    def hidden_database(self, scope: Scope) -> str:
        return ""

    def shares(self) -> dict[str, float]:
        return {}


@asynccontextmanager
async def served(
    *, letters: Any = None, state: SimRedis | None = None, token_version: int = 1, **sections: Any
) -> AsyncIterator[Served]:
    """Assemble a server without authentication; `sections` are of its configuration, `letters` stands for the
    collection for dead letters, and `state` is the Redis of another server."""
    source, mongo = await connected(SimSource, token_version)
    redis, audit = state or sim_redis()[0], Audited()
    config = Config.model_validate({"sources": {"main": {"uri": "mongodb://sim"}}, **sections})
    credentials = Credentials(config, insecure_no_auth=True)
    credentials.position_keys.replace([bytes(32)])
    identified(ANONYMOUS)
    client: Any = SimRedisClient(redis)
    log: Any = SimpleNamespace(record=audit.record)
    async with Tasks() as tasks:
        assembly = assemble(
            config, {"main": source}, client, credentials, tasks, NOBODY, log, asyncio.Event(), letters=letters
        )
        yield Served(assembly.service, mongo, redis, audit)
        await assembly.close()
    await source.close()
