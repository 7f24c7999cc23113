"""Real Redis in the two forms that fail over: a primary watched by sentinels, and a cluster. Both die with the test."""

import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from redis import exceptions as redis_errors
from redis.asyncio import Redis

from feedmux_embedded import Process, RedisServer
from feedmux_embedded.ports import free_ports
from feedmux_embedded.redis_server import find_redis_server
from tests.integration.servers import until
from tests.integration.wire import PATIENCE_S

SERVICE = "feedmux"
SYNC_AT_ONCE = {"repl-diskless-sync-delay": "0"}
"""By default a primary waits 5 s for more replicas before it sends its data to the first."""

Announce = Callable[[int], Awaitable[int]]
"""The port by which a server on this port is to be known to all others."""


async def _as_it_is(port: int) -> int:
    return port


async def ask(port: int, *command: Any, password: str = "") -> Any:
    """One command to the server on a port. Raises as redis-py does."""
    async with Redis(port=port, password=password or None, protocol=2, decode_responses=True) as redis:
        return await redis.execute_command(*command)  # type: ignore[no-untyped-call]


async def _answer(port: int, *command: Any) -> str:
    with suppress(redis_errors.RedisError, OSError):
        return str(await ask(port, *command))
    return ""


@dataclass(frozen=True, slots=True)
class Sentinels:
    """A primary, a replica, and three sentinels."""

    servers: Sequence[RedisServer]
    sentinels: Sequence[Process]
    ports: Sequence[int]
    known_ports: Sequence[int]

    @property
    def url(self) -> str:
        return f"redis+sentinel://{','.join(f'127.0.0.1:{port}' for port in self.known_ports)}/{SERVICE}"

    async def primary(self) -> RedisServer:
        """The primary server, as the first available sentinel reports it."""
        for port in self.ports:
            with suppress(redis_errors.RedisError, OSError):
                address = await ask(port, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)
                return next(server for server in self.servers if str(server.port) == address[1])
        raise AssertionError("no sentinel answers")


@asynccontextmanager
async def sentinels(folder: Path, *, announce: Announce = _as_it_is) -> AsyncIterator[Sentinels]:
    async with AsyncExitStack() as stack:
        primary = await stack.enter_async_context(RedisServer(config=SYNC_AT_ONCE))
        primary_port = await announce(primary.port)
        [own] = free_ports(1)
        replica_port = await announce(own)
        directives = {
            "replicaof": f"127.0.0.1 {primary_port}",
            "replica-announce-port": str(replica_port),
            **SYNC_AT_ONCE,
        }
        replica = await stack.enter_async_context(RedisServer(port=own, config=directives))
        ports = free_ports(3)
        processes: list[Process] = []
        for port in ports:
            home = folder / f"sentinel-{port}"
            home.mkdir()
            (home / "sentinel.conf").write_text(
                f"port {port}\nbind 127.0.0.1\ndir {home}\n"
                f"sentinel monitor {SERVICE} 127.0.0.1 {primary_port} 2\n"
                f"sentinel down-after-milliseconds {SERVICE} 500\n"
                f"sentinel failover-timeout {SERVICE} 3000\n"
            )
            command: list[str | Path] = [find_redis_server(), home / "sentinel.conf", "--sentinel"]
            process = Process(f"sentinel on port {port}", command, home / "log", env={"LC_ALL": "C"})
            stack.push_async_callback(process.kill9)
            process.start()
            await process.wait_until_listening(port, timeout_s=PATIENCE_S)
            processes.append(process)

        async def settled() -> bool:
            for port in ports:
                state = await _answer(port, "SENTINEL", "CKQUORUM", SERVICE)
                known = await _answer(port, "SENTINEL", "REPLICAS", SERVICE)
                if "OK 3" not in state or str(replica_port) not in known:
                    return False
            return True

        await until(settled, every_s=0.1)
        await until(lambda: is_in_step(replica.port), every_s=0.1)
        yield Sentinels((primary, replica), processes, ports, [await announce(port) for port in ports])


async def is_replica(port: int) -> bool:
    return "'role': 'slave'" in await _answer(port, "INFO", "replication")


async def is_in_step(port: int) -> bool:
    return "'master_link_status': 'up'" in await _answer(port, "INFO", "replication")


async def has_all_of(replica: int, primary: int) -> bool:
    told = [await ask(port, "INFO", "replication") for port in (replica, primary)]
    return bool(told[0]["slave_repl_offset"] == told[1]["master_repl_offset"])


@dataclass(frozen=True, slots=True)
class Cluster:
    """Three primaries; the last server is a replica of the first."""

    servers: Sequence[RedisServer]
    known_ports: Sequence[int]

    async def begin_to_move(self, slot: int, source: RedisServer, target: RedisServer) -> None:
        """Keys of the slot that are not in the source are now asked for at the target."""
        ids = [await ask(server.port, "CLUSTER", "MYID") for server in (source, target)]
        await ask(target.port, "CLUSTER", "SETSLOT", slot, "IMPORTING", ids[0])
        await ask(source.port, "CLUSTER", "SETSLOT", slot, "MIGRATING", ids[1])

    async def end_move(self, slot: int, target: RedisServer) -> None:
        there = await ask(target.port, "CLUSTER", "MYID")
        for server in (target, *self.servers[:3]):
            await ask(server.port, "CLUSTER", "SETSLOT", slot, "NODE", there)

    async def move(self, key: str, source: RedisServer, target: RedisServer) -> None:
        """Move one key of a slot that is being moved."""
        assert await ask(source.port, "MIGRATE", "127.0.0.1", target.port, key, 0, 5000) == "OK"

    @property
    def url(self) -> str:
        return f"redis+cluster://{','.join(f'127.0.0.1:{port}' for port in self.known_ports)}"


@asynccontextmanager
async def cluster(
    *, node_timeout_ms: int = 1500, config: dict[str, str] | None = None, announce: Announce = _as_it_is
) -> AsyncIterator[Cluster]:
    _need_cluster_port()
    async with AsyncExitStack() as stack:
        servers: list[RedisServer] = []
        ports, buses = free_ports(4), free_ports(4)
        known = [await announce(port) for port in ports]
        for port, known_port, bus in zip(ports, known, buses, strict=True):
            directives = {
                "cluster-announce-port": str(known_port),
                "cluster-enabled": "yes",
                "cluster-port": str(bus),
                "cluster-node-timeout": str(node_timeout_ms),
                **SYNC_AT_ONCE,
                **(config or {}),
            }
            servers.append(await stack.enter_async_context(RedisServer(port=port, config=directives)))
        slots = (0, 5461, 10923, 16384)
        for index, server in enumerate(servers[:3]):
            await ask(server.port, "CLUSTER", "ADDSLOTSRANGE", slots[index], slots[index + 1] - 1)
        for server, bus in zip(servers[1:], buses[1:], strict=True):
            await ask(servers[0].port, "CLUSTER", "MEET", "127.0.0.1", server.port, bus)
        primary_id = await ask(servers[0].port, "CLUSTER", "MYID")

        async def all_say(text: str) -> bool:
            return all([text in await _answer(server.port, "CLUSTER", "INFO") for server in servers])

        await until(lambda: all_say("cluster_known_nodes:4"), every_s=0.1)
        await ask(servers[3].port, "CLUSTER", "REPLICATE", primary_id)
        await until(lambda: is_in_step(servers[3].port), every_s=0.1)

        async def replica_known() -> bool:
            told = [await _answer(server.port, "CLUSTER", "REPLICAS", primary_id) for server in servers[:3]]
            return all(str(known[3]) in each for each in told)

        await until(replica_known, every_s=0.1)
        await until(lambda: all_say("cluster_state:ok"), every_s=0.1)
        yield Cluster(servers, known)


@asynccontextmanager
async def cluster_of_one() -> AsyncIterator[RedisServer]:
    _need_cluster_port()
    port, bus = free_ports(2)
    async with RedisServer(port=port, config={"cluster-enabled": "yes", "cluster-port": str(bus)}) as server:
        await ask(port, "CLUSTER", "ADDSLOTSRANGE", 0, 16383)

        async def is_ok() -> bool:
            return "cluster_state:ok" in await _answer(port, "CLUSTER", "INFO")

        await until(is_ok, every_s=0.1)
        yield server


def _need_cluster_port() -> None:
    version = subprocess.run([find_redis_server(), "--version"], capture_output=True, text=True, check=True).stdout
    if " v=6." in version:
        pytest.skip("Redis 6.2 puts the bus of a cluster on a port that may not be free; 7.0 lets us choose it")
