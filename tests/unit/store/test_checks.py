"""Whether Redis may hold positions: what prevents a start, what is a warning, and what each finding says to do."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from redis import exceptions

from feedmux_server.core.check_result import Level
from feedmux_server.core.errors import FeedmuxError
from feedmux_server.store.checks import (
    RedisUnavailable,
    check_redis,
    check_writable,
    examine_redis,
    examine_sentinels,
    probe,
)
from feedmux_server.store.connection import StartupError, WatchedPrimary
from tests.unit.simulated import sim_redis
from tests.virtual_time import in_virtual_time

URL = "redis://user:secret@redis.example.com/0"
GOOD: dict[str, Any] = {"redis_version": "7.2.4", "maxmemory_policy": "noeviction", "role": "master", "aof_enabled": 1}


class Examined:
    """A client of a Redis that says this of itself, or fails."""

    def __init__(self, info: dict[str, Any] | Exception | None) -> None:
        self._info = info

    async def info(self) -> dict[str, Any]:
        if self._info is None:
            await asyncio.get_running_loop().create_future()
        if isinstance(self._info, Exception):
            raise self._info
        assert self._info is not None
        return self._info


async def examined(info: dict[str, Any] | Exception | None) -> list[tuple[str, Level]]:
    client: Any = Examined(info)
    found = await examine_redis(client, URL)
    assert all(each.advice for each in found if each.level is not Level.OK)
    assert "secret" not in "".join(map(str, found))
    return [(each.check, each.level) for each in found if each.level is not Level.OK]


@pytest.mark.parametrize(
    ("said", "check", "level"),
    [
        ({"redis_version": "6.2.0"}, "", Level.OK),
        ({"redis_version": "6.0.16"}, "redis.version", Level.FAILED),
        ({"redis_version": "10.0"}, "", Level.OK),
        ({"maxmemory_policy": "allkeys-lru"}, "redis.eviction", Level.FAILED),
        ({"role": "slave"}, "redis.role", Level.FAILED),
        ({"cluster_enabled": 1}, "redis.cluster", Level.FAILED),
        ({"aof_enabled": 0}, "redis.persistence", Level.WARNING),
        ({"aof_last_write_status": "err"}, "redis.persistence", Level.FAILED),
        ({"used_memory": 90, "maxmemory": 100}, "", Level.OK),
        ({"used_memory": 91, "maxmemory": 100}, "redis.memory", Level.WARNING),
        ({"used_memory": 91, "maxmemory": 0}, "", Level.OK),
        (exceptions.NoPermissionError("NOPERM"), "redis.info", Level.UNKNOWN),
        (exceptions.ResponseError("unknown command 'INFO'"), "redis.info", Level.UNKNOWN),
    ],
)
@in_virtual_time
async def test_what_redis_says_of_itself(said: Any, check: str, level: Level) -> None:
    info = said if isinstance(said, Exception) else GOOD | said
    assert await examined(info) == ([(check, level)] if check else [])


@pytest.mark.parametrize("failure", [None, exceptions.ConnectionError("secret"), exceptions.ResponseError("secret")])
@in_virtual_time
async def test_a_redis_that_cannot_be_asked_is_away(failure: Exception | None) -> None:
    with pytest.raises(RedisUnavailable, match=r"redis://redis\.example\.com:6379/0 cannot be used") as caught:
        await examined(failure)
    assert "secret" not in str(caught.value)


@in_virtual_time
async def test_all_that_prevents_a_start_is_said_at_once() -> None:
    client: Any = Examined(GOOD | {"redis_version": "5.0", "maxmemory_policy": "allkeys-lru", "aof_enabled": 0})
    with pytest.raises(StartupError) as caught:
        await check_redis(client, URL)
    said = str(caught.value).splitlines()
    assert ["version 5.0" in said[0], "noeviction" in said[1], len(said)] == [True, True, 2]
    assert not isinstance(caught.value, RedisUnavailable), "waiting would not help"


@pytest.mark.parametrize(
    ("said", "passes"),
    [
        ({"role": "slave"}, True),
        ({"aof_last_write_status": "err"}, True),
        ({"role": "slave", "maxmemory_policy": "allkeys-lru"}, False),
        ({"cluster_enabled": 1}, False),
    ],
)
@in_virtual_time
async def test_a_server_waits_for_the_end_of_what_passes(said: dict[str, Any], *, passes: bool) -> None:
    client: Any = Examined(GOOD | said)
    with pytest.raises(StartupError) as caught:
        await check_redis(client, URL)
    assert isinstance(caught.value, RedisUnavailable) is passes


@pytest.mark.parametrize(
    ("said", "findings"),
    [
        ([("a", "r:1"), ("b", "r:1"), ("c", "r:1")], [Level.OK]),
        ([("a", "r:1"), ("b", "r:2"), ("c", "r:1")], [Level.FAILED]),
        ([("a", "r:1"), ("b", "!TimeoutError"), ("c", "r:1")], [Level.WARNING]),
        ([("a", "r:1"), ("b", "!TimeoutError")], [Level.WARNING, Level.WARNING]),
    ],
)
async def test_sentinels_should_be_three_and_agree(said: Sequence[tuple[str, str]], findings: list[Level]) -> None:
    class Said(WatchedPrimary):
        def __init__(self) -> None: ...

        def __del__(self, *_: object) -> None: ...

        async def findings_of_sentinels(self) -> Sequence[tuple[str, str]]:
            return said

    assert [each.level for each in await examine_sentinels(Said())] == findings
    other: Any = Examined(GOOD)
    assert await examine_sentinels(other) == []


@in_virtual_time
async def test_a_probe_leaves_no_subscription() -> None:
    redis, client = sim_redis()
    assert (await probe(client)).level is Level.OK
    await asyncio.sleep(9.0)
    assert [key for key in list(redis._data) if redis._get(key)] == []
    redis.full = True
    found = await probe(client)
    assert found.level is Level.FAILED
    assert "maxmemory" in found.advice


@in_virtual_time
async def test_a_redis_that_takes_no_writes_is_unavailable() -> None:
    redis, client = sim_redis()
    await check_writable(client)
    redis.silent = True
    with pytest.raises(FeedmuxError) as caught:
        await check_writable(client)
    assert caught.value.metadata == {"redis_error": "TIMEOUT"}
