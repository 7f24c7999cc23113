"""Commands to Redis share few connections, and no command waits longer than the time limit."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.store.commands import Commands
from feedmux_server.store.connection import COMMANDS_MAX
from tests.virtual_time import in_virtual_time

TIMEOUT_S = 3.0


class FrozenRedis:
    """A client of a server that accepts connections and answers nothing."""

    def __init__(self) -> None:
        self.waiting = 0
        self.waiting_most = 0

    @asynccontextmanager
    async def pipeline(self, *, transaction: bool) -> AsyncIterator["FrozenRedis"]:
        assert not transaction
        self.waiting += 1
        self.waiting_most = max(self.waiting_most, self.waiting)
        try:
            yield self
        finally:
            self.waiting -= 1

    def execute_command(self, *command: Any) -> None: ...

    async def execute(self, *, raise_on_error: bool) -> list[Any]:
        await asyncio.get_running_loop().create_future()
        raise AssertionError("it answered")


@in_virtual_time
async def test_many_calls_of_a_frozen_redis_end_together_at_the_time_limit() -> None:
    redis: Any = FrozenRedis()
    commands = Commands(redis, timeout_s=TIMEOUT_S)
    loop = asyncio.get_running_loop()

    async def call() -> float:
        with pytest.raises(FeedmuxError) as caught:
            await commands.run([("GET", "key")])
        assert (caught.value.reason, caught.value.metadata) == (
            ErrorReason.STATE_UNAVAILABLE,
            {"redis_error": "TIMEOUT"},
        )
        return loop.time()

    assert set(await asyncio.gather(*(call() for _ in range(100)))) == {TIMEOUT_S}
    assert (redis.waiting, redis.waiting_most) == (0, COMMANDS_MAX)
