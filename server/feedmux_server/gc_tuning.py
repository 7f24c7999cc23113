"""Controls when Python collects reference cycles, so that a collection stops the event loop only for milliseconds.

A collection walks all objects of a generation, at one or two microseconds each. Waiting tasks and the contents of the
rings live long, have no cycles and are freed when their last reference goes, so walking them again and again is
useless. The objects that survive a collection are therefore frozen: Python does not walk them any more. When these have
become many more, a full collection, which takes 50 ms and more, finds cycles among them.
"""

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

YOUNG: Final = 2_000
"""A collection of the young generation starts at this many objects made and not yet freed."""
_FULL_EVERY_S: Final = 1_800.0
"""A call leaves cycles of 5 objects, a failed call of 50 to 90, and young collections find nearly all of them."""
_GROWTH_MIN: Final = 50_000
"""So many more frozen objects than the last full collection has left, and a quarter more, are worth the next one."""


@asynccontextmanager
async def looking_for_cycles() -> AsyncIterator[None]:
    """Control the collections of a process that runs nothing but feedmux. Afterwards Python collects as before."""

    def looked(phase: str, _info: dict[str, int]) -> None:
        if phase == "stop":
            gc.freeze()

    async def look_at_all() -> None:
        worth_it = 0  # one full collection at once: what is loaded by now stays loaded
        while True:
            if gc.get_freeze_count() >= worth_it:
                gc.unfreeze()
                gc.collect()
                worth_it = gc.get_freeze_count() * 5 // 4 + _GROWTH_MIN
            await asyncio.sleep(_FULL_EVERY_S)

    before = gc.get_threshold()
    gc.callbacks.append(looked)
    # The older generations are empty except for what a collection has just left.
    gc.set_threshold(YOUNG, 1_000, 1_000)
    task = asyncio.create_task(look_at_all(), name="cycles")
    try:
        yield
    finally:
        task.cancel()
        gc.callbacks.remove(looked)
        gc.set_threshold(*before)
        gc.unfreeze()
