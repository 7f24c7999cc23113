"""The services of compose.yaml that run feedmux's image, started in the same order with the same commands, but outside
containers."""

import json
import shlex
from pathlib import Path
from typing import Any

import yaml
from pymongo import MongoClient

from feedmux_embedded import Process, RedisServer, ReplicaSet
from feedmux_embedded.ports import free_ports
from tests.cli.conftest import FEEDMUX, TIMEOUT_S, clean_environment, run
from tests.started import ran

SERVICES = yaml.safe_load((Path(__file__).parents[2] / "compose.yaml").read_text())["services"]


async def test_the_first_start_makes_a_key_that_the_server_accepts(
    mongo: ReplicaSet, redis_server: RedisServer, mongo_client: MongoClient[dict[str, Any]], tmp_path: Path
) -> None:
    def here(word: str) -> str:
        return word.replace("/etc/feedmux", str(tmp_path))

    keys = [here(word) for word in SERVICES["keys"]["command"]]
    made = run(*keys)
    assert made.returncode == 0, made.stderr
    server = SERVICES["feedmux"]
    data, operator, health = free_ports(3)
    environment = {name: here(value) for name, value in server["environment"].items()} | {
        "FEEDMUX_SOURCES__MAIN__URI": mongo.uri,
        "FEEDMUX_REDIS__URL": redis_server.url,
        "FEEDMUX_LISTEN__DATA": f"127.0.0.1:{data}",
        "FEEDMUX_LISTEN__METRICS": "127.0.0.1:0",
        "FEEDMUX_LISTEN__OPERATOR": f"127.0.0.1:{operator}",
        "FEEDMUX_LISTEN__HEALTH": f"127.0.0.1:{health}",
    }
    process = Process(
        "feedmux serve",
        [*FEEDMUX, *server["command"]],
        tmp_path / "server.log",
        env=environment,
    )
    process.start()
    try:
        await process.wait_until_listening(data, timeout_s=60)
        mongo_client.shop.orders.insert_one({"n": 1})
        [printed] = [line.strip() for line in made.stdout.splitlines() if "feedmux watch" in line]
        variable, program, *arguments = shlex.split(printed)
        assert program == "feedmux"
        watch = ("env", variable, *FEEDMUX, *arguments, "--start", "earliest", "--limit", "1")
        watched = ran(*watch, env=clean_environment() | {"FEEDMUX_ENDPOINT": f"localhost:{data}"}, timeout_s=TIMEOUT_S)
        assert watched.returncode == 0, watched.stderr
        assert json.loads(watched.stdout)["ns"] == {"db": "shop", "coll": "orders"}
    finally:
        await process.terminate()
    again = run(*keys)
    assert again.returncode == 0, again.stderr
    assert "fmx_" not in again.stdout
