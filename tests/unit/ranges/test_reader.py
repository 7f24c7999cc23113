"""A reader without a session: it stops at its end, at its target, without credit, and when its time is up."""

import asyncio

import pytest

from feedmux_server.clock import monotonic_s
from feedmux_server.ranges.reader import RangeReader
from tests.unit.core.delivery.streams_support import behind, mark, token
from tests.unit.streams.manager_support import world
from tests.virtual_time import in_virtual_time

SOON_S = 5.0


async def read(reader: RangeReader, until: int | None = None, target: int | None = None) -> int:
    count, deadline_s = 0, monotonic_s() + SOON_S
    end = None if until is None else mark(until)
    time = None if target is None else token(target).cluster_time
    while (delivery := await reader.next(deadline_s, until=end, target=time)) is not None:
        count += delivery.count
    return count


@in_virtual_time
async def test_where_it_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    async with world(monkeypatch) as there:
        key, log = there.feed("a")
        log.write(20)
        for until, target, credit, count, passed in (
            (7, None, 100, 7, True),
            (None, 20, 100, 20, False),
            (None, 20, 5, 5, False),
            (20, None, 100, 20, False),
        ):
            reader = RangeReader(there.manager, key, "a", behind(0), 1 << 20)
            reader.grant(credit, 1 << 20)
            began_s = loop.time()
            assert (await read(reader, until, target), reader.passed) == (count, passed)
            assert loop.time() - began_s < SOON_S
            reader.close()
        reader = RangeReader(there.manager, key, "a", behind(20), 1 << 20)
        reader.grant(1, 1 << 20)
        began_s = loop.time()
        assert await read(reader) == 0
        assert loop.time() - began_s == pytest.approx(SOON_S, abs=0.01)
        reader.close()


@in_virtual_time
async def test_without_credit_nothing_is_read_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(monkeypatch) as there:
        key, log = there.feed("a")
        reader = RangeReader(there.manager, key, "a", behind(0), 1 << 20)
        reader.grant(100, 1 << 20)
        reader.revoke()
        log.write(10)
        assert not reader.can_receive
        assert await read(reader) == 0
        reader.grant(3, 1 << 20)
        assert await read(reader) == 3, "the next range starts without debt"
        reader.close()
