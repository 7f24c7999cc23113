"""Broken builds of the production code are found, each within its number of runs."""

from collections.abc import Callable

import pytest

from tests.sim.mutants import LUA, MUTANTS, Gone, Mutant, built_with
from tests.sim.world import SIZES, simulate


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_a_mutant_is_found(mutant: Mutant, record_property: Callable[[str, object], None]) -> None:
    with built_with(mutant):
        for seed in range(mutant.seeds):
            problems = simulate(seed, SIZES[mutant.size]).problems
            if any(problem.startswith(f"{mutant.guarantee}:") for problem in problems):
                record_property("seeds", seed + 1)
                return
    pytest.fail(f"{mutant.guarantee} was not seen to be broken in {mutant.seeds} {mutant.size} seeds")


TARGETS = ("feedmux_server.core.credit:CreditWindow.spend", "feedmux_server.core.lease:LeaseRules.held", f"{LUA}get")


@pytest.mark.parametrize("target", TARGETS)
def test_a_mutant_that_does_not_apply_any_more_fails(target: str) -> None:
    with pytest.raises(Gone, match="no such text"), built_with(Mutant("gone", "Ordered", target, "no such text", "")):
        pass
