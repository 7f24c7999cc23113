"""Each checker catches the broken builds that break its guarantee."""

from contextlib import suppress

import pytest

from tests.model.checkers import CHECKERS, check
from tests.model.mutants import MUTANTS, Mutant, built_with
from tests.model.simulator import Settings, World

SEEDS_MAX = 400


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_the_checker_catches_the_mutant(mutant: Mutant) -> None:
    settings = Settings(inspect=False)
    with built_with(mutant):
        for seed in range(SEEDS_MAX):
            world = World(seed, settings)
            # A broken build may fail in other ways too; what it did until then is judged.
            with suppress(AssertionError, IndexError, KeyError, RuntimeError):
                world.run()
            if check(world.history, [mutant.guarantee]):
                return
    pytest.fail(f"{mutant.guarantee} did not notice in {SEEDS_MAX} seeds")


def test_every_guarantee_has_a_mutant() -> None:
    assert {mutant.guarantee for mutant in MUTANTS} == set(CHECKERS)
