"""The answers to health probes, and a start without MongoDB or Redis."""

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from feedmux_embedded import RedisServer, ReplicaSet
from feedmux_embedded.ports import free_ports
from feedmux_server import app
from tests.conftest import RedisFactory
from tests.documents import Documents
from tests.integration.redis_topologies import ask
from tests.integration.servers import Here, ServerProcess, serving, settings, until
from tests.integration.wire import feed, refused

ALL = (
    "", "liveness", "startup", "readiness", "feedmux.v1.ChangeFeed", "feedmux.v1.Subscriptions", "feedmux.v1.Operator",
    "redis",
)  # fmt: skip


async def told(port: int, *services: str) -> Mapping[str, str]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        found = {}
        for service in services or ALL:
            reply = await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=60)
            found[service] = health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status)
    return found


async def not_serving(port: int) -> set[str]:
    return {service for service, status in (await told(port)).items() if status == "NOT_SERVING"}


async def test_nobody_learns_the_names_of_sources(here: Here) -> None:
    """Health is asked without credentials: a source that is configured is answered for as one that is not."""
    ports = here.server.ports
    for port in (ports.health, ports.data, ports.operator):
        for name in ("source/main", "main", "source/nobody"):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await told(port, name)
            assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            watched = stub.Watch(health_pb2.HealthCheckRequest(service="source/main"), timeout=60)
            assert (await watched.read()).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
            watched.cancel()


async def test_the_probe_program_asks_and_tells_by_its_exit_code(here: Here) -> None:
    async def probe(*arguments: str) -> tuple[int | None, str]:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "feedmux_server.health_probe", *arguments, stdout=asyncio.subprocess.PIPE
        )
        out, _ = await process.communicate()
        return process.returncode, out.decode().strip()

    address = f"127.0.0.1:{here.server.ports.health}"
    assert await probe(address, "readiness") == (0, f"{address}: SERVING")
    assert await probe(address, "nobody") == (1, f"{address}: NOT_FOUND")
    nowhere = f"127.0.0.1:{free_ports(1)[0]}"
    assert await probe(nowhere) == (1, f"{nowhere}: UNAVAILABLE")


async def test_readiness_follows_redis_and_liveness_does_not(
    mongo: ReplicaSet, redis_factory: RedisFactory, database: Documents, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "READINESS_EVERY_S", 0.05)
    monkeypatch.setattr(app, "READINESS_TIMEOUT_S", 0.5)
    redis = await redis_factory()
    async with serving(settings(mongo.uri, redis.url)) as here:
        port = here.server.ports.health
        await until(lambda: _is(port, set()))
        redis.pause()
        await until(lambda: _is(port, {"", "readiness", "feedmux.v1.Subscriptions", "redis"}), 30)
        # Callers that need no Redis are still served.
        watch = here.api.watch(feed(database.name, "c"))
        await watch.opened()
        watch.cancel()
        redis.resume()
        await until(lambda: _is(port, set()), 30)


async def _is(port: int, expected: set[str]) -> bool:
    return await not_serving(port) == expected


async def test_a_probe_is_answered_before_there_is_a_server(redis_server: RedisServer, tmp_path: Path) -> None:
    configured = settings(f"mongodb://127.0.0.1:{free_ports(1)[0]}/", redis_server.url)
    configured["sources"]["main"]["server_selection_timeout_ms"] = 60_000
    server = ServerProcess(configured, tmp_path)
    server.process.start()
    try:
        await server.process.wait_until_listening(server.ports[2], timeout_s=60)
        found = await told(server.ports[2], "liveness", "startup", "readiness", "")
        assert found == {
            "liveness": "SERVING", "startup": "NOT_SERVING", "readiness": "NOT_SERVING", "": "NOT_SERVING",
        }  # fmt: skip
    finally:
        await server.kill9()


async def test_it_waits_for_mongodb_and_redis_if_told_so(tmp_path: Path) -> None:
    mongo_port, redis_port = free_ports(2)
    redis, mongo = RedisServer(port=redis_port, config={"replicaof": "127.0.0.1 1"}), ReplicaSet(ports=[mongo_port])
    configured = settings(mongo.uri, redis.url)
    for source in configured["sources"].values():
        source["server_selection_timeout_ms"] = 500
    server = ServerProcess({**configured, "when_unavailable": "wait"}, tmp_path)
    try:
        await server.start()
        port = server.ports[2]
        waited = {"", "readiness", "feedmux.v1.ChangeFeed", "feedmux.v1.Subscriptions", "redis"}
        await until(lambda: _is(port, waited), 30)
        async with server.api() as api:
            away = await refused(api.watch(feed("d", "c")).opened())
            assert (away.code, away.reason) == ("UNAVAILABLE", "SOURCE_UNAVAILABLE")
            assert away.retry_s
            await redis.start()
            await mongo.start()
            # A replica, which a failover may make the primary.
            await until(lambda: _is(port, {"", "readiness", "feedmux.v1.Subscriptions", "redis"}), 60)
            await ask(redis_port, "REPLICAOF", "NO", "ONE")
            await until(lambda: _is(port, set()), 60)
            watch = api.watch(feed("d", "c"))
            await watch.opened()
            watch.cancel()
        # What comes and turns out to be unfit is refused then, as it would have been at the start.
        await server.kill9()
        await redis.stop()
        await server.start()
        async with RedisServer(port=redis_port, config={"maxmemory-policy": "allkeys-lru"}):
            await until(lambda: not server.process.running, 60)
        assert server.process.returncode == 1
        assert "noeviction" in server.process.log_tail(5)
    finally:
        await server.kill9()
        await redis.stop()
        await mongo.stop()


async def test_a_call_at_another_port_learns_the_right_one(here: Here) -> None:
    ports = here.server.ports
    data = {"ChangeFeed/Watch": "listen.data", "Subscriptions/GetSubscription": "listen.data"}
    operator = {"Operator/Drain": "listen.operator"}
    for port, elsewhere in ((ports.health, data | operator), (ports.data, operator), (ports.operator, data)):
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            for method, address in elsewhere.items():
                call: Any = channel.unary_unary(f"/feedmux.v1.{method}")
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await call(b"", timeout=60)
                assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
                assert address in str(caught.value.details())
