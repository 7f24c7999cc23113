"""What the clients' own tools and examples need, in each language."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import pytest

from feedmux_embedded import Process
from tests.started import PATH, in_session
from tests.waiting import wait_until

TIMEOUT_S = 280.0
Example = Callable[..., list[str]]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """What a user of `feedmux dev --workload` sets before running the example."""
    folder = tmp_path_factory.mktemp("dev")
    command = [sys.executable, "-m", "feedmux.cli", "dev", "--port", "0", "--json", "--workload", "--rate", "50"]
    dev = Process("feedmux dev", command, folder / "output", cwd=folder)
    dev.start()
    try:
        told = json.loads(printed(dev, 1, "{")[0])
        yield {"FEEDMUX_ENDPOINT": told["endpoint"], "FEEDMUX_API_KEY": told["api_key"]}
    finally:
        end(dev)


@pytest.fixture
def example(environment: dict[str, str], tmp_path: Path) -> Example:
    """`example(command, cwd)` returns what it prints until it is interrupted, after `count` lines at the earliest."""

    def run(command: Sequence[str | Path], cwd: Path, *, count: int = 20, code: int = 0) -> list[str]:
        output = tmp_path / f"output{len(list(tmp_path.iterdir()))}"
        process = Process("the example", command, output, env=environment, cwd=cwd)
        process.start()
        try:
            printed(process, count)
        finally:
            end(process)
        assert process.returncode == code, process.log_tail()
        return output.read_text().splitlines()

    return run


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


def run(
    folder: Path, *command: str, timeout_s: float = TIMEOUT_S, environment: Mapping[str, str] = MappingProxyType({})
) -> str:
    """Runs a command in a client's folder to its end; returns what it printed."""
    with in_session(command, folder, {**os.environ, **PATH, **environment}) as process:
        try:
            said, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # what npm has started too, whatever it hangs on
            said, _ = process.communicate()
            pytest.fail(f"{' '.join(command)} did not end within {timeout_s} s:\n{said}")
    assert process.returncode == 0, said
    return str(said)
