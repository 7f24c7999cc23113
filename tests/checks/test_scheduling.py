"""Who of several processes runs which tests."""

from tests.scheduling import computes, in_order, scope_of
from tests.tables import over

WAITS = [f"tests/integration/test_{name}.py::test_{number}" for name in "abc" for number in range(4)]
COMPUTES = [f"tests/sim/test_small.py::test_small_runs[{number}]" for number in range(6)]


@over(
    ("nodeid", "scope"),
    [
        ("tests/integration/test_a.py::test_b[c::d]", "tests/integration/test_a.py"),
        ("tests/sim/test_large.py::test_larger_runs[0]", "tests/sim/test_large.py::test_larger_runs[0]"),
        ("tests/checks/test_stalls.py::test_a[1]", "tests/checks/test_stalls.py::test_a[1]"),
        ("tests/conformance/clients/test_clients.py::test_scenario[python-going]", "python"),
        ("tests/conformance/clients/test_clients.py::test_scenario[go-python-b]", "go"),
        ("tests/clients/test_go.py::test_a[go vet-b]", "go"),
        ("tests/integration/test_bench.py::test_a_benchmark_ends_with_its_result[clients]", "node"),
        (
            "tests/integration/test_bench.py::test_a_benchmark_ends_with_its_result[single]",
            "tests/integration/test_bench.py",
        ),
        ("tests/spark/test_faults.py::test_a", "spark"),
        ("tests/spark/test_masters.py::test_a", "tests/spark/test_masters.py"),
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
