"""Whether this version of feedmux can work with what is in Redis."""

import asyncio
from random import Random

import pytest

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.store.connection import StartupError
from feedmux_server.store.schema import LAYOUT, SCHEMA_KEY, check_layout
from tests.sim.redis import SimRedis, SimRedisClient
from tests.virtual_time import in_virtual_time


@in_virtual_time
async def test_an_empty_redis_is_marked_and_then_recognised() -> None:
    redis = SimRedis(asyncio.get_running_loop(), Random(0))
    for _ in range(2):
        await check_layout(SimRedisClient(redis))  # type: ignore[arg-type]
    assert redis.run(("GET", SCHEMA_KEY)) == b"%d" % LAYOUT


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (b"%d" % (LAYOUT + 1), "written by a newer feedmux"),
        (b"0", "did not write"),
        (b"canary", "did not write"),
        (b"\xff", "did not write"),
    ],
)
@in_virtual_time
async def test_another_layout_prevents_the_start_and_is_left_as_it_is(found: bytes, words: str) -> None:
    redis = SimRedis(asyncio.get_running_loop(), Random(0))
    redis.run(("SET", SCHEMA_KEY, found))
    with pytest.raises(StartupError, match=words) as caught:
        await check_layout(SimRedisClient(redis))  # type: ignore[arg-type]
    assert "canary" not in str(caught.value)
    assert redis.run(("GET", SCHEMA_KEY)) == found


@in_virtual_time
async def test_a_redis_that_does_not_answer_is_no_wrong_layout() -> None:
    redis = SimRedis(asyncio.get_running_loop(), Random(0))
    redis.silent = True
    with pytest.raises(FeedmuxError) as caught:
        await check_layout(SimRedisClient(redis))  # type: ignore[arg-type]
    assert caught.value.reason is ErrorReason.STATE_UNAVAILABLE
