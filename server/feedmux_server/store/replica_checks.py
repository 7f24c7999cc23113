"""Examines the replicas of Redis for `feedmux doctor`: what is wrong there shows only after a failover.

A replica has its own configuration and its own users. It checks the permission for a command before it refuses a write,
so asking it for each command changes nothing there.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import Any, Final

from redis import exceptions as redis_errors
from redis.asyncio import RedisCluster

from feedmux_server.core.check_result import CheckResult, Level
from feedmux_server.store.checks import judge
from feedmux_server.store.connection import Client, beside
from feedmux_server.store.errors import FAILURES, code_of
from feedmux_server.store.redis_url import Kind, parse_redis_url
from feedmux_server.store.schema import KEY_PREFIX

_CHECK: Final = "redis.replicas"
_WITHOUT_KEY: Final = (("EVAL", "return 1", 0), ("EVALSHA", "0" * 40, 0), ("TIME",), ("WAIT", 0, 1))
# In this order, nothing remains at a replica that accepts writes.
_WITH_KEY: Final = (
    ("SET", 1, "PX", 1), ("GET",), ("HSET", "f", 1), ("HMGET", "f"), ("HLEN",), ("ZADD", 0, "n"), ("ZREM", "n"),
    ("ZCARD",), ("ZSCORE", "n"), ("ZRANGEBYLEX", "-", "+"), ("PEXPIRE", 1), ("PERSIST",), ("DEL",),
)  # fmt: skip
_MISSING: Final = frozenset({"NOPERM", "NOCOMMAND"})
_LOGIN: Final = frozenset({"NOAUTH", "WRONGPASS", "NOPASSWORD"})

Ask = Callable[..., Awaitable[Any]]


async def examine_replicas(
    client: Client, url: str, *, key_prefix: str = KEY_PREFIX, timeout_s: float = 5.0
) -> list[CheckResult]:
    """Check whether each replica that is connected to its primary could take its place. No findings if there is none,
    or if feedmux may not ask. Raises as redis-py does."""
    kind, key = parse_redis_url(url).kind, f"{key_prefix}:doctor:replica"
    async with _replicas(client) as replicas:
        # Less than the caller waits for all: one that does not answer hides no other.
        examined = (_examined(name, ask, kind, key, timeout_s / 2) for name, ask in replicas.items())
        return [each for found in await asyncio.gather(*examined) for each in found]


@asynccontextmanager
async def _replicas(client: Client) -> AsyncIterator[dict[str, Ask]]:
    """What asks a replica, by its address."""
    if isinstance(client, RedisCluster):
        await client.initialize()
        yield {node.name: node.execute_command for node in client.get_replicas()}
        return
    async with AsyncExitStack() as stack:
        found = dict[str, Ask]()
        try:
            info = await client.info("replication")
        except redis_errors.ResponseError:  # `examine_redis` says so
            info = {}
        for each in (info[name] for name in info if name.removeprefix("slave").isdecimal()):
            if each["state"] == "online":
                replica = await stack.enter_async_context(aclosing(beside(client, each["ip"], each["port"])))
                found[f"{each['ip']}:{each['port']}"] = replica.execute_command
        yield found


async def _examined(name: str, ask: Ask, kind: Kind, key: str, timeout_s: float) -> list[CheckResult]:
    place, denied, info = f"{name} (a replica)", list[str](), dict[str, Any]()
    try:
        async with asyncio.timeout(timeout_s):
            for command in (("INFO",), *_WITHOUT_KEY, *((each[0], key, *each[1:]) for each in _WITH_KEY)):
                try:
                    answer = await ask(*command)
                except redis_errors.ResponseError as error:  # as a replica, or for another node
                    if code_of(error) in _MISSING:
                        denied.append(str(command[0]))
                    continue
                if command[0] == "INFO":
                    info = answer
    except FAILURES as error:
        if code_of(error) in _LOGIN:
            advice = "Create the user there too: Redis does not replicate users and passwords"
            return [CheckResult.failed(_CHECK, f"Redis at {place} rejects feedmux's user or password", advice)]
        says = f"Redis at {place} could not be checked ({code_of(error)})"
        return [
            CheckResult(_CHECK, Level.UNKNOWN, says, "Check that this machine reaches the replica, as the server must")
        ]
    found = [
        each for each in judge(place, info, kind) if info and each.level is not Level.OK and each.check != "redis.role"
    ]
    if denied:
        advice = "Allow them there too (docs/redis.md, Permissions): Redis does not replicate users"
        found.append(CheckResult.failed(_CHECK, f"Redis at {place} denies feedmux {', '.join(denied)}", advice))
    return found or [CheckResult.ok(_CHECK, f"Redis at {place} can take the place of its primary")]
