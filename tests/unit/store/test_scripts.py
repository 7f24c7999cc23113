"""Scripts reach a Redis that has forgotten them, and one key's failure is no other's."""

import asyncio
import logging
from random import Random

import pytest

from feedmux_server.core.errors import FeedmuxError
from feedmux_server.store.scripts import ScriptCall, ScriptRunner
from tests.sim.redis import SimRedis, SimRedisClient
from tests.virtual_time import in_virtual_time

SIZES = [ScriptCall("size", f"sizes:{tenant}", ("s", number, 1000)) for number, tenant in enumerate("abc", 1)]


def runner(redis: SimRedis) -> ScriptRunner:
    return ScriptRunner(SimRedisClient(redis), timeout_s=3.0)  # type: ignore[arg-type]


@in_virtual_time
async def test_scripts_are_sent_whole_only_to_a_redis_that_does_not_know_them() -> None:
    redis = SimRedis(asyncio.get_running_loop(), Random(0))
    scripts, commands = runner(redis), []
    for _ in range(2):
        for _ in range(2):
            before = redis.commands
            assert await scripts.run_many(SIZES) == [[b"OK"]] * 3
            commands.append(redis.commands - before)
        redis.restart()
    assert commands == [6, 3, 6, 3]
    await scripts.run(SIZES[0])
    before = redis.commands
    await scripts.run_many([*SIZES, ScriptCall("get", "absent")])
    assert redis.commands - before == 5
    assert [redis.hash_of(call.key.encode())[b"s"] for call in SIZES] == [b"1", b"2", b"3"]


@in_virtual_time
async def test_a_key_of_another_type_fails_alone(caplog: pytest.LogCaptureFixture) -> None:
    redis = SimRedis(asyncio.get_running_loop(), Random(0))
    redis.run(("SET", SIZES[1].key, "canary"))
    scripts = runner(redis)
    answers = await scripts.run_many(SIZES)
    assert [isinstance(answer, Exception) for answer in answers] == [False, True, False]
    with caplog.at_level(logging.ERROR), pytest.raises(FeedmuxError) as caught:
        await scripts.run(SIZES[1])
    assert caught.value.status == "UNAVAILABLE"
    assert "redis refused script size" in caplog.text
    assert "canary" not in caplog.text + caught.value.message


@in_virtual_time
async def test_plain_commands_fail_together() -> None:
    redis = SimRedis(asyncio.get_running_loop(), Random(0))
    redis.run(("SET", "plain", "x"))
    with pytest.raises(FeedmuxError):
        await runner(redis).commands([("GET", "plain"), ("HGET", "plain", "x")])
