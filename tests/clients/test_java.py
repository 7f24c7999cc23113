"""The Java client: built, linted and tested by Maven; its README's example runs as it stands against a real server."""

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

FOLDER = Path(__file__).parents[2] / "clients" / "java"
EXAMPLE = FOLDER / "examples" / "OrdersToSearch.java"
TIMEOUT_S = 290.0
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Maven and the tests end before Java's second compiler has saved what it costs."""

missing = [tool for tool in ("java", "mvn") if shutil.which(tool) is None]
pytestmark = pytest.mark.skipif(bool(missing), reason=f"no {' and no '.join(missing)} on this machine")


@pytest.fixture(scope="module")
def built() -> None:
    """Apart from the tests, because on a fresh machine this downloads what everything else needs."""
    run("conformance/run", "--build")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """What a user of `feedmux dev --workload` sets before running the example."""
    folder = tmp_path_factory.mktemp("java")
    command = [sys.executable, "-m", "feedmux.cli", "dev", "--port", "0", "--json", "--workload", "--rate", "50"]
    dev = Process("feedmux dev", command, folder / "dev", cwd=folder)
    dev.start()
    try:
        told = json.loads(printed(dev, 1, "{")[0])
        yield {"FEEDMUX_ENDPOINT": told["endpoint"], "FEEDMUX_API_KEY": told["api_key"]}
    finally:
        end(dev)


@pytest.mark.usefixtures("built")
def test_passes_and_is_formatted(environment: dict[str, str]) -> None:
    options = f"{QUICK} {os.environ.get('MAVEN_OPTS', '')}"
    # Goals, and not `verify`, which would generate and compile everything again.
    goals = ("surefire:test", "spotless:check")
    run("mvn", "-B", "-ntp", *goals, f"-DargLine={QUICK}", MAVEN_OPTS=options, **environment)


def test_the_readme_shows_the_example_as_it_is() -> None:
    assert f"```java\n{EXAMPLE.read_text()}```\n" in (FOLDER / "README.md").read_text()


@pytest.mark.usefixtures("built")
def test_the_example_goes_on_where_it_stopped(environment: dict[str, str], tmp_path: Path) -> None:
    first = lines_of_the_example(environment, tmp_path / "first", 20)
    second = lines_of_the_example(environment, tmp_path / "second", 20)
    before, after = ([line for line in lines if line.startswith("insert ")] for lines in (first, second))
    assert before
    assert len(before) == len(set(before))
    assert len(after) == len(set(after))
    # Java ends beside the loop: what was printed when Ctrl-C came may not have been acked, and comes again.
    assert set(before) & set(after) <= set(first[-1:])
    assert {line.split()[0] for line in first + second} <= {"insert", "update"}


def lines_of_the_example(environment: dict[str, str], output: Path, count: int) -> list[str]:
    """What the example prints until it is interrupted, after `count` lines at the earliest."""
    command = [str(shutil.which("java")), "-cp", "target/classes:target/lib/*", str(EXAMPLE)]
    example = Process("the example", command, output, cwd=FOLDER, env=environment)
    example.start()
    try:
        printed(example, count)
    finally:
        end(example)
    assert example.returncode == 128 + signal.SIGINT, example.log_tail()
    return output.read_text().splitlines()


def printed(process: Process, count: int, beginning: str = "") -> list[str]:
    """The first `count` lines of a process's output that begin so, when they are there."""

    def found() -> list[str]:
        lines = process.output.read_text().splitlines(keepends=True)
        return [line for line in lines if line.endswith("\n") and line.startswith(beginning)]

    def are_there() -> bool:
        there = len(found()) >= count
        assert there or process.running, process.log_tail()
        return there

    wait_until(are_there, process.log_tail, guard_s=120)
    return found()[:count]


def end(process: Process) -> None:
    """As Ctrl-C does."""
    process.send_signal(signal.SIGINT)
    wait_until(lambda: not process.running, process.log_tail)


def run(*command: str, **environment: str) -> None:
    """Runs a command in the client's folder to its end."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command,
        cwd=FOLDER,
        env=os.environ | {"PATH": path} | environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout
