"""Build a server without ports, and check that it has a handler for every method of the definition."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from feedmux.v1 import change_feed_pb2, operator_pb2, subscriptions_pb2
from feedmux_server.assembly import Assembly, assemble
from feedmux_server.config.server import Config
from feedmux_server.core.errors import FeedmuxError
from feedmux_server.credentials import Credentials
from feedmux_server.rpc.handlers import data_handlers, operator_handlers
from feedmux_server.store.connection import connect
from feedmux_server.supervision import Tasks
from feedmux_server.telemetry.audit import AuditLog
from feedmux_server.telemetry.observer import NOBODY

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


async def test_a_drain_takes_no_session_and_waits_for_none() -> None:
    async with Tasks() as tasks:
        assembly = assembled(tasks)
        assembly.service.admission.admit()
        assembly.service.begin_drain(60.0)
        await assembly.service.sessions.all_left(60.0)
        with pytest.raises(FeedmuxError, match="shutting down"):
            assembly.service.admission.admit()
        await assembly.close()
