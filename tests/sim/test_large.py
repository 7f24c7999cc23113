"""Larger runs of the simulation. FEEDMUX_SIM_SEED moves the first seed."""

import os

import pytest

from tests.sim.__main__ import run_block, told

FIRST = int(os.environ.get("FEEDMUX_SIM_SEED", "0"))
SEEDS = 20
ALL_SEEDS = 100
BLOCK = 10


@pytest.mark.long
@pytest.mark.parametrize(
    "first",
    [
        pytest.param(first, marks=[pytest.mark.full] if first >= FIRST + SEEDS else [])
        for first in range(FIRST, FIRST + ALL_SEEDS, BLOCK)
    ],
)
def test_larger_runs(first: int) -> None:
    failed = [told(summary) for summary in run_block(first, BLOCK, "large") if summary.problems]
    assert not failed, "\n".join(failed)
