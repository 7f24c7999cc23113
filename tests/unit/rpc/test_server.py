"""The gRPC servers under agents that instrument programs."""

from typing import Any, NoReturn
from unittest.mock import MagicMock

import grpc
import grpc.aio
import pytest

from feedmux_server.rpc.health import Health
from feedmux_server.rpc.server import HealthServer, Listeners, Servers


async def test_no_interceptor_of_an_agent_is_between_grpc_and_the_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenTelemetry's, Datadog's and others replace the function, and theirs breaks streams that write."""

    def replaced(*_: Any, **__: Any) -> NoReturn:
        raise AssertionError("an agent's server")

    monkeypatch.setattr(grpc.aio, "server", replaced)
    server = HealthServer(Health())
    assert await server.start("127.0.0.1:0")
    await server.stop()
    Servers(MagicMock(), Health(), Listeners("127.0.0.1:0", "127.0.0.1:0"))
