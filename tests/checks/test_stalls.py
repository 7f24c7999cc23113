"""The unit tests on a machine that stalls now and then: no test depends on speed."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.kinds import UNIT

SIMULATED = "tests/sim"
"""No clock of the machine moves it."""


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("number", [1, 2, 3])
def test_unit_tests_pass(number: int) -> None:
    folders = [folder for folder in UNIT if folder != SIMULATED]
    command = [sys.executable, "-m", "pytest", "-p", "tests.stalls", "--stalls", str(number), "--quiet", *folders]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-20_000:]
