"""A Watch call: Opened comes first, events without credit, and nothing is left when it ends."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from feedmux.v1 import change_feed_pb2 as wire
from feedmux_server.core.errors import FeedmuxError
from feedmux_server.rpc.watch import Watch
from tests.unit.rpc.service_support import FEED, Context, Served, call, refused, served
from tests.virtual_time import in_virtual_time


class Messages:
    """The messages of one call."""

    def __init__(self, context: Context, task: "asyncio.Task[Any]") -> None:
        self._context = context
        self.task = task

    async def _until(self, enough: Any) -> list[wire.WatchResponse]:
        async with asyncio.timeout(600):  # of virtual time
            while True:
                found = [wire.WatchResponse.FromString(data) for data in self._context.written]
                if enough(found):
                    return found
                await asyncio.sleep(0.01)

    async def opened(self) -> wire.Opened:
        return (await self._until(bool))[0].opened

    async def events(self, count: int) -> list[wire.WatchResponse]:
        return await self._until(lambda found: sum(each.batch.event_count for each in found) >= count)

    async def end(self) -> FeedmuxError:
        with pytest.raises(FeedmuxError) as caught:
            await self.task
        return caught.value


@asynccontextmanager
async def watching(there: Served, **fields: Any) -> AsyncIterator[Messages]:
    context = Context()
    request = wire.WatchRequest(feed=FEED, start={"latest": {}}, **fields)
    task = asyncio.create_task(call(Watch(there.service), request, context))
    try:
        yield Messages(context, task)
    finally:
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()


@in_virtual_time
async def test_it_opens_and_grants_again_what_http2_has_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feedmux_server.rpc.watch.WINDOW_EVENTS", 10)
    async with served() as there:
        async with watching(there, heartbeat_interval={"seconds": 7}) as messages:
            opened = await messages.opened()
            assert (opened.heartbeat_interval.seconds, opened.limits.message_bytes_max) == (7, 1 << 20)
            assert opened.routing_key
            for _ in range(50):
                there.mongo.insert("db", "a", 0)
            found = await messages.events(50)
            assert [each.WhichOneof("message") for each in found[:2]] == ["opened", "batch"]
            assert len(there.service.sessions) == 1
        assert len(there.service.sessions) == 0


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"heartbeat_interval": {"seconds": 61}}, "heartbeat_interval"),
        ({"message_bytes_max": 1}, "message_bytes_max"),
        ({"format": 99}, "format"),
        ({"start": {"time": {"seconds": -1}}}, "start.time"),
    ],
)
@in_virtual_time
async def test_what_is_rejected_before_anything_is_opened(fields: dict[str, Any], field: str) -> None:
    async with served() as there:
        error = await refused(Watch(there.service), wire.WatchRequest(feed=FEED, **fields))
        assert (error.status, error.field) == ("INVALID_ARGUMENT", field)
        assert there.service.manager.cursors == 0
