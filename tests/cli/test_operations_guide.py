"""docs/install.md, operations.md, runbook.md, replicas.md and redis.md: run their commands, check their statements."""

import hashlib
import re
import tomllib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml
from pymongo import AsyncMongoClient, MongoClient
from pymongo.errors import OperationFailure

from feedmux_embedded import RedisServer, ReplicaSet
from feedmux_embedded.ports import free_ports
from feedmux_server.config.load import make_config
from feedmux_server.core.feeds.feed import Scope, route_of
from feedmux_server.store.connection import connect
from feedmux_server.store.schema import LAYOUT
from tests.cli.conftest import run, write_config
from tests.cli.guides import DOCS, mongosh, run_steps, run_until
from tests.cli.pages import blocks


@pytest_asyncio.fixture(scope="module")
async def guarded(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ReplicaSet]:
    """A replica set that wants a user and password, with the guide's commands carried out."""
    key = tmp_path_factory.mktemp("auth") / "key"
    key.write_text("feedmux" * 4)
    key.chmod(0o600)
    async with ReplicaSet(oplog_mb=1024, arguments=["--auth", "--keyFile", str(key)]) as mongo:
        async with AsyncMongoClient[dict[str, Any]](mongo.nodes[0].uri) as first:
            await first.admin.command("createUser", "admin", pwd="admin", roles=["root"])
        async with AsyncMongoClient[dict[str, Any]](uri_of(mongo, "admin", "admin")) as client:
            await client.shop.create_collection("orders")
            for block in blocks("docs/operations.md", "js"):
                database, command = mongosh(block)
                await client[database].command(command)
        yield mongo


def uri_of(mongo: ReplicaSet, user: str, password: str) -> str:
    return f"{mongo.uri.replace('//', f'//{user}:{password}@')}&authSource=admin"


def test_the_guides_commands(guarded: ReplicaSet, redis_server: RedisServer, tmp_path: Path) -> None:
    letters, configuration = blocks("docs/operations.md", "toml")
    (tmp_path / "feedmux.toml").write_text(configuration + letters)
    login = re.compile(r"mongodb://(\w+):([\w-]+)@")
    (user, password), (writer, secret) = login.findall(configuration)[0], login.findall(letters)[0]
    with MongoClient[dict[str, Any]](uri_of(guarded, "admin", "admin")) as admin:
        admin.admin.command("createUser", writer, pwd=secret, roles=[{"role": "readWrite", "db": "feedmux"}])
    data, operator, health, metrics = free_ports(4)
    environment = {
        "FEEDMUX_SOURCES__MAIN__URI": uri_of(guarded, user, password),
        "FEEDMUX_DEAD_LETTERS__URI": uri_of(guarded, writer, secret),
        "FEEDMUX_DEAD_LETTERS__SOURCE": "main",
        "FEEDMUX_REDIS__URL": redis_server.url,
        "FEEDMUX_LISTEN__DATA": f"127.0.0.1:{data}",
        "FEEDMUX_LISTEN__OPERATOR": f"127.0.0.1:{operator}",
        "FEEDMUX_LISTEN__HEALTH": f"127.0.0.1:{health}",
        "FEEDMUX_LISTEN__METRICS": f"127.0.0.1:{metrics}",
        "FEEDMUX_LIMITS__DRAIN_S": "1",
        "FEEDMUX_ENDPOINT": f"localhost:{data}",
        "FEEDMUX_OPERATOR_ENDPOINT": f"localhost:{operator}",
    }
    *before, drain, new_key = blocks("docs/operations.md", "sh")
    (alert,) = blocks("docs/runbook.md", "sh")
    alert = alert.replace("--operator-key …", '--operator-key "$FEEDMUX_OPERATOR_KEY"').replace("9117", str(metrics))
    doctor, client, looked, checked, drained, _ = run_steps([*before, alert, drain, new_key], tmp_path, environment)
    assert "feedmux_ready" in checked
    assert len((tmp_path / "position.keys").read_bytes()) == 45
    assert "the account has every privilege that feedmux needs" in doctor
    assert "shop.orders stores pre- and post-images" in doctor
    assert "dead letters can be written to feedmux.dead_letters" in doctor
    assert " 0 failed" in doctor
    assert "the server says SERVING" in client
    assert "the key is accepted" in client
    assert "orders-to-search" in looked
    assert "draining" in drained


def test_the_server_is_installed(mongo: ReplicaSet, redis_server: RedisServer, tmp_path: Path) -> None:
    new_key, serve = blocks("docs/install.md", "sh")
    (printed,) = run_steps([new_key], tmp_path, {})
    (sha256,) = re.findall(r"^sha256  (\w+)", printed, re.MULTILINE)
    ports = free_ports(4)
    names = ("DATA", "OPERATOR", "HEALTH", "METRICS")
    environment = {f"FEEDMUX_LISTEN__{name}": f"127.0.0.1:{port}" for name, port in zip(names, ports, strict=True)}
    environment |= {"FEEDMUX_SOURCES__MAIN__URI": mongo.uri, "FEEDMUX_REDIS__URL": redis_server.url}
    assert serve.count("<the hash>") == 1
    run_until('"serving"', ["bash", "-ec", serve.replace("<the hash>", sha256)], tmp_path, environment)


def test_the_role_reads_and_writes_nothing(guarded: ReplicaSet) -> None:
    with MongoClient[dict[str, Any]](uri_of(guarded, "feedmux", "change-this")) as client:
        with client.watch() as stream:
            assert stream.alive
        for write in (
            lambda: client.shop.orders.insert_one({}),
            lambda: client.admin.command("replSetResizeOplog", 1, size=990.0),
            lambda: list(client.admin["system.users"].find()),
        ):
            with pytest.raises(OperationFailure) as caught:
                write()
            assert caught.value.code == 13


def test_what_the_role_lacks_is_named(guarded: ReplicaSet, redis_server: RedisServer, tmp_path: Path) -> None:
    with MongoClient[dict[str, Any]](uri_of(guarded, "admin", "admin")) as client:
        client.admin.command("createUser", "poor", pwd="poor", roles=[])
    source = {"uri": uri_of(guarded, "poor", "poor")}
    config = write_config(tmp_path, sources={"main": source}, redis={"url": redis_server.url})
    done = run("doctor", "--config", config, "--collection", "shop.orders")
    assert done.returncode == 1
    for lacking in ("find and changeStream", "replSetGetConfig", "listDatabases", "local", "listCollections"):
        assert lacking in done.stdout
    assert "MongoDB role" in done.stdout


def test_a_wrong_password_is_named(guarded: ReplicaSet, redis_server: RedisServer, tmp_path: Path) -> None:
    source = {"uri": uri_of(guarded, "feedmux", "wrong-secret")}
    config = write_config(tmp_path, sources={"main": source}, redis={"url": redis_server.url})
    done = run("serve", "--config", config, "--insecure-no-auth")
    assert done.returncode == 1
    assert "authMechanism in sources.main.uri" in done.stderr
    assert "wrong-secret" not in done.stderr


def test_the_examples_are_configurations() -> None:
    text, prefix = blocks("docs/redis.md", "toml")
    section = tomllib.loads(text)["redis"] | tomllib.loads(prefix)["redis"]
    config = make_config({"sources": {"main": {"uri": "mongodb://x"}}, "redis": section})
    assert (config.redis.username, config.redis.key_prefix) == ("feedmux", "feedmux-staging")
    for url in re.findall(r"`((?:redis|unix)[+\w]*://[^`]+)`", (DOCS / "redis.md").read_text()):
        if not url.endswith("://"):
            connect(url)
    assert f"`feedmux:schema` | the layout of the keys, now `{LAYOUT}`" in (DOCS / "redis.md").read_text()


def test_the_route_can_be_computed(tmp_path: Path) -> None:
    (said,) = run_steps([*blocks("docs/replicas.md", "sh")], tmp_path, {})
    assert said.strip() == route_of(Scope("main", "shop", "orders"))
    assert route_of(Scope("main")) == hashlib.sha256(b"main/*").hexdigest()[:16]


def test_the_proxies_are_configured_for_the_route_and_the_ports() -> None:
    envoy, istio, probes = (yaml.safe_load(block) for block in blocks("docs/replicas.md", "yaml"))
    listener = envoy["static_resources"]["listeners"][0]
    (manager,) = [each["typed_config"] for each in listener["filter_chains"][0]["filters"]]
    (route,) = manager["route_config"]["virtual_hosts"][0]["routes"]
    assert route["route"]["hash_policy"] == [{"header": {"header_name": "x-feedmux-route"}}]
    assert route["route"]["timeout"] == "0s"
    (cluster,) = envoy["static_resources"]["clusters"]
    assert (route["route"]["cluster"], cluster["lb_policy"]) == (cluster["name"], "RING_HASH")
    assert cluster["load_assignment"]["cluster_name"] == cluster["name"]
    assert cluster["health_checks"][0]["grpc_health_check"] == {"service_name": "feedmux.v1.ChangeFeed"}
    hashed = istio["spec"]["trafficPolicy"]["loadBalancer"]["consistentHash"]
    assert hashed["httpHeaderName"] == "x-feedmux-route"
    asked = {name.removesuffix("Probe"): probe["grpc"] for name, probe in probes.items()}
    assert asked == {name: {"port": 7119, "service": name} for name in ("startup", "liveness", "readiness")}
