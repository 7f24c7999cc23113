"""The check that no test uses a default port finds one that does."""

import socket
import subprocess
import sys
import time

import pytest

from tests import default_ports
from tests.started import Started


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
            deadline_s = time.monotonic() + 60
            while not default_ports.used() and time.monotonic() < deadline_s:
                time.sleep(0.02)
            assert code in default_ports.used().get(port, "")
            child.kill()
            connection.close()
    monkeypatch.setattr(default_ports, "DEFAULT_PORTS", frozenset())
    assert default_ports.used() == {}
