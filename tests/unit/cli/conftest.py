"""Give the tests of the server's commands a way to run them."""

import pytest

from tests.unit.cli.command_support import Run, runner


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    return runner(capsys)
