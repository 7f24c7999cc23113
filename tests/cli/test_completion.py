"""The scripts of `feedmux completion` in the shells themselves."""

import os
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from feedmux.cli.completion import SCRIPTS
from tests.cli.conftest import clean_environment
from tests.started import ran


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
    done = ran(shell, "-c", IN_SHELLS[shell], env=environment(tmp_path))
    assert done.stderr == ""
    (line,) = done.stdout.splitlines()
    assert line.startswith("list")
