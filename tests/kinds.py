"""The kinds of tests by folder (docs/testing.md, "Kinds of tests")."""

from pathlib import PurePosixPath

CHECKS = ("tests/checks",)
"""A test for each tool that `./run lint` runs: ruff, mypy and others."""

UNIT = ("tests/unit", "tests/sim")
"""Tests that use nothing outside their process."""


def may_run_again(nodeid: str) -> bool:
    """Whether a failed test runs once more: a test with servers may, a check or a unit test never does."""
    file = PurePosixPath(nodeid.partition("::")[0])
    return not any(file.is_relative_to(folder) for folder in CHECKS + UNIT)


if __name__ == "__main__":
    print(*CHECKS, *UNIT, sep="\n")
