"""The check that no test uses a default port finds one that does."""

import socket
import subprocess
import sys

import pytest

from tests import default_ports
from tests.started import Started
from tests.waiting import wait_until


def test_a_port_of_this_process_and_of_its_children_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        monkeypatch.setattr(default_ports, "DEFAULT_PORTS", frozenset({port}))
        assert default_ports.used() == {port: "this process"}
        code = f"import socket, time; s = socket.create_connection(('127.0.0.1', {port})); time.sleep(60)"
        with Started([sys.executable, "-c", code], stdin=subprocess.DEVNULL) as child:
            server.settimeout(30)
            connection, _ = server.accept()
            server.close()
            wait_until(default_ports.used)
            assert code in default_ports.used().get(port, "")
            child.kill()
            connection.close()
    monkeypatch.setattr(default_ports, "DEFAULT_PORTS", frozenset())
    assert default_ports.used() == {}
