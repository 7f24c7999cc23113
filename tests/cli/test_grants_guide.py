"""docs/grants.md is correct: its tenants file, its changes, and what each team sees of them."""

import json
import re
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from pymongo import MongoClient

from feedmux_embedded import Process, RedisServer
from feedmux_embedded.ports import free_ports
from feedmux_server.cli.keys import new_key
from tests.cli.conftest import FEEDMUX, clean_environment, run
from tests.cli.guides import mongosh
from tests.cli.pages import blocks
from tests.conftest import ReplicaSetFactory

GUIDE = "docs/grants.md"
TEAMS = ("team-a", "finance")
SHOWN = ("operationType", "documentKey", "fullDocument", "updateDescription")


class Guide:
    """Following it."""

    def __init__(self, uri: str, endpoint: str, keys: dict[str, str]) -> None:
        self.uri = uri
        self._endpoint = endpoint
        self._keys = keys

    def run(self, tenant: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
        environment = {"FEEDMUX_ENDPOINT": self._endpoint, "FEEDMUX_API_KEY": self._keys[tenant]}
        return run(*arguments, environment=clean_environment() | environment)


@pytest_asyncio.fixture
async def guide(
    replica_set_factory: ReplicaSetFactory, redis_server: RedisServer, tmp_path: Path
) -> AsyncIterator[Guide]:
    mongo = await replica_set_factory(oplog_mb=128)
    keys = {name: new_key() for name in TEAMS}
    (text,) = blocks(GUIDE, "yaml")
    for name, key in keys.items():
        text = text.replace(f"<hash of {name}>", key.sha256)
    (tmp_path / "tenants.yaml").write_text(text)
    data, operator, health, metrics = free_ports(4)
    ports = {"data": data, "operator": operator, "health": health, "metrics": metrics}
    config = {
        "tenants_file": str(tmp_path / "tenants.yaml"),
        "sources": {"main": {"uri": mongo.uri}},
        "redis": {"url": redis_server.url},
        "listen": {name: f"127.0.0.1:{port}" for name, port in ports.items()},
        "limits": {"max_await_ms": 200, "drain_s": 1.0},
    }
    (tmp_path / "feedmux.yaml").write_text(json.dumps(config))
    command = [*FEEDMUX, "serve", "--config", str(tmp_path / "feedmux.yaml")]
    server = Process("feedmux serve", command, tmp_path / "server.log")
    server.start()
    try:
        await server.wait_until_listening(health, timeout_s=60)
        await server.wait_until_listening(data, timeout_s=60)
        yield Guide(mongo.uri, f"localhost:{data}", {name: key.key for name, key in keys.items()})
    finally:
        await server.terminate()


@pytest.mark.full
async def test_the_guide(guide: Guide) -> None:
    with MongoClient[dict[str, Any]](guide.uri) as client:
        shop = client["shop"]
        shop.create_collection("orders")
        without = guide.run("team-a", "explain", "shop.orders", "--json")
        assert [each["enabled"] for each in json.loads(without.stdout)["images"]] == [False]
        (command,) = blocks(GUIDE, "js")
        database, images = mongosh(command)
        client[database].command(images)
        (explained,) = blocks(GUIDE, "sh")
        for words in re.findall(r"^feedmux (explain \S+)", explained, flags=re.MULTILINE):
            done = guide.run("team-a", *words.split())
            refused = words.endswith("refunds")
            assert (done.returncode, "PERMISSION_DENIED" in done.stdout) == (int(refused), refused), done
            assert guide.run("finance", *words.split()).returncode == 0
        (changes,) = blocks(GUIDE, "python")
        exec(changes, {"shop": shop})  # noqa: S102 - it is our own guide
        watched = [(tenant, *what) for what in (("shop", "earliest"), ("shop.orders", "snapshot")) for tenant in TEAMS]
        for (tenant, feed, start), lines in zip(watched, blocks(GUIDE, "json"), strict=True):
            expected = [json.loads(line) for line in lines.splitlines()]
            done = guide.run(tenant, "watch", feed, "--start", start, "--limit", str(len(expected)))
            events = [json.loads(line) for line in done.stdout.splitlines()]
            assert [{name: each[name] for name in SHOWN if name in each} for each in events] == expected
