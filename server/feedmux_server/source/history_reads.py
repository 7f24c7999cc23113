"""Reads of history from one MongoDB deployment: a few at a time, in turn by tenant.

A reader that is behind gets full batches as fast as MongoDB can find them, which takes one of its cores for as long as
it lasts. A dozen of them would leave nothing for the streams that are at the head, whoever they belong to. So a reader
that is behind takes a turn for each batch, from the first one on, and also where a scan of much history gives few
events; one at the head never waits.
"""

import asyncio

from feedmux_server.core.fair_queue import FairQueue

TURN_MAX_S = 1.0


class Turn:
    """Leave to read one batch. It ends by itself after `TURN_MAX_S`, or a scan of gigabytes that match nothing would
    keep everybody else waiting."""

    __slots__ = ("_reads", "_timer")

    def __init__(self, reads: "HistoryReads") -> None:
        self._reads: HistoryReads | None = reads
        self._timer = asyncio.get_running_loop().call_later(TURN_MAX_S, self.end)

    def end(self) -> None:
        """The batch has come, or will not. May be called again."""
        reads, self._reads = self._reads, None
        self._timer.cancel()
        if reads is not None:
            reads.ended()


class HistoryReads:
    """The turns of one source."""

    def __init__(self, limit: int) -> None:
        """`limit`: turns at a time."""
        self._free = limit
        self._waiting: FairQueue[asyncio.Future[Turn]] = FairQueue()

    def try_begin(self) -> Turn | None:
        """A turn, if there is one that nobody waits for."""
        if self._free == 0:
            return None
        self._free -= 1
        return Turn(self)

    async def begin(self, tenant: str) -> Turn:
        """Waits for a turn."""
        turn = self.try_begin()
        if turn is not None:
            return turn
        waiting: asyncio.Future[Turn] = asyncio.get_running_loop().create_future()
        self._waiting.put(tenant, waiting)
        try:
            return await waiting
        except asyncio.CancelledError:
            self._waiting.remove(tenant, waiting)
            if waiting.done() and not waiting.cancelled():
                waiting.result().end()
            raise

    def ended(self) -> None:
        """The next tenant's turn."""
        while self._waiting:
            waiting = self._waiting.get()
            if not waiting.done():
                waiting.set_result(Turn(self))
                return
        self._free += 1
