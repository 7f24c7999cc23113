"""What a caller without credentials, or with credentials and without a request, can make the server hold."""

import asyncio
import gzip
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from feedmux.v1 import change_feed_pb2 as wire
from feedmux.v1 import subscriptions_pb2
from feedmux_embedded import RedisServer, ReplicaSet
from feedmux_server.rpc import health_service
from feedmux_server.rpc.transport import LOOKAHEAD_BYTES, Transport
from feedmux_server.tenants.registry import hash_key
from tests.documents import Documents
from tests.integration.raw_http2 import RawConnection, pump_until
from tests.integration.servers import (
    KEY_A,
    KEY_B,
    OPERATOR_KEY,
    Here,
    Limited,
    server_process,
    settings,
    tenants_file,
    until,
)
from tests.integration.wire import Refused, Session, feed, refusal, refused

UNFINISHED = 250_000
MOST_S = 120
"""The longest `first_message_s`: no request is too late for it."""
CREATE = "/feedmux.v1.Subscriptions/CreateSubscription"
DATA_METHODS = (
    "/feedmux.v1.ChangeFeed/Subscribe",
    "/feedmux.v1.ChangeFeed/Watch",
    "/feedmux.v1.ChangeFeed/Explain",
    CREATE,
    "/grpc.health.v1.Health/Check",
    "/grpc.health.v1.Health/Watch",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    "/no.such.Service/Method",
)
OPERATOR_METHODS = ("/feedmux.v1.Operator/ListTenants", "/feedmux.v1.Operator/Drain", *DATA_METHODS[4:])
HEALTH_METHODS = DATA_METHODS[4:]


def configured(mongo: ReplicaSet, redis_server: RedisServer, folder: Path, **limits: Any) -> dict[str, Any]:
    configuration = settings(mongo.uri, redis_server.url, **limits)
    configuration["tenants_file"] = str(tenants_file(folder))
    configuration["operator_key_hashes"] = [hash_key(OPERATOR_KEY)]
    return configuration


def resident_mib(pid: int, what: str = "VmRSS") -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{what}:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("the process has no memory")


@contextmanager
def connected(port: int, count: int) -> Iterator[list[RawConnection]]:
    with ExitStack() as stack:
        yield [stack.enter_context(RawConnection(port)) for _ in range(count)]


def ended(connections: Iterable[RawConnection]) -> int:
    return sum(len(each.ended) for each in connections)


async def test_unfinished_requests_without_credentials_hold_little(
    mongo: ReplicaSet, redis_server: RedisServer, tmp_path: Path
) -> None:
    """800 requests of 250 KB that never end, to every kind of method of every port: 200 MB if they were received."""
    configuration = configured(mongo, redis_server, tmp_path, first_message_s=MOST_S)
    async with server_process(configuration, tmp_path) as server, server.api(KEY_A) as api:
        await api.page()
        pid = server.process.pid
        assert pid is not None
        before = resident_mib(pid)
        ports = dict(zip(server.ports, (DATA_METHODS, OPERATOR_METHODS, HEALTH_METHODS), strict=False))
        with ExitStack() as stack:
            attackers = []
            for port, methods in ports.items():
                for connection in stack.enter_context(connected(port, 5)):
                    for number in range(50 if port != server.ports[0] else 60):
                        connection.call(methods[number % len(methods)], unfinished=UNFINISHED)
                    attackers.append(connection)
            # On each port, few calls are waited for: of health, and of reflection.
            waiting = len(ports) * 2 * health_service.RECEIVING_MAX
            await asyncio.to_thread(pump_until, attackers, lambda: ended(attackers) >= 800 - waiting)
            held = resident_mib(pid) - before
            # The tenant is served meanwhile.
            await api.page()
        assert held < 60, held


async def test_compressed_requests_are_not_larger_than_others(
    mongo: ReplicaSet, redis_server: RedisServer, tmp_path: Path
) -> None:
    """A quarter of a megabyte that gzip makes 200 of, to methods that need no credentials and to one that does."""
    bomb = gzip.compress(bytes(200 << 20), 9)
    assert len(bomb) < 256 << 10
    configuration = configured(mongo, redis_server, tmp_path)
    async with server_process(configuration, tmp_path) as server, server.api(KEY_A) as api:
        await api.page()
        before = resident_mib(server.process.pid, "VmHWM")
        known = (("authorization", f"Bearer {KEY_A}"),)
        with connected(server.ports[0], 3) as connections:
            for connection in connections:
                for method, metadata in (("/grpc.health.v1.Health/Check", ()), (CREATE, known)):
                    for _ in range(3):
                        connection.call(method, (("grpc-encoding", "gzip"), *metadata), compressed=bomb)
            await asyncio.to_thread(pump_until, connections, lambda: ended(connections) == 18)
        await api.page()
        assert resident_mib(server.process.pid, "VmHWM") - before < 60


async def test_credentials_decide_before_the_request_is_there(limited: Limited) -> None:
    async with limited() as here:
        for method in DATA_METHODS[:4]:
            call: Any = here.api.channel.stream_unary(method)(metadata=(("authorization", "Bearer nobody"),))
            assert (await refused(call)).code == "UNAUTHENTICATED"
        for method in OPERATOR_METHODS[:2]:
            call = here.api.operator_channel.stream_unary(method)(metadata=here.api.metadata)
            assert (await refused(call)).reason == "METHOD_DENIED"


async def silent(here: Here) -> Any:
    return here.api.feeds.Subscribe(metadata=(("authorization", f"Bearer {KEY_A}"),))


async def end_of(call: Any) -> Refused:
    return await Session(call, 1 << 20).end()


async def test_streams_without_an_open_count(limited: Limited, database: Documents) -> None:
    async with limited({"sessions": 4}, first_message_s=MOST_S) as here, here.api.with_key(KEY_B) as other:
        account = here.server.service.manager.accounts.of("a")
        calls = [await silent(here) for _ in range(4)]
        await until(lambda: account.sessions == 4)
        more = [await end_of(await silent(here)) for _ in range(3)]
        assert {(each.code, each.metadata["quota"]) for each in more} == {("RESOURCE_EXHAUSTED", "sessions")}
        session = await other.open(feed=feed(database.name, "c"))
        session.cancel()
        calls.pop().cancel()
        await until(lambda: account.sessions == 3)
        opened = await here.api.open(feed=feed(database.name, "c"))
        for each in (opened, *calls):
            each.cancel()
        await until(lambda: (account.sessions, here.server.service.admission.sessions) == (0, 0))


async def test_calls_without_a_request_end(limited: Limited) -> None:
    async with limited(first_message_s=0.3) as here:
        account = here.server.service.manager.accounts.of("a")
        ends = [await end_of(await silent(here)), await refused(get_subscription(here))]
        assert {each.reason for each in ends} == {"QUOTA_EXCEEDED"}
        assert {each.metadata["quota"] for each in ends} == {"limits.first_message_s"}
        assert all(each.retry_s for each in ends)
        await until(lambda: (account.sessions, account.calls, here.server.service.admission.sessions) == (0, 0, 0))


def get_subscription(here: Here) -> Any:
    """A call without its request."""
    method: Any = here.api.channel.stream_unary("/feedmux.v1.Subscriptions/GetSubscription")
    return method(metadata=here.api.metadata)


async def test_calls_without_a_request_count(limited: Limited) -> None:
    async with limited({"calls": 2}, first_message_s=MOST_S) as here:
        account = here.server.service.manager.accounts.of("a")
        calls = [get_subscription(here) for _ in range(2)]
        await until(lambda: account.calls == 2)
        assert (await refused(here.api.page())).metadata["quota"] == "calls"
        for each in calls:
            each.cancel()
        await until(lambda: account.calls == 0)
        await here.api.page()
        without = get_subscription(here)
        await without.done_writing()
        assert (await refused(without)).reason == "MESSAGE_INVALID"


async def test_connections_are_limited(limited: Limited) -> None:
    async with limited(connections=10) as here:
        await here.api.page()
        with connected(here.api.data_port, 20) as connections:

            def closed() -> int:
                return sum(each.closed for each in connections)

            await asyncio.to_thread(pump_until, connections, lambda: closed() >= 11)
            await here.api.page()
            assert closed() == 11
        async with here.api.with_key(KEY_B) as other:
            await until(lambda: _answers(other))


async def _answers(api: Any) -> bool:
    try:
        await api.page()
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.UNAVAILABLE:
            raise
        return False
    return True


async def test_a_connection_that_answers_no_ping_is_closed(limited: Limited, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its client is frozen, or a proxy keeps the connection of a lost one: the calls on it would never end."""
    options = Transport.options
    times = ("grpc.keepalive_time_ms", "grpc.http2.ping_timeout_ms")
    assert {"grpc.keepalive_time_ms": 30_000, "grpc.http2.ping_timeout_ms": 10_000}.items() <= dict(
        options(Transport())
    ).items()
    monkeypatch.setattr(
        Transport,
        "options",
        lambda self: tuple((key, each // 100 if key in times else each) for key, each in options(self)),
    )
    async with limited() as here:
        with RawConnection(here.api.data_port, answers_pings=False) as connection:
            await asyncio.to_thread(pump_until, [connection], lambda: connection.closed)


async def test_the_windows_of_a_client_that_sends_fast_do_not_grow(limited: Limited) -> None:
    async with limited() as here:
        known = (("authorization", f"Bearer {KEY_A}"),)
        with RawConnection(here.api.data_port) as connection:
            call = connection.call(CREATE, known, message=b"x" * UNFINISHED)
            await asyncio.to_thread(pump_until, [connection], lambda: call in connection.ended)
            assert connection.stream_window == LOOKAHEAD_BYTES


async def test_requests_somewhat_too_large_are_told_so(limited: Limited) -> None:
    async with limited(request_bytes=32 << 10) as here:
        outcome = await refused(here.api.raw("/feedmux.v1.Subscriptions/GetSubscription", b"\x0a" * (33 << 10)))
        assert (outcome.code, outcome.reason) == ("INVALID_ARGUMENT", "MESSAGE_INVALID")
        assert "request_bytes" in outcome.message
        outcome = await refused(here.api.raw("/feedmux.v1.Subscriptions/GetSubscription", b"\x0a" * (64 << 10)))
        assert outcome.code == "RESOURCE_EXHAUSTED"


async def test_large_metadata_are_accepted_or_rejected_but_never_at_random(limited: Limited) -> None:
    """Between its two limits, gRPC rejects some calls and accepts others."""
    async with limited() as here:
        for length, entries, outcome in (
            (11_900, 1, "OK"),
            (13_000, 1, "MESSAGE_INVALID"),
            (15_000, 1, "MESSAGE_INVALID"),
            (20_000, 1, "RESOURCE_EXHAUSTED"),
            (1, 300, "OK"),
            (1, 320, "MESSAGE_INVALID"),
            (1, 400, "MESSAGE_INVALID"),
            (1, 500, "RESOURCE_EXHAUSTED"),
        ):
            more = (("x-more", "x" * length),) * entries
            found = {*await asyncio.gather(*(_outcome(here, more) for _ in range(20)))}
            assert found == {outcome}, (length, entries)


async def _outcome(here: Here, more: tuple[tuple[str, str], ...]) -> str:
    request = subscriptions_pb2.ListSubscriptionsRequest()
    try:
        await here.api.control.ListSubscriptions(request, metadata=(*here.api.metadata, *more), timeout=60)
    except grpc.aio.AioRpcError as error:
        found = refusal(error)
        return found.reason or found.code
    return "OK"


async def test_answers_that_are_not_taken_count(limited: Limited) -> None:
    """A client may forbid the server to send messages, and leave its calls open."""
    async with limited({"calls": 3}) as here:
        account, known = here.server.service.manager.accounts.of("a"), (("authorization", f"Bearer {KEY_A}"),)
        page = subscriptions_pb2.ListSubscriptionsRequest(page_size=1).SerializeToString()
        with RawConnection(here.api.data_port, takes=False) as connection:
            for _ in range(3):
                connection.call("/feedmux.v1.Subscriptions/ListSubscriptions", known, message=page)
            await asyncio.to_thread(pump_until, [connection], lambda: account.calls == 3)
            assert (await refused(here.api.page())).metadata["quota"] == "calls"
        await until(lambda: account.calls == 0)
        await here.api.page()


# --- Health, which needs no credentials.


@pytest.mark.parametrize("method", HEALTH_METHODS[:3])
async def test_answers_that_strangers_do_not_take_count(
    limited: Limited, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """The callers of one network have the half of 9 calls, and the others are rejected."""
    for most in ("WATCHERS_MAX", "CHECKS_MAX"):
        monkeypatch.setattr(health_service, most, 9)
    async with limited() as here:
        request = b"\x0a\x08liveness" if "Health" in method else b"\x3a\x00"
        with RawConnection(here.api.data_port, takes=False) as connection:
            for _ in range(12):
                connection.call(method, message=request)
            await asyncio.to_thread(pump_until, [connection], lambda: len(connection.ended) >= 7)
            assert len(connection.ended) == 7


async def test_an_open_may_come_after_the_call(limited: Limited, database: Documents) -> None:
    async with limited(first_message_s=MOST_S) as here:
        call = await silent(here)
        await until(lambda: here.server.service.admission.sessions == 1)
        session = Session(call, 1 << 20)
        await session.send(open=wire.Open(feed=feed(database.name, "c")))
        await session.opened()
        session.cancel()
