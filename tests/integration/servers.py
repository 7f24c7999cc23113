"""Servers for these tests: within pytest's loop, or as a process that can be killed."""

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pymongo import MongoClient

from feedmux_embedded import Process, ReplicaSet
from feedmux_embedded.ports import free_ports
from feedmux_server.app import Running, running
from feedmux_server.config.server import Config
from feedmux_server.tenants.registry import hash_key
from tests.integration.wire import PATIENCE_S, Api

QUICK: dict[str, Any] = {"max_await_ms": 200, "unused_stream_s": 1.0, "idle_close_s": 60.0, "drain_s": 2.0}
"""Limits that let tests end soon."""
UNWATCHED: dict[str, Any] = {"history_at_risk_s": [], "oplog_check_interval_s": 3600, "position_check_interval_s": 3600}
"""Small oplogs put everybody at risk, and a look at one could meet a fail point that is meant for a stream."""
KEY_A, KEY_B, OPERATOR_KEY = "key-of-tenant-a-canary", "key-of-tenant-b-canary", "key-of-operator-canary"
REPOSITORY = Path(__file__).parents[2]


def settings(mongo_uri: str, redis_url: str, **limits: Any) -> dict[str, Any]:
    """A configuration. `other` is the same MongoDB under another identity."""
    return {
        "sources": {
            "main": {"uri": mongo_uri, "server_selection_timeout_ms": 2000},
            "other": {"uri": mongo_uri, "id": f"another {mongo_uri}", "server_selection_timeout_ms": 2000},
        },
        "redis": {"url": redis_url, "commit_interval_s": 0.05, "lease_s": 4.0},
        "listen": dict.fromkeys(("data", "operator", "health", "metrics"), "127.0.0.1:0"),
        "limits": {**QUICK, **UNWATCHED, **limits},
    }


@dataclass(frozen=True, slots=True)
class Here:
    """A server within this event loop, and a client of it."""

    api: Api
    server: Running
    stop: Callable[[], None] = field(repr=False)
    """Begins to drain."""


Limited = Callable[..., AbstractAsyncContextManager[Here]]
"""The fixture `limited`."""
OnRead = Callable[[str, int], object]
DocumentsRead = Callable[..., Counter[str]]
"""The fixture `documents_read`."""
SMALL_STEPS: dict[str, Any] = {"batch_events": 40, "snapshot_step_s": 0}
"""Limits with which each batch of documents of a copy is a step of its own."""


@asynccontextmanager
async def serving(configuration: dict[str, Any], *, key: str = "") -> AsyncIterator[Here]:
    """A server in a task of its own, because fixtures are set up and torn down in different ones."""
    started: asyncio.Future[Running] = asyncio.get_running_loop().create_future()
    stop = asyncio.Event()

    async def run() -> None:
        try:
            async with running(Config(**configuration), insecure_no_auth=not key, stop=stop) as server:
                started.set_result(server)
                await stop.wait()
        except BaseException as error:
            if not started.done():
                started.set_exception(error)
                return
            raise

    task = asyncio.create_task(run(), name="server-under-test")
    server = await started
    ports = server.ports
    try:
        async with Api(ports.data, ports.operator, ports.health, key) as api:
            yield Here(api, server, stop.set)
    finally:
        stop.set()
        await task


@asynccontextmanager
async def guarded(folder: Path) -> AsyncIterator[tuple[MongoClient[dict[str, Any]], str]]:
    """A MongoDB with access control: its administrator's client, and what follows `mongodb://user:password@`."""
    key = folder / "key"
    key.write_text("members of one set know it")
    key.chmod(0o600)
    async with ReplicaSet(oplog_mb=64, arguments=["--keyFile", str(key)]) as mongo:
        address = f"{mongo.nodes[0].address}/?replicaSet=feedmux"
        # As long as there is no user, this machine may make one.
        with MongoClient[dict[str, Any]](mongo.nodes[0].uri) as first:
            first.admin.command("createUser", "root", pwd="root-canary", roles=["root"])
        with MongoClient[dict[str, Any]](f"mongodb://root:root-canary@{address}") as admin:
            yield admin, address


START_S = 240.0
"""For two seconds of work, beside a Spark with a core for each of its workers."""


class ServerProcess:
    """A server that can be killed; its ports stay the same over restarts."""

    def __init__(
        self,
        configuration: dict[str, Any],
        folder: Path,
        environment: Mapping[str, str] | None = None,
        ports: list[int] | None = None,
    ) -> None:
        self.ports = ports or free_ports(4)
        addresses = [f"127.0.0.1:{port}" for port in self.ports]
        listen = dict(zip(("data", "operator", "health", "metrics"), addresses, strict=True))
        path = folder / "server.json"
        path.write_text(json.dumps({**configuration, "listen": listen}))
        self.log = folder / "server.log"
        command = [sys.executable, "-m", "tests.integration.serve_process", str(path)]
        self.process = Process("the server under test", command, self.log, cwd=REPOSITORY, env=environment)

    async def start(self) -> None:
        self.process.start()
        await self.process.wait_until_listening(self.ports[2], timeout_s=START_S)
        await self.process.wait_until_listening(self.ports[0], timeout_s=START_S)

    async def kill9(self) -> None:
        await self.process.kill9()

    def api(self, key: str = "") -> Api:
        data, operator, health, _ = self.ports
        return Api(data, operator, health, key)


@asynccontextmanager
async def server_process(
    configuration: dict[str, Any], folder: Path, environment: Mapping[str, str] | None = None
) -> AsyncIterator[ServerProcess]:
    async with AsyncExitStack() as stack:
        server = ServerProcess(configuration, folder, environment)
        stack.push_async_callback(server.kill9)
        await server.start()
        yield server


def tenants_file(folder: Path) -> Path:
    path = folder / "tenants.yaml"
    tenants = {"a": KEY_A, "b": KEY_B}
    content = [{"name": name, "api_key_hashes": [hash_key(key)]} for name, key in tenants.items()]
    path.write_text(json.dumps({"tenants": content}))
    return path


def cursors(client: MongoClient[dict[str, Any]], namespace: str) -> set[int]:
    """Ids of the cursors that are open in mongod on `database.collection`.

    Looked at several times: a cursor on its way from idle to getMore is seen as neither.
    """
    stages: list[dict[str, Any]] = [
        {"$currentOp": {"allUsers": True, "idleCursors": True}},
        {"$match": {"ns": namespace}},
    ]
    found: set[int] = set()
    for _ in range(5):
        found.update(each["cursor"]["cursorId"] for each in client.admin.aggregate(stages) if "cursor" in each)
        time.sleep(0.005)
    return found


async def until(condition: Callable[[], Any], timeout_s: float = PATIENCE_S, every_s: float = 0.02) -> None:
    """Waits for a condition, which may be a coroutine function."""
    async with asyncio.timeout(timeout_s):
        while True:
            held = condition()
            if await held if asyncio.iscoroutine(held) else held:
                return
            await asyncio.sleep(every_s)
