"""Makes the Redis client, and judges at start whether this Redis may hold positions.

Invariant: no password leaves this module. Neighbours: `app` calls both functions, `store` takes the client.
"""

import asyncio
from typing import Any
from urllib.parse import urlsplit

from redis import exceptions as redis_errors
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from feedmux_server.state.failure import state_unavailable


class StartupError(Exception):
    """The server must not start like this; the message says what to do."""


def connect(
    url: str, *, connect_timeout_s: float = 2.0, pool_timeout_s: float = 2.0, connections_max: int = 16
) -> Redis:
    """A client for `redis://`, `rediss://` or `unix://`, connecting at the first command. Raises StartupError.

    Nothing is retried down here: the scripts are not all idempotent, and the batcher has a backoff of its own.
    A connection that died in the pool is replaced before use. The pool is bounded, so that a frozen Redis does
    not gather one connection per waiting request.

    The time limit of a call is set by its caller (`scripts`, `check_redis`), not by `socket_timeout`: with that,
    redis-py writes under `asyncio.wait_for`, which in Python 3.11 swallows a cancellation that comes as the
    write completes (measured: one cancelled task in four went on).
    """
    try:
        pool: Any = BlockingConnectionPool.from_url(
            url,
            max_connections=connections_max,
            timeout=pool_timeout_s,
            socket_timeout=None,
            socket_connect_timeout=connect_timeout_s,
            socket_keepalive=True,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
            decode_responses=False,
        )
    except ValueError:
        raise StartupError(
            f"{without_password(url)} is no Redis URL: write redis://HOST:PORT/DB, rediss:// or unix://PATH"
        ) from None
    return Redis.from_pool(pool)


def without_password(url: str) -> str:
    """The URL for people: user name, password and query are left out."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", f":{parts.port}" if parts.port else ""
    except ValueError:
        return "(unreadable)"
    return f"{parts.scheme}://{host}{port}{parts.path}"


async def check_redis(redis: Redis, url: str, *, timeout_s: float = 5.0) -> tuple[str, ...]:
    """Raises StartupError where positions could get lost or Redis is out of reach; returns warnings."""
    place = without_password(url)
    try:
        async with asyncio.timeout(timeout_s):
            info = await _info(redis)
    except (redis_errors.RedisError, OSError) as error:
        raise StartupError(f"Redis at {place} cannot be used. {state_unavailable(error).message}.") from None
    if info is None:
        unchecked = (
            f"Redis at {place} does not let feedmux read INFO, so its maxmemory-policy is unchecked: "
            "it must be noeviction, or positions can vanish"
        )
        return (unchecked,)
    policy = str(info.get("maxmemory_policy", "noeviction"))
    if policy != "noeviction":
        raise StartupError(
            f"Redis at {place} has maxmemory-policy {policy}, by which it may throw stored positions away. "
            "Set it to noeviction (redis-cli CONFIG SET maxmemory-policy noeviction, and in redis.conf), "
            "or give feedmux a Redis of its own."
        )
    if info.get("role") == "slave":
        raise StartupError(f"Redis at {place} is a read-only replica: give feedmux the URL of the primary.")
    if not info.get("aof_enabled", 1):
        volatile = (
            f"Redis at {place} keeps no append-only file: after a restart of Redis, positions are as old as "
            "its last snapshot, and events are delivered again; appendonly yes avoids that"
        )
        return (volatile,)
    return ()


async def _info(redis: Redis) -> dict[str, Any] | None:
    try:
        info: dict[str, Any] = await redis.info()
    except redis_errors.NoPermissionError:
        return None
    except redis_errors.ResponseError as error:
        if "unknown command" in str(error).lower():
            return None
        raise
    return info
