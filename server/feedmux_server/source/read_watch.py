"""Finds reads in which MongoDB works on one event for too long.

A pipeline that computes for minutes on one event holds a core of MongoDB, and its getMore does not come back. How long
a getMore takes says little: a search of the oplog that finds nothing may take an hour, and is no fault. But it moves
from event to event, and MongoDB's executor yields between them (`numYields` of `$currentOp` grows); within an event it
does not. A read that has not yielded for `event_time_s` is stopped: killOp, and its reader is notified.

That is a suspicion only: once it has found an event MongoDB computes on a whole batch without a yield. The reader reads
again in small batches, and one event that takes too long then is what ends the feed (`reader`).

One task for each source checks the reads under way once a second, and asks MongoDB only while one of them takes
longer than a read without work may. What it asks concerns the account's own operations and needs no privilege. A mongos
lists the operations of the shards, with the cursor's session; its own merging has no yields and is not judged.
"""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from pymongo.errors import PyMongoError

from feedmux_server.clock import monotonic_s

log = logging.getLogger(__name__)

_LOOK_EVERY_S: Final = 1.0
_ASK_S: Final = 5.0
OPENS_ARE_SLOWER: Final = 4.0
"""An aggregate may take longer by this factor, because it also waits for other things, such as a majority."""

_OPENS_MAY_TAKE_S: Final = 1.25
"""How long an aggregate may take before MongoDB is asked about it."""

Operation = Mapping[str, Any]
Address = tuple[str, int | None]


class Server(Protocol):
    """What is asked of a deployment."""

    async def operations(self, address: Address | None, sessions: list[bytes]) -> list[Operation]:
        """Return the operations of these sessions on one server (None: the primary). Raises pymongo's errors."""

    async def kill_operation(self, address: Address | None, operation: Any) -> None:
        """Raises pymongo's errors."""


@dataclass(eq=False, slots=True)
class Read:
    """The reads of one cursor: one is under way while `began_s` is not 0."""

    event_time_s: float
    session: bytes = b""
    """The id of the cursor's session."""
    address: Address | None = None
    cursor_id: int = 0
    """0 while it is opened."""
    began_s: float = 0.0
    may_take_s: float = 0.0
    """How long the read takes if MongoDB only waits for an event."""
    overran: bool = False
    took_s: float = 0.0
    """How long the last read took."""
    worked_s: float = 0.0
    """For how long it may have worked without a yield: all of `took_s`, unless the watch saw yields."""
    _scope: asyncio.Timeout | None = None
    _yielded_s: float = 0.0
    """When the read may have yielded last."""
    _checked_s: float = 0.0
    _seen: dict[Any, tuple[int, float]] = field(default_factory=dict)
    """By operation: its number of yields, and since when that number is unchanged."""

    def open_in(self, session: bytes) -> None:
        """Note that an aggregate is sent now in `session`."""
        self.session, self.address, self.cursor_id, self.overran = session, None, 0, False
        self.begin(_OPENS_MAY_TAKE_S)

    def begin(self, may_take_s: float) -> None:
        self.began_s = self._yielded_s = self._checked_s = monotonic_s()
        self.may_take_s, self.worked_s = may_take_s, 0.0
        self._seen.clear()

    def end(self) -> None:
        if self.began_s:
            now_s = monotonic_s()
            self.took_s = now_s - self.began_s
            self.worked_s = max(self.worked_s, now_s - self._yielded_s)
        self.began_s = 0.0
        self._scope = None

    def stop(self) -> None:
        """End the read that is under way: awaiting it within `scope` raises TimeoutError."""
        self.overran = True
        if self._scope is not None:
            self._scope.reschedule(asyncio.get_running_loop().time())

    def scope(self) -> asyncio.Timeout:
        """Without a timer, unless the read is stopped."""
        self._scope = asyncio.timeout(0 if self.overran else None)
        return self._scope

    @property
    def is_long(self) -> bool:
        return self.began_s > 0 and monotonic_s() - self.began_s > self.may_take_s

    def stuck(self, operations: list[Operation], now_s: float) -> Operation | None:
        """Return the operation of this read, among `operations` seen now, that has not yielded for too long."""
        seen, allowed_s = self._seen, self.event_time_s * (1.0 if self.cursor_id else OPENS_ARE_SLOWER)
        self._seen = {}
        has_yielded = bool(seen)
        for each in operations:
            if not self._is_mine(each) or not each.get("active") or each.get("waitingForLock"):
                continue
            yields, opid = each["numYields"], each["opid"]
            before, since_s = seen.get(opid, (-1, now_s))
            if before == yields:
                has_yielded = False
            else:
                since_s = now_s
            self._seen[opid] = (yields, since_s)
            if now_s - since_s >= allowed_s:
                return each
        if has_yielded:  # at some time since the last check
            self.worked_s = max(self.worked_s, now_s - self._yielded_s)
            self._yielded_s = self._checked_s
        self._checked_s = now_s
        return None

    def _is_mine(self, operation: Operation) -> bool:
        """Return whether the operation belongs to this read: the last read of an earlier cursor of the session may
        still be under way."""
        if "numYields" not in operation or bytes(operation["lsid"]["id"]) != self.session:
            return False
        if not self.cursor_id:
            return "aggregate" in operation.get("command", {})
        return "shard" in operation or operation.get("cursor", {}).get("cursorId") == self.cursor_id


class ReadWatch:
    """The watch of one source. Readers `add` and `remove` the reads of cursors whose pipelines have user stages."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._reads: dict[Read, None] = {}

    def add(self, read: Read) -> None:
        self._reads[read] = None

    def remove(self, read: Read) -> None:
        self._reads.pop(read, None)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            long = [read for read in self._reads if read.is_long]
            for address in dict.fromkeys(read.address for read in long):
                try:
                    await self._check(address, [read for read in long if read.address == address])
                except (PyMongoError, TimeoutError) as error:
                    log.debug("the reads under way cannot be checked now", extra={"error": type(error).__name__})

    async def _check(self, address: Address | None, reads: list[Read]) -> None:
        began = {read: read.began_s for read in reads}
        async with asyncio.timeout(_ASK_S):
            operations = await self._server.operations(address, [read.session for read in reads])
        now_s = monotonic_s()
        for read in reads:
            if read.began_s != began[read]:
                continue  # It has come back meanwhile.
            stuck = read.stuck(operations, now_s)
            if stuck is None:
                continue
            log.warning("MongoDB takes too long for one event of a feed; the read is stopped")
            read.stop()
            async with asyncio.timeout(_ASK_S):
                await self._server.kill_operation(address, stuck["opid"])
