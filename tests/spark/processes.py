"""Spark's processes as the kernel shows them: drivers that can be killed, and the Python workers of a session."""

import json
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from feedmux_embedded import Process
from tests.integration.servers import REPOSITORY
from tests.spark.support import wait_until


class Driver:
    """A query in a process of its own (`driver_process`). `with Driver(folder, job) as driver`."""

    def __init__(self, folder: Path, **job: Any) -> None:
        folder.mkdir(parents=True)
        self._folder = folder
        path = folder / "job.json"
        path.write_text(json.dumps({"master": "local[2]", "trigger": "available", **job}))
        self.log = folder / "driver.log"
        command = [sys.executable, "-m", "tests.spark.driver_process", str(path)]
        self._process = Process("the driver", command, self.log, cwd=REPOSITORY)

    def __enter__(self) -> "Driver":
        self._process.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def started(self) -> bool:
        return (self._folder / "jvm").exists()

    @property
    def done(self) -> bool:
        return (self._folder / "done").exists()

    def check(self) -> None:
        """Raises EmbeddedError with its last words when it ended before it was done."""
        if not self.done:
            self._process.check_running()

    @property
    def jvm(self) -> int:
        return int((self._folder / "jvm").read_text())

    def wait_held(self) -> None:
        self._wait("held")

    def wait_done(self) -> None:
        self._wait("done")

    def kill(self) -> None:
        """SIGKILL to the JVM, which is the driver, and to the Python beside it."""
        if self.started:
            with suppress(ProcessLookupError):
                os.kill(self.jvm, signal.SIGKILL)
        end(self._process)
        wait_until(lambda: not self.started or not alive(self.jvm))

    def _wait(self, name: str) -> None:
        def there() -> bool:
            self.check()
            return (self._folder / name).exists()

        wait_until(there)


def end(process: Process) -> None:
    """Kill it and wait. Of a process for which nobody waits Python complains later, in the middle of another test."""
    process.send_signal(signal.SIGKILL)
    wait_until(lambda: not process.running)


def alive(pid: int) -> bool:
    """Neither gone nor waiting to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def rss_bytes(pid: int) -> int:
    """Resident memory; 0 when it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def descendants(pid: int) -> list[int]:
    """Of a process, in any depth."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    found, look = list[int](), [pid]
    while look:
        children = [child for child, parent in parents.items() if parent in look]
        found += children
        look = children
    return found


def readers(jvm: int, port: int) -> list[int]:
    """Python workers of a JVM's tasks that are connected to `port`: the ones that read a slice, or have."""
    wanted = f":{port:04X}"
    # gRPC's sockets are of both families at once, and are listed with IPv6's.
    tables = [Path(f"/proc/net/{name}").read_text().splitlines()[1:] for name in ("tcp", "tcp6")]
    lines = [line.split() for table in tables for line in table]
    sockets = {f"socket:[{line[9]}]" for line in lines if line[2].endswith(wanted) and line[3] == "01"}
    found = []
    for pid in descendants(jvm):
        with suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            if b"pyspark.worker" not in command:
                continue
            if any(str(link.readlink()) in sockets for link in Path(f"/proc/{pid}/fd").iterdir()):
                found.append(pid)
    return found
