"""Wait for a condition, with a guard against waiting forever (docs/testing.md, "What a test may rest on")."""

import time
from collections.abc import Callable

GUARD_S = 60.0


def wait_until(
    condition: Callable[[], object],
    told: Callable[[], object] = lambda: "the condition does not hold",
    *,
    guard_s: float = GUARD_S,
    every_s: float = 0.05,
) -> None:
    """Block until `condition` holds; where it never does, fail with what `told` returns then."""
    end_s = time.monotonic() + guard_s
    while not condition():
        assert time.monotonic() < end_s, f"after {guard_s:.0f} s: {told()}"
        time.sleep(every_s)
