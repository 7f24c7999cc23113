"""`feedmux token decode` and `feedmux keys new`."""

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from bson import Timestamp
from pymongo.database import Database

from feedmux_server.config.load import load_tenants
from tests.cli.conftest import Site, run


def decoded(*arguments: str) -> Any:
    done = run("token", "decode", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_an_event_s_token(database: Database[dict[str, Any]]) -> None:
    with database.orders.watch() as stream:
        database.orders.insert_one({"_id": 7})
        event = stream.next()
    said = decoded(event["_id"]["_data"])
    assert said["kind"] == "resume token"
    assert Timestamp(said["cluster_time_seconds"], said["cluster_time_increment"]) == event["clusterTime"]
    assert said["token_type"] == "event"
    assert said["from_invalidate"] is False
    assert said["transaction_index"] == 0
    assert said["event_identifier"] == {"_id": 7}
    assert decoded(json.dumps(event["_id"])) == said
    text = run("token", "decode", event["_id"]["_data"]).stdout
    assert f"Timestamp({event['clusterTime'].time}, {event['clusterTime'].inc})" in text
    assert "{_id: 7}" in text


def test_a_position(site: Site) -> None:
    made = site.json("subscriptions", "create", "token-decode", "shop")
    said = decoded(made["position"])
    assert said["kind"] == "position"
    assert said["token_type"] == "high-water mark"
    seconds, _, increment = made["cluster_time"].partition(":")
    assert (said["cluster_time_seconds"], said["cluster_time_increment"]) == (int(seconds), int(increment))
    padded = made["position"] + "=" * (-len(made["position"]) % 4)
    assert decoded(base64.urlsafe_b64decode(padded).hex()) == said
    site.run("subscriptions", "delete", "token-decode")


@pytest.mark.parametrize(
    "text", ["", "82", "nonsense", "deadbeef", "{", '{"_data": 1}', '{"_data": "zz"}', "8gGAAAAA", "f2"]
)
def test_what_is_no_token(text: str) -> None:
    done = run("token", "decode", text)
    assert done.returncode == 1
    assert done.stderr.startswith("feedmux: ")
    assert "Traceback" not in done.stderr


def test_a_new_key(tmp_path: Path) -> None:
    done = run("keys", "new", "--json", "--tenant", "search")
    made = json.loads(done.stdout)
    assert re.fullmatch(r"fmx_[A-Za-z0-9_-]{43}", made["key"])
    assert made["sha256"] == hashlib.sha256(made["key"].encode()).hexdigest()
    file = tmp_path / "tenants.yaml"
    file.write_text(f"tenants:\n  {made['tenants_entry']}\n")
    (tenant,) = load_tenants(file).tenants
    assert tenant.name == "search"
    assert [key.sha256 for key in tenant.api_keys] == [made["sha256"]]


def test_a_new_key_for_people() -> None:
    first, second = run("keys", "new").stdout, run("keys", "new").stdout
    assert first.count("fmx_") == 1
    assert "tenants:" in first
    assert first != second


def test_a_new_key_creates_a_tenants_file_once(tmp_path: Path) -> None:
    file = tmp_path / "tenants.yaml"
    made = run("keys", "new", "--create", str(file), "--tenant", "search", "--label", "first")
    assert made.returncode == 0, made.stderr
    [key] = set(re.findall(r"fmx_[A-Za-z0-9_-]{43}", made.stdout))
    assert f"FEEDMUX_API_KEY={key} feedmux watch" in made.stdout
    (tenant,) = load_tenants(file).tenants
    assert tenant.name == "search"
    assert [(each.sha256, each.label) for each in tenant.api_keys] == [
        (hashlib.sha256(key.encode()).hexdigest(), "first")
    ]
    written = file.read_bytes()
    again = run("keys", "new", "--create", str(file))
    assert again.returncode == 0, again.stderr
    assert again.stdout == f"{file} exists. No key was made.\n"
    assert file.read_bytes() == written


def test_a_tenants_file_that_cannot_be_written(tmp_path: Path) -> None:
    file = tmp_path / "missing" / "tenants.yaml"
    done = run("keys", "new", "--create", str(file))
    assert done.returncode == 1
    assert done.stderr.startswith(f"feedmux: cannot write {file} (No such file or directory)\n")
    assert "fmx_" not in done.stdout
