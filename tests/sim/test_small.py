"""Small runs of the simulation. FEEDMUX_SIM_SEED moves the first seed."""

import os
from typing import Any

import pytest

from tests.sim.__main__ import run_block, told

FIRST = int(os.environ.get("FEEDMUX_SIM_SEED", "0"))
SEEDS = 500
FAST_SEEDS = 300
ALL_SEEDS = 5_000
BLOCK = 100


def _block(first: int) -> Any:
    number = first - FIRST
    return pytest.param(
        first, marks=[pytest.mark.full] if number >= SEEDS else [pytest.mark.long] if number >= FAST_SEEDS else []
    )


@pytest.mark.parametrize("first", [_block(first) for first in range(FIRST, FIRST + ALL_SEEDS, BLOCK)])
def test_small_runs(first: int) -> None:
    failed = [told(summary) for summary in run_block(first, BLOCK, "small") if summary.problems]
    assert not failed, "\n".join(failed)
