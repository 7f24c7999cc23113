"""The client of Redis: its login, its TLS, and what of it can be configured."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis, UnixDomainSocketConnection
from redis.asyncio.sentinel import MasterNotFoundError
from redis.exceptions import ReadOnlyError, ResponseError

from feedmux_server.store.connection import (
    CONNECTIONS_MAX,
    SENTINEL_TIMEOUT_S,
    RedisAccess,
    StartupError,
    TlsConnection,
    WatchedCluster,
    WatchedPrimary,
    connect,
    leave_demoted,
)
from tests.tables import over
from tests.virtual_time import in_virtual_time

CERTIFICATE = "a certificate"


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("redis://a", Redis),
        ("redis+sentinel://a,b/primary", WatchedPrimary),
        ("redis+cluster://a,b", WatchedCluster),
    ],
)
async def test_the_url_chooses_the_client(url: str, kind: type) -> None:
    client = connect(url)
    assert type(client) is kind
    await client.aclose()


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("redis://a:1/2", {"host": "a", "port": 1, "db": 2, "username": None, "password": None}),
        ("redis://u:in%2Furl@a", {"username": "u", "password": "in/url"}),
        ("unix:///run/redis.sock", {"path": "/run/redis.sock"}),
    ],
)
async def test_how_one_server_is_reached(url: str, options: dict[str, Any]) -> None:
    client = connect(url)
    assert isinstance(client, Redis)
    used = client.connection_pool.connection_kwargs
    assert {name: used[name] for name in options} == options
    assert client.connection_pool.max_connections == CONNECTIONS_MAX
    assert (client.connection_pool.connection_class is UnixDomainSocketConnection) == url.startswith("unix")
    await client.aclose()


async def test_the_configuration_comes_before_the_login_in_the_url() -> None:
    client = connect("redis://u:old@a", RedisAccess(username="v", password="new"))
    assert isinstance(client, Redis)
    used = client.connection_pool.connection_kwargs
    assert (used["username"], used["password"]) == ("v", "new")
    assert "new" not in repr(RedisAccess(password="new", sentinel_password="new"))
    await client.aclose()


async def test_the_sentinels_have_a_login_of_their_own() -> None:
    client = connect("redis+sentinel://u:of-redis@a,b:1/primary", RedisAccess(sentinel_password="of-sentinels"))
    assert isinstance(client, WatchedPrimary)
    assert client.connection_pool.connection_kwargs["password"] == "of-redis"
    sentinels = client._sentinels.by_name
    assert list(sentinels) == ["a:26379", "b:1"]
    for each in sentinels.values():
        used = each.connection_pool.connection_kwargs
        assert (used["username"], used["password"]) == (None, "of-sentinels")
    await client.aclose()


@pytest.mark.parametrize(
    ("url", "names", "words"),
    [
        ("redis://:secret@a", ["ca_file"], "does not use TLS: begin it with rediss"),
        ("rediss://a", ["certificate_file"], "belong together"),
        ("rediss://a", ["key_file"], "belong together"),
        ("rediss+cluster://a", ["ca_file", "absent"], r"redis.ca_file: .*absent cannot be read"),
    ],
)
async def test_files_that_cannot_be_used(tmp_path: Path, url: str, names: list[str], words: str) -> None:
    path = tmp_path / names[-1]
    if names[-1] != "absent":
        path.write_text(CERTIFICATE)
    files: dict[str, Any] = {names[0]: path}
    with pytest.raises(StartupError, match=words) as caught:
        connect(url, RedisAccess(**files))
    assert "secret" not in str(caught.value)


async def test_tls_is_used_with_the_files_that_are_named(tmp_path: Path) -> None:
    authorities = tmp_path / "ca.pem"
    authorities.write_text(CERTIFICATE)
    client = connect("rediss://a", RedisAccess(ca_file=authorities))
    assert isinstance(client, Redis)
    assert client.connection_pool.connection_class is TlsConnection
    used = client.connection_pool.connection_kwargs
    assert (used["ssl_ca_certs"], "ssl_certfile" in used) == (str(authorities), False)
    await client.aclose()


@pytest.mark.parametrize(("error", "left"), [(ReadOnlyError("READONLY"), 1), (ResponseError("OOM"), 0)])
async def test_a_server_that_is_no_longer_the_primary_is_left(error: Exception, left: int) -> None:
    client = connect("redis://a")
    assert isinstance(client, Redis)
    calls: list[bool] = []

    async def disconnect(*, inuse_connections: bool) -> None:
        calls.append(inuse_connections)

    client.connection_pool.disconnect = disconnect  # type: ignore[method-assign,assignment]
    await leave_demoted(client, error)
    assert calls == [False] * left


@pytest.mark.parametrize("url", ["redis://a", "redis+cluster://a", "unix:///a"])
@pytest.mark.parametrize(
    "access",
    [
        RedisAccess(sentinel_username="u"),
        RedisAccess(sentinel_password="secret"),
        RedisAccess(sentinel_login=lambda: ("u", "secret")),
    ],
)
def test_a_login_at_sentinels_without_sentinels_is_refused(url: str, access: RedisAccess) -> None:
    with pytest.raises(StartupError, match=r"names no sentinels: write redis\+sentinel://") as caught:
        connect(url, access)
    assert "secret" not in str(caught.value)


class FakeSentinel:
    """Answers after a time that a sentinel of the primary `name` with this epoch names it; never, if that is None."""

    def __init__(self, after_s: float | None, name: str = "", epoch: int = 0, **flags: bool) -> None:
        self._after_s = after_s
        state = {"is_master": True, "is_sdown": False, "is_odown": False, "num-other-sentinels": 2, **flags}
        self._masters = {"primary": {"ip": name, "port": 6379, "config-epoch": epoch, **state}} if name else {}

    async def sentinel_masters(self) -> dict[str, Any]:
        await asyncio.sleep(3600 if self._after_s is None else self._after_s)
        return self._masters


SENTINELS: dict[str, tuple[list[FakeSentinel], str, float]] = {
    "agree": ([FakeSentinel(0.1, "new"), FakeSentinel(0.2, "new"), FakeSentinel(None)], "new", 0.2),
    "the first one was cut off": (
        [FakeSentinel(0.1, "old"), FakeSentinel(0.2, "new", 1), FakeSentinel(0.3, "new", 1)],
        "new",
        0.3,
    ),
    "it has had more failovers than the others": (
        [FakeSentinel(0.1, "old", 9), FakeSentinel(0.2, "new"), FakeSentinel(0.3, "new")],
        "new",
        0.3,
    ),
    "the newest configuration": (
        [FakeSentinel(0.1, "old", 1), FakeSentinel(0.2, "new", 2), FakeSentinel(None)],
        "new",
        SENTINEL_TIMEOUT_S,
    ),
    "down for one, unknown to one": (
        [FakeSentinel(0.1, "old", is_sdown=True), FakeSentinel(0.2), FakeSentinel(0.3, "new")],
        "new",
        0.3,
    ),
    "only one answers": ([FakeSentinel(None), FakeSentinel(0.1, "new"), FakeSentinel(None)], "new", SENTINEL_TIMEOUT_S),
    "none answers": ([FakeSentinel(None), FakeSentinel(None)], "", SENTINEL_TIMEOUT_S),
}


@over("case", SENTINELS)
@in_virtual_time
async def test_which_primary_the_sentinels_name(case: str) -> None:
    sentinels, primary, after_s = SENTINELS[case]
    client = connect("redis+sentinel://a,b,c/primary")
    assert isinstance(client, WatchedPrimary)
    client._sentinels.sentinels = list[Any](sentinels)
    began_s = asyncio.get_running_loop().time()
    if primary:
        assert await client._sentinels.discover_master("primary") == (primary, 6379)
    else:
        with pytest.raises(MasterNotFoundError):
            await client._sentinels.discover_master("primary")
    assert asyncio.get_running_loop().time() - began_s == pytest.approx(after_s)
