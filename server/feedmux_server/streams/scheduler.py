"""Decides which session uses the event loop next: sessions take turns by tenant, so that a tenant with many sessions
does not crowd out the others.

A delivery takes time of the loop in proportion to its bytes. Within one round of the loop, sessions proceed until a
budget is spent; later sessions wait, and proceed tenant by tenant in the following rounds. Without a crowd no session
waits, and the check costs one comparison.
"""

import asyncio

from feedmux_server.core.limits.fair_queue import FairQueue

ROUND_BYTES = 2 * 1024 * 1024
"""About a millisecond of joining and writing."""
MESSAGE_BYTES = 8 * 1024
"""What a message costs in addition to its bytes, as the number of bytes that take the same time."""
CHUNK_BYTES = 4 * 1024
"""The same for each chunk of a message after the first."""
GROUP_EVENT_BYTES = 2 * 1024
"""The same for an event of a group, whose key is found, and which is taken and settled by itself: a message of 1,000
small events takes 3 ms."""


class Scheduler:
    """The event loop's time for deliveries."""

    def __init__(self, round_bytes: int = ROUND_BYTES) -> None:
        self._round_bytes = round_bytes
        self._spent = self._last = 0
        self._scheduled = False
        self._queue: FairQueue[asyncio.Future[None]] = FairQueue()

    @property
    def crowded(self) -> bool:
        """Whether the next one has to wait."""
        return self._spent >= self._round_bytes or len(self._queue) > 0

    async def wait(self, tenant: str) -> None:
        """Wait for this tenant's turn, and for this session's turn within the tenant."""
        turn = asyncio.get_running_loop().create_future()
        self._queue.put(tenant, turn)
        self._schedule()
        await turn

    def spend(self, size: int, group_events: int = 0, chunks: int = 1) -> None:
        """Note a delivery of `size` bytes of events: from how many chunks, and how many, if they are of a group."""
        self._last = size + MESSAGE_BYTES + group_events * GROUP_EVENT_BYTES + (chunks - 1) * CHUNK_BYTES
        self._spent += self._last
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._next_round)

    def _next_round(self) -> None:
        self._scheduled = False
        self._spent = 0
        room = self._round_bytes
        # How much the admitted sessions will take is not known yet: assume as much as the last one, or a share.
        share = max(self._round_bytes // 4, self._last)
        while room > 0 and self._queue:
            turn = self._queue.get()
            if not turn.done():
                turn.set_result(None)
                room -= share
        if self._queue:
            self._schedule()
