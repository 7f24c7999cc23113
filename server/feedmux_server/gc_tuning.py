"""Controls when Python collects reference cycles, so that each stops the event loop only for milliseconds.

A collection walks all objects of a generation, at one or two microseconds each. Waiting tasks and the contents of the
rings live long, have no cycles and are freed when their last reference goes, so walking them again and again is
useless. The objects that survive a collection are therefore frozen: Python does not walk them any more. An occasional
full collection finds cycles among them.
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
_COLLECTIONS_MIN: Final = 50
"""Collections before the next full one, however long they take: an idle process needs no full collection."""


@asynccontextmanager
async def looking_for_cycles() -> AsyncIterator[None]:
    """Control the collections of a process that runs nothing but feedmux. Afterwards Python collects as before."""
    collections = _COLLECTIONS_MIN  # one full collection at once: what is loaded by now stays loaded

    def looked(phase: str, _info: dict[str, int]) -> None:
        nonlocal collections
        if phase == "stop":
            collections += 1
            gc.freeze()

    async def look_at_all() -> None:
        nonlocal collections
        while True:
            if collections >= _COLLECTIONS_MIN:
                gc.unfreeze()
                gc.collect()
                collections = 0
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
