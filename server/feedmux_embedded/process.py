"""The only way to start a child process, so that the child never outlives its parent.

Invariant: a child dies with its parent, even by SIGKILL (Linux: PR_SET_PDEATHSIG). The kernel sends that
signal when the *thread* that started the child ends, so children are started from the main thread only.

A child has its own process group: Ctrl-C in the terminal reaches only the parent, which then stops its children in
order. The child stays in the parent's session, because Linux shares the CPU among sessions first (autogroups), and
niceness counts only within a session. No method is bound to an event loop: an instance may be started in one
`asyncio.run` and stopped in another. Neighbours: `mongod`, `redis_server`, and code that runs the feedmux server beside
them.
"""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

POLL_S = 0.01

# A launcher instead of preexec_fn: a process that uses gRPC has threads and fork handlers, and Python code
# between fork and exec may deadlock there. The pid and the death signal survive exec. getppid() shows whether
# the parent died before the signal was armed. Python ignores SIGPIPE, and the child would inherit that over exec.
_LAUNCHER = """
import os, signal, sys
if sys.platform == "linux":
    import ctypes
    ctypes.CDLL(None).prctl(1, int(signal.SIGKILL), 0, 0, 0)
if os.getppid() != int(sys.argv[1]):
    os._exit(1)
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
try:
    os.execv(sys.argv[2], sys.argv[2:])
except OSError as error:
    sys.exit(f"{sys.argv[2]}: {error.strerror}")
"""


class EmbeddedError(RuntimeError):
    """A server could not be found or started, or does not work; the message quotes the server's output."""


class Process:
    """A child process whose output goes to a file. It can be started again after its end."""

    def __init__(
        self,
        name: str,
        argv: Sequence[str | os.PathLike[str]],
        output: Path,
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        """`argv[0]` is a path; `output` is appended to; `env` is added to our own environment."""
        self.name = name
        self.output = output
        self._argv = [os.fspath(arg) for arg in argv]
        self._env = dict(env or {})
        self._cwd = cwd
        self._popen: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        return self._popen is not None and self._popen.poll() is None

    @property
    def pid(self) -> int:
        """The process id. Raises EmbeddedError if the process is not running."""
        if self._popen is None or not self.running:
            raise EmbeddedError(f"{self.name} is not running")
        return self._popen.pid

    @property
    def returncode(self) -> int | None:
        """As in subprocess: None while it runs or before it was started, -9 after SIGKILL."""
        return None if self._popen is None else self._popen.poll()

    def start(self) -> None:
        """Returns once the child is spawned, not once it is ready."""
        if self.running:
            raise EmbeddedError(f"{self.name} is running already")
        if threading.current_thread() is not threading.main_thread():
            raise EmbeddedError(f"{self.name} must be started from the main thread: it would end with this thread")
        launcher = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid())]
        with self.output.open("ab") as output:
            self._popen = subprocess.Popen(
                launcher + self._argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | self._env,
                cwd=self._cwd,
                process_group=0,
            )

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal: SIGSTOP freezes the process, SIGCONT lets it continue. Does nothing if the process has
        ended."""
        if self._popen is not None:
            self._popen.send_signal(number)

    async def kill9(self) -> None:
        """Send SIGKILL and wait for the process to end. Does nothing if it is not running."""
        if self.running:
            self.send_signal(signal.SIGKILL)
            await self._wait_gone()

    async def terminate(self, *, patience_s: float = 20.0) -> None:
        """Send SIGTERM, and SIGKILL if the process still runs after `patience_s`."""
        if not self.running:
            return
        self.send_signal(signal.SIGTERM)
        self.send_signal(signal.SIGCONT)
        try:
            async with asyncio.timeout(patience_s):
                await self._wait_gone()
        except TimeoutError:
            await self.kill9()

    async def _wait_gone(self) -> None:
        while self.running:
            await asyncio.sleep(POLL_S)

    def cpu_seconds(self) -> float:
        """User and system time that the process and its children have used since its start (Linux)."""
        children = [
            int(pid) for file in Path(f"/proc/{self.pid}/task").glob("*/children") for pid in file.read_text().split()
        ]
        # The command name may hold spaces and parentheses; the fields after the last one are numbers.
        ticks = 0
        for pid in (self.pid, *children):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))  # its own, and of children that have ended
        return ticks / os.sysconf("SC_CLK_TCK")

    def rss_bytes(self) -> int:
        """Resident memory (Linux)."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def log_tail(self, lines: int = 15) -> str:
        """The last lines of its output."""
        if not self.output.exists():
            return ""
        with self.output.open("rb") as file:
            file.seek(max(0, self.output.stat().st_size - 64 * 1024))
            return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])

    async def wait_until_listening(self, port: int, *, timeout_s: float) -> None:
        """Wait until 127.0.0.1:`port` accepts a connection. Raises EmbeddedError if the process ends or time is up."""
        give_up_at = time.monotonic() + timeout_s
        while True:
            self.check_running()
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                self.check_patience(give_up_at)
                await asyncio.sleep(POLL_S)
            else:
                writer.close()
                # The port may belong to another process, if ours failed to bind it.
                self.check_running()
                return

    def check_running(self) -> None:
        """Raises EmbeddedError with the last lines of output if the process has ended."""
        if not self.running:
            raise EmbeddedError(f"{self.name} ended with status {self.returncode}; it said:\n{self.log_tail()}")

    def check_patience(self, give_up_at: float) -> None:
        """Raises EmbeddedError with the last lines of output once `time.monotonic()` is past `give_up_at`."""
        if time.monotonic() > give_up_at:
            raise EmbeddedError(f"{self.name} is not ready in time; it said:\n{self.log_tail()}")
