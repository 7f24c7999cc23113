"""CPU time by process and kind of thread, read from /proc (Linux)."""

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

_JAVA = (
    ("java_tasks", ("Executor task",)),
    ("java_gc", ("GC ", "G1 ")),
    ("java_compiler", ("C1 ", "C2 ")),
)
"""The threads of a JVM by the beginnings of their names, of which Linux shows 15 characters."""
JAVA_OTHER = "java_other"

Threads = Mapping[tuple[str, int], float]
"""CPU seconds by kind and thread id."""


class ThreadCpu:
    """The CPU time of a driver, its JVM and the JVM's Python workers, and of some servers by name."""

    def __init__(self, jvm: int, servers: Mapping[str, int]) -> None:
        self._jvm = jvm
        self._servers = servers

    def read(self) -> Threads:
        """CPU seconds so far. What a thread used that has ended counts for nobody."""
        found = {(_java_kind(name), thread): used_s for name, thread, used_s in _threads(self._jvm)}
        of_processes = [("driver", os.getpid()), *self._servers.items()]
        of_processes += [("python_workers", pid) for pid in _descendants(self._jvm)]
        for kind, pid in of_processes:
            for each in (pid, *(_descendants(pid) if kind in self._servers else ())):
                found |= {(kind, thread): used_s for _, thread, used_s in _threads(each)}
        return found


def between(before: Threads, after: Threads) -> dict[str, float]:
    """CPU seconds of each kind between two readings."""
    used: dict[str, float] = {}
    for key, used_s in after.items():
        used[key[0]] = used.get(key[0], 0.0) + used_s - before.get(key, 0.0)
    return used


def _java_kind(name: str) -> str:
    return next((kind for kind, beginnings in _JAVA if name.startswith(beginnings)), JAVA_OTHER)


def _threads(pid: int) -> Iterator[tuple[str, int, float]]:
    """Yield the name, id and CPU seconds of each thread of a process."""
    for folder in Path(f"/proc/{pid}/task").glob("*"):
        with suppress(OSError):  # the thread has ended
            # The name may hold spaces and parentheses; the fields after the last one are numbers.
            name, _, rest = (folder / "stat").read_text().partition("(")[2].rpartition(")")
            fields = rest.split()
            yield name, int(folder.name), (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _descendants(pid: int) -> Iterator[int]:
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, file.read_text().split()):
                yield child
                yield from _descendants(child)
