"""`feedmux tenants`, `keys` and `token`."""

import errno
import hashlib
import json
import os
import re
import sys
from pathlib import Path

import bson
import pytest

from feedmux_server.config.load import load_tenants
from feedmux_server.core.positions.position import PositionEncoder
from feedmux_server.core.positions.position_keys import PositionKeys
from tests.unit.cli.command_support import Run
from tests.unit.core.delivery.streams_support import mark, token


def test_a_file_that_can_be_used(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "tenants.yaml"
    made = json.loads(run("keys", "new", "--json", "--tenant", "shop").stdout)
    old = json.loads(run("keys", "new", "--json", "--tenant", "old", "--expires", "2020-01-31", "--label", "ci").stdout)
    file.write_text(f"tenants:\n  {made['tenants_entry']}\n  {old['tenants_entry']}\n  - name: nobody\n")
    done = run("tenants", "check", str(file))
    assert done.returncode == 0, done.stderr
    assert "shop" in done.stdout
    assert "tenant nobody has no key" in done.stdout
    assert "the key ci has expired" in done.stdout
    said = json.loads(run("tenants", "check", str(file), "--json").stdout)
    assert said["ok"] is True
    assert said["tenants"][0] == {"name": "shop", "api_keys": 1, "certificates": 0}
    assert len(said["warnings"]) == 2


@pytest.mark.parametrize("text", ["tenants:\n  - name: shop\n    color: blue\n", None])
def test_a_file_that_cannot(run: Run, tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "tenants.yaml"
    if text is not None:
        file.write_text(text)
    done = run("tenants", "check", str(file))
    assert done.returncode == 1
    assert done.stderr.startswith("feedmux: ")
    assert "Traceback" not in done.stderr
    assert str(file) in done.stderr
    assert ("line 3: tenants.0.color" in done.stderr) is (text is not None)
    told = run("tenants", "check", str(file), "--json")
    assert told.returncode == 1
    assert json.loads(told.stdout)["ok"] is False


def test_a_label_controls_no_terminal(run: Run, tmp_path: Path) -> None:
    key = {"sha256": "a" * 64, "label": "x\x1b[2J\u202e", "expires": "2020-01-01T00:00:00Z"}
    file = tmp_path / "tenants.yaml"
    file.write_text(json.dumps({"tenants": [{"name": "a", "api_keys": [key]}]}))
    assert "the key x?[2J? has expired" in run("tenants", "check", str(file)).stdout


def test_usage(run: Run) -> None:
    for arguments in (("tenants",), ("tenants", "check"), ("keys", "new", "--expires", "soon")):
        done = run(*arguments)
        assert done.returncode == 2
        assert "--help`" in done.stderr


def test_a_new_key(run: Run, tmp_path: Path) -> None:
    done = run("keys", "new", "--json", "--tenant", "search")
    made = json.loads(done.stdout)
    assert re.fullmatch(r"fmx_[A-Za-z0-9_-]{43}", made["key"])
    assert made["sha256"] == hashlib.sha256(made["key"].encode()).hexdigest()
    file = tmp_path / "tenants.yaml"
    file.write_text(f"tenants:\n  {made['tenants_entry']}\n")
    (tenant,) = load_tenants(file).tenants
    assert tenant.name == "search"
    assert [key.sha256 for key in tenant.api_keys] == [made["sha256"]]


def test_a_new_key_for_people(run: Run) -> None:
    first, second = run("keys", "new").stdout, run("keys", "new").stdout
    assert first.count("fmx_") == 1
    assert "tenants:" in first
    assert first != second


def test_a_new_key_creates_a_tenants_file_once(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "tenants.yaml"
    made = run("keys", "new", "--create", str(file), "--tenant", "search", "--label", "first\x7f")
    assert made.returncode == 0, made.stderr
    [key] = set(re.findall(r"fmx_[A-Za-z0-9_-]{43}", made.stdout))
    assert f"FEEDMUX_API_KEY={key} feedmux watch" in made.stdout
    (tenant,) = load_tenants(file).tenants
    assert tenant.name == "search"
    assert [(each.sha256, each.label) for each in tenant.api_keys] == [
        (hashlib.sha256(key.encode()).hexdigest(), "first\x7f")
    ]
    written = file.read_bytes()
    again = run("keys", "new", "--create", str(file))
    assert again.returncode == 0, again.stderr
    assert again.stdout == f"{file} exists. No key was made.\n"
    assert file.read_bytes() == written


@pytest.mark.parametrize("what", ["a folder", "a link to nothing", "an empty file", "another file"])
def test_a_new_key_needs_a_name_for_its_file_that_nothing_else_has(run: Run, tmp_path: Path, what: str) -> None:
    file = tmp_path / "tenants.yaml"
    if what == "a folder":
        file.mkdir()
    elif what == "a link to nothing":
        file.symlink_to(tmp_path / "missing")
    else:
        file.write_text("" if what == "an empty file" else "sources: {}\n")
    done = run("keys", "new", "--create", str(file))
    assert done.returncode == 1
    assert f"{file} exists, but it is no tenants file. No key was made." in done.stderr
    assert "fmx_" not in done.stdout


@pytest.mark.parametrize("end", ["a pipe that nobody reads", os.devnull])
def test_a_key_that_nobody_gets_makes_no_file(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    file = tmp_path / "tenants.yaml"
    if end == os.devnull:
        writer = os.open(end, os.O_WRONLY)
    else:
        reader, writer = os.pipe()
        os.close(reader)
    with os.fdopen(writer, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        done = run("keys", "new", "--create", str(file))
    assert done.returncode == 1
    assert "Run the command with another standard output." in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_completed_is_not_left(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    done = run("keys", "new", "--create", str(tmp_path / "tenants.yaml"))
    assert (done.returncode, done.stdout) == (1, "")
    assert "No space left on device" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_another_run_has_made_is_not_replaced(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "tenants.yaml"
    monkeypatch.setattr(os, "fsync", lambda _: file.write_text("of the other"))
    done = run("keys", "new", "--create", str(file))
    assert done.returncode == 1
    assert f"the printed key is of no use: cannot write {file} (File exists)" in done.stderr
    assert [each.read_text() for each in tmp_path.iterdir()] == ["of the other"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("--tenant", ""),
        ("--tenant", "a b"),
        ("--label", "x" * 121),
        ("--expires", "0001-01-01T00:00:00+14:00"),
        ("--create", "tenants.toml"),
    ],
)
def test_a_key_that_no_tenants_file_may_have(run: Run, arguments: tuple[str, str]) -> None:
    done = run("keys", "new", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr


def test_a_tenants_file_that_cannot_be_written(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "missing" / "tenants.yaml"
    done = run("keys", "new", "--create", str(file))
    assert done.returncode == 1
    assert done.stderr.startswith(f"feedmux: cannot write {file} (No such file or directory)\n")
    assert "fmx_" not in done.stdout


@pytest.mark.parametrize(
    "text", ["", "82", "nonsense", "deadbeef", "{", '{"_data": 1}', '{"_data": "zz"}', "8gGAAAAA", "f2"]
)
def test_what_is_no_token(run: Run, text: str) -> None:
    done = run("token", "decode", text)
    assert done.returncode == 1
    assert done.stderr.startswith("feedmux: ")
    assert "Traceback" not in done.stderr


def test_a_token_and_the_position_that_holds_it_say_the_same(run: Run) -> None:
    hexadecimal = bson.decode(token(1).raw)["_data"]
    said = [
        json.loads(run("token", "decode", text, "--json").stdout)
        for text in (hexadecimal, json.dumps({"_data": hexadecimal}))
    ]
    assert said[0] == said[1]
    assert (said[0]["kind"], said[0]["token_type"], said[0]["from_invalidate"]) == ("resume token", "event", False)
    assert said[0]["cluster_time_seconds"] == token(1).cluster_time >> 32
    position = PositionEncoder(PositionKeys([bytes(32)]), bytes(8), bytes(8)).encode(token(1))
    of_position = json.loads(run("token", "decode", position.hex(), "--json").stdout)
    assert of_position == said[0] | {"kind": "position", "verified": False}
    assert "not verified" in run("token", "decode", position.hex()).stdout


def test_a_token_of_an_event_that_newer_versions_add(run: Run) -> None:
    operation = f"3C{b'operationType'.hex()}003C{b'endOfTransaction'.hex()}00"
    described = f"46{b'operationDescription'.hex()}00461E{b'txnNumber'.hex()}002B0E00"
    said = run("token", "decode", f"826553F100000000012B042C0100296E46{operation}{described}0004", "--json")
    found = json.loads(said.stdout)
    assert found["event_identifier"] == {"operationType": "endOfTransaction", "operationDescription": {"txnNumber": 7}}
    assert (found["undecoded"], found["collection_uuid"]) == ("", None)


def test_a_time_is_no_event(run: Run) -> None:
    said = json.loads(run("token", "decode", bson.decode(mark(1).raw)["_data"], "--json").stdout)
    assert (said["token_type"], said["event_identifier"]) == ("high-water mark", None)
