"""Health for any caller: few requests are awaited at a time, and a watcher gets each change."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2

from feedmux_server.rpc import health_service
from feedmux_server.rpc.health_service import RECEIVING_MAX, HealthService, Unnamed
from tests.virtual_time import in_virtual_time


class Aborted(Exception): ...


class Context:
    """Keeps what was written, and the status of an end."""

    def __init__(self) -> None:
        self.statuses: list[str] = []
        self.code: grpc.StatusCode | None = None

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


@in_virtual_time
async def test_a_watcher_is_told_each_status_that_lasts() -> None:
    health, context = HealthService(), Context()
    there: Any = context
    watcher = asyncio.create_task(health._watch("readiness", there))
    for up in (True, True, False):
        await asyncio.sleep(0.01)
        health.show("other", up=up)
        health.show("readiness", up=up)
    await asyncio.sleep(0.01)
    assert context.statuses == ["SERVICE_UNKNOWN", "SERVING", "NOT_SERVING"]
    watcher.cancel()
    await asyncio.wait([watcher])
    assert health._watchers == 0


@in_virtual_time
async def test_watchers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_service, "WATCHERS_MAX", 1)
    health = HealthService()
    one, other = Context(), Context()
    there: Any = one
    watcher = asyncio.create_task(health._watch("", there))
    await asyncio.sleep(0)
    there = other
    with pytest.raises(Aborted):
        await health._watch("", there)
    assert other.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    watcher.cancel()
    await asyncio.wait([watcher])


@in_virtual_time
async def test_a_check_of_a_name_that_is_not_served() -> None:
    health, context = HealthService(), Context()
    there: Any = context
    health.show("readiness", up=True)
    assert await health._check("readiness", there) == health_pb2.HealthCheckResponse(status=1).SerializeToString()
    with pytest.raises(Aborted):
        await health._check("source/main", there)
    assert context.code is grpc.StatusCode.NOT_FOUND
