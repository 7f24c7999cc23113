"""Runs with certain faults. FEEDMUX_SIM_SEED moves the first seed; FEEDMUX_SIM_DAY sets the day, which says which seeds
`./run test` takes of those that `--all` runs."""

import pytest

from tests.sim.__main__ import run_block, told
from tests.sim.faults import SCENARIOS
from tests.sim.test_mutants import TODAY
from tests.sim.test_small import FIRST

SEEDS = 5
ALL_SEEDS = 50


@pytest.mark.parametrize(
    ("first", "seeds"),
    [
        pytest.param(FIRST + TODAY * SEEDS % ALL_SEEDS, SEEDS, marks=pytest.mark.long),
        pytest.param(FIRST, ALL_SEEDS, marks=pytest.mark.full),
    ],
    ids=["of today", "all"],
)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario(scenario: str, first: int, seeds: int) -> None:
    failed = [told(summary) for summary in run_block(first, seeds, "small", scenario) if summary.problems]
    assert not failed, "\n".join(failed)
