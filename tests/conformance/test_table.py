"""docs/conformance.md matches the scenarios."""

import subprocess
import sys

from tests.integration.servers import REPOSITORY


def test_the_table_is_that_of_the_scenarios() -> None:
    command = [sys.executable, "-m", "tests.conformance.statements", "--check"]
    checked = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=False)
    assert checked.returncode == 0, checked.stderr
