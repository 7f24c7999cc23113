"""What operators do from the command line: usage, ending a session, draining."""

import json
import subprocess
from pathlib import Path

from feedmux_embedded import RedisServer, ReplicaSet
from feedmux_embedded.ports import free_ports
from feedmux_server.cli.keys import new_key
from tests.cli.conftest import FEEDMUX, Site, clean_environment, run, write_config
from tests.started import Started


def test_usage(site: Site) -> None:
    made = site.json("tenants", "usage")
    (tenant,) = made["tenants"]
    assert tenant["tenant"] == "cli-tests"
    assert tenant["configured"] is True
    assert made["since"].endswith("Z")
    assert "cli-tests" in site.run("tenants", "usage", "--tenant", "cli-tests").stdout
    assert not site.json("tenants", "usage", "--tenant", "nobody")["tenants"]


def test_a_session_is_ended(site: Site) -> None:
    with site.start("watch", "ended_by_operator.c") as watch:
        found: list[str] = []
        while not found:
            assert watch.poll() is None
            answer = site.json("streams")
            streams = [each for each in answer["shared_streams"] if each["scope"] == "ended_by_operator.c"]
            found = [one["id"] for each in streams for one in each["subscribers"]]
        assert site.json("streams", "--end", found[0])["tenant"] == "cli-tests"
        assert watch.stderr is not None
        # The one-liner begins again by itself; a session that is gone has gone.
        done = site.run("streams", "--end", found[0])
        assert done.returncode == 1
        assert "no session has this id" in done.stderr
        assert "feedmux streams --subscribers" in done.stderr


def test_it_wants_the_operator_s_key(site: Site) -> None:
    for command in (("drain",), ("tenants", "usage"), ("streams", "--end", "1")):
        done = site.run(*command, FEEDMUX_OPERATOR_KEY=site.key)
        assert done.returncode == 1
        assert "rejects this operator key" in done.stderr
    assert "none was given" in site.run("drain", FEEDMUX_OPERATOR_KEY="").stderr


def test_drain(mongo: ReplicaSet, redis_server: RedisServer, tmp_path: Path) -> None:
    key = new_key()
    data, operator, health = (f"127.0.0.1:{port}" for port in free_ports(3))
    tenants = tmp_path / "tenants.yaml"
    tenants.write_text(json.dumps({"tenants": [{"name": "a"}]}))
    config = write_config(
        tmp_path,
        sources={"main": {"uri": mongo.uri}},
        redis={"url": redis_server.url},
        listen={"data": data, "operator": operator, "health": health},
        limits={"drain_s": 1.0},
        tenants_file=str(tenants),
        operator_key_hashes=[key.sha256],
    )
    with Started(
        [*FEEDMUX, "serve", "--config", config], env=clean_environment(), stderr=subprocess.PIPE, text=True
    ) as server:
        assert server.stderr is not None
        assert any('"serving"' in line for line in server.stderr)
        environment = clean_environment() | {"FEEDMUX_OPERATOR_KEY": key.key}
        done = run("drain", "--operator-endpoint", operator, "--json", environment=environment)
        assert json.loads(done.stdout) == {"sessions": 0, "deadline_s": 1.0}, done.stderr
        assert server.wait(60) == 0
