"""A server that cannot be used: the error names the cause, whatever gRPC reports."""

import base64
import http.server
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509

from feedmux.cli.failure import CliError
from feedmux.cli.reachability import server_at, why_unreachable
from feedmux.endpoint import proxy_of
from feedmux.target import Target, Tls
from feedmux_embedded.ports import free_ports
from feedmux_server import health_probe
from tests.integration.certificates import Authority

GUARD_S = 60.0


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("grpc_proxy", "https_proxy", "http_proxy", "no_grpc_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)


@contextmanager
def grpc_server(credentials: grpc.ServerCredentials | None = None) -> Iterator[str]:
    """A gRPC server without services."""
    server = grpc.server(ThreadPoolExecutor(1))
    port = (
        server.add_insecure_port("127.0.0.1:0")
        if credentials is None
        else server.add_secure_port("127.0.0.1:0", credentials)
    )
    server.start()
    try:
        yield f"localhost:{port}"
    finally:
        server.stop(None).wait()


def secured(tls: Tls, client_ca: Path | None = None) -> grpc.ServerCredentials:
    pair = Path(str(tls.key)).read_bytes(), Path(str(tls.certificate)).read_bytes()
    roots = client_ca.read_bytes() if client_ca else None
    return grpc.ssl_server_credentials([pair], roots, require_client_auth=roots is not None)


def cause(endpoint: str, tls: bool | Tls = False) -> str:
    """What is found; empty where nothing is."""
    found = why_unreachable(endpoint, tls, GUARD_S)
    assert found is None or found.hint
    return found.message if found else ""


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def served(authority: Authority) -> Tls:
    """The server's files."""
    return authority.sign("server", x509.DNSName("localhost"))


def test_a_server_without_tls() -> None:
    with grpc_server() as endpoint:
        assert cause(endpoint) == ""
        assert cause(endpoint, True) == f"{endpoint} does not use TLS"


def test_a_server_with_tls(authority: Authority, served: Tls, tmp_path: Path) -> None:
    with grpc_server(secured(served)) as endpoint:
        assert cause(endpoint, Tls(root=authority.path)) == ""
        assert cause(endpoint) == f"{endpoint} uses TLS"
        assert "not signed by an authority in this system's roots" in cause(endpoint, True)
        other = Authority(tmp_path, "other")
        assert f"not signed by an authority in {other.path}" in cause(endpoint, Tls(root=other.path))
        by_address = endpoint.replace("localhost", "127.0.0.1")
        assert cause(by_address, Tls(root=authority.path)).endswith("is not for the name 127.0.0.1")
        assert cause(by_address, Tls(root=authority.path, server_name="localhost")) == ""


def test_a_certificate_that_has_expired(authority: Authority) -> None:
    old = authority.sign("old", x509.DNSName("localhost"), lasts_s=-60.0)
    with grpc_server(secured(old)) as endpoint:
        assert "is not valid now (certificate has expired)" in cause(endpoint, Tls(root=authority.path))


def test_a_server_that_wants_a_client_certificate(authority: Authority, served: Tls, tmp_path: Path) -> None:
    with grpc_server(secured(served, authority.path)) as endpoint:
        assert cause(endpoint, Tls(root=authority.path)).endswith("may require a client certificate")
        mine = authority.sign("client")
        assert cause(endpoint, mine) == ""
        stranger = Authority(tmp_path, "other").sign("stranger")
        theirs = Tls(root=authority.path, certificate=stranger.certificate, key=stranger.key)
        assert cause(endpoint, theirs).endswith("may not accept the client certificate")


def test_a_server_of_another_kind() -> None:
    """Without TLS, gRPC's own error has to do."""
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            endpoint = f"localhost:{server.server_address[1]}"
            assert cause(endpoint) == ""
            assert cause(endpoint, True) == f"{endpoint} does not use TLS"
        finally:
            server.shutdown()
            thread.join()


def test_a_server_that_does_not_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = server_at(f"localhost:{listening.getsockname()[1]}", timeout_s=0.2)
        assert server is not None
        server.check(False)
        with pytest.raises(CliError, match="accepts connections, but does not answer"):
            server.check(True)


def test_no_server() -> None:
    endpoint = f"localhost:{free_ports(1)[0]}"
    assert cause(endpoint) == cause(endpoint, True) == f"nothing listens on {endpoint} (connection refused)"


def test_a_name_that_is_unknown() -> None:
    assert cause("nowhere.invalid:7117") == "the host name nowhere.invalid cannot be resolved"


def test_what_is_not_looked_at() -> None:
    assert cause("unix:/nowhere") == ""


def test_a_server_on_this_machine_is_asked_without_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_ports(1)[0]}")
    with grpc_server() as endpoint:
        assert cause(endpoint) == ""
        for address in (endpoint, endpoint.replace("localhost", "127.0.0.1"), f"dns:///{endpoint}"):
            with Target(address).blocking_channel() as channel:
                grpc.channel_ready_future(channel).result(GUARD_S)
        with Target(endpoint).blocking_channel() as channel:
            call: Any = channel.unary_unary("/any/Method")
            with pytest.raises(grpc.RpcError) as caught:
                call(b"", timeout=GUARD_S)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert health_probe.status_of(endpoint, "readiness") == "UNIMPLEMENTED"


def test_a_proxy_that_does_not_listen_is_named_with_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_ports(1)[0]
    monkeypatch.setenv("http_proxy", f"http://user:secret@127.0.0.1:{port}")
    found = why_unreachable("feeds.invalid:7117", False, GUARD_S)
    assert found is not None
    assert found.message == (
        f"the proxy 127.0.0.1:{port} (http_proxy) for feeds.invalid:7117 cannot be used (Connection refused)"
    )
    assert found.hint.startswith("Unset http_proxy, or add feeds.invalid to no_proxy")
    for excepted in ("feeds.invalid", "a, .invalid", "INVALID"):
        monkeypatch.setenv("no_proxy", excepted)
        assert cause("feeds.invalid:7117") == "the host name feeds.invalid cannot be resolved"
    monkeypatch.setenv("no_proxy", "203.0.113.0/24")
    assert proxy_of("203.0.113.7") is None
    assert proxy_of("198.51.100.7") is not None


@pytest.mark.parametrize("address", ["[", "proxy:port", "proxy:99999", f"{'a' * 64}:3128"])
def test_a_proxy_of_no_address_is_named_with_its_variable(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", f"http://user:secret@{address}")
    assert cause("feeds.invalid:7117") == (
        f"the proxy {address} (https_proxy) for feeds.invalid:7117 is not http://HOST:PORT"
    )


def test_a_proxy_that_refuses_is_quoted_and_one_that_connects_is_not_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    with grpc_server() as endpoint, http_proxy({"feeds.invalid:7117": endpoint}) as proxy:
        monkeypatch.setenv("https_proxy", f"http://user:pass%20word@{proxy}")
        assert cause("feeds.invalid:7117") == ""
        assert cause("other.invalid:7117") == (
            f"the proxy {proxy} (https_proxy) does not connect to other.invalid:7117 (403 Forbidden)"
        )
    with grpc_server() as endpoint:
        monkeypatch.setenv("https_proxy", f"http://{endpoint}")
        assert "(what listens there is no HTTP proxy)" in cause("feeds.invalid:7117")


@contextmanager
def http_proxy(routes: dict[str, str]) -> Iterator[str]:
    """A proxy that connects known addresses, for callers with a password."""

    def copy(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def serve(client: socket.socket) -> None:
        with client:
            asked = b""
            while not asked.endswith(b"\r\n\r\n"):
                asked += client.recv(1)
            address = asked.split()[1].decode()
            credentials = base64.b64encode(b"user:pass word")
            if address not in routes or b"Proxy-Authorization: Basic " + credentials not in asked:
                client.sendall(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n")
                return
            host, _, port = routes[address].rpartition(":")
            with socket.create_connection((host, int(port))) as server:
                client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                threading.Thread(target=copy, args=(server, client), daemon=True).start()
                copy(client, server)

    def accept() -> None:
        while True:
            try:
                client, _ = listening.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(client,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
    thread.join()


def test_the_health_probe_takes_no_url(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["health_probe", "http://localhost:7119"])
    with pytest.raises(SystemExit, match="2"):
        health_probe.main()
    assert "give HOST:PORT, as in localhost:7119" in capsys.readouterr().err
