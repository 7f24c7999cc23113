"""The demo's world: a MongoDB replica set, Redis, the feedmux server, and the processes that write and read.

Invariant: none of these processes outlives this one, however it ends (`feedmux_embedded.process`), and all of them
listen only on 127.0.0.1.
"""

import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio
from pymongo import AsyncMongoClient

import feedmux
from feedmux.cli.terminal import Terminal
from feedmux.v1 import operator_pb2_grpc
from feedmux_embedded import Process, RedisServer, ReplicaSet
from feedmux_embedded.ports import free_ports
from feedmux_embedded.workdir import WorkDir
from feedmux_server.cli.keys import NewKey, new_key

ROOT = Path(__file__).resolve().parents[1]
# Rings of a few seconds, to show what happens to subscribers that fall behind them.
LIMITS = {
    "ring_bytes": 4 << 20,
    "read_ahead_bytes": 1 << 20,
    "unused_stream_s": 1.0,
    "idle_close_s": 5.0,
    "max_await_ms": 200,
}
_READY_S = 30.0


@dataclass(frozen=True, slots=True)
class World:
    """The running servers, and how to reach them."""

    folder: Path
    key: str
    endpoint: str
    mongodb_uri: str
    mongo: AsyncMongoClient[dict[str, Any]]
    client: feedmux.AsyncClient
    metrics_url: str
    operator: Any
    operator_metadata: tuple[tuple[str, str], ...]


class Child:
    """A process of the demo that reports its progress by JSON lines on its standard output."""

    def __init__(self, world: World, name: str, run: int, module: str, *arguments: str) -> None:
        self.name = name
        output = world.folder / f"{name}.{run}.out"
        environment = {"FEEDMUX_API_KEY": world.key, "PYTHONUNBUFFERED": "1", "GRPC_VERBOSITY": "NONE"}
        command = [sys.executable, "-m", module, *arguments]
        self.process = Process(name, command, output, env=environment, cwd=ROOT)
        self._offset = 0
        self._rest = b""
        self._told: dict[str, Any] = {}

    def told(self) -> dict[str, Any]:
        """Its last report; empty before the first."""
        if self.process.output.exists():
            with self.process.output.open("rb") as file:
                file.seek(self._offset)
                fresh = file.read()
            self._offset += len(fresh)
            *lines, self._rest = (self._rest + fresh).split(b"\n")
            for line in reversed(lines):
                if line.startswith(b"{"):
                    self._told = json.loads(line)
                    break
        return self._told

    def signal(self, number: signal.Signals) -> None:
        if self.process.running:
            self.process.send_signal(number)


@asynccontextmanager
async def started(terminal: Terminal) -> AsyncIterator[World]:
    """Start everything, and stop everything at the end."""
    _forget_settings()
    async with AsyncExitStack() as stack:
        folder = WorkDir("demo")
        stack.callback(folder.remove)
        with terminal.step("MongoDB, a replica set"):
            mongo_set = await stack.enter_async_context(ReplicaSet(oplog_mb=2048))
        with terminal.step("Redis, which stores positions"):
            redis = await stack.enter_async_context(RedisServer())
        key, operator = new_key(), new_key()
        data, operator_port, health, metrics = free_ports(4)
        with terminal.step("the feedmux server"):
            ports = {"data": data, "operator": operator_port, "health": health, "metrics": metrics}
            config = _write_config(folder.path, mongo_set.uri, redis.url, ports, key, operator)
            command = [sys.executable, "-m", "feedmux.cli", "serve", "--config", str(config)]
            server = Process("the feedmux server", command, folder.path / "server.log", cwd=ROOT)
            stack.push_async_callback(server.kill9)
            server.start()
            for port in (health, data):
                await server.wait_until_listening(port, timeout_s=_READY_S)
        mongo = await stack.enter_async_context(AsyncMongoClient[dict[str, Any]](mongo_set.uri))
        endpoint = f"127.0.0.1:{data}"
        client = await stack.enter_async_context(feedmux.AsyncClient(endpoint, api_key=key.key))
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(f"127.0.0.1:{operator_port}"))
        yield World(
            folder.path,
            key.key,
            endpoint,
            mongo_set.uri,
            mongo,
            client,
            f"http://127.0.0.1:{metrics}/metrics",
            operator_pb2_grpc.OperatorStub(channel),
            (("authorization", f"Bearer {operator.key}"),),
        )


def _forget_settings() -> None:
    # The user's own feedmux settings must not apply, except where the embedded binaries are.
    for name in [name for name in os.environ if name.startswith("FEEDMUX_")]:
        if name not in ("FEEDMUX_MONGOD", "FEEDMUX_REDIS_SERVER"):
            del os.environ[name]


def _write_config(
    folder: Path, mongodb: str, redis: str, ports: Mapping[str, int], key: NewKey, operator: NewKey
) -> Path:
    tenants = folder / "tenants.yaml"
    tenants.write_text(json.dumps({"tenants": [{"name": "demo", "api_key_hashes": [key.sha256]}]}))
    listen = {name: f"127.0.0.1:{port}" for name, port in ports.items()}
    config = {
        "sources": {"main": {"uri": mongodb}},
        "redis": {"url": redis},
        "listen": listen,
        "tenants_file": str(tenants),
        "dead_letters": {"source": "main"},
        "operator_key_hashes": [operator.sha256],
        "limits": LIMITS,
    }
    path = folder / "feedmux.yaml"
    path.write_text(json.dumps(config))
    return path
