"""`feedmux serve` that cannot start: one message that names the field and the next step, and status 1."""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from feedmux_embedded import RedisServer, ReplicaSet
from feedmux_embedded.ports import free_ports
from feedmux_server.app import CannotStart, running
from feedmux_server.config.errors import ConfigError
from feedmux_server.config.load import load_config, make_config
from tests.cli.conftest import run, write_config
from tests.integration.certificates import Authority

MAIN = {"main": {"uri": "mongodb://127.0.0.1:1/"}}

WRONG: dict[str, tuple[dict[str, Any], str, str]] = {
    "unknown option": ({"limits": {"ring_byte": 1}}, "limits.ring_byte", "did you mean ring_bytes?"),
    "unknown option, as elsewhere": ({"listen": {"url": ""}}, "listen.url", "lists all options"),
    "unknown option of an entry": ({"sources": {"main": {"url": ""}}}, "sources.main.url", "did you mean uri?"),
    "an address without a port": ({"listen": {"data": "127.0.0.1"}}, "listen.data", "write host:port"),
    "unknown option, nothing like it": ({"limits": {"zzz": 1}}, "limits.zzz", "--help"),
    "unknown section": ({"limit": {}}, "limit", "did you mean limits?"),
    "missing": ({"tls": {"key_file": "k"}}, "tls.certificate_file", "required"),
    "no source": ({"sources": {}}, "sources", "at least 1"),
    "not a number": ({"limits": {"drain_s": "soon"}}, "limits.drain_s", "number"),
    "out of range": ({"redis": {"lease_s": 0.5}}, "redis.lease_s", "greater than or equal to 2"),
    "a choice": ({"when_unavailable": "hope"}, "when_unavailable", "'fail' or 'wait'"),
    "rings above all memory": (
        {"limits": {"ring_bytes": 128 << 20, "memory_bytes": 64 << 20}}, "ring_bytes", "lower it",
    ),
    "leases shorter than renewals": ({"redis": {"lease_s": 2, "commit_interval_s": 1}}, "lease_s", "three times"),
    "mutual TLS without authorities": ({"listen": {"data_mtls": "127.0.0.1:0"}}, "listen.data_mtls", "client_ca_file"),
    "a source's name": ({"sources": {"a/b": {"uri": "mongodb://h"}}}, "sources", "source"),
}  # fmt: skip


@pytest.mark.parametrize(("values", "field", "advice"), WRONG.values(), ids=list(WRONG))
def test_a_configuration_that_contradicts_itself(
    tmp_path: Path, values: dict[str, Any], field: str, advice: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(Path(write_config(tmp_path, **{"sources": MAIN, **values})))
    assert field in str(caught.value)
    assert advice in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_a_variable_of_no_section(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEEDMUX_LISTENS__DATA", "127.0.0.1:0")
    monkeypatch.setenv("FEEDMUX_API_KEY", "a client's")
    with pytest.raises(ConfigError, match=r"FEEDMUX_LISTENS__DATA.*did you mean listen"):
        load_config(Path(write_config(tmp_path, sources=MAIN)))


Start = Callable[..., Awaitable[str]]


@pytest.fixture
def start(mongo: ReplicaSet, redis_server: RedisServer) -> Start:
    """Starts a server with these values over good ones; why it could not."""

    async def starting(*, insecure: bool = True, **values: Any) -> str:
        base = {
            "sources": {"main": {"uri": mongo.uri}},
            "redis": {"url": redis_server.url},
            "listen": dict.fromkeys(("data", "operator", "health"), "127.0.0.1:0"),
        }
        with pytest.raises(CannotStart) as caught:
            async with running(make_config({**base, **values}), insecure_no_auth=insecure):
                pass
        assert "secret" not in str(caught.value)
        return str(caught.value)

    return starting


def test_the_process_says_it_in_one_message(tmp_path: Path, redis_server: RedisServer) -> None:
    config = write_config(tmp_path, sources=MAIN, redis={"url": "redis://:secret@a,b"})
    done = run("serve", "--config", config)
    assert done.returncode == 1
    assert done.stderr.startswith("feedmux: no authentication is configured")
    tls = {"url": redis_server.url, "ca_file": "ca.pem"}
    config = write_config(tmp_path, sources=MAIN, redis=tls)
    done = run("serve", "--config", config, "--insecure-no-auth")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("feedmux: redis: TLS files are set")
    assert len(done.stderr.splitlines()) == 1


async def test_dependencies(start: Start, redis_server: RedisServer) -> None:
    (closed,) = free_ports(1)
    away = {"uri": f"mongodb://u:secret@127.0.0.1:{closed}/", "server_selection_timeout_ms": 300}
    assert "Check sources.away.uri" in await start(sources={"away": away})
    assert "sources.bad.uri" in await start(sources={"bad": {"uri": "postgres://u:secret@h/"}})
    assert "percent-encoded" in await start(sources={"bad": {"uri": "mongodb://u:secret@:@h/"}})
    said = await start(redis={"url": f"redis://u:secret@127.0.0.1:{closed}/0"})
    assert "redis.url" in said
    assert "check that it is running" in said
    with_password = redis_server.url.replace("redis://", "redis://:secret@")
    assert "Redis has no password" in await start(redis={"url": with_password})
    assert "redis+sentinel://" in await start(redis={"url": "redis://:secret@a,b/0"})
    assert "begin it with rediss" in await start(redis={"url": redis_server.url, "ca_file": "ca.pem"})


async def test_files(start: Start, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    authority.sign("one")
    authority.sign("two")
    pem, key, other, absent = (str(tmp_path / name) for name in ("one.pem", "one.key", "two.key", "absent.pem"))
    said = await start(tls={"certificate_file": pem, "key_file": other})
    assert "tls.certificate_file and tls.key_file" in said
    assert "openssl" in said
    assert f"tls.certificate_file: {absent} cannot be read" in await start(
        tls={"certificate_file": absent, "key_file": key}
    )
    said = await start(tls={"certificate_file": pem, "key_file": key, "client_ca_file": key})
    assert "tls.client_ca_file" in said
    said = await start(audit={"file": str(tmp_path / "one.pem" / "audit.jsonl")})
    assert "audit.file" in said
    assert "standard error" in said
    said = await start(insecure=False, tenants_file=absent)
    assert "tenants_file" in said
    assert "feedmux tenants check" in said
    (tmp_path / "tenants.json").write_text(json.dumps({"tenants": [{"name": "a", "quota": {}}]}))
    said = await start(insecure=False, tenants_file=str(tmp_path / "tenants.json"))
    assert "tenants.0.quota" in said


async def test_files_are_read_before_a_port_is_opened(start: Start, redis_server: RedisServer, tmp_path: Path) -> None:
    listen = dict.fromkeys(("data", "operator", "health"), f"127.0.0.1:{redis_server.port}")
    assert "tenants_file" in await start(insecure=False, tenants_file=str(tmp_path / "absent.yaml"), listen=listen)


@pytest.mark.parametrize("name", ["data", "operator", "health"])
async def test_a_port_in_use(start: Start, redis_server: RedisServer, name: str) -> None:
    listen = dict.fromkeys(("data", "operator", "health"), "127.0.0.1:0")
    said = await start(listen={**listen, name: f"127.0.0.1:{redis_server.port}"})
    assert f"Set listen.{name} (or FEEDMUX_LISTEN__{name.upper()}) to another" in said
