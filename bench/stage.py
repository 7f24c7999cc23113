"""mongod, Redis and the feedmux server for one benchmark, as separate processes that end with this one.

The server has its default configuration except for addresses. The CPU and memory of server and mongod come from /proc.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import grpc.aio
from pymongo import MongoClient

from bench.report import progress
from feedmux.v1 import operator_pb2 as wire
from feedmux.v1 import operator_pb2_grpc
from feedmux_embedded import Process, RedisServer, ReplicaSet
from feedmux_embedded.ports import free_ports
from feedmux_embedded.workdir import WorkDir
from feedmux_server.tenants.registry import hash_key

OPLOG_MB = 4096
_READY_TIMEOUT_S = 30.0
_ROOT = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Cpu:
    """CPU seconds used so far, or between two readings."""

    mongod: float
    server: float

    def __sub__(self, other: "Cpu") -> "Cpu":
        return Cpu(self.mongod - other.mongod, self.server - other.server)


@dataclass(frozen=True, slots=True)
class Tenant:
    """One tenant of the server."""

    name: str
    key: str
    quotas: Mapping[str, int] = field(default_factory=dict)

    def entry(self) -> dict[str, Any]:
        """Return the tenant's entry of the tenants file."""
        return {"name": self.name, "api_key_hashes": [hash_key(self.key)], "quotas": dict(self.quotas)}


class Stage:
    """`async with Stage() as stage`."""

    def __init__(
        self, limits: dict[str, Any] | None = None, tenants: Sequence[Tenant] = (), oplog_mb: int = OPLOG_MB
    ) -> None:
        """Prepare a stage. `limits` are limits of the server's configuration, if a benchmark does not use the defaults.

        Without `tenants` there is no authentication, and so no quotas.
        """
        self._tenants = tenants
        self.mongo = ReplicaSet(oplog_mb=oplog_mb)
        self.redis = RedisServer()
        self.ports: list[int] = []
        """The server's ports: data, operator, health, metrics."""
        self._limits = limits or {}
        self._stack = AsyncExitStack()
        self._server: Process | None = None
        self._config = Path()
        self._content: dict[str, Any] = {}

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.ports[0]}"

    @property
    def server(self) -> Process:
        if self._server is None:
            raise RuntimeError("the stage is not set")
        return self._server

    def cpu(self) -> Cpu:
        return Cpu(self.mongo.cpu_seconds(), self.server.cpu_seconds())

    def mongo_client(self) -> MongoClient[dict[str, Any]]:
        """Return a pymongo client, which the caller closes."""
        return MongoClient(self.mongo.uri)

    async def streams(self) -> wire.ListSharedStreamsResponse:
        """Return what the server reads from MongoDB now."""
        async with grpc.aio.insecure_channel(f"127.0.0.1:{self.ports[1]}") as channel:
            stub: Any = operator_pb2_grpc.OperatorStub(channel)
            response: wire.ListSharedStreamsResponse = await stub.ListSharedStreams(wire.ListSharedStreamsRequest())
            return response

    @property
    def metrics_url(self) -> str:
        return f"http://127.0.0.1:{self.ports[3]}/metrics"

    async def restart_server(self, *, metrics: bool = True) -> None:
        """Kill and restart the server on the same ports, with empty rings; without `metrics` it has no telemetry."""
        await self.server.kill9()
        listen = self._content["listen"] | ({} if metrics else {"metrics": ""})
        self._config.write_text(json.dumps(self._content | {"listen": listen}))
        await self._start_server(self.server)

    async def __aenter__(self) -> Self:
        progress("starting MongoDB, Redis and feedmux")
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.mongo)
            await stack.enter_async_context(self.redis)
            folder = WorkDir("bench")
            stack.callback(folder.remove)
            self.ports = free_ports(4)  # Only now, because other processes look for ports too.
            addresses = [f"127.0.0.1:{port}" for port in self.ports]
            content: dict[str, Any] = {
                "sources": {"main": {"uri": self.mongo.uri}},
                "redis": {"url": self.redis.url},
                "listen": dict(zip(("data", "operator", "health", "metrics"), addresses, strict=True)),
                "limits": self._limits,
            }
            if self._tenants:
                tenants = folder.path / "tenants.json"
                tenants.write_text(json.dumps({"tenants": [each.entry() for each in self._tenants]}))
                content["tenants_file"] = str(tenants)
            self._config, self._content = folder.path / "server.json", content
            self._config.write_text(json.dumps(content))
            command = [sys.executable, "-m", "bench.server", str(self._config)]
            self._server = Process("the feedmux server", command, folder.path / "server.log", cwd=_ROOT)
            stack.push_async_callback(self._server.kill9)
            await self._start_server(self._server)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _start_server(self, server: Process) -> None:
        server.start()
        await server.wait_until_listening(self.ports[2], timeout_s=_READY_TIMEOUT_S)
        await server.wait_until_listening(self.ports[0], timeout_s=_READY_TIMEOUT_S)
