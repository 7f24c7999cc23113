"""Decides which process runs which tests when several processes share them (pytest-xdist)."""

from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from tests.kinds import CHECKS, UNIT

LANGUAGES = ("go", "java", "node")
"""The clients whose builds and runners share a folder: one process runs all tests of each."""

TOGETHER = {
    "spark": ("tests/spark/",),
    **{language: (f"tests/clients/test_{language}.py",) for language in LANGUAGES},
    # With what tests the harness.
    "python": ("tests/conformance/clients/",),
}
"""One process runs each of these groups alone, and first because they take longest, in this order."""

FOR_SPARK = "gw0"
"""The process that runs the first group; the others give way to it (`nice`). Spark waits ten seconds, which no option
changes, until a Python that it has started connects. Beside everything that `--all` runs, that was too short."""

BENCHMARKS = "tests/integration/test_bench.py"
BUILDS = f"{BENCHMARKS}::test_a_benchmark_ends_with_its_result[clients]"
"""Builds the clients too. Node's build is the one that replaces what its tests run."""

FIRST = ("tests/helm/test_api_server.py", BENCHMARKS, "tests/packaging/", "tests/wide/", "tests/cli/")
"""The files that take longest, and the folders with others, so that no process is left with one at the end."""

APART = ("tests/sim/", "tests/checks/test_stalls.py")
"""These tests share no servers, and some files take minutes: any process may run any of the tests."""

COMPUTING = tuple(f"{folder}/" for folder in (*CHECKS, *UNIT))


def scope_of(nodeid: str) -> str:
    """What one process runs: a group, a test, or a file, because its tests share servers."""
    if nodeid == BUILDS:
        return "node"
    file, _, test = nodeid.partition("::")
    for group, places in TOGETHER.items():
        if file.startswith(places):
            named = test.partition("[")[2].rstrip("]").split("-")
            return next((each for each in LANGUAGES if group == "python" and each in named), group)
    return nodeid if file.startswith(APART) else file


def computes(scope: str) -> bool:
    """Whether tests never wait for servers: they keep a core busy."""
    return scope.startswith(COMPUTING)


class Scheduling(LoadScopeScheduling):  # type: ignore[misc]  # pytest-xdist has no types
    """Lets one process run tests that compute while the others run tests that mostly wait, as soon as one of the groups
    is done: together they keep the cores busy alone. So the cores are busy all the time, and no process is left with a
    long file at the end."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)

    def _assign_work_unit(self, node: WorkerController) -> None:
        running = {
            other: {scope for scope, is_done in scopes.items() if not all(is_done.values())}
            for other, scopes in self.assigned_work.items()
        }
        groups = TOGETHER.keys() & {*self.workqueue}.union(*running.values())
        others = set().union(*(scopes for other, scopes in running.items() if other is not node))
        wanted = len(groups) < len(TOGETHER) and not any(map(computes, others))
        first = next((scope for scope in self.workqueue if computes(scope) is wanted), None)
        if first is not None:
            self.workqueue.move_to_end(first, last=False)
        super()._assign_work_unit(node)

    def remove_node(self, node: WorkerController) -> str | None:
        """As pytest-xdist does it, but do not run the test again that ended the process: it would end the next one."""
        work: dict[str, dict[str, bool]] = self.assigned_work.pop(node)
        pending = [(tests, nodeid) for tests in work.values() for nodeid, is_done in tests.items() if not is_done]
        if not pending:
            return None
        tests, crashed = pending[0]
        tests[crashed] = True
        self.workqueue.update((scope, tests) for scope, tests in work.items() if not all(tests.values()))
        for other in self.assigned_work:
            self._reschedule(other)
        return crashed


def in_order(nodeid: str) -> int:
    """A key for sorting: what takes longest comes first."""
    scope, groups = scope_of(nodeid), list(TOGETHER)
    if scope in groups:
        return groups.index(scope)
    return len(groups) + (not scope.startswith(FIRST))
