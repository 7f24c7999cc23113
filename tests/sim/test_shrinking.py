"""A failing run is made smaller, and fails as before when its command is run."""

import shlex

import pytest

from tests.sim.mutants import MUTANTS, built_with
from tests.sim.shrinking import shrink
from tests.sim.world import SIZES, Keep, simulate

SMALLEST = Keep(faults=(), users=(0,), servers=1, writes=0)


def test_a_failing_run_is_made_smaller() -> None:
    [mutant] = [each for each in MUTANTS if each.name == "cursors stay open"]
    lines: list[str] = []
    with built_with(mutant):
        found = shrink(0, "large", say=lines.append)
        assert found is not None
        parts = shlex.split(found.command)
        keep = Keep.of(parts[parts.index("--keep") + 1])
        assert keep == found.keep
        again = simulate(0, SIZES["large"], keep=keep)
    assert (found.broken, found.keep.faults, found.keep.servers, found.keep.writes) == ("Nothing left", (), 1, 0)
    assert len(found.keep.users or ()) == 1
    assert any(problem.startswith("Nothing left:") for problem in again.problems)
    assert len(lines) > 3


def test_a_run_that_does_not_fail_is_left_alone() -> None:
    assert shrink(0, "small", keep=SMALLEST) is None


@pytest.mark.parametrize("text", ["", "faults=", "faults=0+2,users=1,servers=1,writes=20", "writes=0"])
def test_parts_round_trip(text: str) -> None:
    assert str(Keep.of(text)) == text


def test_unknown_parts_are_refused() -> None:
    with pytest.raises(ValueError, match="none of faults, users, crews, copiers, servers and writes"):
        Keep.of("tenants=1")
