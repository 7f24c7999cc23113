"""How long a call waits for its request."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.rpc.receiving import RequestLimits, first_message
from tests.virtual_time import in_virtual_time

LIMITS = RequestLimits(first_message_s=5.0)


async def request_after(delay_s: float) -> AsyncIterator[bytes]:
    await asyncio.sleep(delay_s)
    yield b"request"


@in_virtual_time
async def test_a_request_that_comes_late_but_in_time_is_received() -> None:
    assert await first_message(request_after(4.9), LIMITS) == b"request"


@in_virtual_time
async def test_a_request_that_does_not_come_in_time_is_waited_for_no_longer() -> None:
    with pytest.raises(FeedmuxError) as caught:
        await first_message(request_after(5.1), LIMITS)
    assert asyncio.get_running_loop().time() == 5.0
    assert (caught.value.reason, caught.value.metadata) == (
        ErrorReason.QUOTA_EXCEEDED,
        {"quota": "limits.first_message_s"},
    )
    assert caught.value.retry_after_s
