"""The Node client: it installs from its lock file, is clean and typed, passes its own tests, and its example runs."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.started import Started

FOLDER = Path(__file__).parents[2] / "clients" / "node"
TIMEOUT_S = 240

pytestmark = pytest.mark.skipif(
    shutil.which("node") is None or shutil.which("npm") is None, reason="node and npm are not installed"
)


@pytest.fixture(scope="module")
def package() -> Path:
    """The package's folder, with what it depends on installed as the lock file says, and built."""
    assert ran("./compile")
    # As `npm run build` does, which would generate the sources again, and so make others compile again.
    shutil.rmtree(FOLDER / "dist", ignore_errors=True)
    assert ran("npm", "exec", "--", "tsc", "-p", "tsconfig.dist.json")
    return FOLDER


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[dict[str, str]]:
    """`feedmux dev` with its workload: the environment in which a user would run the example."""
    command = [sys.executable, "-m", "feedmux.cli", "dev", "--port", "0", "--json", "--workload", "--rate", "50"]
    with Started(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, cwd=tmp_path, text=True) as dev:
        assert dev.stdout is not None
        told = json.loads(dev.stdout.readline())
        yield os.environ | {"FEEDMUX_ENDPOINT": told["endpoint"], "FEEDMUX_API_KEY": told["api_key"]}
        dev.send_signal(signal.SIGINT)
        assert dev.wait(60) == 0


@pytest.mark.parametrize("script", [pytest.param("lint", marks=pytest.mark.full), "unit"])
def test_script(package: Path, script: str) -> None:
    assert ran("npm", "run", script)


def test_the_readme_shows_the_example_as_it_is() -> None:
    example = (FOLDER / "examples" / "orders.js").read_text()
    assert f"```js\n{example}```\n" in (FOLDER / "README.md").read_text()


def test_the_example_goes_on_where_it_stopped(package: Path, endpoint: dict[str, str]) -> None:
    first = example(endpoint, 20)
    second = example(endpoint, 20)
    assert {line.split()[0] for line in first + second} <= {"insert", "update", "replace", "delete"}
    inserted = [line for line in first + second if line.startswith("insert")]
    assert inserted
    assert len(inserted) == len(set(inserted))


def example(environment: dict[str, str], lines: int) -> list[str]:
    """What the example prints until it has printed so many events and is then interrupted: all events of the run."""
    command = ["node", "examples/orders.js"]
    with Started(
        command, cwd=FOLDER, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as run:
        assert run.stdout is not None
        printed: list[str] = []
        while len(printed) < lines:
            line = run.stdout.readline()
            assert line, printed
            if not line.startswith((" ", "}")):  # Documents are printed over several lines.
                printed.append(line)
        run.send_signal(signal.SIGINT)
        printed += [line for line in run.stdout if not line.startswith((" ", "}"))]
        assert run.wait(60) == 0
    return printed


def ran(*command: str) -> bool:
    # A session of its own: what npm has started ends with it, whatever it hangs on.
    with Started(
        command,
        cwd=FOLDER,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as run:
        try:
            said, _ = run.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(run.pid, signal.SIGKILL)
            said, _ = run.communicate()
            pytest.fail(f"{' '.join(command)} did not end within {TIMEOUT_S} s:\n{said}")
    assert run.returncode == 0, said
    return True
