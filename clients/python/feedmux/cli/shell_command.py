"""Commands of `feedmux consume --exec`: starts them with events on their standard input, and ends them."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from contextlib import suppress


def begin(command_line: str, given: bytes, *, stderr: int | None = None) -> subprocess.Popen[bytes]:
    """Start a shell command. Raises OSError if that fails."""
    # A file: a pipe would block as long as the command, or what it leaves in the background, holds it without reading.
    with tempfile.TemporaryFile() as file:
        file.write(given)
        file.seek(0)
        # A session of its own, because Ctrl-C in a terminal goes to the whole group of this process, and so that `end`
        # finds the children. With only a group of its own, a command that asks its terminal would be stopped for good;
        # without a terminal, it fails at once.
        return subprocess.Popen(command_line, shell=True, stdin=file, stderr=stderr, start_new_session=True)


def end(command: subprocess.Popen[bytes], number: int = signal.SIGKILL) -> None:
    """Send a signal to a command and its children, unless the command has ended."""
    if command.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(command.pid, number)


def ending(status: int) -> str:
    """Say how a command ended."""
    if status >= 0:
        return f"exited with {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:  # a real-time signal
        return f"was killed by signal {-status}"
