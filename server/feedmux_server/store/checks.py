"""Examines Redis and checks whether it may hold positions: at the start of the server, and for `feedmux doctor`.

Reads only INFO, and so changes nothing; `probe` makes a test subscription and removes it.
"""

import asyncio
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final

from redis import exceptions as redis_errors
from redis.asyncio import RedisCluster

from feedmux_server.core.check_result import CheckResult, Level, check_clock, failures
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.store.connection import Client, StartupError, WatchedPrimary, leave_demoted
from feedmux_server.store.errors import FAILURES, state_unavailable
from feedmux_server.store.redis_url import Kind, parse_redis_url
from feedmux_server.store.schema import KEY_PREFIX, check_layout
from feedmux_server.store.store import SubscriptionStore

OLDEST_VERSION: Final = (6, 2)
_FULL: Final = 0.9
_PASSING: Final = frozenset({"redis.role", "redis.persistence"})
"""Failures that end by themselves, as a failover does: a server that waits for Redis waits for their end."""

Info = Mapping[str, Any]


class RedisUnavailable(StartupError):
    """Redis does not answer, which may be temporary."""


async def check_redis(
    client: Client, url: str, *, key_prefix: str = KEY_PREFIX, timeout_s: float = 5.0
) -> tuple[str, ...]:
    """Check Redis and return warnings. Raises RedisUnavailable, and StartupError if positions could be lost."""
    found = await examine_redis(client, url, timeout_s=timeout_s)
    refused = failures(found)
    if refused:
        passes = all(each.check in _PASSING for each in refused)
        raise (RedisUnavailable if passes else StartupError)("\n".join(str(each) for each in refused))
    try:
        await check_layout(client, key_prefix=key_prefix, timeout_s=timeout_s)
    except FeedmuxError as error:
        raise RedisUnavailable(f"redis.url: Redis at {parse_redis_url(url)} cannot be used. {error.message}.") from None
    return tuple(str(each) for each in found if each.level is not Level.OK)


async def examine_redis(client: Client, url: str, *, timeout_s: float = 5.0) -> list[CheckResult]:
    """Examine Redis by its INFO. Raises RedisUnavailable."""
    place = parse_redis_url(url)
    try:
        async with asyncio.timeout(timeout_s):
            infos = await _infos(client)
    except FAILURES as error:
        raise RedisUnavailable(
            f"redis.url: Redis at {place} cannot be used. {state_unavailable(error).message}."
        ) from None
    if infos is None:
        return [
            CheckResult(
                "redis.info",
                Level.UNKNOWN,
                f"Redis at {place} does not let feedmux read INFO, so its maxmemory-policy is unchecked",
                "The policy must be noeviction, or positions can vanish. Unless redis.control_replicas is a number,"
                " subscriptions cannot be created or changed either; allow INFO with ACL SETUSER … +info",
            )
        ]
    return [finding for name, info in infos.items() for finding in judge(name or str(place), info, place.kind)]


async def _infos(client: Client, *sections: str) -> dict[str, Info] | None:
    """INFO of each primary, by address if there are several; None if feedmux may not run INFO."""
    try:
        if isinstance(client, RedisCluster):
            await client.initialize()
            # One by one, as of a single node redis-py answers without its name.
            nodes = client.get_primaries()
            infos = await asyncio.gather(*(client.info(*sections, target_nodes=[node]) for node in nodes))
            return dict(zip((node.name for node in nodes), infos, strict=True))
        return {"": await client.info(*sections)}
    except redis_errors.NoPermissionError:
        return None
    except redis_errors.ResponseError as error:
        if "unknown command" in str(error).lower():
            return None
        raise


def judge(place: str, info: Info, kind: Kind) -> Iterator[CheckResult]:
    """The findings about one server by its INFO."""
    version = str(info.get("redis_version", "0"))
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if numbers < OLDEST_VERSION:
        yield CheckResult.failed(
            "redis.version",
            f"Redis at {place} is version {version}",
            "feedmux needs Redis 6.2 or later: its scripts read the time and write in one step",
        )
    else:
        yield CheckResult.ok("redis.version", f"Redis at {place} is version {version}")
    yield _judge_eviction(place, info)
    if info.get("role") == "slave":
        yield CheckResult.failed(
            "redis.role",
            f"Redis at {place} is a read-only replica",
            "Give feedmux the URL of the primary, or of the sentinels: redis+sentinel://",
        )
    if info.get("cluster_enabled") and kind is not Kind.CLUSTER:
        yield CheckResult.failed(
            "redis.cluster", f"Redis at {place} is one node of a cluster", "Begin redis.url with redis+cluster://"
        )
    yield from _judge_durability(place, info)


def _judge_eviction(place: str, info: Info) -> CheckResult:
    policy = str(info.get("maxmemory_policy", "noeviction"))
    if policy == "noeviction":
        return CheckResult.ok("redis.eviction", f"Redis at {place} evicts nothing (noeviction)")
    return CheckResult.failed(
        "redis.eviction",
        f"Redis at {place} has maxmemory-policy {policy}, so it may evict stored positions",
        "Set it to noeviction (redis-cli CONFIG SET maxmemory-policy noeviction, and in redis.conf), "
        "or give feedmux a Redis of its own",
    )


def _judge_durability(place: str, info: Info) -> Iterator[CheckResult]:
    if not info.get("aof_enabled", 1):
        yield CheckResult.warning(
            "redis.persistence",
            f"Redis at {place} keeps no append-only file: after a restart of Redis, positions are as old as "
            "its last snapshot, and events are delivered again",
            "Set appendonly yes to avoid that (docs/redis.md)",
        )
    elif info.get("aof_last_write_status", "ok") != "ok":
        yield CheckResult.failed(
            "redis.persistence",
            f"Redis at {place} could not write its append-only file",
            "Free space on the disk of Redis, and check the log of Redis",
        )
    else:
        yield CheckResult.ok("redis.persistence", f"Redis at {place} keeps an append-only file")
    used, most = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
    if most and used > _FULL * most:
        yield CheckResult.warning(
            "redis.memory",
            f"Redis at {place} uses {100 * used // most} % of its maxmemory; when it is full, commits fail",
            "Raise maxmemory; a subscription takes about 1 KiB",
        )


async def check_writable(client: Client, *, key_prefix: str = KEY_PREFIX, timeout_s: float = 2.0) -> None:
    """Raises STATE_UNAVAILABLE if Redis does not accept writes, or, in a cluster, if a primary does not answer PING."""
    try:
        async with asyncio.timeout(timeout_s):
            if isinstance(client, RedisCluster):
                await client.ping(target_nodes=RedisCluster.PRIMARIES)
            else:
                await client.set(f"{key_prefix}:ready", 1, px=1)
    except FAILURES as error:
        if not isinstance(client, RedisCluster):
            await leave_demoted(client, error)
        raise state_unavailable(error) from None


async def check_eviction(client: Client, url: str, *, timeout_s: float = 2.0) -> bool:
    """Check whether Redis has begun to evict: its policy can be changed while it runs. Raises STATE_UNAVAILABLE.

    Returns whether feedmux may read the policy. If not, do not ask again soon: Redis logs every denied command.
    """
    place = parse_redis_url(url)
    try:
        async with asyncio.timeout(timeout_s):
            infos = await _infos(client, "memory")
    except FAILURES as error:
        raise state_unavailable(error) from None
    for name, info in (infos or {}).items():
        finding = _judge_eviction(name or str(place), info)
        if finding.level is Level.FAILED:
            raise FeedmuxError(ErrorReason.STATE_UNAVAILABLE, str(finding))
    return infos is not None


async def examine_clock(client: Client) -> CheckResult:
    """Compare Redis's clock with this machine's. Leases and epochs follow Redis's. Raises as redis-py does."""
    began_s = time.time()
    if isinstance(client, RedisCluster):
        answer = await client.time(target_nodes=RedisCluster.RANDOM)
    else:
        answer = await client.time()
    ended_s = time.time()
    seconds, micros = next(iter(answer.values())) if isinstance(answer, dict) else answer
    skew_s = float(seconds) + float(micros) / 1e6 - (began_s + ended_s) / 2
    advice = "Run NTP on both: leases and the times of subscriptions follow the clock of Redis"
    return check_clock("redis.clock", "Redis", skew_s, (ended_s - began_s) / 2, advice)


async def examine_sentinels(client: Client) -> list[CheckResult]:
    """Check whether all sentinels answer and name one primary. No findings if there are no sentinels."""
    if not isinstance(client, WatchedPrimary):
        return []
    check, said = "redis.sentinels", dict(await client.findings_of_sentinels())
    silent = {name: words[1:] for name, words in said.items() if words.startswith("!")}
    advice = "Start the sentinel, or remove it from redis.url; a failover needs the majority of the sentinels"
    found = [
        CheckResult.warning(check, f"sentinel {name} does not name a primary: {why}", advice)
        for name, why in silent.items()
    ]
    named = {words for name, words in said.items() if name not in silent}
    if len(named) > 1:
        says = f"the sentinels name different primaries: {', '.join(sorted(named))}"
        advice = "Run SENTINEL MASTERS on each, and check whether they reach each other"
        found.append(CheckResult.failed(check, says, advice))
    if len(said) < 3:
        advice = "Name three or more sentinels, on machines that do not fail together"
        found.append(CheckResult.warning(check, f"redis.url names {len(said)} sentinels", advice))
    return found or [CheckResult.ok(check, f"{len(said)} sentinels name one primary")]


async def probe(client: Client, *, key_prefix: str = KEY_PREFIX, timeout_s: float = 3.0) -> CheckResult:
    """Make, open, release, list and remove a subscription, as the server would, and make one again where it was: tests
    permissions, disk and scripts."""
    name, tenant = secrets.token_hex(8), "doctor"
    prefix = f"{key_prefix}:doctor"
    store = SubscriptionStore(client, lease_s=2.0, key_prefix=prefix, timeout_s=timeout_s, tombstone_s=8.5)
    create = partial(store.create, definition=b"", etag="0", position=b"", cluster_time=0, order=b"")
    try:
        try:
            await create(tenant, name)
            _, lease = await store.leases.open(tenant, name, instance_id="doctor")
            await store.leases.release(lease)
            await store.list(tenant, page_size=1)
            await store.claim_sweep(0.001)
            await store.delete(tenant, name)
            await create(tenant, name)
        except FeedmuxError:
            with suppress(FeedmuxError):
                await store.delete(tenant, name)
            raise
        await store.delete(tenant, name)
    except FeedmuxError as error:
        return CheckResult.failed("redis.write", "a subscription could not be stored and removed", error.message)
    return CheckResult.ok("redis.write", "a subscription was stored, opened, released and removed")
