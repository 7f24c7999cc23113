"""`feedmux completion`: what a word may become, and the scripts in the shells themselves."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from feedmux.cli import main
from feedmux.cli.completion import SCRIPTS
from tests.cli.conftest import clean_environment


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


def test_all_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert {"watch", "consume", "context"} <= set(complete(capsys, ""))


def test_contexts(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert main(["context", "save", "production", "--endpoint", "a:1"]) == 0
    capsys.readouterr()
    assert complete(capsys, "watch", "--context", "p") == ["production"]
    assert complete(capsys, "context", "use", "") == ["production"]


def test_meanings(capsys: pytest.CaptureFixture[str]) -> None:
    assert complete(capsys, "wat", shell="zsh") == ["watch:show changes as they happen"]
    assert complete(capsys, "wat", shell="fish") == ["watch\tshow changes as they happen"]


def environment(folder: Path) -> dict[str, str]:
    """With a `feedmux` on the path."""
    script = folder / "feedmux"
    script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m feedmux.cli "$@"\n')
    script.chmod(0o755)
    places = {"HOME": str(folder), "XDG_CONFIG_HOME": str(folder), "XDG_DATA_HOME": str(folder)}
    return clean_environment() | places | {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


IN_SHELLS = {
    "bash": "source <(feedmux completion bash); COMP_WORDS=(feedmux subscriptions l); COMP_CWORD=2; _feedmux;"
    " printf '%s\\n' \"${COMPREPLY[@]}\"",
    "fish": "feedmux completion fish | source; complete -C 'feedmux subscriptions l'",
    # The completion system works on a terminal only: here its functions print what they get.
    "zsh": "compdef() { true }; _files() { true }; source <(feedmux completion zsh);"
    " _describe() { print -l -- ${(P)2} }; words=(feedmux subscriptions l); CURRENT=3; _feedmux",
}


@pytest.mark.parametrize("shell", SCRIPTS)
def test_in_the_shell(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    done = subprocess.run(
        [shell, "-c", IN_SHELLS[shell]], env=environment(tmp_path), capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    (line,) = done.stdout.splitlines()
    assert line.startswith("list")
