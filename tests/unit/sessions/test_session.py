"""A drained session ends when all events that it sent are acknowledged, and otherwise at its deadline."""

import asyncio

import pytest

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.sessions.outputs import DrainingMark
from tests.unit.streams.manager_support import Client, world
from tests.virtual_time import in_virtual_time

DEADLINE_S = 2.0


@in_virtual_time
async def test_unacknowledged_events_hold_up_a_drain_until_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(monkeypatch) as there:
        key, log = there.feed("a")
        client = there.session(key, "a", 0, durable=True)
        log.write(10)
        await client.take(10)
        client.session.ack(4)
        told_s, ended_s = await drained_after_s(client)
        assert told_s == 0
        assert ended_s == pytest.approx(DEADLINE_S, abs=0.02)
        client.close()


@in_virtual_time
async def test_a_drain_ends_with_the_last_ack(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(monkeypatch) as there:
        key, log = there.feed("a")
        client = there.session(key, "a", 0, durable=True)
        log.write(10)
        await client.take(10)
        asyncio.get_running_loop().call_later(DEADLINE_S / 2, client.session.ack, 10)
        assert await drained_after_s(client) == (0, DEADLINE_S / 2)
        client.close()


async def drained_after_s(client: Client) -> tuple[float, float]:
    """The seconds from now, when a drain begins, to the drain notice and to the end of the session."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    client.session.drain(DEADLINE_S)
    mark = await client.next()
    assert isinstance(mark, DrainingMark)
    assert mark.deadline_s == DEADLINE_S
    told_s = loop.time() - began_s
    with pytest.raises(FeedmuxError) as caught:
        await client.next()
    assert caught.value.reason is ErrorReason.DRAINING
    return told_s, loop.time() - began_s
