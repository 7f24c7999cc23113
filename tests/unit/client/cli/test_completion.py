"""`feedmux completion`: what a word may become."""

from pathlib import Path

import pytest

from feedmux.cli import main


def complete(capsys: pytest.CaptureFixture[str], *words: str, shell: str = "bash") -> list[str]:
    assert main(["__complete", shell, *words]) == 0
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    ("words", "candidates"),
    [
        (["wa"], ["watch"]),
        (["s"], ["subscriptions", "streams", "serve"]),
        (["subscriptions", "cr"], ["create"]),
        (["subscriptions", "create", "name", "shop", "--on-inv"], ["--on-invalidate"]),
        (["subscriptions", "create", "--on-invalidate", ""], ["stop", "continue"]),
        (["watch", "shop", "--full-document", "w"], ["whenAvailable"]),
        (["watch", "--json", "--api"], ["--api-key"]),
        (["watch", "--ca-file", ""], []),
        (["watch", "sh"], []),
        (["completion", "z"], ["zsh"]),
        (["nothing", ""], []),
    ],
)
def test_candidates(words: list[str], candidates: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert complete(capsys, *words) == candidates


def test_contexts(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert main(["context", "save", "production", "--endpoint", "a:1"]) == 0
    capsys.readouterr()
    assert complete(capsys, "watch", "--context", "p") == ["production"]
    assert complete(capsys, "context", "use", "") == ["production"]


def test_meanings(capsys: pytest.CaptureFixture[str]) -> None:
    assert complete(capsys, "wat", shell="zsh") == ["watch:show changes as they happen"]
    assert complete(capsys, "wat", shell="fish") == ["watch\tshow changes as they happen"]
