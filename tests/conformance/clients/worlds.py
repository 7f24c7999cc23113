"""The environment of the scenarios: one MongoDB, one Redis, feedmux servers on them, and a scripted server.

A `Stage` is what one run of a scenario has for itself: a database, names of subscriptions, a proxy between the client
and its server. Servers are shared by all scenarios, but for those of the stage `own`, which may drain them.
"""

import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from cryptography import x509
from pymongo import MongoClient
from pymongo.database import Database

from feedmux.v1 import change_feed_pb2, feed_pb2, subscriptions_pb2
from feedmux_embedded import RedisServer, ReplicaSet
from tests.conformance.clients.scenario import Case
from tests.conformance.clients.scripts import script
from tests.conformance.proxy import Proxy, proxied
from tests.integration.certificates import Authority
from tests.integration.issuer import AUDIENCE, ISSUER, SigningPair, jwks
from tests.integration.servers import Here, serving, settings
from tests.integration.tenancy import configuration, entry
from tests.integration.wire import Api
from tests.unit.client.scripted_server import ScriptedServer

Document = dict[str, Any]
KEY = "key-of-the-conformance-tenant-canary"
CERTIFIED = {"tls": {"root": "@root", "certificate": "@certificate", "key": "@private_key", "server_name": "localhost"}}
"""What a client is made with that shows a certificate and no key."""


def _stored(start: feed_pb2.Start) -> Any:
    if start.HasField("snapshot"):
        return grpc.StatusCode.INTERNAL, "INTERNAL", None, "it would have stored the present"
    return subscriptions_pb2.Subscription(name="sub", position=b"P1")


def _resolved(start: feed_pb2.Start) -> Any:
    if start.HasField("snapshot"):
        return grpc.StatusCode.INVALID_ARGUMENT, "MESSAGE_INVALID", None, "start is required"
    return change_feed_pb2.ResolvePositionResponse(position=b"P1")


OLDER: dict[str, Callable[[bytes], Any]] = {
    "CreateSubscription": lambda raw: _stored(subscriptions_pb2.CreateSubscriptionRequest.FromString(raw).start),
    "SeekSubscription": lambda raw: _stored(subscriptions_pb2.SeekSubscriptionRequest.FromString(raw).to),
    "GetSubscription": lambda _: subscriptions_pb2.Subscription(name="sub", position=b"P1"),
    "ResolvePosition": lambda raw: _resolved(change_feed_pb2.ResolvePositionRequest.FromString(raw).start),
}
"""What the scripted server answers: that of a server that does not know the start `snapshot`."""


@dataclass(frozen=True, slots=True)
class Site:
    """A server, an `Api` with a tenant's credentials, and what a client is made with: the fields of `new`."""

    here: Here
    api: Api
    client: dict[str, Any] = field(default_factory=dict)


class World:
    """What scenarios share. Servers start when the first scenario asks for them."""

    def __init__(self, mongo: ReplicaSet, redis: RedisServer, folder: Path) -> None:
        self._mongo, self._redis, self._folder = mongo, redis, folder
        self._stack = AsyncExitStack()
        self._plain: Site | None = None
        self._guarded: Site | None = None
        self.mongo: MongoClient[Document] = self._stack.enter_context(MongoClient(mongo.uri))
        self.words: dict[str, Callable[[], str]] = {}
        """What a scenario writes as `@word` in its `client` part."""

    async def close(self) -> None:
        await self._stack.aclose()

    async def plain(self) -> Site:
        """Without authentication."""
        if self._plain is None:
            self._plain = await self.another(self._stack)
        return self._plain

    async def another(self, stack: AsyncExitStack) -> Site:
        """Like `plain`, of one scenario's own."""
        here = await stack.enter_async_context(serving(settings(self._mongo.uri, self._redis.url)))
        return Site(here, here.api)

    async def guarded(self) -> Site:
        """With TLS, an API key and JWTs."""
        if self._guarded is None:
            self._guarded = await self._make_guarded()
        return self._guarded

    async def _make_guarded(self) -> Site:
        folder, pair = self._folder, SigningPair("first")
        (folder / "stranger").mkdir()
        authority, stranger = Authority(folder), Authority(folder / "stranger")
        tls = authority.sign("server", x509.DNSName("localhost"))
        tenants = entry("a", KEY, certificates=[{"common_name": "client"}]), entry("b", "unused-key-canary")
        configured = configuration(self._mongo, self._redis, folder, *tenants)
        configured["tls"] = {
            "certificate_file": str(tls.certificate),
            "key_file": str(tls.key),
            "client_ca_file": str(authority.path),
        }
        configured["listen"]["data_mtls"] = "127.0.0.1:0"
        own = authority.sign("client")
        (folder / "jwks.json").write_text(jwks(pair))
        configured["jwt"] = {"issuer": ISSUER, "audience": AUDIENCE, "jwks_file": str(folder / "jwks.json")}
        here = await self._stack.enter_async_context(serving(configured, key=KEY))
        ports = here.server.ports
        api = await self._stack.enter_async_context(Api(ports.data, ports.operator, ports.health, KEY, tls))
        self.words = {
            "key": lambda: KEY,
            "token": pair.token,
            "expired": lambda: pair.token(exp=int(time.time()) - 3600),
            "large": lambda: pair.token(padding="x" * 10_000),
            "huge": lambda: pair.token(padding="x" * 15_000),
            "root": lambda: str(authority.path),
            "certificate": lambda: str(own.certificate),
            "private_key": lambda: str(own.key),
            "other_root": lambda: str(stranger.path),
        }
        return Site(here, api, {"api_key": "@key", "tls": {"root": "@root", "server_name": "localhost"}})


@dataclass(slots=True)
class Stage:
    """Where one scenario plays."""

    world: World
    proxy: Proxy
    client: dict[str, Any]
    """The fields of `new`."""
    sites: list[Site] = field(default_factory=list)
    """The first is the one that the client is connected to. None on a scripted stage."""
    scripted: ScriptedServer | None = None
    database: Database[Document] | None = None
    names: dict[str, str] = field(default_factory=dict)
    """Names of subscriptions: what the scenario calls them, and what they are called."""

    @property
    def api(self) -> Api:
        if not self.sites:
            raise ValueError("a scripted stage has no server to ask")
        return self.sites[0].api

    @property
    def documents(self) -> Database[Document]:
        if self.database is None:
            raise ValueError("a scripted stage has no MongoDB")
        return self.database

    @property
    def server(self) -> ScriptedServer:
        if self.scripted is None:
            raise ValueError("only a scripted stage has calls")
        return self.scripted

    def real_name(self, name: str) -> str:
        """The name of a subscription on the server; that of a script is as it is written."""
        if self.scripted is not None:
            return name
        return self.names.setdefault(name, f"{name}-{uuid.uuid4().hex[:12]}")


@asynccontextmanager
async def staged(world: World, stage: str, case: Case) -> AsyncIterator[Stage]:
    """The stage of one run."""
    async with AsyncExitStack() as stack:
        if stage == "scripted":
            server = await stack.enter_async_context(ScriptedServer(*map(script, case.scripts), unary=OLDER))
            proxy = await stack.enter_async_context(proxied(int(server.address.rpartition(":")[2])))
            made = Stage(world, proxy, {}, scripted=server)
        else:
            site = await (world.guarded() if stage in ("guarded", "certified") else world.plain())
            sites = [await world.another(stack) for _ in range(2)] if stage == "own" else [site]
            certified = stage == "certified"
            port = site.here.server.ports.data_mtls if certified else sites[0].api.data_port
            assert port is not None
            proxy = await stack.enter_async_context(proxied(port))
            database = world.mongo[f"conformance_{uuid.uuid4().hex[:12]}"]
            stack.callback(world.mongo.drop_database, database.name)
            made = Stage(world, proxy, CERTIFIED if certified else site.client, sites, database=database)
        made.client = {"target": f"127.0.0.1:{proxy.port}", **made.client, **case.client}
        yield made
