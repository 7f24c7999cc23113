"""What goes wrong in a run. Each fault begins, lasts as it likes, and has mended what it broke when it returns."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Final

from tests.sim.mongo import FAILINGS

if TYPE_CHECKING:
    from tests.sim.servers import SimServer
    from tests.sim.users import User
    from tests.sim.world import World


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind."""

    name: str
    happen: "Callable[[World], Awaitable[None]]"


def _server(world: "World") -> "SimServer | None":
    running = [server for server in world.servers if server.running]
    return world.rng.choice(running) if running else None


def _user(world: "World") -> "User | None":
    running = [user for user in world.users if user.running]
    return world.rng.choice(running) if running else None


def _while_s(rng: Random) -> float:
    """Short and long faults: shorter than all patience of the parts, and longer."""
    return rng.choice((rng.uniform(0.05, 1.0), rng.uniform(1.0, 8.0), rng.uniform(8.0, 45.0)))


async def _kill_server(world: "World") -> None:
    server = _server(world)
    if server is not None:
        server.kill()
        await asyncio.sleep(_while_s(world.rng) / 4)
        server.start()


async def _drain_server(world: "World") -> None:
    server = _server(world)
    if server is not None:
        await server.drain()
        await asyncio.sleep(world.rng.uniform(0.1, 2.0))
        server.start()


async def _freeze_server(world: "World") -> None:
    server = _server(world)
    if server is not None:
        server.freeze()
        await asyncio.sleep(_while_s(world.rng))
        server.thaw()


async def _kill_user(world: "World") -> None:
    user = _user(world)
    if user is not None:
        user.kill()
        await asyncio.sleep(world.rng.uniform(0.0, 3.0))
        user.start()


async def _freeze_user(world: "World") -> None:
    user = _user(world)
    if user is not None and user.node is not None:
        world.loop.freeze(user.process)
        world.network.froze(user.node)
        await asyncio.sleep(_while_s(world.rng))
        world.loop.thaw(user.process)
        world.network.thawed(user.node)


async def _cut_connections(world: "World") -> None:
    user = _user(world)
    if user is not None and user.node is not None:
        world.network.cut(user.node)


async def _silence(world: "World") -> None:
    server, user = _server(world), _user(world)
    if server is not None and server.node is not None and user is not None and user.node is not None:
        one, other = user.node, server.node
        world.network.silence(one, other)
        await asyncio.sleep(_while_s(world.rng))
        world.network.heal(one, other)


async def _fail_reads(world: "World") -> None:
    for _ in range(world.rng.randint(1, 3)):
        world.mongo.fail_reads(world.rng.choice(FAILINGS))
        await asyncio.sleep(world.rng.uniform(0.0, 2.0))


async def _oplog_moves_on(world: "World") -> None:
    world.mongo.forget(world.needed_time())


async def _mongo_away(world: "World") -> None:
    world.mongo.away = True
    world.mongo.fail_reads(FAILINGS[0])
    await asyncio.sleep(_while_s(world.rng))
    world.mongo.away = False


async def _redis_down(world: "World") -> None:
    world.redis.down = True
    await asyncio.sleep(_while_s(world.rng))
    world.redis.restart()
    world.redis.down = False


async def _redis_silent(world: "World") -> None:
    world.redis.silent = True
    await asyncio.sleep(_while_s(world.rng))
    world.redis.silent = False


async def _redis_slow(world: "World") -> None:
    world.redis.slow_s = world.rng.choice((0.5, 6.0))
    await asyncio.sleep(_while_s(world.rng))
    world.redis.slow_s = 0.0


async def _takeover(world: "World") -> None:
    """Another program takes a subscription over, and leaves it again."""
    user = _user(world)
    if user is None or not user.durable:
        return
    rival = world.rival_of(user)
    rival.start()
    await asyncio.sleep(world.rng.uniform(0.5, 10.0))
    if world.rng.random() < 0.5:
        rival.kill()
    else:
        await rival.leave()


async def _redis_loses_answers(world: "World") -> None:
    world.redis.loses_answers = world.rng.choice((0.3, 1.0))
    await asyncio.sleep(_while_s(world.rng))
    world.redis.loses_answers = 0.0


async def _redis_full(world: "World") -> None:
    world.redis.full = True
    await asyncio.sleep(_while_s(world.rng))
    world.redis.full = False


FAULTS: Final = (
    Fault("server killed", _kill_server),
    Fault("server drained", _drain_server),
    Fault("server frozen", _freeze_server),
    Fault("user killed", _kill_user),
    Fault("user frozen", _freeze_user),
    Fault("connections cut", _cut_connections),
    Fault("network silent", _silence),
    Fault("reads fail", _fail_reads),
    Fault("MongoDB away", _mongo_away),
    Fault("oplog moves on", _oplog_moves_on),
    Fault("Redis down", _redis_down),
    Fault("Redis silent", _redis_silent),
    Fault("Redis slow", _redis_slow),
    Fault("takeover", _takeover),
    Fault("Redis loses answers", _redis_loses_answers),
    Fault("Redis full", _redis_full),
)
