"""The Go client: formatted, checked and tested by Go's own tools, and its README's example runs as it stands."""

import filecmp
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from feedmux_embedded import Process
from tests.waiting import wait_until

FOLDER = Path(__file__).parents[2] / "clients" / "go" / "feedmux"
TIMEOUT_S = 280.0

FULL = pytest.mark.full
NEEDS_COMPILER = pytest.mark.skipif(shutil.which("gcc") is None, reason="the race detector needs a C compiler")

pytestmark = pytest.mark.skipif(shutil.which("go") is None, reason="go is not installed")


@pytest.mark.parametrize(
    "command",
    [
        ("go", "test", "-count=1", "-vet=off", "./..."),
        ("go", "mod", "tidy", "-diff"),
        pytest.param(("go", "vet", "./..."), marks=FULL),
        pytest.param(("go", "tool", "-modfile=tools/go.mod", "staticcheck", "./..."), marks=FULL),
        pytest.param(("go", "test", "-count=1", "-race", "./..."), marks=(FULL, NEEDS_COMPILER)),
    ],
    ids=" ".join,
)
def test_passes(command: tuple[str, ...]) -> None:
    go(*command)


def test_is_formatted() -> None:
    assert go("gofmt", "-l", ".") == ""


def test_the_generated_code_is_that_of_proto(tmp_path: Path) -> None:
    (tmp_path / "feedmuxpb").mkdir()
    go("./generate.sh", str(tmp_path))
    ours, fresh = FOLDER / "feedmuxpb", tmp_path / "feedmuxpb"
    names = sorted({each.name for folder in (ours, fresh) for each in folder.iterdir()})
    same, different, missing = filecmp.cmpfiles(ours, fresh, names, shallow=False)
    assert same
    assert not different + missing, "generated code differs from proto/: clients/go/feedmux/generate.sh"


def test_the_readme_shows_the_example_as_it_is() -> None:
    example = (FOLDER / "examples" / "orders" / "main.go").read_text()
    assert f"```go\n{example}```\n" in (FOLDER / "README.md").read_text()


def test_the_example_goes_on_where_it_stopped(environment: dict[str, str], tmp_path: Path) -> None:
    program = tmp_path / "orders"
    go("go", "build", "-o", str(program), "./examples/orders")
    first = lines_of(program, environment, tmp_path / "first", 20)
    second = lines_of(program, environment, tmp_path / "second", 20)
    assert {line.split()[0] for line in first + second} <= {"insert", "update", "replace", "delete"}
    inserted = [line for line in first + second if line.startswith("insert")]
    assert inserted
    assert len(inserted) == len(set(inserted))


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    """What a user of `feedmux dev --workload` sets before running the example."""
    command = [sys.executable, "-m", "feedmux.cli", "dev", "--port", "0", "--json", "--workload", "--rate", "50"]
    output = tmp_path / "dev"
    dev = Process("feedmux dev", command, output, cwd=tmp_path)
    dev.start()
    try:
        told = json.loads(printed(dev, 1, "{")[-1])
        yield {"FEEDMUX_ENDPOINT": told["endpoint"], "FEEDMUX_API_KEY": told["api_key"]}
    finally:
        end(dev)


def lines_of(program: Path, environment: dict[str, str], output: Path, count: int) -> list[str]:
    """What the example prints until it is interrupted, after `count` lines at the earliest."""
    example = Process("the example", [program], output, env=environment)
    example.start()
    try:
        printed(example, count)
    finally:
        end(example)
    assert example.returncode == 0, example.log_tail()
    return output.read_text().splitlines()


def printed(process: Process, count: int, beginning: str = "") -> list[str]:
    """The lines of a process's output that begin so, when there are `count` of them."""

    def found() -> list[str]:
        lines = process.output.read_text().splitlines(keepends=True)
        return [line for line in lines if line.endswith("\n") and line.startswith(beginning)]

    def are_there() -> bool:
        there = len(found()) >= count
        assert there or process.running, process.log_tail()
        return there

    wait_until(are_there, process.log_tail, guard_s=120)
    return found()


def end(process: Process) -> None:
    """As Ctrl-C does."""
    process.send_signal(signal.SIGINT)
    wait_until(lambda: not process.running, process.log_tail)


def go(*command: str) -> str:
    """Runs a command in the client's folder to its end; returns what it printed."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command,
        cwd=FOLDER,
        env=os.environ | {"PATH": path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout
