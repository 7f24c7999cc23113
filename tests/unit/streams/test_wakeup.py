"""The wake-up of one task, and the checks that a task makes before it waits."""

import asyncio

import pytest

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.streams.wakeup import Wakeup
from tests.unit.core.delivery.streams_support import error
from tests.unit.streams.manager_support import world
from tests.virtual_time import in_virtual_time


@in_virtual_time
async def test_only_what_is_set_while_somebody_waits_wakes() -> None:
    loop, signal = asyncio.get_running_loop(), Wakeup()
    signal.set()
    assert not await signal.wait(0)
    assert not await signal.wait(1.0)
    assert loop.time() == pytest.approx(1.0)
    loop.call_later(0.5, signal.set)
    loop.call_later(0.5, signal.set)
    assert await signal.wait(1.0)
    assert loop.time() == pytest.approx(1.5)
    assert not await signal.wait(1.0)


@in_virtual_time
async def test_what_ends_a_session_while_it_waits_for_its_turn_is_met_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(monkeypatch) as there:
        loop = asyncio.get_running_loop()
        key, log = there.feed("a")
        client = there.session(key, "a", 0, heartbeat_s=10.0)
        log.write(10)
        await asyncio.sleep(0.1)
        turns = there.manager.turns
        turns._round_bytes = 0  # no session gets a turn
        waits, began_s = asyncio.create_task(client.next()), loop.time()
        while not turns._queue:
            await asyncio.sleep(0)
        client.session.subscriber.credit.events = 0  # the credit that it waited for is gone
        client.session.fail(error(ErrorReason.FENCED))
        turns._round_bytes = 1
        with pytest.raises(FeedmuxError):
            await waits
        assert loop.time() - began_s < 1.0
