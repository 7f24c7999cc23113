"""`feedmux tenants`."""

import json
from pathlib import Path

import pytest

from tests.unit.cli.command_support import Run


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


def test_usage(run: Run) -> None:
    for arguments in (("tenants",), ("tenants", "check"), ("keys", "new", "--expires", "soon")):
        done = run(*arguments)
        assert done.returncode == 2
        assert "--help`" in done.stderr
