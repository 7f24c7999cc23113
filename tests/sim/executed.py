"""`./run sim --coverage`: the lines on an event's path through the code that the simulation executes.

Each group has a share that it must reach. No run verifies the lines that are not executed.
"""

import ast
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import coverage

import feedmux
import feedmux_server


@dataclass(frozen=True, slots=True)
class Group:
    """Modules, selected by patterns within a package."""

    name: str
    root: Path
    patterns: tuple[str, ...]
    least: float
    """The required share, from 0 to 1."""

    def files(self) -> list[Path]:
        return sorted(file for pattern in self.patterns for file in self.root.glob(pattern))


def _folder(package: object) -> Path:
    file = getattr(package, "__file__", None)
    assert isinstance(file, str)
    return Path(file).parent


_SERVER: Final = _folder(feedmux_server)
_CLIENT: Final = _folder(feedmux)

GROUPS: Final = (
    Group("streams", _SERVER, ("streams/pump.py", "streams/manager.py", "streams/key_streams.py", "streams/upstream.py",
                               "streams/abandoned_streams.py", "core/delivery/slots.py",
                               "core/delivery/shared_stream.py", "core/delivery/stream_steps.py",
                               "core/delivery/feed_streams.py", "core/delivery/replay_buffer.py",
                               "core/events/chunk.py", "source/reader.py", "source/stream_request.py",
                               "source/read_pace.py", "source/timed_reads.py"), 0.95),
    Group("sessions", _SERVER, ("sessions/session.py", "sessions/session_commits.py", "sessions/send_gate.py",
                                "core/delivery/session_state.py", "core/delivery/subscriber.py",
                                "core/delivery/ack_tracker.py", "core/delivery/credit.py", "rpc/subscribe.py",
                                "rpc/subscription_lease.py",
                                "rpc/session_lifecycle.py", "rpc/response_encoder.py"), 0.95),
    Group("store", _SERVER, ("store/store.py", "store/lease_store.py", "store/name_index.py", "store/store_scripts.py",
                             "store/answers.py", "store/commit_queue.py", "store/committer.py", "store/handle.py",
                             "store/scripts.py", "store/deadlines.py", "store/model.py"), 0.95),
    Group("the client's connection", _CLIENT, ("connection.py", "connection_states.py", "delivery_tracker.py",
                                               "window.py", "recovery.py", "transport.py", "session_buffer.py",
                                               "silence_detector.py", "session_base.py", "async_session.py"), 0.95),
    Group("core", _SERVER, ("core/**/*.py",), 0.80),
    Group("rpc", _SERVER, ("rpc/*.py",), 0.80),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Executed:
    """How many lines of a file or a group were executed."""

    name: str
    lines: int
    missing: tuple[int, ...] = ()
    """For a file: the numbers of its missing lines."""
    missing_count: int = 0

    @property
    def share(self) -> float:
        return 1 - self.missing_count / self.lines if self.lines else 1.0

    def __str__(self) -> str:
        return f"{self.share:6.1%} of {self.lines:5} lines  {self.name}"


def executed_by(work: Callable[[], object]) -> dict[Path, Executed]:
    """For each file of the groups, how many of the lines in functions `work` executes."""
    files = {file for group in GROUPS for file in group.files()}
    measure = coverage.Coverage(data_file=None, include=[str(file) for file in files], config_file=False)
    measure.start()
    try:
        work()
    finally:
        measure.stop()
    found: dict[Path, Executed] = {}
    for file in sorted(files):
        _, statements, _, missing, _ = measure.analysis2(str(file))
        lines = _in_functions(file.read_text()) & set(statements)
        left = tuple(sorted(lines & set(missing)))
        found[file] = Executed(str(file.relative_to(file.parents[1])), len(lines), left, len(left))
    return found


def of_group(group: Group, found: dict[Path, Executed]) -> Executed:
    files = [found[file] for file in group.files()]
    return Executed(group.name, sum(each.lines for each in files), (), sum(each.missing_count for each in files))


def _in_functions(source: str) -> set[int]:
    """The lines of function bodies: all other lines run when the module is imported."""
    return {
        line
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for line in range(node.body[0].lineno, (node.end_lineno or 0) + 1)
    }


def ranges(numbers: tuple[int, ...]) -> str:
    """Format line numbers as `12-14 20`."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return " ".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)
