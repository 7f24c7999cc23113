"""What the calls of a server share: the handlers, work that outlives a session, and the end of an old one."""

import asyncio
import logging
from types import SimpleNamespace
from typing import Any, NoReturn
from unittest.mock import MagicMock

import grpc
import grpc.aio
import pytest

from feedmux.v1 import change_feed_pb2, operator_pb2, subscriptions_pb2
from feedmux_server.assembly import Assembly, assemble
from feedmux_server.config.server import Config
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.credentials import Credentials
from feedmux_server.rpc.handlers import data_handlers, operator_handlers
from feedmux_server.rpc.health import Health
from feedmux_server.rpc.server import HealthServer, Listeners, Servers
from feedmux_server.sessions.session import AGED
from feedmux_server.store.connection import connect
from feedmux_server.supervision import Tasks
from feedmux_server.telemetry.audit import AuditLog
from feedmux_server.telemetry.observer import NOBODY
from tests.unit.rpc.service_support import served
from tests.unit.rpc.test_watch import watching
from tests.virtual_time import in_virtual_time


@in_virtual_time
async def test_work_of_an_ended_session_that_redis_prevents_is_logged_and_ends_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fails() -> None:
        raise FeedmuxError(ErrorReason.STATE_UNAVAILABLE, "Redis is away")

    async with served() as there:
        with caplog.at_level(logging.WARNING):
            await there.service.spawn(fails, "release")
    assert [each.__dict__["reason"] for each in caplog.records] == ["STATE_UNAVAILABLE"]


async def test_no_interceptor_of_an_agent_is_between_grpc_and_the_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenTelemetry's, Datadog's and others replace the function, and theirs breaks streams that write."""

    def replaced(*_: Any, **__: Any) -> NoReturn:
        raise AssertionError("an agent's server")

    monkeypatch.setattr(grpc.aio, "server", replaced)
    server = HealthServer(Health())
    assert await server.start("127.0.0.1:0")
    await server.stop()
    Servers(MagicMock(), Health(), Listeners("127.0.0.1:0", "127.0.0.1:0"))


DATA = (change_feed_pb2.DESCRIPTOR, subscriptions_pb2.DESCRIPTOR)
OPERATOR = (operator_pb2.DESCRIPTOR,)


def assembled(tasks: Tasks) -> Assembly:
    config = Config.model_validate({"sources": {"main": {"uri": "mongodb://127.0.0.1:1/?replicaSet=r"}}})
    credentials = Credentials(config, insecure_no_auth=True)
    redis, stop = connect("redis://127.0.0.1:1/0"), asyncio.Event()
    return assemble(config, {}, redis, credentials, tasks, NOBODY, AuditLog(None, 60), stop)


@pytest.mark.parametrize(("make", "files"), [(data_handlers, DATA), (operator_handlers, OPERATOR)])
async def test_every_method_has_a_handler(make: Any, files: tuple[Any, ...]) -> None:
    async with Tasks() as tasks:
        assembly = assembled(tasks)
        handlers = make(assembly.service)
        methods = [each for file in files for service in file.services_by_name.values() for each in service.methods]
        assert methods
        for each in methods:
            call = SimpleNamespace(method=f"/{each.containing_service.full_name}/{each.name}", invocation_metadata=())
            found: list[Any] = [handler for one in handlers if (handler := one.service(call))]
            assert [handler.response_streaming for handler in found] == [True], call.method
        await assembly.close()


@in_virtual_time
async def test_an_old_session_is_asked_to_reconnect_after_its_connection() -> None:
    loop = asyncio.get_running_loop()
    async with served(limits={"connection_age_s": 100.0, "drain_s": 5.0}) as there, watching(there) as messages:
        await messages.opened()
        began_s = loop.time()
        error = await messages.end()
        assert (error.reason, error.message) == (ErrorReason.DRAINING, AGED)
        assert 114 <= loop.time() - began_s <= 156


@in_virtual_time
async def test_without_an_age_it_lasts() -> None:
    async with served(limits={"connection_age_s": 0.0}) as there, watching(there) as messages:
        await messages.opened()
        await asyncio.sleep(3_000.0)
        assert not messages.task.done()
