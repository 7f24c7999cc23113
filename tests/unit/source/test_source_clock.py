"""What a source learns about MongoDB's time. To wait for a position after the known time, a server reads from the known
time, so it would keep requesting a known time that has left the oplog."""

import asyncio
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from bson import Timestamp

from feedmux_server.source.commands import SourceCommands
from feedmux_server.source.source_clock import SourceClock
from feedmux_server.telemetry.observer import NOBODY
from tests.sim.mongo import SimMongo, SimSource
from tests.unit.simulated import connected
from tests.virtual_time import in_virtual_time


async def source_that_was_idle() -> tuple[SimMongo, SimSource]:
    """A source that knows a time which the oplog has passed."""
    source, mongo = await connected(SimSource)
    await asyncio.sleep(3_000)
    mongo.insert("db", "a", 0)
    mongo.forget(mongo.latest - (10 << 32))
    assert source.clock.known_time < mongo.oldest
    return mongo, source


@in_virtual_time
async def test_the_oldest_entry_says_that_time_has_passed() -> None:
    mongo, source = await source_that_was_idle()
    assert await source.oplog.oldest_time() == mongo.oldest
    assert source.clock.known_time == mongo.oldest


@in_virtual_time
async def test_a_look_at_the_oplog_says_how_late_it_is() -> None:
    mongo, source = await source_that_was_idle()
    await source.oplog.state()
    assert source.clock.known_time == mongo.latest


@in_virtual_time
async def test_nobody_gets_a_time_from_before_the_question() -> None:
    """Callers share a request to MongoDB, but only one that has not begun."""
    now, answers = 0, asyncio.Event()

    async def hello(_: object) -> dict[str, Any]:
        seen = now
        await answers.wait()
        return {"operationTime": Timestamp(seen, 0), "localTime": datetime.fromtimestamp(0, UTC)}

    client: Any = SimpleNamespace(admin=SimpleNamespace(command=hello))
    clock = SourceClock(SourceCommands("main", client, 60.0, NOBODY))
    calls = []
    for now in (1, 2, 3):  # noqa: B007  # `hello` reads it
        calls.append(asyncio.create_task(clock.operation_time()))
        await asyncio.sleep(1)
    answers.set()
    assert [await call >> 32 for call in calls] == [1, 3, 3]
