"""Messages that clients do not take: how much memory they hold together, and which sessions wait."""

import asyncio

import pytest

from feedmux_server.core.delivery.taken import Delivery
from feedmux_server.core.limits.memory import SMALL_MESSAGE_BYTES
from feedmux_server.sessions.outbox import MESSAGE_COPIES
from feedmux_server.sessions.outputs import Output
from tests.unit.streams.manager_support import Client, World, world

KIB, MIB = 1 << 10, 1 << 20
PATIENCE_S = 60


class Stalled:
    """Sessions, each with one message that its client does not take."""

    def __init__(self, clients: list[Client]) -> None:
        self.clients = clients
        self._coming = [asyncio.create_task(client.session.next_output()) for client in clients]

    @property
    def got(self) -> dict[int, Delivery]:
        found: dict[int, Output | None] = {n: each.result() for n, each in enumerate(self._coming) if each.done()}
        return {number: output for number, output in found.items() if isinstance(output, Delivery)}

    async def settled(self) -> None:
        """Run enough turns of the loop that every session that can take a message has taken it."""
        for _ in range(100):
            await asyncio.sleep(0)

    async def until(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while len(self.got) < count:
                await asyncio.sleep(0.001)
        await self.settled()

    def written(self, number: int) -> None:
        self.clients[number].session.written(self.got[number])

    async def close(self) -> None:
        for each in self._coming:
            each.cancel()
        await asyncio.gather(*self._coming, return_exceptions=True)
        for client in self.clients:
            client.close()


def sessions(here: World, tenant: str, count: int) -> Stalled:
    key, _ = here.feed("one")
    # A heartbeat would be mistaken for the message that the client does not read.
    return Stalled([here.session(key, tenant, 0, credit=64 * MIB, heartbeat_s=3600) for _ in range(count)])


def held(here: World) -> int:
    return here.manager.memory.unsent.bytes


async def test_messages_hold_no_more_than_their_part_of_the_memory(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with world(monkeypatch, memory_bytes=4 * MIB, chunk_bytes=100 * KIB, ring_bytes=2 * MIB) as here:
        _, log = here.feed("one")
        log.write(40, padding=12 * KIB - 200)
        one = sessions(here, "a", 100)
        await one.until(5)
        assert len(one.got) < 10, "the other sessions wait"
        assert held(here) == sum(MESSAGE_COPIES * each.wire_size for each in one.got.values()) <= MIB
        assert sum(each.count for each in one.got.values()) > len(one.got), "the first messages had several events"
        # Another tenant has its own room.
        two = sessions(here, "b", 1)
        await two.until(1)
        # A session whose message has been read makes room for others.
        assert len(caplog.records) == 1
        one.written(0)
        await one.until(7)
        assert held(here) <= MIB
        await one.close()
        await two.close()
        assert held(here) == 0
        assert not here.manager.memory.unsent._waiting


async def test_an_event_without_room_is_sent_alone_and_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(monkeypatch, memory_bytes=4 * MIB, chunk_bytes=100 * KIB, ring_bytes=4 * MIB) as here:
        _, log = here.feed("one")
        log.write(1, padding=3 * MIB)
        large, other = sessions(here, "a", 3), sessions(here, "b", 1)
        await large.until(1)
        await other.until(1)
        ((number, delivery),) = large.got.items()
        # In three fragments, each a message of its own, beside the event itself.
        assert held(here) == 2 * (delivery.wire_size + MESSAGE_COPIES * large.clients[0].encoder.payload_max)
        large.written(number)
        await large.until(2)
        assert len(large.got) == 2
        await large.close()
        await other.close()


async def test_small_messages_wait_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(monkeypatch, memory_bytes=4 * MIB, chunk_bytes=100 * KIB, ring_bytes=4 * MIB) as here:
        _, log = here.feed("one")
        log.write(100, padding=KIB)
        many = sessions(here, "a", 300)
        await many.until(300)
        last = many.got[299]
        assert 1 < last.count < 10
        assert MESSAGE_COPIES * last.wire_size <= SMALL_MESSAGE_BYTES
        assert held(here) < MIB // 2 + 300 * SMALL_MESSAGE_BYTES
        await many.close()
        assert held(here) == 0


async def test_a_message_holds_its_events_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(monkeypatch) as here:
        key, log = here.feed("one")
        log.write(3)
        client = here.session(key, "t", 0, heartbeat_s=3600)
        output = await client.session.next_output()
        assert isinstance(output, Delivery)
        (frame,) = client.encoder.frames(output)
        assert len(frame) > output.wire_size
        assert output.parts == ()
