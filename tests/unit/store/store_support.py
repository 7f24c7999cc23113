"""A subscription store over the simulated Redis."""

from feedmux_server.store.store import SubscriptionStore
from tests.sim.redis import SimRedis
from tests.unit.simulated import sim_redis

LEASE_S = 30.0


def redis_and_store() -> tuple[SimRedis, SubscriptionStore]:
    redis, client = sim_redis()
    return redis, SubscriptionStore(client, lease_s=LEASE_S)


def key(name: str = "s", tenant: str = "t") -> str:
    return f"feedmux:1:{{{tenant}/{name}}}"
