"""docs/tenants.md: its commands are run as they stand there, in their order."""

import tomllib
from pathlib import Path

import pytest

from feedmux_embedded import RedisServer, ReplicaSet
from feedmux_embedded.ports import free_ports
from feedmux_server.config.load import load_tenants, make_config
from tests.cli.guides import run_steps
from tests.cli.pages import blocks

GUIDE = "docs/tenants.md"


def test_the_example_is_a_tenants_file(tmp_path: Path) -> None:
    (text,) = blocks(GUIDE, "yaml")
    (tmp_path / "tenants.yaml").write_text(text)
    assert [tenant.name for tenant in load_tenants(tmp_path / "tenants.yaml").tenants] == ["shop", "search"]


def test_the_jwt_section_is_a_configuration() -> None:
    (text,) = blocks(GUIDE, "toml")
    config = make_config({"sources": {"main": {"uri": "mongodb://x"}}, **tomllib.loads(text)})
    assert config.jwt is not None


@pytest.mark.full
def test_the_commands_do_what_it_says(mongo: ReplicaSet, redis_server: RedisServer, tmp_path: Path) -> None:
    data, operator, health = free_ports(3)
    environment = {
        "FEEDMUX_SOURCES__MAIN__URI": mongo.uri,
        "FEEDMUX_REDIS__URL": redis_server.url,
        "FEEDMUX_LISTEN__DATA": f"127.0.0.1:{data}",
        "FEEDMUX_LISTEN__OPERATOR": f"127.0.0.1:{operator}",
        "FEEDMUX_LISTEN__HEALTH": f"127.0.0.1:{health}",
        "FEEDMUX_LIMITS__DRAIN_S": "1",
        "FEEDMUX_ENDPOINT": f"localhost:{data}",
        "FEEDMUX_OPERATOR_ENDPOINT": f"localhost:{operator}",
    }
    steps = list(blocks(GUIDE, "sh"))
    said = run_steps(steps, tmp_path, environment)

    def says(command: str) -> str:
        return said[next(number for number, step in enumerate(steps) if command in step)]

    assert says("subscriptions create products").count("main:shop.products") == 2
    assert "orders" in says("--certificate-file")
    assert "products" not in says("--certificate-file")
    assert int(says("grep -c authentication_failed")) > 0
