"""Processes that tests start, and the descendants of these processes."""

import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, AnyStr


class Started(subprocess.Popen[AnyStr]):
    """A process that does not outlive its `with` block: a failed test ends it instead of waiting for it."""

    def __exit__(self, *raised: Any) -> None:
        if self.poll() is None:
            self.kill()
        super().__exit__(*raised)


PATH = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
"""With the programs of this environment."""


def in_session(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> Started[str]:
    """A program whose output can be read, in a session of its own: its process group has all that it starts."""
    return Started(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def ran(*command: str | Path, timeout_s: float | None = None, **options: Any) -> subprocess.CompletedProcess[str]:
    """A command that has ended, whatever its exit code is, with its output as text. It has no input."""
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.run(command, text=True, timeout=timeout_s, check=False, **(streams | options))


def descendants(pid: int) -> dict[int, str]:
    """The commands of all descendants of this process, by process id (Linux)."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    commands: dict[int, str] = {}
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit():
                # The name of the program may hold spaces and parentheses; the parent is the second field after it.
                children[int((process / "stat").read_text().rpartition(")")[2].split()[1])].append(int(process.name))
                commands[int(process.name)] = (process / "cmdline").read_text().replace("\0", " ")
        except OSError:
            continue
    found: dict[int, str] = {}
    waiting = [pid]
    while waiting:
        for child in children[waiting.pop()]:
            waiting.append(child)
            if commands.get(child):  # A zombie process has no command.
                found[child] = commands[child]
    return found


MARK = "FEEDMUX_TEST_MARK"


def marked(mark: str) -> list[str]:
    """The commands of the processes that were started, directly or not, with this mark in their environment. Redis
    clears its own, when it sets its title."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and wanted in (process / "environ").read_bytes().split(b"\0"):
                found.append((process / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found
