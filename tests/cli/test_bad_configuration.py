"""`feedmux serve` that cannot start: one message that names the field and the next step, and status 1."""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from feedmux_embedded import RedisServer, ReplicaSet
from feedmux_embedded.ports import free_ports
from feedmux_server.app import CannotStart, running
from feedmux_server.config.load import make_config
from tests.cli.conftest import clean_environment, run, write_config

MAIN = {"main": {"uri": "mongodb://127.0.0.1:1/"}}

LISTENERS = ("data", "operator", "health", "metrics")

Start = Callable[..., Awaitable[str]]


@pytest.fixture
def start(mongo: ReplicaSet, redis_server: RedisServer) -> Start:
    """Starts a server with these values over good ones; why it could not."""

    async def starting(*, insecure: bool = True, listen: dict[str, str] | None = None, **values: Any) -> str:
        base = {
            "sources": {"main": {"uri": mongo.uri}},
            "redis": {"url": redis_server.url},
            "listen": dict.fromkeys(LISTENERS, "127.0.0.1:0") | (listen or {}),
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
    assert "--insecure-no-auth" in done.stderr
    tls = {"url": redis_server.url, "ca_file": "ca.pem"}
    config = write_config(tmp_path, sources=MAIN, redis=tls)
    done = run("serve", "--config", config, "--insecure-no-auth")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("feedmux: redis: TLS files are set")
    assert len(done.stderr.splitlines()) == 1
    config = write_config(tmp_path, sources=MAIN, redis={"url": redis_server.url})
    # Read when a module of OpenTelemetry is imported.
    environment = clean_environment() | {"OTEL_PROPAGATORS": "absent"}
    done = run("serve", "--config", config, "--insecure-no-auth", environment=environment)
    assert (done.returncode, done.stdout) == (1, "")
    assert "Propagator absent not found" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


async def test_dependencies(start: Start, redis_server: RedisServer) -> None:
    (closed,) = free_ports(1)
    away = {"uri": f"mongodb://u:secret@127.0.0.1:{closed}/", "server_selection_timeout_ms": 300}
    assert "Check sources.away.uri" in await start(sources={"away": away})
    assert "percent-encoded" in await start(sources={"bad": {"uri": "mongodb://u:secret@:@h/"}})
    said = await start(redis={"url": f"redis://u:secret@127.0.0.1:{closed}/0"})
    assert "redis.url" in said
    assert "check that it is running" in said
    with_password = redis_server.url.replace("redis://", "redis://:secret@")
    assert "Redis has no password" in await start(redis={"url": with_password})
    assert "begin it with rediss" in await start(redis={"url": redis_server.url, "ca_file": "ca.pem"})


async def test_files(start: Start, tmp_path: Path) -> None:
    absent = str(tmp_path / "absent.pem")
    said = await start(tls={"certificate_file": absent, "key_file": absent})
    assert f"tls.certificate_file: {absent} cannot be read" in said
    said = await start(audit={"file": str(tmp_path / "absent" / "audit.jsonl")})
    assert "audit.file" in said
    assert "standard error" in said
    said = await start(insecure=False, tenants_file=absent)
    assert "tenants_file" in said
    assert "feedmux tenants check" in said
    (tmp_path / "tenants.json").write_text(json.dumps({"tenants": [{"name": "a", "quota": {}}]}))
    said = await start(insecure=False, tenants_file=str(tmp_path / "tenants.json"))
    assert "tenants.0.quota" in said


async def test_files_are_read_before_a_port_is_opened(start: Start, redis_server: RedisServer, tmp_path: Path) -> None:
    listen = dict.fromkeys(LISTENERS, f"127.0.0.1:{redis_server.port}")
    assert "tenants_file" in await start(insecure=False, tenants_file=str(tmp_path / "absent.yaml"), listen=listen)


@pytest.mark.parametrize("name", ["data", "operator", "health"])
async def test_a_port_in_use(start: Start, redis_server: RedisServer, name: str) -> None:
    said = await start(listen={name: f"127.0.0.1:{redis_server.port}"})
    assert f"Set listen.{name} (or FEEDMUX_LISTEN__{name.upper()}) to another" in said
