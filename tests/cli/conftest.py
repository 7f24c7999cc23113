"""A server started by `feedmux serve`, and the command line as users run it: as a process."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from feedmux_embedded import Process, RedisServer, ReplicaSet
from feedmux_embedded.ports import free_ports
from feedmux_server.cli.keys import new_key
from tests.started import Started, ran

FEEDMUX = (sys.executable, "-m", "feedmux.cli")
TIMEOUT_S = 60


@dataclass(frozen=True, slots=True)
class Site:
    """The server's address and the credentials that it accepts."""

    endpoint: str
    operator_endpoint: str
    key: str
    operator_key: str

    @property
    def environment(self) -> dict[str, str]:
        """For a user's shell."""
        return clean_environment() | {
            "FEEDMUX_ENDPOINT": self.endpoint,
            "FEEDMUX_OPERATOR_ENDPOINT": self.operator_endpoint,
            "FEEDMUX_API_KEY": self.key,
            "FEEDMUX_OPERATOR_KEY": self.operator_key,
        }

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return run(*arguments, environment=self.environment | environment)

    def json(self, *arguments: str) -> Any:
        """The last line of standard output of a command that succeeds."""
        done = self.run(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    def start(self, *arguments: str, **options: Any) -> Started[bytes]:
        return Started(
            [*FEEDMUX, *arguments],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            **options,
        )


def clean_environment() -> dict[str, str]:
    """Ours without what is set for feedmux, without the user's contexts, and without colours."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FEEDMUX_")}
    kept.pop("NO_COLOR", None)
    return kept | {"XDG_CONFIG_HOME": str(Path(tempfile.gettempdir()) / "feedmux-no-configuration")}


def run(*arguments: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """One command to its end."""
    env = clean_environment() if environment is None else environment
    return ran(*FEEDMUX, *arguments, env=env, timeout_s=TIMEOUT_S)


@pytest_asyncio.fixture(scope="session")
async def site(
    mongo: ReplicaSet, redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Site]:
    """`feedmux serve` on the shared MongoDB and Redis."""
    folder = tmp_path_factory.mktemp("serve")
    key, operator = new_key(), new_key()
    data, operator_port, health = free_ports(3)
    tenants = folder / "tenants.json"
    tenants.write_text(json.dumps({"tenants": [{"name": "cli-tests", "api_key_hashes": [key.sha256]}]}))
    config = folder / "feedmux.toml"
    config.write_text(
        f"""
        tenants_file = "{tenants}"
        operator_key_hashes = ["{operator.sha256}"]
        [sources.main]
        uri = "{mongo.uri}"
        [redis]
        url = "{redis_server.url}"
        [listen]
        data = "127.0.0.1:{data}"
        operator = "127.0.0.1:{operator_port}"
        health = "127.0.0.1:{health}"
        metrics = "127.0.0.1:0"
        [dead_letters]
        source = "main"
        database = "letters_of_the_cli_tests"
        [limits]
        max_await_ms = 200
        drain_s = 1.0
        """
    )
    server = Process("feedmux serve", [*FEEDMUX, "serve", "--config", str(config)], folder / "server.log")
    server.start()
    try:
        await server.wait_until_listening(health, timeout_s=60)
        await server.wait_until_listening(data, timeout_s=60)
        yield Site(f"localhost:{data}", f"localhost:{operator_port}", key.key, operator.key)
    finally:
        await server.terminate()
        log = (folder / "server.log").read_text()
        for secret in (key.key, operator.key):
            assert secret not in log


def write_config(folder: Path, **values: Any) -> str:
    """A configuration file (JSON is YAML). The operating system chooses the ports that `listen` does not name."""
    path = folder / "feedmux.yaml"
    listen = dict.fromkeys(("data", "operator", "health", "metrics"), "127.0.0.1:0") | values.pop("listen", {})
    path.write_text(json.dumps({"listen": listen, **values}))
    return str(path)
