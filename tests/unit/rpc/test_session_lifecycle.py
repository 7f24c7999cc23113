"""A session from its opening to its end: what ends it, and that it leaves nothing."""

import asyncio

import pytest

from feedmux_server.core.errors import ErrorReason
from feedmux_server.sessions.session import AGED
from tests.unit.rpc.service_support import served
from tests.unit.rpc.test_watch import watching
from tests.virtual_time import in_virtual_time


@in_virtual_time
async def test_an_old_session_is_asked_to_reconnect_after_its_connection() -> None:
    loop = asyncio.get_running_loop()
    async with served(limits={"connection_age_s": 100.0, "drain_s": 5.0}) as there, watching(there) as messages:
        await messages.opened()
        began_s = loop.time()
        error = await messages.end()
        assert (error.reason, error.message) == (ErrorReason.DRAINING, AGED)
        assert 114 <= loop.time() - began_s <= 156


@in_virtual_time
async def test_without_an_age_it_lasts() -> None:
    async with served(limits={"connection_age_s": 0.0}) as there, watching(there) as messages:
        await messages.opened()
        await asyncio.sleep(3_000.0)
        assert not messages.task.done()


@pytest.mark.parametrize("cancelled", [True, False])
@in_virtual_time
async def test_whatever_ends_it_nothing_is_left(cancelled: bool) -> None:
    async with served() as there:
        account = there.service.manager.accounts.of("default")
        async with watching(there) as messages:
            await messages.opened()
            assert (len(there.service.sessions), len(account.feeds)) == (1, 1)
            if not cancelled:
                there.service.begin_drain(5.0)
                assert (await messages.end()).reason is ErrorReason.DRAINING
        assert (len(there.service.sessions), len(account.feeds), account.outstanding.bytes) == (0, 0, 0)
        await asyncio.sleep(60.0)
        assert there.service.manager.cursors == 0
