"""Looks whether MongoDB was restored: from time to time, and soon after a connection to it was lost.

Streams look themselves before they continue (`source.timeline`). This is for sessions that read a ring whose cursor was
closed, and so that the newest known entry of the oplog is recent.
"""

import asyncio
import logging

from feedmux_server.core.errors import FeedmuxError
from feedmux_server.source.deployment import Source

log = logging.getLogger(__name__)

_PAUSE_S = 1.0
"""Between two looks, however often connections are lost."""


async def watch_timeline(source: Source, every_s: float) -> None:
    """Look again and again until cancelled."""
    while True:
        try:
            await source.timeline.check()
        except FeedmuxError as error:
            log.debug("cannot look at the oplog now", extra={"source": source.name, "reason": error.reason.value})
        await asyncio.sleep(min(_PAUSE_S, every_s))
        await source.timeline.doubted(every_s)
