"""Runs `feedmux` in this process."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from feedmux.cli import main


@dataclass(frozen=True, slots=True)
class Done:
    """How a command ended, and what it printed."""

    returncode: int
    stdout: str
    stderr: str


Run = Callable[..., Done]


def runner(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str) -> Done:
        try:
            status = main(list(arguments))
        except SystemExit as ended:
            status = ended.code if isinstance(ended.code, int) else 1
        printed = capsys.readouterr()
        return Done(status or 0, printed.out, printed.err)

    return run
