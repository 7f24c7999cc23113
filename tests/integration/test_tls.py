"""TLS whose files change, and client certificates as credentials."""

import asyncio
import logging
import socket
import ssl
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
import pytest_asyncio
from cryptography import x509

from feedmux.target import Tls
from feedmux_embedded import RedisServer, ReplicaSet
from feedmux_server.rpc.server import Ports
from tests.documents import Documents
from tests.integration.certificates import Authority
from tests.integration.servers import until
from tests.integration.tenancy import Tenancy, configuration, entry, tenancy
from tests.integration.wire import Api, feed

LOCALHOST = x509.DNSName("localhost")
A = entry("a", "key-a-canary", certificates=[{"common_name": "search"}, {"uri": "spiffe://example.com/search"}])
B = entry("b", "key-b-canary", certificates=[{"dns": "billing.example.com"}])


class Site:
    """A server with TLS; `data` may ask for a certificate, `data_mtls` does."""

    def __init__(self, tenancy: Tenancy, authority: Authority) -> None:
        self.tenancy, self.authority = tenancy, authority
        self.ports: Ports = tenancy.here.server.ports

    def api(self, tls: Tls, key: str = "") -> Api:
        return Api(self.ports.data_mtls or self.ports.data, self.ports.operator, self.ports.health, key, tls)

    async def tenant(self, tls: Tls, key: str = "") -> str:
        """The tenant that the server assigns to these credentials; otherwise the status."""
        async with self.api(tls, key) as api:
            receiver = api.watch(feed("d"))
            try:
                await receiver.opened()
                (live,) = self.tenancy.here.server.service.sessions
                return live.tenant
            except grpc.aio.AioRpcError as error:
                return error.code().name
            finally:
                receiver.cancel()
                await self.tenancy.until_live(0)


@pytest_asyncio.fixture
async def site(
    mongo: ReplicaSet, redis_server: RedisServer, tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[Site]:
    authority = Authority(tmp_path)
    authority.sign("server", LOCALHOST)
    configured = configuration(mongo, redis_server, tmp_path, A, B)
    configured["tls"] = {
        "certificate_file": str(tmp_path / "server.pem"),
        "key_file": str(tmp_path / "server.key"),
        "client_ca_file": str(tmp_path / "ca.pem"),
    }
    if getattr(request, "param", "both") == "both":
        configured["listen"]["data_mtls"] = "127.0.0.1:0"
    async with tenancy(configured, "unused") as made:
        yield Site(made, authority)


def served_serial(port: int, authority: Path) -> int:
    """Of the certificate that a new connection is shown."""
    context = ssl.create_default_context(cafile=authority)
    with (
        socket.create_connection(("127.0.0.1", port)) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as connection,
    ):
        shown = connection.getpeercert(binary_form=True)
    assert shown is not None
    return x509.load_der_x509_certificate(shown).serial_number


def serial(path: Path) -> int:
    return x509.load_pem_x509_certificate(path.read_bytes()).serial_number


async def test_who_a_certificate_is(site: Site) -> None:
    sign, uri = site.authority.sign, x509.UniformResourceIdentifier
    assert await site.tenant(sign("search")) == "a"
    assert await site.tenant(sign("other", uri("spiffe://example.com/search"))) == "a"
    assert await site.tenant(sign("other", x509.DNSName("x"), x509.DNSName("billing.example.com"))) == "b"
    # A name counts only where the tenants file says it stands.
    assert await site.tenant(sign("billing.example.com")) == "UNAUTHENTICATED"
    assert await site.tenant(sign("other", x509.DNSName("search"))) == "UNAUTHENTICATED"
    assert await site.tenant(sign("other", uri("spiffe://example.com/search/x"))) == "UNAUTHENTICATED"
    # Of two tenants is of none.
    assert await site.tenant(sign("search", x509.DNSName("billing.example.com"))) == "UNAUTHENTICATED"


async def test_certificates_that_do_not_get_in(site: Site, tmp_path: Path) -> None:
    (tmp_path / "stranger").mkdir()
    stranger = Authority(tmp_path / "stranger", "ca").sign("search")
    nothing = Tls(root=site.authority.path, server_name="localhost")
    expired = site.authority.sign("search", lasts_s=-60)
    for tls in (replace(stranger, root=site.authority.path), expired, nothing):
        assert await site.tenant(tls) == "UNAVAILABLE"
    assert await site.tenant(site.authority.sign("search")) == "a"


@pytest.mark.parametrize("site", ["data"], indirect=True)
async def test_one_port_that_wants_a_certificate(site: Site) -> None:
    assert await site.tenant(site.authority.sign("search")) == "a"
    assert await site.tenant(Tls(root=site.authority.path, server_name="localhost"), "key-a-canary") == "UNAVAILABLE"


async def test_a_stream_ends_when_its_certificate_expires(site: Site, database: Documents) -> None:
    async with site.api(site.authority.sign("search", lasts_s=4)) as api:
        stream = await api.open(feed=feed(database.name))
        assert (await stream.end()).reason == "UNAUTHENTICATED"


async def test_certificates_are_replaced_while_streams_run(
    site: Site, database: Documents, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ports = [port for port in (site.ports.data, site.ports.operator) if port]

    async def shown() -> set[int]:
        return {await asyncio.to_thread(served_serial, port, site.authority.path) for port in ports}

    first = serial(tmp_path / "server.pem")
    assert await shown() == {first}
    async with site.api(site.authority.sign("search")) as api:
        stream = await api.open(feed=feed(database.name, "c"))
        # Half a change: a certificate whose key is not there yet.
        key = (tmp_path / "server.key").read_bytes()
        site.authority.sign("new", LOCALHOST)
        (tmp_path / "server.pem").write_bytes((tmp_path / "new.pem").read_bytes())
        await until(lambda: [each for each in caplog.records if each.levelno == logging.ERROR])
        assert key == (tmp_path / "server.key").read_bytes()
        assert await shown() == {first}
        (tmp_path / "server.key").write_bytes((tmp_path / "new.key").read_bytes())
        second = serial(tmp_path / "new.pem")

        async def replaced() -> bool:
            return await shown() == {second}

        await until(replaced)
        database.c.insert_one({"n": 1})
        assert await stream.numbers(1) == [1]
        stream.cancel()
    assert len([each for each in caplog.records if each.levelno == logging.ERROR]) == 1


async def test_authorities_are_replaced(site: Site, tmp_path: Path) -> None:
    (tmp_path / "next").mkdir()
    following = Authority(tmp_path / "next")
    newcomer = replace(following.sign("search"), root=site.authority.path)
    assert await site.tenant(newcomer) == "UNAVAILABLE"
    (tmp_path / "ca-copy.pem").write_bytes(site.authority.path.read_bytes())
    site.authority.path.write_bytes(following.path.read_bytes())
    newcomer = replace(newcomer, root=tmp_path / "ca-copy.pem")

    async def let_in() -> bool:
        return await site.tenant(newcomer) == "a"

    await until(let_in)
    assert await site.tenant(replace(site.authority.sign("search"), root=tmp_path / "ca-copy.pem")) == "UNAVAILABLE"
