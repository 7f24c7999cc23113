"""The time of one MongoDB deployment: cluster times, as seconds << 32 | increment."""

import asyncio
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from datetime import UTC
from typing import Any

from bson.timestamp import Timestamp

from feedmux_server.source.commands import SourceCommands

_CLOSE_WAIT_S = 1.0
_SHARDS_DIFFER_S = 5
"""The most by which the clocks of shards and of a mongos may differ."""


@dataclass(frozen=True, slots=True)
class _Times:
    """See `SourceClock.operation_time` and `SourceClock.latest_time`."""

    operation_time: int
    latest_time: int


class SourceClock:
    """Asks a deployment for its time, and remembers the highest that MongoDB has reported."""

    def __init__(self, commands: SourceCommands) -> None:
        self.known_time = 0
        """The highest cluster time that this process has seen of the deployment since it last asked for it."""
        self.is_mongos = False
        """False until the deployment has answered."""
        self.primary: object = None
        """Which election the primary that answered last has won; None if MongoDB does not say."""
        self.durable_time = 0
        """Of what that primary had when it answered, everything up to this time stays."""
        self._commands = commands
        self._ping: asyncio.Task[_Times] | None = None
        self._next_ping: asyncio.Task[_Times] | None = None

    async def operation_time(self) -> int:
        """The deployment's present operation time, asked after this call began."""
        return (await self._times()).operation_time

    async def latest_time(self) -> int:
        """The highest cluster time that a token or a start may name now, asked after this call began.

        One after the operation time, where `latest` begins, is in any case: MongoDB gives no lower one to the next
        write. An idle replica set writes a no-op only every 10 s, so MongoDB's own clock counts too, by which it gives
        the next write its time; not the clock of this machine. A mongos that was idle does not know the newest time
        of the shards, whose clocks may differ from its own by a little.
        """
        return (await self._times()).latest_time

    def saw(self, cluster_time: int) -> None:
        """Note a cluster time that MongoDB has reported."""
        if cluster_time > self.known_time:
            self.known_time = cluster_time

    def read(self, hello: Mapping[str, Any], known_before: int) -> _Times:
        """Read the times from an answer to `hello`; `known_before` is the known time when it was asked."""
        self.is_mongos = hello.get("msg") == "isdbgrid"
        operation_time = as_int(hello["operationTime"]) if "operationTime" in hello else 0
        newest = operation_time
        self.primary = hello.get("electionId")
        durable = hello.get("lastWrite", {}).get("majorityOpTime")
        self.durable_time = operation_time if durable is None else as_int(durable["ts"])
        if "$clusterTime" in hello:
            newest = max(newest, as_int(hello["$clusterTime"]["clusterTime"]))
        if newest < known_before and not self.is_mongos:
            self.known_time = newest  # it was restored from a backup
        self.saw(newest)
        own_s = int(hello["localTime"].replace(tzinfo=UTC).timestamp())
        if self.is_mongos:
            own_s += _SHARDS_DIFFER_S
        return _Times(operation_time, max(newest + 1, (own_s + 1 << 32) - 1))

    async def close(self) -> None:
        if pings := [ping for ping in (self._ping, self._next_ping) if ping is not None]:
            for ping in pings:
                ping.cancel()
            await asyncio.wait(pings, timeout=_CLOSE_WAIT_S)  # pymongo may have swallowed the cancellation

    async def _times(self) -> _Times:
        """Callers share a round trip, but never one that was under way before they asked: what was acknowledged to
        them before must be before the answer."""
        if self._ping is None:
            self._ping = self._pinging(self._ask())
            return await asyncio.shield(self._ping)
        if self._next_ping is None:
            self._next_ping = self._pinging(self._ask_after(self._ping))
        return await asyncio.shield(self._next_ping)

    def _pinging(self, asking: Coroutine[Any, Any, _Times]) -> asyncio.Task[_Times]:
        task = asyncio.create_task(asking, name=f"operation-time-{self._commands.name}")
        # Retrieve the exception, because all who waited for it may be gone.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return task

    async def _ask(self) -> _Times:
        known_before, commands = self.known_time, self._commands
        try:
            with commands.span("hello", "admin"):
                reply = await commands.answer(commands.client.admin.command("hello"))
        finally:
            self._ping, self._next_ping = self._next_ping, None
        return self.read(reply, known_before)

    async def _ask_after(self, running: asyncio.Task[_Times]) -> _Times:
        await asyncio.wait([running])
        return await self._ask()


def as_int(time: Timestamp) -> int:
    return (time.time << 32) | time.inc
