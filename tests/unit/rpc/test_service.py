"""What the RPCs of a server share."""

import logging

import pytest

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from tests.unit.rpc.service_support import served
from tests.virtual_time import in_virtual_time


@in_virtual_time
async def test_work_of_an_ended_session_that_redis_prevents_is_logged_and_ends_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fails() -> None:
        raise FeedmuxError(ErrorReason.STATE_UNAVAILABLE, "Redis is away")

    async with served() as there:
        with caplog.at_level(logging.WARNING):
            await there.service.spawn(fails, "release")
    assert [each.__dict__["reason"] for each in caplog.records] == ["STATE_UNAVAILABLE"]


@in_virtual_time
async def test_a_drain_rejects_what_comes_later() -> None:
    async with served() as there:
        there.service.begin_drain(5.0)
        with pytest.raises(FeedmuxError) as caught:
            there.service.admission.admit()
        assert caught.value.reason is ErrorReason.DRAINING
