"""Processes and clients that die, stop or do not read. Nothing is lost, nothing repeated inside a session."""

import asyncio
import signal
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from pymongo import AsyncMongoClient

from feedmux_embedded import RedisServer, ReplicaSet
from tests.conformance.faults import failing
from tests.conftest import RedisFactory, ReplicaSetFactory
from tests.documents import Documents, insert
from tests.integration.servers import guarded, server_process, serving, settings, until
from tests.integration.test_health import told
from tests.integration.wire import FIXED_WINDOW, MANY, Api, feed, refused

# --- The server.


async def test_sigterm_drains(
    mongo: ReplicaSet, redis_server: RedisServer, database: Documents, name: str, tmp_path: Path
) -> None:
    # Longer than the test: it is over when the sessions are, and not at its deadline.
    configuration = settings(mongo.uri, redis_server.url, drain_s=3600.0)
    async with server_process(configuration, tmp_path) as server, server.api() as api:
        await api.create(name, feed(database.name, "c"))
        watch = api.watch(feed(database.name, "c"))
        await watch.opened()
        insert(database, range(10))
        session = await api.open(name)
        await session.take(10)
        await watch.take(10)
        await session.ack(5)
        server.process.send_signal(signal.SIGTERM)
        await session.until(lambda: session.notices)
        assert session.notices[0].draining.deadline.ToMilliseconds() == 3_600_000
        assert session.notices[0].draining.position == session.position
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.ports[2]}") as channel:
            health: Any = health_pb2_grpc.HealthStub(channel)
            for service in ("", "feedmux.v1.ChangeFeed", "feedmux.v1.Subscriptions"):
                reply = await health.Check(health_pb2.HealthCheckRequest(service=service))
                assert reply.status == health_pb2.HealthCheckResponse.NOT_SERVING
        outcome = await refused(api.watch(feed(database.name, "c")).opened())
        assert outcome.code == "UNAVAILABLE"
        outcome = await watch.end()
        assert (outcome.code, outcome.reason) == ("UNAVAILABLE", "DRAINING")
        assert outcome.retry_s
        assert watch.notices[0].WhichOneof("kind") == "draining"
        await session.ack(10)
        outcome = await session.end()
        assert (outcome.code, outcome.reason) == ("UNAVAILABLE", "DRAINING")
        assert outcome.retry_s
        assert session.committed[-1].delivery_sequence == 10
        await until(lambda: not server.process.running)
        assert server.process.returncode == 0
        await server.start()
        async with server.api() as new:
            again = await new.open(name)
            insert(database, range(10, 11))
            assert await again.numbers(1) == [10]
            again.cancel()


async def test_a_client_that_stops_reading_does_not_hold_up_a_drain(
    mongo: ReplicaSet, redis_server: RedisServer, database: Documents, tmp_path: Path
) -> None:
    async with (
        server_process(settings(mongo.uri, redis_server.url), tmp_path) as server,
        Api(server.ports[0], server.ports[1], server.ports[2], options=FIXED_WINDOW) as api,
    ):
        readers = [api.watch(feed(database.name, "c")), await api.session(feed=feed(database.name, "c"), credit=MANY)]
        for reader in readers:
            await reader.opened()
        # Each event is larger than the window.
        insert(database, range(20), pad=500_000)

        async def stuck() -> bool:
            """Each is being sent an event, and cannot be sent it."""
            [stream] = await api.streams(f"{database.name}.c")
            return [each.events_sent > 0 for each in stream.subscribers] == [True, True]

        await until(stuck)
        server.process.send_signal(signal.SIGTERM)
        await until(lambda: not server.process.running)
        assert server.process.returncode == 0
        for reader in readers:
            assert (await reader.end()).code in ("UNAVAILABLE", "CANCELLED")
            assert not reader.notices, "it was not stuck: the notice of the drain could be sent"


async def test_the_second_signal_ends_at_once(
    mongo: ReplicaSet, redis_server: RedisServer, database: Documents, name: str, tmp_path: Path
) -> None:
    # Longer than the test: only the signal can end it.
    configuration = settings(mongo.uri, redis_server.url, drain_s=3600.0)
    async with server_process(configuration, tmp_path) as server, server.api() as api:
        await api.create(name, feed(database.name, "c"))
        session = await api.open(name)
        database.c.insert_many([{"n": n} for n in range(10)])
        await session.take(10)
        server.process.send_signal(signal.SIGTERM)
        await session.until(lambda: session.notices)
        assert server.process.running
        server.process.send_signal(signal.SIGTERM)
        await until(lambda: not server.process.running)
        session.cancel()


async def test_before_a_delayed_drain_everybody_is_still_served(
    mongo: ReplicaSet, redis_server: RedisServer, database: Documents
) -> None:
    async with serving(settings(mongo.uri, redis_server.url, drain_delay_s=1.5)) as here:
        port = here.server.ports.health
        watch = here.api.watch(feed(database.name, "c"))
        await watch.opened()
        here.stop()

        async def not_serving() -> bool:
            return (await told(port, "readiness"))["readiness"] == "NOT_SERVING"

        await until(not_serving)
        late = here.api.watch(feed(database.name, "c"))
        await late.opened()
        insert(database, range(1))
        assert await late.numbers(1) == [0]
        assert await watch.numbers(1) == [0]
        assert (await told(port, "liveness"))["liveness"] == "SERVING"
        assert {(await each.end()).reason for each in (watch, late)} == {"DRAINING"}


# --- MongoDB.


async def test_a_rejected_login_is_tried_again(
    redis_server: RedisServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A password is changed in MongoDB first, or the directory that checks it is down."""
    async with guarded(tmp_path) as (admin, address):
        admin.admin.command("createUser", "feeds", pwd="feeds-canary", roles=["readAnyDatabase"])
        configuration = settings(f"mongodb://feeds:feeds-canary@{address}", redis_server.url)
        del configuration["sources"]["other"]
        async with serving(configuration) as here:
            session = await here.api.open(feed=feed("shop", "c"))
            insert(admin["shop"], range(3))
            assert await session.numbers(3) == [0, 1, 2]
            admin.admin.command("updateUser", "feeds", pwd="another-canary")
            with failing(admin, "shop.c", "getMore", closeConnection=True):
                insert(admin["shop"], range(3, 6))
                await session.until(lambda: any(notice.degraded.unavailable for notice in session.notices))
            [line] = [each.getMessage() for each in caplog.records if "cannot log in" in each.getMessage()]
            assert "AuthenticationFailed" in line
            assert "sources.main.uri" in line
            assert "canary" not in caplog.text
            admin.admin.command("updateUser", "feeds", pwd="feeds-canary")
            assert await session.numbers(3) == [3, 4, 5]
            session.cancel()
        admin.admin.command("dropUser", "feeds")
        async with serving(configuration | {"when_unavailable": "wait"}) as here:
            outcome = await refused(here.api.watch(feed("shop", "c")).opened())
            assert (outcome.code, outcome.reason) == ("UNAVAILABLE", "SOURCE_UNAVAILABLE")
            admin.admin.command("createUser", "feeds", pwd="feeds-canary", roles=["readAnyDatabase"])

            async def is_open() -> bool:
                watch = here.api.watch(feed("shop", "c"))
                opened = (await asyncio.gather(watch.opened(), return_exceptions=True))[0]
                watch.cancel()
                return not isinstance(opened, BaseException)

            await until(is_open)


async def test_one_source_away_does_not_touch_the_other(
    replica_set_factory: ReplicaSetFactory, mongo: ReplicaSet, redis_server: RedisServer, database: Documents
) -> None:
    second = await replica_set_factory()
    configuration = settings(mongo.uri, redis_server.url)
    configuration["sources"]["other"]["uri"] = second.uri
    async with serving(configuration) as server:
        api = server.api
        good, bad = await api.open(feed=feed(database.name)), await api.open(feed=feed("d", source="other"))
        second.pause()
        insert(database, range(5))
        assert await good.numbers(5) == [0, 1, 2, 3, 4]
        new = await api.open(feed=feed(database.name, "c"))
        insert(database, range(5, 8))
        assert await new.numbers(3) == [5, 6, 7]
        outcome = await refused(api.watch(feed("new", source="other")).opened())
        assert (outcome.code, outcome.reason) == ("UNAVAILABLE", "SOURCE_UNAVAILABLE")
        assert outcome.retry_s
        second.resume()
        async with AsyncMongoClient[dict[str, Any]](second.uri) as client:
            await client.d.c.insert_one({"n": 7})
        assert await bad.numbers(1) == [7]
        for session in (good, bad, new):
            session.cancel()


# --- Redis.


async def test_redis_killed_and_started_again(
    redis_factory: RedisFactory, mongo: ReplicaSet, database: Documents, name: str
) -> None:
    redis = await redis_factory(persistence=True)
    async with serving(settings(mongo.uri, redis.url)) as server:
        api = server.api
        await api.create(name, feed(database.name, "c"))
        session = await api.open(name)
        insert(database, range(10))
        await session.take(10)
        await session.ack_and_wait(5)
        await redis.kill9()
        await session.ack(8)
        insert(database, range(10, 20))
        assert await session.numbers(10) == list(range(10, 20))
        await session.until(lambda: session.notices)
        assert (session.notices[0].degraded.dependency, session.notices[0].degraded.unavailable) == ("state", True)
        outcome = await refused(api.get(name))
        assert (outcome.code, outcome.reason) == ("UNAVAILABLE", "STATE_UNAVAILABLE")
        assert outcome.retry_s
        await redis.restart()
        await session.until(lambda: session.committed[-1].delivery_sequence == 8)
        await session.until(lambda: len(session.notices) > 1)
        assert not session.notices[1].degraded.unavailable
        await session.ack_and_wait(15)
        await session.close()
        again = await api.open(name)
        assert await again.numbers(5) == [15, 16, 17, 18, 19]
        await again.close()
