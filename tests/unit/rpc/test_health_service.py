"""Health for any caller: what each name says, few requests awaited at a time, and a watcher that gets each change."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, suppress
from typing import Any

import grpc
from grpc_health.v1 import health_pb2

from feedmux_server.core.errors import FeedmuxError
from feedmux_server.rpc.health import CHANGE_FEED, LIVENESS, OPERATOR, READINESS, REDIS, STARTUP, SUBSCRIPTIONS, Health
from feedmux_server.rpc.health_service import RECEIVING_MAX, Places, Unnamed, network_of
from tests.tables import over
from tests.virtual_time import in_virtual_time


class Aborted(Exception): ...


class Context:
    """Keeps what was written, and the status of an end."""

    def __init__(self, peer: str = "ipv4:10.0.0.1:5") -> None:
        self._peer = peer
        self.statuses: list[str] = []
        self.code: grpc.StatusCode | None = None

    def peer(self) -> str:
        return self._peer

    async def write(self, data: bytes) -> None:
        status = health_pb2.HealthCheckResponse.FromString(data).status
        self.statuses.append(health_pb2.HealthCheckResponse.ServingStatus.Name(status))

    async def abort(self, code: grpc.StatusCode, *_: object) -> None:
        self.code = code
        raise Aborted


async def nothing() -> AsyncIterator[bytes]:
    await asyncio.get_running_loop().create_future()
    yield b""


@in_virtual_time
async def test_a_newer_caller_displaces_the_one_that_waits_longest() -> None:
    unnamed, contexts = Unnamed(), [Context() for _ in range(RECEIVING_MAX + 2)]
    calls = []
    for context in contexts:
        there: Any = context
        calls.append(asyncio.create_task(unnamed.receive(nothing(), there)))
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    assert [each.done() for each in calls] == [True] * 2 + [False] * RECEIVING_MAX
    assert [each.code for each in contexts[:2]] == [grpc.StatusCode.RESOURCE_EXHAUSTED] * 2
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(each, Aborted) for each in outcomes), "the others end at the time limit"


def test_a_network_may_hold_as_many_calls_as_it_leaves_free() -> None:
    places = Places(10)

    def take(peer: str) -> int:
        count = 0
        there: Any = Context(peer)
        with suppress(FeedmuxError):
            while True:
                stack.enter_context(places.place(there))
                count += 1
        return count

    with ExitStack() as stack:
        assert [take(f"ipv4:10.0.0.{number}:{number}") for number in (1, 1, 2, 3, 4)] == [5, 0, 3, 1, 1]
    with ExitStack() as stack:
        assert take("ipv4:10.0.0.1:6") == 5


def test_a_network_is_an_ipv4_address_or_64_bits() -> None:
    same = ("ipv4:10.0.0.1:5", "ipv4:10.0.0.1:6", "ipv6:%5B::ffff:10.0.0.1%5D:5")
    assert {network_of(peer) for peer in same} == {"10.0.0.1"}
    assert network_of("ipv6:%5B2001:db8:1:2:3::1%5D:5") == network_of("ipv6:%5B2001:db8:1:2:4::9%5D:7")
    assert network_of("ipv6:%5B2001:db8:1:3::1%5D:5") != network_of("ipv6:%5B2001:db8:1:2::1%5D:5")
    assert network_of("ipv6:%5Bfe80::1%25eth0%5D:5") == network_of("ipv6:%5Bfe80::2%5D:5")
    assert {network_of(peer) for peer in ("unix:/run/x", "unix:", None)} == {"unix", ""}


@in_virtual_time
async def test_who_waits_alone_is_not_displaced() -> None:
    unnamed, calls = Unnamed(), []
    for number in range(3 * RECEIVING_MAX):
        there: Any = Context("ipv4:10.0.0.2:1" if number == RECEIVING_MAX // 2 else "ipv4:10.0.0.1:1")
        calls.append(asyncio.create_task(unnamed.receive(nothing(), there)))
        await asyncio.sleep(0)
    await asyncio.sleep(0.1)
    assert not calls[RECEIVING_MAX // 2].done()
    assert sum(not each.done() for each in calls) == RECEIVING_MAX
    await asyncio.gather(*calls, return_exceptions=True)


HERE, BOTH = {REDIS: True, "source/a": True, "source/b": False}, {LIVENESS, STARTUP}


@over(
    ("started", "there", "draining", "serving"),
    [
        (False, {}, False, {LIVENESS}),
        (False, HERE, False, {LIVENESS, REDIS}),
        (True, {}, False, BOTH | {OPERATOR}),
        (True, HERE, False, BOTH | {OPERATOR, REDIS, READINESS, "", CHANGE_FEED, SUBSCRIPTIONS}),
        (True, HERE | {REDIS: False}, False, BOTH | {OPERATOR, CHANGE_FEED}),
        (True, HERE | {"source/a": False}, False, BOTH | {OPERATOR, REDIS, SUBSCRIPTIONS}),
        (True, HERE, True, BOTH | {REDIS}),
    ],
)
def test_statuses(started: bool, there: dict[str, bool], draining: bool, serving: set[str]) -> None:
    health = Health()
    if started:
        health.started()
    health.show(there)
    if draining:
        health.drain()
    names = {LIVENESS, STARTUP, READINESS, "", CHANGE_FEED, SUBSCRIPTIONS, OPERATOR, REDIS}
    statuses = health._statuses._statuses
    assert set(statuses) == names, "no source is named"
    assert {name for name, status in statuses.items() if status == 1} == serving
    assert health.ready == (READINESS in serving)
