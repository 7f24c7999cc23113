"""Real mongod processes on 127.0.0.1, installed by pip alone: one standalone, or a replica set of one or three nodes.

Invariant: after `start` a replica set has a writable primary; ports and data stay the same over `kill9`, `terminate`
and `restart` of a node. The settings were measured to start fast and use little memory, with a majority write concern
and the journal on, so that acknowledged writes survive `kill9`. Neighbours: `process`, `workdir`, `mongod_binary`.
"""

import asyncio
import signal
import time
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar

from pymongo import AsyncMongoClient
from pymongo.errors import OperationFailure, PyMongoError

from feedmux_embedded.mongod_binary import find_mongod, library_env
from feedmux_embedded.ports import free_ports
from feedmux_embedded.process import Process
from feedmux_embedded.server import Server

READY_TIMEOUT_S = 60.0
SET_NAME = "feedmux"
_POLL_S = 0.05
_ALREADY_INITIALIZED = 23

Client = AsyncMongoClient[dict[str, Any]]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class MongodOptions:
    """How a mongod is started."""

    oplog_mb: int = 1024
    """Maximum size of the oplog; 128 MB hold about 200,000 small events. It uses disk space only as it fills."""
    cache_gb: float = 0.25
    """WiredTiger's cache; MongoDB's own default is half the machine's memory."""
    test_commands: bool = True
    """enableTestCommands: configureFailPoint."""
    parameters: Mapping[str, str] = field(default_factory=dict)
    """Further --setParameter NAME=VALUE."""
    arguments: Sequence[str] = ()
    """Further command-line arguments."""
    binary: Path | None = None
    """The mongod to use instead of the one that `find_mongod` finds."""

    def command_line(self, port: int, data_dir: Path, replica_set: str | None) -> list[str]:
        parameters = {
            "diagnosticDataCollectionEnabled": "false",
            # Without this, three nodes take 16 s to end on SIGTERM instead of 1 s.
            "shutdownTimeoutMillisForSignaledShutdown": "100",
            **({"enableTestCommands": "1"} if self.test_commands else {}),
            **self.parameters,
        }
        line = ["--port", str(port), "--bind_ip", "127.0.0.1", "--nounixsocket", "--dbpath", str(data_dir)]
        line += ["--wiredTigerCacheSizeGB", str(self.cache_gb)]
        if replica_set is not None:
            line += ["--replSet", replica_set, "--oplogSize", str(self.oplog_mb)]
        for name, value in parameters.items():
            line += ["--setParameter", f"{name}={value}"]
        return [*line, *self.arguments]


class Mongod(Server):
    """One mongod process: standalone (`async with Mongod() as mongod`), or a node of a ReplicaSet."""

    def __init__(
        self,
        options: MongodOptions | None = None,
        *,
        port: int | None = None,
        replica_set: str | None = None,
        data_dir: Path | None = None,
    ) -> None:
        """`data_dir` is kept at the end; without `data_dir`, the data is deleted with the process."""
        super().__init__("mongod", port)
        self._data_dir = data_dir
        self._options = options or MongodOptions()
        self._replica_set = replica_set

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def uri(self) -> str:
        """The URI of this process alone, even if it is a member of a replica set."""
        return f"mongodb://{self.address}/?directConnection=true"

    def _made(self, folder: Path) -> Process:
        binary = self._options.binary or find_mongod()
        data_dir = self._data_dir or folder / "data"
        data_dir.mkdir(parents=True, exist_ok=True)
        return Process(
            f"mongod on port {self.port}",
            [binary, *self._options.command_line(self.port, data_dir, self._replica_set)],
            folder / "mongod.log",
            # mongod refuses to start with a locale that the machine lacks.
            env={"LC_ALL": "C", **library_env(binary, folder / "lib")},
        )

    async def _wait_ready(self) -> None:
        await self.process.wait_until_listening(self.port, timeout_s=READY_TIMEOUT_S)

    async def stop(self) -> None:
        if self._process is not None and self._data_dir is not None:
            await self._process.terminate()
        await super().stop()

    def client(self) -> Client:
        """A client of this process alone; the caller closes it (`async with`)."""
        return AsyncMongoClient(self.uri, serverSelectionTimeoutMS=2000, connectTimeoutMS=2000)


class ReplicaSet:
    """`async with ReplicaSet() as mongo: … mongo.uri`. Nodes are numbered from 0."""

    def __init__(
        self,
        nodes: int = 1,
        *,
        oplog_mb: int = 1024,
        cache_gb: float = 0.25,
        parameters: Mapping[str, str] | None = None,
        arguments: Sequence[str] = (),
        ports: Sequence[int] | None = None,
        election_timeout_ms: int = 2000,
        data_dir: Path | None = None,
        binary: Path | None = None,
    ) -> None:
        """`oplog_mb`, `cache_gb`, `parameters`, `arguments`, `binary` as in MongodOptions; `ports` instead of `nodes`.

        `data_dir` is kept at the end, and may be used for a later start with the same ports.
        `election_timeout_ms`: how long a dead primary goes unnoticed; MongoDB's own default is 10,000.
        """
        options = MongodOptions(
            oplog_mb=oplog_mb, cache_gb=cache_gb, parameters=parameters or {}, arguments=arguments, binary=binary
        )
        self._election_timeout_ms = election_timeout_ms
        self.nodes = [
            Mongod(options, port=port, replica_set=SET_NAME, data_dir=data_dir and data_dir / f"node{index}")
            for index, port in enumerate(ports or free_ports(nodes))
        ]

    @property
    def uri(self) -> str:
        return f"mongodb://{','.join(node.address for node in self.nodes)}/?replicaSet={SET_NAME}"

    async def start(self) -> None:
        """Start all nodes; returns when there is a writable primary. From the main thread only (see `process`)."""
        try:
            for node in self.nodes:
                await node.start()
            await cancellable(self._initiate())
            await self.wait_for_primary()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """End all nodes and delete their files. May be called again, or without `start`."""
        for node in self.nodes:
            await node.stop()

    async def wait_for_primary(self, *, timeout_s: float = READY_TIMEOUT_S) -> int:
        """The number of the node that is a writable primary, as soon as there is one."""
        give_up_at = time.monotonic() + timeout_s
        while (primary := await self.primary_index()) is None:
            for node in self.nodes:
                node.process.check_patience(give_up_at)
            await asyncio.sleep(_POLL_S)
        return primary

    async def primary_index(self) -> int | None:
        """The number of the node that is a writable primary now; None if there is none."""
        for index, node in enumerate(self.nodes):
            if node.process.running and await cancellable(_is_writable_primary(node)):
                return index
        return None

    async def kill9(self, node: int = 0) -> None:
        await self.nodes[node].process.kill9()

    async def terminate(self, node: int = 0) -> None:
        await self.nodes[node].process.terminate()

    async def restart(self, node: int = 0) -> None:
        """Start a node again on the same port and files; a running process is terminated first. Does not wait for a
        primary."""
        await self.nodes[node].restart()

    def pause(self, node: int = 0) -> None:
        self.nodes[node].process.send_signal(signal.SIGSTOP)

    def resume(self, node: int = 0) -> None:
        self.nodes[node].process.send_signal(signal.SIGCONT)

    def pid(self, node: int = 0) -> int:
        return self.nodes[node].process.pid

    def cpu_seconds(self, node: int = 0) -> float:
        """User and system time since the start of the process."""
        return self.nodes[node].process.cpu_seconds()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _initiate(self) -> None:
        members = [{"_id": index, "host": node.address} for index, node in enumerate(self.nodes)]
        settings = {"electionTimeoutMillis": self._election_timeout_ms, "heartbeatIntervalMillis": 500}
        config = {"_id": SET_NAME, "members": members, "settings": settings}
        async with self.nodes[0].client() as client:
            try:
                await client.admin.command("replSetInitiate", config)
            except OperationFailure as error:
                if error.code != _ALREADY_INITIALIZED:
                    raise


async def cancellable(call: Awaitable[T]) -> T:
    """Return or raise what `call` does, but raise CancelledError if this task was cancelled meanwhile: in Python 3.11
    pymongo can lose a cancellation."""
    task = asyncio.current_task()
    assert task is not None
    before = task.cancelling()
    try:
        return await call
    finally:
        if task.cancelling() > before:
            raise asyncio.CancelledError


async def _is_writable_primary(node: Mongod) -> bool:
    try:
        async with node.client() as client:
            reply = await client.admin.command("hello")
    except PyMongoError:
        return False
    return bool(reply.get("isWritablePrimary"))
