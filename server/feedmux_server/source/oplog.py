"""What feedmux reads of a deployment's oplog itself: its oldest and newest entry, and its size."""

from typing import Any, Final

from bson.timestamp import Timestamp
from pymongo.errors import OperationFailure
from pymongo.read_preferences import ReadPreference

from feedmux_server.clock import monotonic_s
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.limits.oplog_forecast import OplogState
from feedmux_server.core.positions.timeline import BEFORE_ALL_ELECTIONS, OplogEntry
from feedmux_server.source.commands import SourceCommands
from feedmux_server.source.source_clock import SourceClock, as_int

DENIED_S: Final = 60.0
"""How long to wait after MongoDB has denied a read of the oplog: MongoDB logs every denied command, and a permission
may be granted later."""
_UNAUTHORIZED = 13
_FIELDS = {"ts": 1, "t": 1}


class Oplog:
    """Its methods raise FeedmuxError if MongoDB is unavailable, rejects the read, or is a mongos without an oplog."""

    def __init__(self, commands: SourceCommands, clock: SourceClock) -> None:
        self._commands = commands
        self._clock = clock
        self._measured_from_s = 0.0
        """When the sizes may be asked for again."""

    async def oldest(self) -> OplogEntry:
        """The primary's oldest entry: another member may have a shorter oplog."""
        with self._commands.span("find", "local", "oplog.rs"):
            return await self._commands.answer(self._oldest())

    async def oldest_time(self) -> int:
        return (await self.oldest()).time

    async def entry_at(self, time: int) -> OplogEntry | None:
        """The primary's entry of this cluster time."""
        return await self._commands.answer(self._find({"ts": _timestamp(time)}, 1))

    async def around(self, time: int) -> tuple[OplogEntry | None, OplogEntry | None]:
        """The primary's last entry before this cluster time, and the first after it."""
        before = await self._commands.answer(self._find({"ts": {"$lt": _timestamp(time)}}, -1))
        return before, await self._commands.answer(self._find({"ts": {"$gt": _timestamp(time)}}, 1))

    @property
    def _collection(self) -> Any:
        """The primary's: another member may have a shorter one."""
        return self._commands.client.local["oplog.rs"].with_options(read_preference=ReadPreference.PRIMARY)

    async def _find(self, condition: Any, direction: int) -> OplogEntry | None:
        """The first entry in a direction. MongoDB finds a time in the oplog without a scan."""
        entry = await self._collection.find_one(condition, _FIELDS, sort=[("$natural", direction)])
        return None if entry is None else OplogEntry(as_int(entry["ts"]), entry.get("t", BEFORE_ALL_ELECTIONS))

    async def state(self) -> OplogState:
        return await self._commands.answer(self._state())

    async def _oldest(self) -> OplogEntry:
        entry = await self._find({}, 1)
        if entry is None:
            raise FeedmuxError(
                ErrorReason.SOURCE_UNSUITABLE,
                f"source {self._commands.name!r} is a mongos, which has no oplog to read the earliest time from; start"
                " at a time instead",
            )
        self._clock.saw(entry.time)
        return entry

    async def _state(self) -> OplogState:
        newest = as_int((await self._commands.client.admin.command("ping"))["operationTime"])
        self._clock.saw(newest)
        size, size_max = await self._sizes()
        oldest = await self._oldest()
        return OplogState(oldest.time >> 32, newest >> 32, size, size_max, oldest.begins_set)

    async def _sizes(self) -> tuple[int, int] | tuple[None, None]:
        """The oplog's size and maximum size. None if the account may read the oplog but not its statistics."""
        if monotonic_s() < self._measured_from_s:
            return None, None
        try:
            cursor = await self._collection.aggregate([{"$collStats": {"storageStats": {}}}])
            storage = (await cursor.next())["storageStats"]
            return int(storage["size"]), int(storage["maxSize"])
        except (OperationFailure, StopAsyncIteration, KeyError) as error:
            # Other failures pass, or concern the oplog itself.
            if getattr(error, "code", None) == _UNAUTHORIZED:
                self._measured_from_s = monotonic_s() + DENIED_S
            return None, None


def _timestamp(time: int) -> Timestamp:
    return Timestamp(time >> 32, time & 0xFFFF_FFFF)
