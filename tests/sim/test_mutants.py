"""The simulation detects each broken build of the production code within its number of runs. FEEDMUX_SIM_DAY sets the
day, which says which of them `./run test` searches for."""

import os
from collections import Counter
from datetime import UTC, datetime

import pytest

from tests.sim.__main__ import seeds_to_find
from tests.sim.checkers import CHECKERS
from tests.sim.mutants import LUA, MUTANTS, Gone, Mutant, built_with

DAYS = 16
"""In this many days, `./run test` has searched for each mutant once that is not rare; `--all` searches for all."""
TODAY = int(os.environ.get("FEEDMUX_SIM_DAY") or datetime.now(UTC).toordinal())


@pytest.mark.long
@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(
            mutant,
            id=str(mutant),
            marks=[pytest.mark.full] if mutant.rare or (number + TODAY) % DAYS else [],
        )
        for number, mutant in enumerate(MUTANTS)
    ],
)
def test_a_mutant_is_found(mutant: Mutant) -> None:
    assert seeds_to_find(mutant) is not None, f"no run of {mutant.seeds} {mutant.size} seeds broke {mutant.guarantee}"


def test_every_mutant_applies() -> None:
    for mutant in MUTANTS:
        with built_with(mutant):
            pass


def test_every_guarantee_has_two_mutants() -> None:
    counts = Counter(mutant.guarantee for mutant in MUTANTS)
    assert [name for name in {**CHECKERS, **counts} if counts[name] < 2] == []


TARGETS = (
    "feedmux_server.core.delivery.credit:CreditWindow.spend",
    "feedmux_server.core.limits.lease:LeaseRules.renew_due",
    f"{LUA}get",
)


@pytest.mark.parametrize("target", TARGETS)
def test_a_mutant_that_does_not_apply_any_more_fails(target: str) -> None:
    with pytest.raises(Gone, match="no such text"), built_with(Mutant("gone", "Ordered", target, "no such text", "")):
        pass
