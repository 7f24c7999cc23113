"""docs/testing.md names every folder of tests, and the kinds of tests/kinds.py."""

import re
from pathlib import Path

from tests.kinds import CHECKS, UNIT, may_run_again

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
