"""Commands of the pages, run in a shell as they stand there."""

import json
import os
import re
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bson import json_util

from tests.cli.conftest import clean_environment
from tests.started import PATH, in_session

DOCS = Path(__file__).parents[2] / "docs"


def mongosh(block: str) -> tuple[str, dict[str, Any]]:
    """Database and command of a block that is one `db.getSiblingDB("…").runCommand({…})`."""
    found = re.fullmatch(r'db\.getSiblingDB\("(\w+)"\)\.runCommand\((\{.*\})\)\s*', block, re.DOTALL)
    assert found, block
    document = re.sub(r"Double\(([\d.]+)\)", r'{"$numberDouble": "\1"}', found[2])
    return found[1], json_util.loads(json.dumps(json.loads(document)))


ANY_PORTS = {f"FEEDMUX_LISTEN__{name}": "127.0.0.1:0" for name in ("DATA", "OPERATOR", "HEALTH", "METRICS")}
"""A server that a guide starts listens on no default port, also where its configuration names none."""


def run_steps(steps: Sequence[str], folder: Path, environment: Mapping[str, str], timeout_s: float = 150) -> list[str]:
    """Runs pieces of a shell script in one shell; what each printed. Fails with all output if one of them does."""
    script = "\n".join(f"echo == {number}\n{step}" for number, step in enumerate(steps))
    command = ["bash", "-c", f"set -euo pipefail\n{script}"]
    with in_session(command, folder, {**clean_environment(), **PATH, **ANY_PORTS, **environment}) as shell:
        try:
            output, _ = shell.communicate(timeout=timeout_s)
        finally:
            if shell.poll() is None:
                os.killpg(shell.pid, signal.SIGKILL)
    assert shell.returncode == 0, output
    output = re.sub(r"\x1b\[[\d;]*m", "", output)  # Maven resets colours that it has not set.
    return re.split(r"^== \d+\n", output, flags=re.MULTILINE)[1:]


def run_until(expected: str, command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> None:
    """Runs a command that ends with Ctrl-C only, until it has printed a line that matches."""
    with in_session(command, folder, {**clean_environment(), **PATH, **ANY_PORTS, **environment}) as process:
        assert process.stdout is not None
        printed = ""
        try:
            while not re.search(expected, printed, re.MULTILINE):
                line = process.stdout.readline()
                assert line, printed
                printed += line
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGINT)
                process.communicate(timeout=60)
