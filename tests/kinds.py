"""The kinds of tests by folder (docs/testing.md, "Kinds of tests")."""

from pathlib import PurePosixPath

CHECKS = ("tests/checks",)
"""ruff, mypy and what else `./run lint` runs, a test for each."""

UNIT = (
    "tests/client",
    "tests/core",
    "tests/fanout",
    "tests/proto",
    "tests/rpc",
    "tests/sim",
    "tests/source",
    "tests/state",
    "tests/telemetry",
    "tests/tenants",
)
"""Without anything outside of the process."""


def may_run_again(nodeid: str) -> bool:
    """Whether a test that failed runs once more: a test with servers may, a check or a unit test never does."""
    file = PurePosixPath(nodeid.partition("::")[0])
    return not any(file.is_relative_to(folder) for folder in CHECKS + UNIT)


if __name__ == "__main__":
    print(*CHECKS, *UNIT, sep="\n")
