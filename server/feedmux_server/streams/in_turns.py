"""Long work, in turns of the event loop."""

import asyncio
from collections.abc import Callable


def in_turns(step: Callable[[], bool]) -> None:
    """Run a step now, and again in later turns, until it returns False."""
    if step():
        asyncio.get_running_loop().call_soon(in_turns, step)


async def wait_in_turns(unfinished: Callable[[], bool]) -> None:
    """Wait for the end of work that is done in turns; `unfinished` says whether there is more."""
    while unfinished():  # noqa: ASYNC110 - it ends within a few turns
        await asyncio.sleep(0)
