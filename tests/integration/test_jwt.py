"""JWTs as credentials: which tokens the server accepts and rejects, and how keys are replaced."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

import feedmux
from feedmux_embedded import RedisServer, ReplicaSet
from feedmux_server.supervision import in_daemon_thread
from feedmux_server.tenants import jwks as jwks_module
from tests.documents import Documents
from tests.integration.issuer import AUDIENCE, ISSUER, SigningPair, jwks, web_server
from tests.integration.servers import until
from tests.integration.tenancy import Tenancy, configuration, entry, tenancy
from tests.integration.wire import feed

A, B = entry("a", "key-a-canary"), entry("b", "key-b-canary")
FIRST, SECOND, ELLIPTIC = SigningPair("first"), SigningPair("second"), SigningPair("elliptic", "ES256")


@pytest_asyncio.fixture
async def site(mongo: ReplicaSet, redis_server: RedisServer, tmp_path: Path) -> AsyncIterator[Tenancy]:
    configured = configuration(mongo, redis_server, tmp_path, A, B)
    path = tmp_path / "jwks.json"
    path.write_text(jwks(FIRST, ELLIPTIC))
    configured["jwt"] = {"issuer": ISSUER, "audience": AUDIENCE, "jwks_file": str(path)}
    async with tenancy(configured, FIRST.token()) as made:
        yield made


async def test_a_stream_ends_when_its_token_expires(site: Tenancy, database: Documents) -> None:
    token = FIRST.token(exp=int(time.time()) - 57)
    async with site.here.api.with_key(token) as brief:
        stream = await brief.open(feed=feed(database.name))
        assert (await stream.end()).code == "UNAUTHENTICATED"
    assert await site.refuses(token)


async def test_a_client_asks_for_a_new_token_and_goes_on(site: Tenancy, database: Documents) -> None:
    """The first token expires under the open session; the user's loop does not notice."""
    lives_s: list[int] = [4, 3600]
    given: list[int] = []

    def token() -> str:
        given.append(lives_s[min(len(given), 1)])
        return FIRST.token(exp=int(time.time()) - 60 + given[-1])

    endpoint = f"127.0.0.1:{site.here.api.data_port}"
    async with (
        feedmux.AsyncClient(endpoint, token=token, tls=False) as client,
        client.feed(database=database.name, collection="c").open() as session,
    ):
        for n in (1, 2):
            await asyncio.to_thread(database.c.insert_one, {"n": n})
            async with asyncio.timeout(60):
                assert (await anext(aiter(session))).document["fullDocument"]["n"] == n
            await until(lambda: len(given) > 1, timeout_s=60)
    assert given == [4, 3600]


async def test_a_client_gives_up_when_the_new_token_is_no_better(site: Tenancy, database: Documents) -> None:
    async with feedmux.AsyncClient(
        f"127.0.0.1:{site.here.api.data_port}", token=lambda: FIRST.token(exp=int(time.time()) - 57), tls=False
    ) as client:
        session = client.feed(database=database.name).open()
        async with asyncio.timeout(60), session:
            site.write(B)
            with pytest.raises(feedmux.Unauthenticated):
                await anext(aiter(session))


async def test_a_stream_ends_when_the_key_is_withdrawn(site: Tenancy, database: Documents, tmp_path: Path) -> None:
    async with site.here.api.with_key(ELLIPTIC.token()) as other:
        stays = await other.open(feed=feed(database.name, "c"))
        goes = await site.here.api.open(feed=feed(database.name, "c"))
        (tmp_path / "jwks.json").write_text(jwks(SECOND, ELLIPTIC))
        assert (await goes.end()).code == "UNAUTHENTICATED"
        assert await site.accepts(SECOND.token())
        database.c.insert_one({"n": 1})
        assert await stays.numbers(1) == [1]
        stays.cancel()


def test_a_url_of_this_machine_is_read_without_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with web_server() as web:
        web.body = jwks(FIRST)
        assert jwks_module.read_url(web.url) == web.body.encode()


async def test_an_answer_that_never_ends_is_not_waited_for() -> None:
    """Each piece arrives in time."""
    with web_server() as web:
        web.piece = b"HTTP/1.1 100 Continue\r\n\r\n"
        async with asyncio.timeout(60):
            with pytest.raises(jwks_module.JwksUnusable, match="arrives too slowly"):
                await in_daemon_thread(lambda: jwks_module.read_url(web.url, 0.2), "reads")


async def test_keys_by_url(
    mongo: ReplicaSet,
    redis_server: RedisServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Unavailable at the start; then available; then with another key; then unavailable again."""
    configured = configuration(mongo, redis_server, tmp_path, A)

    def complaints() -> int:
        return sum(each.levelno == logging.ERROR for each in caplog.records)

    with web_server() as web:
        configured["jwt"] = {"issuer": ISSUER, "audience": AUDIENCE, "jwks_url": web.url, "refresh_s": 3600}
        async with tenancy(configured, "key-a-canary") as site:
            await until(lambda: web.asked)
            assert await site.accepts("key-a-canary")
            asked = web.asked
            web.body = jwks(FIRST)
            for _ in range(5):
                assert await site.refuses(FIRST.token())
            assert web.asked == asked, "an unknown key may not have the URL asked again and again"
            assert complaints() == 1
            jwks_of(site)._miss_refresh_s = 0.0
            assert await site.accepts(FIRST.token())
            web.body = jwks(SECOND)
            assert await site.accepts(SECOND.token())
            assert await site.refuses(FIRST.token())
            # Also if nothing in the token shows that the issuer has another key.
            for kid, algorithm in ((SECOND.kid, "RS256"), (SECOND.kid, "ES256"), ("", "RS256"), ("", "RS256")):
                another = SigningPair(kid, algorithm)
                web.body = jwks(another)
                assert await site.accepts(another.token())
            web.body = jwks(SECOND)
            assert await site.accepts(SECOND.token())
            web.body = None
            assert await site.refuses(FIRST.token())
            assert await site.accepts(SECOND.token())
            web.location, web.body = web.url.replace("jwks", "elsewhere"), jwks(FIRST)
            assert await site.refuses(FIRST.token())
            assert complaints() == 2


def jwks_of(site: Tenancy) -> jwks_module.Jwks:
    verifier = site.here.server.service.admission.auth._jwt
    assert verifier is not None
    assert isinstance(verifier._keys, jwks_module.Jwks)
    return verifier._keys
