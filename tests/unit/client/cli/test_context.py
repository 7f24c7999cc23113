"""`feedmux context`: what it stores, shows and hides."""

import json
from pathlib import Path

import pytest

from feedmux.cli import main
from feedmux.cli.settings import SETTINGS, chosen


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the contexts are; nothing else is set."""
    for setting in SETTINGS.values():
        monkeypatch.delenv(setting.variable, raising=False)
    monkeypatch.delenv("FEEDMUX_CONTEXT", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path / "feedmux"


def save(*arguments: str) -> None:
    assert main(["context", "save", *arguments]) == 0


def test_list_and_show_hide_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["context", "list"]) == 0
    assert "feedmux context save" in capsys.readouterr().out
    save("one", "--endpoint", "one:1", "--api-key", "fmx_secret_secret", "--use")
    save("two", "--operator-key", "fmx_secret_secret", "--tls")
    for arguments in (["list"], ["show"], ["show", "two"]):
        capsys.readouterr()
        assert main(["context", *arguments]) == 0
        assert "secret_secret" not in capsys.readouterr().out
    assert main(["context", "list", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["in_use"] == "one"
    assert [each["name"] for each in told["contexts"]] == ["one", "two"]


def test_using_none_and_deleting(capsys: pytest.CaptureFixture[str]) -> None:
    save("one", "--endpoint", "one:1", "--use")
    assert main(["context", "use"]) == 0
    assert chosen(None) is None
    assert main(["context", "use", "one"]) == 0
    assert main(["context", "delete", "one"]) == 0
    assert chosen(None) is None
    assert main(["context", "use", "one"]) == 1
    assert "context 'one' does not exist" in capsys.readouterr().err


def test_a_mistyped_name(capsys: pytest.CaptureFixture[str]) -> None:
    save("production", "--endpoint", "one:1")
    assert main(["context", "use", "prodution"]) == 1
    assert "Did you mean production?" in capsys.readouterr().err
