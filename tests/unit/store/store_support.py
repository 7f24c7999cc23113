"""A subscription store over the simulated Redis."""

import asyncio
from random import Random

from feedmux_server.store.store import SubscriptionStore
from tests.sim.redis import SimRedis, SimRedisClient

LEASE_S = 30.0


def redis_and_store() -> tuple[SimRedis, SubscriptionStore]:
    redis = SimRedis(asyncio.get_running_loop(), Random(0))
    return redis, SubscriptionStore(SimRedisClient(redis), lease_s=LEASE_S)  # type: ignore[arg-type]


def key(name: str = "s", tenant: str = "t") -> str:
    return f"feedmux:1:{{{tenant}/{name}}}"
