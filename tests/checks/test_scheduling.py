"""Who of several processes runs which tests."""

from types import SimpleNamespace
from typing import Any

from tests.scheduling import Scheduling, computes, in_order, scope_of
from tests.tables import over

WAITS = [f"tests/integration/test_{name}.py::test_{number}" for name in "abc" for number in range(4)]
COMPUTES = [f"tests/sim/test_small.py::test_small_runs[{number}]" for number in range(6)]


class Node:
    """A process, as pytest-xdist knows it."""

    shutting_down = False

    def __init__(self, tests: list[str]) -> None:
        self.gateway = SimpleNamespace(id=f"gw{id(self)}")
        self.tests = tests
        self.given: list[str] = []

    def send_runtest_some(self, numbers: list[int]) -> None:
        self.given += [self.tests[number] for number in numbers]

    def shutdown(self) -> None:
        self.shutting_down = True


def scheduled(tests: list[str], count: int) -> tuple[Scheduling, list[Node]]:
    options = SimpleNamespace(loadscopereorder=False)
    config: Any = SimpleNamespace(getvalue=lambda _: [f"{count}*popen"], option=options)
    scheduling = Scheduling(config, SimpleNamespace(loadscopesched=lambda *_: None))
    nodes = [Node(tests) for _ in range(count)]
    for node in nodes:
        scheduling.add_node(node)
        scheduling.add_node_collection(node, tests)
    scheduling.schedule()
    return scheduling, nodes


@over(
    ("nodeid", "scope"),
    [
        ("tests/integration/test_a.py::test_b[c::d]", "tests/integration/test_a.py"),
        ("tests/sim/test_large.py::test_larger_runs[0]", "tests/sim/test_large.py::test_larger_runs[0]"),
        ("tests/conformance/clients/test_clients.py::test_scenario[python-going]", "python"),
        ("tests/conformance/clients/test_clients.py::test_scenario[go-python-b]", "go"),
        ("tests/clients/test_go.py::test_a[go vet-b]", "go"),
        ("tests/integration/test_bench.py::test_a_benchmark_ends_with_its_result[clients]", "node"),
        (
            "tests/integration/test_bench.py::test_a_benchmark_ends_with_its_result[single]",
            "tests/integration/test_bench.py",
        ),
        ("tests/spark/test_faults.py::test_a", "spark"),
    ],
)
def test_what_one_process_runs(nodeid: str, scope: str) -> None:
    assert scope_of(nodeid) == scope


def test_what_takes_longest_comes_first() -> None:
    tests = (WAITS[0], "tests/cli/test_consume.py::test_a", COMPUTES[0], "tests/spark/test_b.py::test_b")
    assert sorted(tests, key=in_order) == [tests[3], tests[1], tests[0], tests[2]]


def test_checks_and_unit_tests_compute_and_groups_do_not() -> None:
    tests = ("tests/checks/test_a.py", "tests/unit/rpc/test_b.py", COMPUTES[0], "tests/cli/test_c.py", "spark")
    assert list(map(computes, tests)) == [True, True, True, False, False]


@over("tests", [WAITS + COMPUTES, COMPUTES + WAITS])
def test_one_process_computes_while_the_others_wait(tests: list[str]) -> None:
    scheduling, nodes = scheduled(tests, 3)
    assert sorted(node.given[0] in COMPUTES for node in nodes) == [False, False, True]
    [computing] = [node for node in nodes if node.given[0] in COMPUTES]
    for _ in COMPUTES[3:]:
        run_next(scheduling, computing)
    assert set(computing.given) <= set(COMPUTES)


def run_next(scheduling: Scheduling, node: Node) -> str:
    test = node.given.pop(0)
    scheduling.mark_test_complete(node, node.tests.index(test))
    return test
