"""Limits reads of history from one MongoDB deployment: a few at a time, in turn by tenant.

A reader that is behind gets full batches as fast as MongoDB can find them, which occupies one core of MongoDB until the
reader has caught up. A dozen such readers would leave nothing for the streams at the head, of any tenant. So a reader
that is behind takes a permit for each batch, from the first batch on, even if a scan of much history gives few events;
a reader at the head never waits.
"""

import asyncio

from feedmux_server.core.limits.fair_queue import FairQueue

PERMIT_MAX_S = 1.0


class Permit:
    """Permission to read one batch. It expires after `PERMIT_MAX_S`, so that a scan of gigabytes without a match does
    not keep all other readers waiting."""

    __slots__ = ("_reads", "_timer")

    def __init__(self, reads: "CatchupLimiter") -> None:
        self._reads: CatchupLimiter | None = reads
        self._timer = asyncio.get_running_loop().call_later(PERMIT_MAX_S, self.end)

    def end(self) -> None:
        """End the permit: the batch has come, or will not. May be called again."""
        reads, self._reads = self._reads, None
        self._timer.cancel()
        if reads is not None:
            reads.ended()


class CatchupLimiter:
    """The permits of one source."""

    def __init__(self, limit: int) -> None:
        """`limit`: permits at a time."""
        self._free = limit
        self._waiting: FairQueue[asyncio.Future[Permit]] = FairQueue()

    def try_begin(self) -> Permit | None:
        """Return a permit if one is free, else None."""
        if self._free == 0:
            return None
        self._free -= 1
        return Permit(self)

    async def begin(self, tenant: str) -> Permit:
        """Waits for a permit."""
        permit = self.try_begin()
        if permit is not None:
            return permit
        waiting: asyncio.Future[Permit] = asyncio.get_running_loop().create_future()
        self._waiting.put(tenant, waiting)
        try:
            return await waiting
        except asyncio.CancelledError:
            self._waiting.remove(tenant, waiting)
            if waiting.done() and not waiting.cancelled():
                waiting.result().end()
            raise

    def ended(self) -> None:
        """Pass the permit to the next tenant."""
        while self._waiting:
            waiting = self._waiting.get()
            if not waiting.done():
                waiting.set_result(Permit(self))
                return
        self._free += 1
