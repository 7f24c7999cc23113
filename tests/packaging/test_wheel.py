"""The wheel, installed beside the oldest and the newest of what it depends on, and with the Python of the image.

Applications have pins of their own beside the Python client. The oldest are the lower bounds in pyproject.toml, the
newest what constraints.txt names.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from feedmux_server.source.private_names import RELEASES
from tests.started import Started, ran

REPOSITORY: Final = Path(__file__).parents[2]
UV: Final = Path(sys.prefix) / "bin" / "uv"
TOOLS: Final = ("cryptography", "hypothesis", "orjson", "pytest", "pytest-asyncio", "pytest-timeout", "pytest-xdist")
ELSEWHERE: Final = "tests/unit/client/test_delivery_tracker.py"
"""Tests of arithmetic, which no other package changes."""
TIMEOUT_S: Final = 280.0


@dataclass(frozen=True, slots=True)
class Environment:
    """The packages that are installed together with the client."""

    python: str
    options: tuple[str, ...]
    """Of uv: which versions it chooses."""


ENVIRONMENTS: Final = {
    "oldest": Environment("3.11", ("--resolution", "lowest-direct")),
    "newest": Environment("3.13", ("--constraint", "constraints.txt")),
}


def interpreter(version: str) -> Path | None:
    """A Python of that version: on the PATH, or of pyenv, whose own command runs only what is chosen."""
    on_path = shutil.which(f"python{version}")
    candidates = [Path(on_path)] if on_path else []
    candidates += sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}"))
    works = (each for each in candidates if subprocess.run([each, "-c", ""], capture_output=True).returncode == 0)
    return next(works, None)


def outside() -> dict[str, str]:
    """The environment without what is meant for this interpreter and these tests."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST_"))}


def run(*command: str | Path, code: int = 0, cwd: Path = REPOSITORY, **environment: str) -> str:
    """Its output. Fails with that where the exit code is another one."""
    done = ran(*command, cwd=cwd, env=outside() | environment, stderr=subprocess.STDOUT, timeout_s=TIMEOUT_S)
    assert done.returncode == code, f"{' '.join(map(str, command))}:\n{done.stdout}"
    return done.stdout


def lower_bounds() -> set[str]:
    """Of the client's dependencies, as pip writes installed ones."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    named = [re.findall(r"[\w.-]+", each) for each in project["dependencies"]]
    return {f"{name}=={oldest}" for name, oldest, *_ in named}


def made(base: Path, folder: Path) -> tuple[Path, tuple[str | Path, ...]]:
    """An environment: its Python, and the command that installs into it."""
    run(UV, "venv", "--quiet", "--python", base, folder / "venv")
    python = folder / "venv" / "bin" / "python"
    return python, (UV, "pip", "install", "--quiet", "--python", python)


@pytest.mark.full
@pytest.mark.skipif(not UV.exists(), reason="no uv in this environment")
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_the_client_works_beside(name: str, tmp_path: Path) -> None:
    environment = ENVIRONMENTS[name]
    base = interpreter(environment.python)
    if base is None:
        pytest.skip(f"no Python {environment.python} on this machine")
    python, install = made(base, tmp_path)
    run(*install, *environment.options, REPOSITORY)
    run(*install, "--constraint", "constraints.txt", *TOOLS)
    run(UV, "pip", "check", "--quiet", "--python", python)
    installed = run(python, "-c", "import feedmux; print(feedmux.__file__)")
    assert Path(installed.strip()).is_relative_to(tmp_path)
    if name == "oldest":
        assert lower_bounds() <= set(run(UV, "pip", "freeze", "--python", python).splitlines())
    told = run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/unit/client", f"--ignore={ELSEWHERE}")
    assert " passed" in told


@pytest.mark.full
@pytest.mark.skipif(not UV.exists(), reason="no uv in this environment")
def test_the_server_works_with_the_oldest_pymongo_and_refuses_older_ones(tmp_path: Path) -> None:
    oldest = int(RELEASES.split()[0].removeprefix("4."))
    python, install = made(Path(sys.executable), tmp_path)
    run(*install, "--constraint", "constraints.txt", *TOOLS)
    run(*install, f"{REPOSITORY}[embedded]", f"pymongo==4.{oldest}.0")
    told = run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/integration/test_raw_cursor.py")
    assert " passed" in told
    run(*install, f"pymongo==4.{oldest - 1}.0")
    refused = run(python.with_name("feedmux"), "serve", "--config", "none.yaml", code=1)
    assert f"works with pymongo {RELEASES}, and 4.{oldest - 1}.0 is installed" in refused
    assert "pip install 'feedmux[server]'" in refused


def python_of_the_image() -> str:
    """Its minor version, as the Containerfile names it."""
    found = re.search(r"^ARG PYTHON=python:(\d+\.\d+)\.", (REPOSITORY / "Containerfile").read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


@pytest.mark.long
@pytest.mark.skipif(not UV.exists(), reason="no uv in this environment")
def test_the_server_runs_with_the_python_of_the_image(tmp_path: Path) -> None:
    version = python_of_the_image()
    base = interpreter(version)
    if base is None:
        pytest.skip(f"no Python {version} on this machine")
    python, install = made(base, tmp_path)
    run(*install, "--constraint", "constraints.txt", f"{REPOSITORY}[embedded]")
    run(UV, "pip", "check", "--quiet", "--python", python)
    shown = "import sys, feedmux_server; print(*sys.version_info[:2], sep='.'); print(feedmux_server.__file__)"
    running, file = run(python, "-c", shown, cwd=tmp_path).splitlines()
    assert running == version
    assert Path(file).is_relative_to(tmp_path)
    program, log = python.with_name("feedmux"), tmp_path / "dev.log"
    command: list[str | Path] = [program, "dev", "--port", "0", "--json", "--workload", "--rate", "50"]
    with (
        log.open("w") as errors,
        Started(command, cwd=tmp_path, env=outside(), stdout=subprocess.PIPE, stderr=errors, text=True) as dev,
    ):
        assert dev.stdout is not None
        told = dev.stdout.readline()
        assert told, log.read_text()
        reached = {f"FEEDMUX_{name.upper()}": json.loads(told)[name] for name in ("endpoint", "api_key")}
        printed = run(program, "watch", "shop.orders", "--limit", "1", cwd=tmp_path, **reached)
        (event,) = (json.loads(line) for line in printed.splitlines())
        assert event["ns"] == {"db": "shop", "coll": "orders"}
        dev.send_signal(signal.SIGINT)
        assert dev.wait(60) == 0, log.read_text()
