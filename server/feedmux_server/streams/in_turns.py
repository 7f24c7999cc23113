"""Long work without a result, in turns of the event loop."""

import asyncio
from collections.abc import Callable


def in_turns(step: Callable[[], bool]) -> None:
    """Run a step now, and again in later turns, until it returns False."""
    if step():
        asyncio.get_running_loop().call_soon(in_turns, step)
