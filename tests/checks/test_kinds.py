"""The kinds of tests in docs/testing.md, and who of several processes runs which."""

import re
from pathlib import Path

from tests.kinds import CHECKS, UNIT, may_run_again
from tests.scheduling import computes, in_order, scope_of
from tests.tables import over

REPOSITORY = Path(__file__).parents[2]


def rows() -> dict[str, list[str]]:
    """The table of kinds: the folders of each, as they stand there."""
    text = (REPOSITORY / "docs" / "testing.md").read_text()
    table = text.partition("| kind | folders")[2].partition("\n\n")[0]
    found = {}
    for line in table.splitlines()[2:]:
        kind, folders, *_ = (cell.strip() for cell in line.strip("|").split("|"))
        found[kind] = [f"tests/{name}" for name in re.findall(r"`([^`]+)`", folders)]
    return found


def test_the_table_names_the_checks_and_the_unit_tests() -> None:
    assert rows()["checks"] == list(CHECKS)
    assert rows()["unit"] == list(UNIT)


def test_the_table_names_every_folder_with_tests() -> None:
    named = [folder for folders in rows().values() for folder in folders]
    for path in (REPOSITORY / "tests").rglob("test_*.py"):
        file = path.relative_to(REPOSITORY)
        assert any(file.is_relative_to(folder) for folder in named), file


def test_what_may_run_again() -> None:
    assert may_run_again("tests/integration/test_a.py::test_b[tests/unit]")
    assert not may_run_again("tests/unit/core/test_a.py::test_b")
    assert not may_run_again("tests/checks/test_checks.py::test_check[mypy]")


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
