"""What an account that may not read everything learns of the oplog."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from bson import Timestamp
from pymongo.errors import AutoReconnect, OperationFailure
from pymongo.read_preferences import ReadPreference

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.source.commands import SourceCommands
from feedmux_server.source.oplog import DENIED_S, Oplog
from feedmux_server.source.source_clock import SourceClock
from feedmux_server.telemetry.observer import NOBODY
from tests.virtual_time import in_virtual_time


class Collection:
    """local.oplog.rs, whose statistics fail as the test says."""

    def __init__(self, entry: dict[str, Any] | None) -> None:
        self.entry = entry
        self.failure: Exception | None = None
        self.asked = 0
        self.of_primary = False

    def with_options(self, *, read_preference: object) -> "Collection":
        assert read_preference is ReadPreference.PRIMARY, "another member may have a shorter oplog"
        self.of_primary = True
        return self

    async def find_one(self, *_: object, **__: object) -> dict[str, Any] | None:
        return self.entry

    async def aggregate(self, _: object) -> Any:
        assert self.of_primary
        self.asked += 1
        if self.failure is not None:
            raise self.failure

        async def following() -> dict[str, Any]:
            return {"storageStats": {"size": 5, "maxSize": 10}}

        return SimpleNamespace(next=following)


async def ping(_: object) -> dict[str, Any]:
    return {"operationTime": Timestamp(160, 1)}


def oplog(collection: Collection) -> tuple[Oplog, SourceClock]:
    client: Any = SimpleNamespace(local={"oplog.rs": collection}, admin=SimpleNamespace(command=ping))
    commands = SourceCommands("main", client, 1.0, NOBODY)
    clock = SourceClock(commands)
    return Oplog(commands, clock), clock


@in_virtual_time
async def test_the_state_of_an_oplog() -> None:
    made, clock = oplog(Collection({"ts": Timestamp(100, 2)}))
    state = await made.state()
    assert state.is_whole
    assert (state.oldest_s, state.newest_s, state.window_s) == (100, 160, 60)
    assert clock.known_time == 160 << 32 | 1
    assert await made.oldest_time() == 100 << 32 | 2


@pytest.mark.parametrize(("code", "asked"), [(13, 1), (50, 3)])
@in_virtual_time
async def test_statistics_that_are_not_permitted_are_asked_for_now_and_then(code: int, asked: int) -> None:
    collection = Collection({"ts": Timestamp(100, 2)})
    collection.failure = OperationFailure("no", code)
    made, _ = oplog(collection)
    for _ in range(3):
        assert (await made.state()).window_s == 60
    assert collection.asked == asked
    collection.failure = None  # it is permitted now
    await asyncio.sleep(DENIED_S)
    assert (await made.state()).size_bytes == 5


@in_virtual_time
async def test_a_mongos_has_no_oplog_and_an_unavailable_mongodb_says_nothing_of_its_own() -> None:
    with pytest.raises(FeedmuxError, match="mongos") as caught:
        await oplog(Collection(None))[0].oldest_time()
    assert caught.value.reason is ErrorReason.SOURCE_UNSUITABLE
    collection = Collection({"ts": Timestamp(100, 2)})
    collection.failure = AutoReconnect("gone")
    with pytest.raises(FeedmuxError) as caught:
        await oplog(collection)[0].state()
    assert caught.value.reason is ErrorReason.SOURCE_UNAVAILABLE
