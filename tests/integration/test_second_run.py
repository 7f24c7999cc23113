"""The second run of failed tests (tests/second_run.py), in runs of made-up tests."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.servers import until
from tests.second_run import UNSTABLE_MAX
from tests.started import Started

REPOSITORY = Path(__file__).parents[2]
FILE = "tests/integration/test_a.py"
TESTS = """
import asyncio
import os
import time
from contextlib import suppress
from pathlib import Path
import pytest

def again(name):
    file = Path(name + ".failed")
    found = file.exists()
    file.touch()
    return found

@pytest.mark.parametrize("number", range({unstable}))
def test_unstable(number):
    assert again(f"unstable {{number}}")

@pytest.fixture
def set_up():
    assert again("set_up")

def test_with_unstable_set_up(set_up):
    pass

@pytest.mark.parametrize("number", range({bad}))
def test_bad(number):
    raise ValueError("always bad")

def test_hangs_again():
    if {hangs}:
        if again("hangs"):
            Path("hangs.pid").write_text(str(os.getpid()))
            time.sleep(600)
        raise ValueError

async def for_ever():
    await asyncio.sleep(600)

if {waits}:
    @pytest.mark.timeout(2)
    def test_waits():
        if not again("waits"):
            asyncio.new_event_loop().run_until_complete(for_ever())

@pytest.fixture
def no_end():
    yield
    if not again("no_end"):
        while True:
            with suppress(BaseException):
                time.sleep(600)

if {stuck}:
    @pytest.mark.timeout(2)
    @pytest.mark.parametrize("number", range(3))
    def test_stuck(no_end, number):
        assert number or again("stuck")
"""

CONFTEST = """
from tests.scheduling import Scheduling

def pytest_xdist_make_scheduler(config, log):
    return Scheduling(config, log)
"""


def start(
    folder: Path,
    *,
    file: str = FILE,
    unstable: int = 0,
    bad: int = 0,
    hangs: bool = False,
    waits: bool = False,
    stuck: bool = False,
) -> Started[bytes]:
    """Run some of TESTS in a process of pytest-xdist. `test_with_unstable_set_up` is always one of them."""
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib --hang 1\ntimeout = 60\n")
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / file).parent.mkdir(parents=True)
    (folder / file).write_text(TESTS.format(unstable=unstable, bad=bad, hangs=hangs, waits=waits, stuck=stuck))
    # Without the variables of the pytest that runs this test.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return Started(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "tests.second_run", "--second-run", "-n", "1"],
        cwd=folder,
        env=kept | {"PYTHONPATH": str(REPOSITORY)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


@pytest.mark.parametrize(
    ("file", "unstable", "bad", "status", "summary"),
    [
        (FILE, 1, 0, 0, "1 passed, 1 skipped, 2 unstable"),
        (FILE, 1, 1, 1, "1 failed, 1 passed, 2 unstable"),
        (FILE, UNSTABLE_MAX, 0, 1, f"{UNSTABLE_MAX} failed, 1 passed, 1 skipped, 1 error"),
        ("tests/unit/test_a.py", 0, 0, 1, "1 passed, 2 skipped, 1 error"),
    ],
    ids=["unstable", "failed twice", "too many unstable", "unit tests run once"],
)
def test_what_fails_runs_again_alone(
    tmp_path: Path, file: str, unstable: int, bad: int, status: int, summary: str
) -> None:
    with start(tmp_path, file=file, unstable=unstable, bad=bad) as run:
        output, _ = run.communicate()
    lines = output.decode().rstrip().splitlines()
    assert (run.returncode, lines[-1].strip("= ").partition(" in ")[0]) == (status, summary), lines
    again = file == FILE
    assert sum(line.startswith(f"UNSTABLE {file}::test_") for line in lines) == (unstable + 1) * again
    assert any(line.startswith("    first: failed: AssertionError") for line in lines) == again
    assert any(line.startswith("    alone: passed") for line in lines) == again
    assert sum(line.startswith(f"FAILED TWICE {file}::test_bad") for line in lines) == bad


def test_a_process_that_hangs_is_replaced(tmp_path: Path) -> None:
    with start(tmp_path, stuck=True) as run:
        output, _ = run.communicate()
    lines = output.decode().rstrip().splitlines()
    stuck = f"{FILE}::test_stuck[0]"
    assert (run.returncode, lines[-1].strip("= ").partition(" in ")[0]) == (0, "3 passed, 2 skipped, 2 unstable"), lines
    assert f"UNSTABLE {stuck}" in lines
    assert any(line.endswith("in no_end") for line in lines), "no stack shows where it hung"


def test_what_its_tasks_wait_for_is_shown_where_a_test_takes_too_long(tmp_path: Path) -> None:
    with start(tmp_path, waits=True) as run:
        output, _ = run.communicate()
    lines = output.decode().rstrip().splitlines()
    assert f"UNSTABLE {FILE}::test_waits" in lines
    shown = lines[next(number for number, line in enumerate(lines) if "asyncio tasks" in line) :]
    assert [line.rpartition(" ")[2] for line in shown[2:4]] == ["for_ever", "sleep"], shown


@pytest.mark.skipif(sys.platform != "linux", reason="the signal at the parent's death is Linux's")
async def test_the_second_run_dies_with_the_first(tmp_path: Path) -> None:
    pid = tmp_path / "hangs.pid"
    with start(tmp_path, hangs=True) as first:
        await until(lambda: pid.exists() and pid.read_text())
        second = Path("/proc", pid.read_text(), "cmdline")
        assert b"--outcomes" in second.read_bytes()
        first.kill()
    await until(lambda: not second.exists() or not second.read_bytes())
