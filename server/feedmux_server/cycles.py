"""When Python looks for reference cycles, so that a look stops the event loop for a few milliseconds at most.

A look walks all objects of a generation, one or two microseconds for each. What waits and what the rings hold lives
for long, has no cycles and is freed when it is let go, so walking it again and again is of no use. What one look has
left is therefore frozen: not walked any more. Cycles among it are found by a full look now and then.
"""

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

YOUNG: Final = 2_000
"""Objects made and not yet freed, after which the young ones are walked."""
_FULL_EVERY_S: Final = 1_800.0
"""A call leaves cycles of 5 objects, one that fails of 50 to 90, and nearly all of them are found young."""
_LOOKS_MIN: Final = 50
"""Before the next full look, however long that takes: an idle process has none."""


@asynccontextmanager
async def looking_for_cycles() -> AsyncIterator[None]:
    """For a process that is all ours. Behind it Python looks as it did."""
    looks = _LOOKS_MIN  # one at once: what is loaded by now stays

    def looked(phase: str, _info: dict[str, int]) -> None:
        nonlocal looks
        if phase == "stop":
            looks += 1
            gc.freeze()

    async def look_at_all() -> None:
        nonlocal looks
        while True:
            if looks >= _LOOKS_MIN:
                gc.unfreeze()
                gc.collect()
                looks = 0
            await asyncio.sleep(_FULL_EVERY_S)

    before = gc.get_threshold()
    gc.callbacks.append(looked)
    # The older generations are empty, but for what a look has just left.
    gc.set_threshold(YOUNG, 1_000, 1_000)
    task = asyncio.create_task(look_at_all(), name="cycles")
    try:
        yield
    finally:
        task.cancel()
        gc.callbacks.remove(looked)
        gc.set_threshold(*before)
        gc.unfreeze()
