"""Runs with certain faults. FEEDMUX_SIM_SEED moves the first seed."""

import pytest

from tests.sim.__main__ import run_block, told
from tests.sim.faults import SCENARIOS
from tests.sim.test_small import FIRST

SEEDS = 40


@pytest.mark.long
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario(scenario: str) -> None:
    failed = [told(summary) for summary in run_block(FIRST, SEEDS, "small", scenario) if summary.problems]
    assert not failed, "\n".join(failed)
