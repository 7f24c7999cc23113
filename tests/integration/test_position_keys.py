"""The keys of positions: in Redis or in a file, lost, met by several servers, rotated while sessions run."""

import base64
from functools import partial
from pathlib import Path

from redis.asyncio import Redis

from feedmux_embedded import RedisServer, ReplicaSet
from feedmux_server.core.positions.position import inspect_position
from feedmux_server.core.positions.position_keys import PositionKeys, format_keys, parse_keys
from feedmux_server.store.signing_keys import keys_key
from tests.conftest import RedisFactory
from tests.documents import Documents
from tests.integration.servers import serving, settings, until
from tests.integration.wire import LATEST, at, feed, refused

OLD, NEW, OTHER = (bytes([each]) * 32 for each in (1, 2, 3))


async def stored(redis: Redis) -> tuple[bytes, ...]:
    text = await redis.get(keys_key())
    assert isinstance(text, bytes)
    return parse_keys(text.decode())


def holds(keys: PositionKeys, materials: tuple[bytes, ...]) -> bool:
    return keys.materials == materials


async def test_the_file_is_rotated_while_a_session_runs(
    mongo: ReplicaSet, redis_server: RedisServer, database: Documents, tmp_path: Path, name: str
) -> None:
    """Add the new key, let it sign, remove the old one: what was made in between is good to the end."""
    path = tmp_path / "positions.keys"
    path.write_text(format_keys([OLD]))
    configuration = settings(mongo.uri, redis_server.url)
    configuration |= {"positions": {"key_file": str(path)}, "reload_s": 0.05}
    wanted = feed(database.name, "c")
    async with serving(configuration) as here:
        api, keys = here.api, here.server.service.position_keys
        first = await api.create(name, wanted, LATEST)
        session = await api.open(name)
        positions = [first.position]
        for n, materials in enumerate(((OLD, NEW), (NEW, OLD))):
            path.write_text("# the first signs\n" + format_keys(materials))
            await until(partial(holds, keys, materials))
            database.c.insert_one({"_id": n, "n": n})
            await session.numbers(1)
            positions.append(session.position)
            await session.ack_and_wait(n + 1)
        for position in positions:
            await api.resolve(wanted, at(position=position))
        await session.close()
        path.write_text(base64.b64encode(NEW).decode())
        await until(lambda: keys.materials == (NEW,))
        assert (await refused(api.resolve(wanted, at(position=positions[0])))).reason == "POSITION_INVALID"
        await api.resolve(wanted, at(position=positions[-1]))
        again = await api.open(name)
        database.c.insert_one({"_id": 2, "n": 2})
        assert await again.numbers(1) == [2], "the stored position is of the new key"
        path.write_text("no key")
        await again.close()
        assert keys.materials == (NEW,)
        assert inspect_position(positions[0]).token.is_high_water_mark


async def test_a_start_without_redis_waits_for_the_keys(
    mongo: ReplicaSet, redis_factory: RedisFactory, database: Documents
) -> None:
    """Redis has keys of before, so that a server must not make up its own meanwhile; a file needs no Redis."""
    redis = await redis_factory()
    wanted = feed(database.name, "c")
    configuration = settings(mongo.uri, redis.url)
    async with serving(configuration) as here:
        position = (await here.api.resolve(wanted, LATEST)).position
    await redis.terminate()
    async with serving({**configuration, "when_unavailable": "wait"}) as here:
        for start in (LATEST, at(position=position)):
            outcome = await refused(here.api.watch(wanted, start).opened())
            assert (outcome.code, outcome.reason) == ("UNAVAILABLE", "STATE_UNAVAILABLE")
            assert outcome.retry_s
        await redis.restart()
        await until(lambda: here.server.service.position_keys.known)
        receiver = here.api.watch(wanted, at(position=position))
        await receiver.opened()
        receiver.cancel()
