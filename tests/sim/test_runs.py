"""A run repeats itself exactly, and the runs reach what they are for."""

from collections import Counter

import pytest

from tests.sim.__main__ import digests_elsewhere, run_block
from tests.sim.faults import SCENARIOS
from tests.sim.world import SIZES, SMALL, World, simulate


@pytest.mark.parametrize(("size", "seeds"), [("small", 30), ("large", 3)])
def test_a_seed_gives_the_same_run_in_another_process(size: str, seeds: int) -> None:
    here = [summary.digest for summary in run_block(0, seeds, size)]
    assert here == digests_elsewhere(0, seeds, size)
    assert len(set(here)) == seeds


def test_a_trace_does_not_change_the_run() -> None:
    lines: list[str] = []
    assert simulate(7, SMALL, lines.append).digest == simulate(7, SMALL).digest
    assert lines


def test_the_runs_reach_what_they_are_for() -> None:
    """Faults that nobody notices would prove nothing."""
    met: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    for seed, scenario in enumerate(["", *SCENARIOS] * 2):
        world = World(seed, SIZES["large"], scenario=scenario)
        outcome = world.run()
        for user in (*world.users, *world.rivals):
            met.update(user.met)
        seen.update(type(record).__name__ for record in outcome.history)
    assert {"FeedInvalidated", "Fenced", "HistoryLost", "SubscriptionBusy", "SubscriptionNotFound"} <= set(met)
    kinds = {"Written", "Opened", "Granted", "Delivered", "Acked", "Progress", "Committed", "Sought", "Lost", "Ended"}
    assert set(seen) >= kinds
