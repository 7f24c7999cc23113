"""MongoDB and Redis as the simulation has them, for tests in virtual time."""

from random import Random
from typing import Any, TypeVar

from tests.sim.mongo import SimMongo, SimSource
from tests.sim.redis import SimRedis, SimRedisClient
from tests.virtual_time import sim_loop

AnySource = TypeVar("AnySource", bound=SimSource)


def sim_mongo(token_version: int = 1) -> SimMongo:
    return SimMongo(sim_loop(), Random(0), token_version)


async def connected(kind: type[AnySource], token_version: int = 1) -> tuple[AnySource, SimMongo]:
    mongo = sim_mongo(token_version)
    source = kind(mongo)
    await source.connect()
    return source, mongo


def sim_redis() -> tuple[SimRedis, Any]:
    """A Redis, and its client."""
    redis = SimRedis(sim_loop(), Random(0))
    return redis, SimRedisClient(redis)
