"""Run failed tests that use servers a second time: alone, in a separate process, after all other tests have ended.

`./run test` loads this plugin and gives `--second-run`. A test that passes in its second run is unstable: the run lists
it as `UNSTABLE path::name` with both outcomes, and fails if there are more than `UNSTABLE_MAX`. Checks and unit tests
have no second run (`tests.kinds`).

The plugin also ends the process of a test that hangs after its time limit, because the run would never end, and shows
where the asyncio tasks of a test wait that did not end within it.
"""

import asyncio
import ctypes
import faulthandler
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest
from _pytest._code.code import ExceptionRepr
from _pytest.faulthandler import fault_handler_stderr_fd_key
from _pytest.terminal import TerminalReporter

from tests.kinds import may_run_again

UNSTABLE_MAX = 3
"""More unstable tests than this fail the run."""
AGAIN_MAX = 20
"""If more tests than this failed, something else is wrong, and none runs again."""
LINE_MAX = 200
"""Characters of a failure in the last lines."""
HANG_S = 60.0
"""A test that runs for this much longer than its time limit hangs: something has caught what pytest-timeout raises, or
the test failed and its teardown, which then has no limit, does not end."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one test."""

    passed: bool
    seconds: float
    text: str
    """The first line of the failure; empty if there was none."""

    def __str__(self) -> str:
        word = "passed" if self.passed else f"failed: {self.text}" if self.text else "skipped"
        return f"{word} ({self.seconds:.1f} s)"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("second run")
    group.addoption("--second-run", action="store_true", help="run failed tests with servers once more, alone")
    group.addoption("--outcomes", type=Path, metavar="FILE", help="write each test's outcome to FILE, as JSON")
    group.addoption("--hang", type=float, metavar="S", default=HANG_S, help="end a test's process S s after its limit")


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        return  # a pytest-xdist worker: its reports go to the main process
    if config.option.second_run:
        config.pluginmanager.register(SecondRun(config), "second_run_of_failed_tests")
    if config.option.outcomes:
        _die_with_parent()
        config.pluginmanager.register(_Outcomes(config.option.outcomes), "outcomes_file")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    _end_if_it_hangs(item)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    # pytest itself cancels it when a test fails, in case a debugger starts.
    _end_if_it_hangs(item)
    return (yield)


def _end_if_it_hangs(item: pytest.Item) -> None:
    """Print the stacks of all threads and end the process if the test still runs at the end of its time. pytest-xdist
    starts another process for the rest of the tests."""
    marker = item.get_closest_marker("timeout")
    limit_s = float(marker.args[0] if marker else item.config.option.timeout or item.config.getini("timeout") or 0.0)
    if limit_s and not item.config.getoption("usepdb"):
        stderr = item.config.stash[fault_handler_stderr_fd_key]
        faulthandler.dump_traceback_later(limit_s + item.config.getoption("hang"), exit=True, file=stderr)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, Any, pytest.TestReport]:
    report: pytest.TestReport = yield
    # Below the test stands only the loop that waits: the tasks alone say for what.
    if call.excinfo is not None and str(call.excinfo.value).startswith("Timeout"):
        loops = [entry.frame.f_locals.get("self") for entry in call.excinfo.traceback]
        for loop in {each for each in loops if isinstance(each, asyncio.AbstractEventLoop)}:
            if isinstance(report.longrepr, ExceptionRepr):
                report.longrepr.addsection("asyncio tasks", "\n".join(map(_where, asyncio.all_tasks(loop))))
    return report


def _where(task: asyncio.Task[Any]) -> str:
    """The name of a task, and the line in each coroutine that it waits in, the outermost first."""
    lines = [task.get_name()]
    waiting: Any = task.get_coro()
    while waiting is not None:
        # Coroutines, generators and asynchronous generators have the same attributes with other prefixes.
        prefix = next((each for each in ("cr", "gi", "ag") if hasattr(waiting, f"{each}_frame")), "")
        if frame := getattr(waiting, f"{prefix}_frame", None):
            lines.append(f"    {frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_qualname}")
        waiting = getattr(waiting, "gi_yieldfrom" if prefix == "gi" else f"{prefix}_await", None)
    return "\n".join(lines)


class SecondRun:
    """Collect the failures, run their tests again, and correct pytest's counts."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._reports: dict[str, list[pytest.TestReport]] = {}
        self._lines: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._reports.setdefault(report.nodeid, []).append(report)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        result = yield
        failed = [nodeid for nodeid, reports in self._reports.items() if any(each.failed for each in reports)]
        repeated = [nodeid for nodeid in failed if may_run_again(nodeid)]
        if len(repeated) > AGAIN_MAX:
            self._lines.append(f"No second run: {len(repeated)} tests with servers failed (at most {AGAIN_MAX}).")
        elif repeated:
            self._judge(session, repeated, self._run_again(repeated))
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: TerminalReporter) -> Generator[None]:
        for report in terminalreporter.stats.get("unstable", []):
            terminalreporter.write_sep("_", f"first failure of the unstable {report.nodeid}")
            report.toterminal(terminalreporter._tw)
        yield
        # After pytest's own list of failures, so that these are the last lines but one.
        for line in self._lines:
            terminalreporter.write_line(line)

    @property
    def _terminal(self) -> TerminalReporter:
        found: TerminalReporter = self._config.pluginmanager.getplugin("terminalreporter")
        return found

    def _run_again(self, nodeids: list[str]) -> dict[str, Outcome]:
        self._terminal.ensure_newline()
        self._terminal.write_sep("=", f"second run, alone: {len(nodeids)} of the tests that failed")
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "outcomes.json")
            options = ["-p", "tests.second_run", "-p", "no:cacheprovider", "--no-header", "--outcomes", str(file)]
            subprocess.run([sys.executable, "-m", "pytest", *options, *nodeids], check=False)
            found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
        return {nodeid: Outcome(**fields) for nodeid, fields in found.items()}

    def _judge(self, session: pytest.Session, nodeids: list[str], again: dict[str, Outcome]) -> None:
        unstable = [nodeid for nodeid in nodeids if nodeid in again and again[nodeid].passed]
        for nodeid in nodeids:
            word = "UNSTABLE" if nodeid in unstable else "FAILED TWICE"
            second = str(again[nodeid]) if nodeid in again else "did not end"
            self._lines.append(f"{word} {nodeid}")
            self._lines.append(f"    first: {outcome(self._reports[nodeid])}")
            self._lines.append(f"    alone: {second}")
        if len(unstable) > UNSTABLE_MAX:
            self._lines.append(f"{len(unstable)} tests are unstable; more than {UNSTABLE_MAX} fail the run.")
            return
        stats = self._terminal.stats
        for nodeid in unstable:
            failed = [each for each in self._reports[nodeid] if each.failed]
            for category in ("failed", "error"):
                if category in stats:
                    stats[category] = [each for each in stats[category] if each not in failed]
            stats.setdefault("unstable", []).append(failed[0])
            session.testsfailed -= len(failed)


class _Outcomes:
    """Write the outcomes to a file."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._reports: dict[str, list[pytest.TestReport]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._reports.setdefault(report.nodeid, []).append(report)

    def pytest_sessionfinish(self) -> None:
        found = {nodeid: asdict(outcome(reports)) for nodeid, reports in self._reports.items()}
        self._file.write_text(json.dumps(found))


def _die_with_parent() -> None:
    """End this process, and with it the servers of its tests, when the first run is killed (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, int(signal.SIGKILL), 0, 0, 0)  # PR_SET_PDEATHSIG


def outcome(reports: Iterable[pytest.TestReport]) -> Outcome:
    """Sum up the reports of one test: its set-up, its call and its teardown."""
    reports = list(reports)
    failed = [each for each in reports if each.failed]
    passed = not failed and any(each.when == "call" and each.passed for each in reports)
    return Outcome(passed, sum(each.duration for each in reports), _first_line(failed[0]) if failed else "")


def _first_line(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else str(report.longrepr)
    return text.strip().partition("\n")[0][:LINE_MAX]
