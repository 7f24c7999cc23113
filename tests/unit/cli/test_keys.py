"""`feedmux keys new`."""

import hashlib
import json
import re
from pathlib import Path

from feedmux_server.config.load import load_tenants
from tests.unit.cli.command_support import Run


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


def test_a_tenants_file_that_cannot_be_written(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "missing" / "tenants.yaml"
    done = run("keys", "new", "--create", str(file))
    assert done.returncode == 1
    assert done.stderr.startswith(f"feedmux: cannot write {file} (No such file or directory)\n")
    assert "fmx_" not in done.stdout
