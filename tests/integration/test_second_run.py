"""The second run of failed tests (tests/second_run.py), in runs of made-up tests."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.integration.servers import until
from tests.second_run import UNSTABLE_MAX
from tests.started import Started

REPOSITORY = Path(__file__).parents[2]
BODIES = {
    "good": """
def test_{name}():
    pass
""",
    "bad": """
def test_{name}():
    raise ValueError("always bad")
""",
    "unstable": """
def test_{name}():
    assert again("{name}"), "bad at first"
""",
    "unstable_setup": """
@pytest.fixture
def {name}():
    assert again("{name}")

def test_{name}({name}):
    pass
""",
    "skipped_again": """
def test_{name}():
    if again("{name}"):
        pytest.skip("not shown")
    raise ValueError
""",
    "hangs_again": """
def test_{name}():
    if again("{name}"):
        Path("{name}.pid").write_text(str(os.getpid()))
        time.sleep(600)
    raise ValueError
""",
    "interrupt": """
def test_{name}():
    raise KeyboardInterrupt
""",
}
PREFACE = """
import os
import time
from pathlib import Path
import pytest

def again(name):
    file = Path(name + ".failed")
    found = file.exists()
    file.touch()
    return found
"""


@dataclass(frozen=True, slots=True)
class Run:
    status: int
    lines: list[str]

    @property
    def summary(self) -> str:
        """pytest's own last line."""
        return self.lines[-1].strip("= ").partition(" in ")[0]

    def said(self, beginning: str) -> list[str]:
        return [line for line in self.lines if line.startswith(beginning)]


@dataclass(frozen=True, slots=True)
class Project:
    folder: Path

    def write(self, file: str, *bodies: str) -> None:
        """A test file with one test for each name in BODIES, numbered."""
        path = self.folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        tests = [BODIES[body].format(name=f"{body}_{number}") for number, body in enumerate(bodies)]
        path.write_text(PREFACE + "".join(tests))

    def start(self, *options: str, processes: int = 0) -> Started[bytes]:
        parts = ["-p", "no:cacheprovider", "-p", "tests.second_run", "--second-run", "-n", str(processes), *options]
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        for name in [each for each in environment if each.startswith("PYTEST_")]:
            del environment[name]  # of the pytest that runs this test
        return Started(
            [sys.executable, "-m", "pytest", *parts, "tests"],
            cwd=self.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def run(self, *options: str, processes: int = 0) -> Run:
        with self.start(*options, processes=processes) as started:
            output, _ = started.communicate()
        return Run(started.returncode, output.decode().rstrip().splitlines())


@pytest.fixture
def project(tmp_path: Path) -> Project:
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\n")
    return Project(tmp_path)


@pytest.mark.parametrize(("body", "processes"), [("unstable", 0), ("unstable_setup", 2)])
def test_a_test_that_passes_alone_is_unstable_and_the_run_passes(project: Project, body: str, processes: int) -> None:
    project.write("tests/integration/test_a.py", "good", body)
    run = project.run(processes=processes)
    assert run.status == 0, run.lines
    assert run.said("UNSTABLE ") == [f"UNSTABLE tests/integration/test_a.py::test_{body}_1"]
    assert run.said("    first: failed: AssertionError")
    assert run.said("    alone: passed")
    assert run.summary == "1 passed, 1 unstable"


def test_a_test_that_fails_twice_fails_the_run(project: Project) -> None:
    project.write("tests/integration/test_a.py", "good", "bad", "unstable")
    run = project.run()
    assert run.status == 1
    assert run.said("FAILED TWICE ") == ["FAILED TWICE tests/integration/test_a.py::test_bad_1"]
    assert run.summary == "1 failed, 1 passed, 1 unstable"


def test_unit_tests_run_once(project: Project) -> None:
    project.write("tests/unit/test_a.py", "unstable")
    run = project.run()
    assert run.status == 1
    assert not run.said("UNSTABLE ")
    assert run.summary == "1 failed"


def test_too_many_unstable_tests_fail_the_run(project: Project) -> None:
    project.write("tests/integration/test_a.py", *["unstable"] * (UNSTABLE_MAX + 1))
    run = project.run()
    assert run.status == 1
    assert len(run.said("UNSTABLE ")) == UNSTABLE_MAX + 1
    assert run.summary == f"{UNSTABLE_MAX + 1} failed"


@pytest.mark.skipif(sys.platform != "linux", reason="the signal at the parent's death is Linux's")
async def test_the_second_run_dies_with_the_first(project: Project) -> None:
    project.write("tests/integration/test_a.py", "hangs_again")
    file = project.folder / "hangs_again_0.pid"
    with project.start() as first:
        await until(lambda: file.exists() and file.read_text())
        second = Path("/proc", file.read_text(), "cmdline")
        assert b"--outcomes" in second.read_bytes()
        first.kill()
    await until(lambda: not second.exists() or not second.read_bytes())
