"""The faults of a run. Each fault begins, lasts as long as it needs, and has repaired what it broke when it returns."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from math import inf
from random import Random
from typing import TYPE_CHECKING, Any, Final

from feedmux import AsyncClient, FailedPrecondition, Feed, InvalidArgument, QuotaExceeded, Start, SubscriptionExists
from feedmux.feeds import OnHistoryLost
from feedmux.v1 import operator_pb2 as pb
from feedmux_server.core.limits.quota import UNLIMITED
from feedmux_server.core.positions.position_keys import KEY_BYTES_MIN, format_keys
from feedmux_server.source.read_watch import OPENS_ARE_SLOWER
from tests.sim import records
from tests.sim.mongo import FAILINGS, RETRY
from tests.sim.profiles import IDLE_SHARD, MONGO_8, MONGO_8_2, MONGO_9, Profile
from tests.sim.tenants import names_key, subscription_key
from tests.sim.wire import number_of
from tests.unit.core.feeds.pipeline_bounds.pipelines import ALLOWED, REFUSED

if TYPE_CHECKING:
    from tests.sim.copiers import Copier
    from tests.sim.members import Crew, Member
    from tests.sim.programs import OperatorClient
    from tests.sim.servers import SimServer
    from tests.sim.users import User
    from tests.sim.world import World


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of fault."""

    name: str
    happen: "Callable[[World], Awaitable[None]]"
    meets: tuple[str, ...] = ()
    """Errors of sessions that the fault may cause, in addition to the errors that any fault may cause."""
    apart: bool = False
    """Only scenarios use this fault: it takes minutes, or other faults would hide what it shows."""


GIVEN_UP_S: Final = 6.5
"""After this time no command of a dead program has an effect: the server waits for Redis for 3 s, and if Redis's clock
was not known, again."""


def _server(world: "World") -> "SimServer | None":
    running = [server for server in world.servers if server.running]
    return world.rng.choice(running) if running else None


def _reader(world: "World") -> "User | Copier | Member | None":
    """A program that reads with a client, whatever it reads."""
    readers: list[User | Copier | Member] = [*world.users, *world.copiers, *world.members]
    running = [reader for reader in readers if reader.running]
    return world.rng.choice(running) if running else None


def _user(world: "World") -> "User | None":
    running = [user for user in world.users if user.running]
    return world.rng.choice(running) if running else None


def _owner(world: "World") -> "User | Crew | None":
    """A user or a crew, of a subscription that has begun."""
    running: list[User | Crew] = [user for user in world.users if user.running]
    owners = [*running, *world.crews]
    owner = world.rng.choice(owners) if owners else None
    return owner if owner is not None and owner.durable and owner.begins is not None else None


def _while_s(rng: Random) -> float:
    """Durations of faults: some shorter than every timeout of the components, some longer."""
    return rng.choice((rng.uniform(0.05, 1.0), rng.uniform(1.0, 8.0), rng.uniform(8.0, 45.0)))


async def _kill_server(world: "World") -> None:
    server = _server(world)
    if server is not None:
        server.kill()
        await asyncio.sleep(_while_s(world.rng) / 4)
        server.start()


async def _kill_host(world: "World") -> None:
    """The host of a group is killed, often before it has stored what is settled."""
    rng = world.rng
    for _ in range(rng.randint(1, 8)):
        world.write()
    await asyncio.sleep(rng.choice((0.1, 0.5, 2.0)))
    hosts = [each for each in world.servers if each.assembly is not None and len(each.assembly.service.groups)]
    if hosts:
        server = rng.choice(hosts)
        server.kill()
        await asyncio.sleep(_while_s(rng) / 4)
        server.start()


async def _drain_server(world: "World") -> None:
    server = _server(world)
    if server is not None:
        await server.drain()
        await asyncio.sleep(world.rng.uniform(0.1, 2.0))
        server.start()


async def _drain_without_redis(world: "World") -> None:
    """Waiting acks cannot be stored within the time of a drain, or only just in time."""
    server, redis = _server(world), world.redis
    if server is None:
        return
    redis.silent, redis.down = world.rng.choice(((True, False), (False, True)))
    await asyncio.sleep(world.rng.uniform(0.0, 1.0))
    draining = asyncio.ensure_future(server.drain())
    await asyncio.sleep(_while_s(world.rng))
    redis.silent = redis.down = False
    await draining
    server.start()


async def _freeze_server(world: "World") -> None:
    server = _server(world)
    if server is not None:
        server.freeze()
        await asyncio.sleep(_while_s(world.rng))
        server.thaw()


async def _kill_user(world: "World") -> None:
    user = _reader(world)
    if user is not None:
        user.kill()
        await asyncio.sleep(world.rng.uniform(0.0, 3.0))
        user.start()


async def _kill_opening_user(world: "World") -> None:
    """Kill a program while its session opens: the server must not keep its lease."""
    users = [user for user in world.users if user.durable]
    for _ in range(2_000):
        opening = [user for user in users if user.running and world.opens(user)]
        if opening:
            user = world.rng.choice(opening)
            await asyncio.sleep(world.rng.uniform(0.0, 0.01))
            user.kill()
            await asyncio.sleep(world.rng.uniform(0.1, 1.0))
            user.start()
            return
        await asyncio.sleep(0.001)


async def _freeze_user(world: "World") -> None:
    user = _reader(world)
    if user is not None and user.node is not None:
        world.loop.freeze(user.process)
        world.network.froze(user.node)
        _is_away(user)
        await asyncio.sleep(_while_s(world.rng))
        world.loop.thaw(user.process)
        world.network.thawed(user.node)


def _is_away(reader: "User | Copier | Member") -> None:
    """A server may soon take a member for lost that does not notice it itself."""
    if hasattr(reader, "left_for_good"):
        reader.left_for_good()


async def _close_client(world: "World") -> None:
    """A program closes its client, or the session, while it reads. The close must end, and store what was acked."""
    user = _user(world)
    if user is not None:
        user.closes = world.rng.choice(("client", "session"))
        await asyncio.sleep(world.rng.uniform(0.0, 5.0))


async def _cut_connections(world: "World") -> None:
    user = _reader(world)
    if user is not None and user.node is not None:
        world.network.cut(user.node)


async def _silence(world: "World") -> None:
    server, user = _server(world), _reader(world)
    if server is not None and server.node is not None and user is not None and user.node is not None:
        one, other = user.node, server.node
        world.network.silence(one, other)
        _is_away(user)
        await asyncio.sleep(_while_s(world.rng))
        world.network.heal(one, other)


async def _distort(world: "World") -> None:
    """A server, or a proxy in front of it, breaks the protocol: a message comes twice, or is truncated."""
    user = _user(world)
    if user is not None and user.node is not None:
        user.node.distorts = world.rng.choice(("repeated", "cut short"))
        await asyncio.sleep(world.rng.uniform(0.0, 2.0))


async def _newer_version(world: "World") -> None:
    """A server, and a user's program, are upgraded before the others: their messages, and what they store in Redis,
    have fields that this version does not know. They end a session for a reason that it does not know either."""
    user, server, redis = _user(world), _server(world), world.redis
    if user is None or server is None:
        return
    nodes = [node for node in (user.node, server.node) if node is not None and world.rng.random() < 0.7]
    for node in nodes:
        node.is_newer = True
    key = subscription_key(user.tenant, user.subscription)
    stored = redis.hash_of(key)
    is_stored = user.durable and b"nonce" in stored
    if is_stored:
        redis.run(("HSET", key, "of_a_newer_version", "kept"))
        if world.rng.random() < 0.5:
            epoch = int(stored[b"epoch"]) + 1
            redis.run(("HSET", key, "epoch", epoch, "nonce", "", "lease_until_ms", "0", "fence_cause", "UPGRADE"))
    await asyncio.sleep(_while_s(world.rng))
    for node in nodes:
        node.is_newer = False
    if is_stored and redis.hash_of(key).get(b"of_a_newer_version") != b"kept":
        world.problems.append("Durable only: a field of a newer version has changed")


async def _fail_reads(world: "World") -> None:
    for _ in range(world.rng.randint(1, 3)):
        world.mongo.fail_reads(world.rng.choice(FAILINGS))
        await asyncio.sleep(world.rng.uniform(0.0, 2.0))


async def _change_feature_version(world: "World") -> None:
    """Every cursor is killed, since 8.3."""
    await asyncio.sleep(world.rng.uniform(0.0, 2.0))
    world.mongo.fail_reads(RETRY)


async def _leave_history_unread(world: "World") -> None:
    """More programs than there are slots begin to read history, and stop; somebody else has to read history, too."""
    user = _user(world)
    if user is not None:
        user.kill()
    for number in range(40):
        world.mongo.insert("db", "ab"[number % 2], 5_000, g=1 + number // 2 % 2)
    await asyncio.sleep(0.1)  # until they are committed
    for _ in range(3):
        world.leave_unread()
    await asyncio.sleep(world.rng.uniform(1.0, 3.0))
    if user is not None:
        user.start()


async def _roll_back(world: "World") -> None:
    """The primary writes entries that no other member gets, and is replaced."""
    lag_s, world.mongo.lag_s = world.mongo.lag_s, 60.0
    await asyncio.sleep(world.rng.uniform(0.0, 3.0))
    world.mongo.roll_back()
    world.mongo.lag_s = lag_s


async def _oplog_moves_on(world: "World") -> None:
    world.mongo.forget(world.needed_time())


async def _history_lost(world: "World") -> None:
    """The oplog passes positions that a reader needs."""
    _forget(world, world.mongo.latest - (world.rng.randint(0, 3) << 32))
    await asyncio.sleep(0)


def _forget(world: "World", until: int) -> None:
    for user in (*world.users, *world.rivals):
        user.moved = True
    for crew in world.crews:
        crew.skipped()
    world.mongo.forget(until)


async def _history_of_copy_lost(world: "World") -> None:
    """The oplog passes the position of a copier that is dead, or that takes nothing."""
    running = [copier for copier in world.copiers if copier.running and copier.node is not None]
    if not running:
        return
    copier, dies = world.rng.choice(running), world.rng.random() < 0.5
    if dies:
        copier.kill()
    else:
        world.loop.freeze(copier.process)
    await asyncio.sleep(world.rng.uniform(0.0, 3.0))
    for _ in range(world.rng.randint(3, 15)):
        world.documents.write([])
    _forget(world, world.mongo.latest)
    if dies:
        copier.start()
    else:
        world.loop.thaw(copier.process)


async def _kill_after_loss(world: "World") -> None:
    """Servers are killed before they have stored much of a copy that they have begun again."""
    await _history_of_copy_lost(world)
    await asyncio.sleep(world.rng.uniform(0.0, 2.0))
    for server in world.servers:
        if server.running:
            server.kill()
            server.start()


async def _mongo_away(world: "World") -> None:
    world.mongo.away = True
    world.mongo.fail_reads(FAILINGS[0])
    await asyncio.sleep(_while_s(world.rng))
    world.mongo.away = False


async def _restore(world: "World") -> None:
    """MongoDB is stopped, an older copy of its data is put back, and it starts again. The copy is so old that servers
    have known a later entry."""
    rng, mongo = world.rng, world.mongo
    known: list[int] = []
    while len(known) < 2:
        known_time = int(mongo.loop.true_wall_s()) << 32
        await asyncio.sleep(2 * world.settings.config.limits.oplog_check_interval_s + 1.0)
        known = [time for time, _ in mongo.oplog() if time < known_time]
    # The next servers of groups and copies know by what is stored alone that history is lost. Of another session that
    # has lost its server, `One history` does not know which events are not stored as delivered yet.
    killed = [each for each in world.servers if each.running] if not world.users else []
    if killed:
        for _ in range(rng.randint(1, 8)):
            world.write()
        await asyncio.sleep(rng.choice((0.5, 2.0, 6.0)))
    mongo.away = True
    mongo.fail_reads(FAILINGS[0])
    for server in killed:
        server.kill()
    await asyncio.sleep(_while_s(rng) / 4)
    world.restored(rng.choice(known[-30:-1]))
    mongo.away = False
    for server in killed:
        server.start()
    # The driver tells when it has lost a server.
    for server in world.servers:
        if server.assembly is not None:
            server.assembly.manager.source("main").timeline.doubt()


async def _slow_pipelines(world: "World") -> None:
    """MongoDB computes for a long time on programs' pipelines; or on everything, for which no pipeline is
    responsible."""
    rng, costs = world.rng, world.mongo.costs
    costs.event_s, costs.open_s = rng.choice(((1.0, 0.0), (15.0, 0.0), (120.0, 0.0), (0.0, 15.0), (0.0, 120.0)))
    if rng.random() < 0.3:
        costs.any_event_s = rng.choice((0.4, 8.0))
    failed = "FailedPrecondition"
    for user in world.users:
        user.met.discard(failed)
    await asyncio.sleep(rng.uniform(5.0, 60.0))
    ended = [user.name for user in world.users if failed in user.met]
    limit_s = world.settings.limits.read.event_time_s
    if ended and costs.event_s < limit_s and costs.open_s < OPENS_ARE_SLOWER * limit_s:
        world.problems.append(f"Resumable or loud: the feed of {ended[0]} was ended, although MongoDB is fast enough")
    world.recorder.note(f"too slow for {ended}")
    costs.event_s = costs.open_s = costs.any_event_s = 0.0
    await asyncio.sleep(rng.uniform(30.0, 40.0))  # pipelines that are still computing are judged by then


async def _redis_down(world: "World") -> None:
    world.redis.down = True
    await asyncio.sleep(_while_s(world.rng))
    world.redis.restart()
    world.redis.down = False


def _redis_is(state: str, *values: Any) -> "Callable[[World], Awaitable[None]]":
    """Redis is in a state, of one of these values, for a while."""

    async def happen(world: "World") -> None:
        value = values[0] if len(values) == 1 else world.rng.choice(values)
        setattr(world.redis, state, value)
        await asyncio.sleep(_while_s(world.rng))
        setattr(world.redis, state, type(value)())

    return happen


async def _cut_while_redis_is_slow(world: "World") -> None:
    """Sessions are opened again and again, while commands of abandoned sessions are still on their way to Redis."""
    world.redis.slow_s = 6.0
    for _ in range(5):
        await _cut_connections(world)
        await asyncio.sleep(world.rng.uniform(0.0, 4.0))
    world.redis.slow_s = 0.0


async def _late_takeover(world: "World") -> None:
    """A program is killed while it takes over a subscription. Redis must not execute that takeover long afterwards."""
    user = _user(world)
    if user is None or not user.durable or not world.stored_of(user):
        return
    world.redis.slow_s, world.redis.slow_script = 2 * GIVEN_UP_S, "open"
    rival = world.rival_of(user, takeover=True)
    rival.start()
    await asyncio.sleep(world.rng.uniform(0.01, 1.0))
    rival.kill()
    await asyncio.sleep(GIVEN_UP_S)
    before = world.stored_of(user).get(b"epoch", b"")
    for _ in range(70):
        await asyncio.sleep(0.1)
        stored = world.stored_of(user)
        if stored.get(b"epoch", b"") != before and stored.get(b"owner", b"").decode() in rival.instances:
            world.problems.append(f"Fenced: Redis has opened {user.name} for a program that was killed before")
            break
    world.redis.slow_s, world.redis.slow_script = 0.0, ""


async def _takeover(world: "World") -> None:
    """Another program takes over a subscription, and leaves it again."""
    user = _user(world)
    if user is None or not user.durable:
        return
    rival = world.rival_of(user, takeover=True)
    rival.start()
    await asyncio.sleep(world.rng.uniform(0.5, 10.0))
    if world.rng.random() < 0.5 and rival.node is not None:
        world.network.cut(rival.node)
        await asyncio.sleep(world.rng.uniform(0.5, 10.0))
    if world.rng.random() < 0.5 and rival.running:
        rival.kill()
    else:
        await rival.leave()


async def _competitor(world: "World") -> None:
    """Another program opens a subscription that is in use, without asking for a takeover."""
    user = _user(world)
    if user is None or not user.durable:
        return
    rival = world.rival_of(user, takeover=False)
    rival.start()
    await asyncio.sleep(world.rng.uniform(1.0, 20.0))
    await rival.leave()


async def _recreated(world: "World") -> None:
    """Redis has lost everything, and is slow; a program creates its subscription again while another session still uses
    the old one."""
    user = _user(world)
    if user is None or not user.durable or user.begins is None:
        return
    world.redis.slow_s = 1.0
    world.redis.lose_everything()
    await asyncio.sleep(world.rng.uniform(0.0, 1.0))
    rival = world.rival_of(user, takeover=False, creates=True)
    rival.start()
    await asyncio.sleep(world.rng.uniform(1.0, 10.0))
    await rival.leave()
    world.redis.slow_s = 0.0


async def _redis_loses_last_writes(world: "World") -> None:
    world.redis.down = True
    await asyncio.sleep(world.rng.uniform(0.1, 2.0))
    world.redis.lose_last_writes()
    world.redis.down = False


async def _redis_fails_over(world: "World") -> None:
    """A replica takes over right after a confirmed change, which must not be undone."""
    user, redis = _user(world), world.redis
    if user is None or not redis.replicas:
        return
    feed, name = user.shape.feed(), "confirmed"
    redis.lag_s = world.rng.choice((0.002, 60.0))
    is_created = await world.administer(
        user.tenant, lambda client: client.create_subscription(name, feed, start=Start.latest())
    )
    redis.fail_over()
    if is_created and not world.has_subscription(user.tenant, name):
        world.problems.append("Durable only: a failover has removed a subscription that was confirmed")
    redis.lag_s = 0.002
    is_deleted = await world.administer(
        user.tenant, lambda client: client.delete_subscription(name, allow_missing=True)
    )
    redis.fail_over()
    if is_deleted and world.has_subscription(user.tenant, name):
        world.problems.append("Durable only: a failover has restored a deleted subscription")


async def _redis_loses_everything(world: "World") -> None:
    world.redis.lose_everything()


async def _clock_steps(world: "World") -> None:
    server = _server(world)
    if server is not None:
        world.loop.ahead_s[server.process] = world.rng.choice((-3_600.0, 3_600.0))


async def _seek(world: "World") -> None:
    """A user moves the stored position."""
    user = _owner(world)
    if user is None:
        return
    to = world.rng.choice((Start.latest(), Start.earliest(), Start.position(user.stored)))
    user.sought, user.moved = True, user.moved or to.kind == "latest"
    await world.administer(user.tenant, lambda client: client.seek_subscription(user.subscription, to))


async def _delete(world: "World") -> None:
    """A user deletes a subscription; its program creates it again, at the position that the program has reached."""
    user = _owner(world)
    if user is not None:
        await world.administer(
            user.tenant, lambda client: client.delete_subscription(user.subscription, allow_missing=True)
        )


async def _damage(world: "World") -> None:
    """Someone writes to feedmux's keys. A damaged subscription is not listed, and can be deleted and created again."""
    user = _user(world)
    if user is None or not user.durable or user.begins is None:
        return
    rng, redis, name = world.rng, world.redis, user.subscription
    key, names = subscription_key(user.tenant, name), names_key(user.tenant)
    damages: list[tuple[Any, ...]] = [
        ("HDEL", key, field) for field in ("definition", "etag", "position", "cluster_time", "order", "epoch")
    ]
    damages += [("HSET", key, "cluster_time", "x"), ("HSET", key, "epoch", "x"), ("SET", key, "x"), ("DEL", key)]
    damages += [("ZREM", names, name), ("ZADD", names, "0", "ghost"), ("SET", names, "x")]
    damage = rng.choice(damages)
    redis.run(damage)
    redis.has_lost = True
    redis.lost()
    if rng.random() < 0.5:
        await _cut_connections(world)
    await asyncio.sleep(rng.uniform(0.0, 8.0))

    async def repair(client: AsyncClient) -> None:
        if damage[:2] == ("SET", names):
            redis.run(("DEL", names))
        listed = [info.name async for info in client.list_subscriptions(2)]
        if "ghost" in listed:
            world.problems.append("Loud: a subscription is listed that does not exist")
        if damage[:2] == ("SET", key):
            redis.run(("DEL", key))  # no command of feedmux touches a key that is not a hash
        await client.delete_subscription(name, allow_missing=True)

    await world.administer(user.tenant, repair)


async def _grants_change(world: "World") -> None:
    """A tenant's grants change at a moment when no session is being opened: such a session could have the old or new
    grants."""
    if not world.tenants:
        return
    tenant = world.rng.choice(world.tenants)
    for _ in range(1_000):
        if not world.opening(tenant) and not any(server.frozen for server in world.servers):
            break
        await asyncio.sleep(0.01)
    else:
        return
    await world.grant(tenant, world.rng.choice([name for name in world.choices if name != tenant.granted]))


async def _administer(world: "World") -> None:
    """A tenant's operator lists subscriptions and feeds, and sets up a subscription that no program uses."""
    user = _user(world)
    if user is None:
        return
    feed = user.shape.feed()

    async def work(client: AsyncClient) -> None:
        name = "unused"
        await client.feed(feed).explain(Start.latest())
        await client.resolve(Start.earliest(), feed)
        await client.create_subscription(name, feed, start=Start.latest())
        await client.update_subscription(name, on_history_lost="earliest")
        assert name in [info.name async for info in client.list_subscriptions(2)]
        assert (await client.get_subscription(name)).on_history_lost == "earliest"
        await client.delete_subscription(name)

    await world.administer(user.tenant, work)


async def _administer_many(world: "World") -> None:
    """Administrators repeat a create, also at their quota, and change and delete with an outdated etag; a list has
    several pages."""
    user = _user(world)
    if user is None:
        return
    names = [f"many{number:02}" for number in range(20)]
    # With the larger definitions, one message has no room for all subscriptions.
    feed = Feed("db", "a", pipeline=[{"$match": {"fullDocument.kind": "x" * world.rng.choice((10, 60_000))}}])

    async def work(client: AsyncClient) -> None:
        created = [await client.create_subscription(name, feed, start=Start.latest()) for name in names]
        first, etag = names[0], created[0].etag
        if (await client.create_subscription(first, feed, start=Start.earliest())) != created[0]:
            world.problems.append("Durable only: a repeated create has changed a subscription")
        await client.update_subscription(first, on_history_lost="earliest")
        outdated: dict[str, Callable[[], Awaitable[object]]] = {
            "create": lambda: client.create_subscription(first, feed, start=Start.latest()),
            "update": lambda: client.update_subscription(first, on_history_lost="fail", etag=etag),
            "delete": lambda: client.delete_subscription(first, etag=etag),
        }
        for what, call in outdated.items():
            try:
                await call()
            except (SubscriptionExists, FailedPrecondition):
                continue
            world.problems.append(f"Durable only: a {what} ignores that the definition has changed")
        if world.tenants:
            await world.limit(user.tenant, subscriptions=len(names))
            try:
                await client.create_subscription("one-more", feed, start=Start.latest())
                world.problems.append("Isolated: a tenant has more subscriptions than its quota")
            except QuotaExceeded:
                pass
            await client.create_subscription(names[1], feed, start=Start.latest())
            await world.limit(user.tenant, subscriptions=UNLIMITED)
        listed = [info.name async for info in client.list_subscriptions(world.rng.choice((3, 18, 19, 100)))]
        if missing := [name for name in names if name not in listed]:
            world.problems.append(f"Complete: {len(missing)} of {len(names)} subscriptions are not listed")
        for name in names:
            await client.delete_subscription(name)

    if not await world.administer(user.tenant, work):
        world.problems.append("Loud: a call of an administrator has failed")


async def _unusual_pipelines(world: "World") -> None:
    """A program requests unusual pipelines. Only those that a bounded tenant may not use are rejected."""
    user = _user(world)
    if user is None:
        return

    async def work(client: AsyncClient) -> None:
        for _ in range(5):
            allowed = world.rng.random() < 0.5
            pipeline = world.rng.choice(ALLOWED) if allowed else world.rng.choice(REFUSED)[0]
            try:
                await client.create_subscription("unusual", Feed("db", "a", pipeline=pipeline), start=Start.latest())
                await client.delete_subscription("unusual")
                refused = False
            except InvalidArgument:
                refused = True
            if refused is allowed and not user.tenant.any_pipelines:
                world.problems.append(
                    f"Authorised: the pipeline {pipeline!r:.200} of a bounded tenant was rejected: {refused}"
                )

    await world.administer(user.tenant, work)


async def _operate(world: "World") -> None:
    """An operator inspects a server, ends one of its sessions, and may drain it."""

    async def work(client: "OperatorClient") -> None:
        streams = await client.call("ListSharedStreams", pb.ListSharedStreamsRequest(), pb.ListSharedStreamsResponse)
        tenants = await client.call("ListTenants", pb.ListTenantsRequest(), pb.ListTenantsResponse)
        world.recorder.note(f"an operator sees {len(streams.shared_streams)} streams, {len(tenants.tenants)} tenants")
        found = [each.id for stream in streams.shared_streams for each in stream.subscribers]
        found += [each.id for each in streams.detached_subscribers]
        assert len(set(found)) == len(found)
        if found:
            end = pb.EndSubscriberRequest(subscriber_id=world.rng.choice(found))
            await client.call("EndSubscriber", end, pb.EndSubscriberResponse)
        if world.rng.random() < 0.3:
            await client.call("Drain", pb.DrainRequest(), pb.DrainResponse)

    await world.operate(work)


async def _rotate_keys(world: "World") -> None:
    """Servers sign positions with a new key once every server knows it; the old key still verifies."""
    rng, before = world.rng, world.servers[0].keys
    key = rng.randbytes(KEY_BYTES_MIN)
    for keys in ((*before, key), (key, *before)):
        for server in world.servers:
            server.read_keys_again(format_keys(keys))
            await asyncio.sleep(rng.uniform(0.0, 1.0))


async def _wait_for_expiry(world: "World") -> None:
    """A subscription that nobody opens is deleted in time, and one in use is not, though the clock of a server may be
    ahead. A server is killed meanwhile."""
    user, server, unused_s = _user(world), _server(world), world.settings.unused_s
    if user is None:
        return
    if server is not None and world.rng.random() < 0.5:
        world.loop.ahead_s[server.process] = 3_600.0
    created_s = world.loop.time()
    await world.administer(
        user.tenant, lambda client: client.create_subscription("idle", user.shape.feed(), start=Start.latest())
    )
    if not world.has_subscription(user.tenant, "idle"):
        return
    kill_s = created_s + world.rng.uniform(0.0, unused_s * 1.1)
    while world.has_subscription(user.tenant, "idle"):
        await asyncio.sleep(1.0)
        age_s = world.loop.time() - created_s
        if age_s > unused_s * 1.5:
            world.problems.append(f"Nothing left: a subscription that is unused for {age_s:.0f} s is still there")
            return
        if world.loop.time() >= kill_s:
            kill_s = inf
            await _kill_server(world)
    age_s = world.loop.time() - created_s
    if age_s < unused_s:
        world.problems.append(f"Durable only: a subscription was deleted after {age_s:.0f} s without use")


async def _letters_away(world: "World") -> None:
    """The collection for dead letters is unavailable, or does not do all that it is asked."""
    letters, rng = world.letters, world.rng
    letters.away, letters.failing, lag_s = rng.choice(
        ((True, 0.0, 0.01), (False, 0.5, 0.01), (False, 0.0, 8.0), (False, 0.5, 8.0))
    )
    letters.lag_s = lag_s
    await asyncio.sleep(_while_s(rng))
    if rng.random() < 0.5:
        letters.roll_back()
    letters.away, letters.failing, letters.lag_s = False, 0.0, 0.01


async def _replay_letters(world: "World") -> None:
    """A program has dead letters delivered again: all of a group, or some. Meanwhile others change documents, and the
    members of the collection may lag."""
    crew, letters, rng = await _crew_with_letters(world), world.letters, world.rng
    if crew is None:
        return
    await world.replay(crew, _ids_of_letters(world, crew))
    letters.lag_s = rng.choice((0.01, 1.0, 3.0))
    for _ in range(rng.randint(0, 24)):
        world.write()
        await asyncio.sleep(rng.uniform(0.0, 1.0))
    letters.lag_s = 0.01


async def _kill_replaying_host(world: "World") -> None:
    """The host of a group is killed while members process dead letters again. The tenant has memory: without, members
    are not asked what they have."""
    crew = await _crew_with_letters(world)
    if crew is None:
        return
    if world.tenants:
        await world.limit(crew.tenant, outstanding_bytes=UNLIMITED)
    await world.replay(crew)
    await asyncio.sleep(world.rng.uniform(0.0, 8.0))
    await _kill_host(world)


async def _release_late(world: "World") -> None:
    """The host of a group is lost while it releases quarantined keys, which MongoDB does only when another host has
    begun. Then that one is lost, too."""
    crew, letters, rng = await _crew_with_letters(world), world.letters, world.rng
    if crew is None:
        return
    letters.release_s, before = rng.uniform(20.0, 60.0), letters.releasing
    await world.replay(crew)
    for _ in range(1_000):
        if letters.releasing > before:
            break
        await asyncio.sleep(0.05)
    letters.release_s = 0.0
    await _kill_host(world)
    for _ in range(rng.randint(8, 40)):
        world.write()
        await asyncio.sleep(rng.uniform(0.0, 2.0))
    await _kill_host(world)


async def _discard_letters(world: "World") -> None:
    """A program discards some dead letters, or all, also while members process them again. If all, no key stays in
    quarantine for what is set aside before the host has seen that."""
    crew, rng = await _crew_with_letters(world), world.rng
    if crew is None:
        return
    if rng.random() < 0.5:
        await world.replay(crew)
        await asyncio.sleep(rng.uniform(0.0, 8.0))
    ids = _ids_of_letters(world, crew)
    for each in world.letters_of(crew):
        if ids is None or each["_id"]["event"].hex() in ids:
            world.recorder.add(records.Discarded(crew.name, str(number_of(bytes(each["event"])))))
    name = crew.subscription
    crew.discards_all = ids is None
    done = await world.administer(
        crew.tenant, lambda client: client.dead_letters(name).discard(ids, everything=ids is None)
    )
    crew.discards_all = False
    if done and ids is None:
        for _ in range(rng.randint(0, 24)):
            world.write()
            await asyncio.sleep(rng.uniform(0.0, 1.0))
        await asyncio.sleep(10.0)
        held = world.letters.held_for_nothing(crew.tenant.name, crew.subscription)
        world.problems += [f"Convergent: {crew.name} has quarantined {key!r} for nothing" for key in held]


async def _crew_with_letters(world: "World") -> "Crew | None":
    """A crew that has letters, or has some soon."""
    for _ in range(20):
        if crews := [crew for crew in world.crews if world.letters_of(crew)]:
            return world.rng.choice(crews)
        await asyncio.sleep(0.5)
    return None


def _ids_of_letters(world: "World", crew: "Crew") -> list[str] | None:
    """The ids of a few letters; None for all."""
    letters, rng = world.letters_of(crew), world.rng
    few = rng.sample(letters, rng.randint(0, min(3, len(letters))))
    return [each["_id"]["event"].hex() for each in few] or None


async def _session_meanwhile(world: "World") -> None:
    """A group becomes an ordinary subscription, which a session reads for a while, and a group again."""
    crews = [crew for crew in world.crews if crew.begins is not None]
    if not crews:
        return
    crew = world.rng.choice(crews)
    name, group = crew.subscription, crew.habits.group
    crew.is_group = False
    if await world.administer(crew.tenant, lambda client: client.update_subscription(name, group=None)):
        session = world.session_of(crew)
        session.start()
        await asyncio.sleep(world.rng.uniform(0.0, 8.0))
        await session.leave()
    crew.is_group = True
    for _ in range(20):
        if await world.administer(crew.tenant, lambda client: client.update_subscription(name, group=group)):
            return
        await asyncio.sleep(1.0)


async def _change_group(world: "World") -> None:
    """The definition of a group changes while its members work, and changes back."""
    crews = [crew for crew in world.crews if crew.begins is not None]
    if not crews:
        return
    crew = world.rng.choice(crews)
    name, policy = crew.subscription, crew.habits.on_history_lost
    other: OnHistoryLost = "earliest" if policy == "fail" else "fail"
    for wanted in (other, policy):

        async def change(client: AsyncClient, wanted: OnHistoryLost = wanted) -> None:
            await client.update_subscription(name, on_history_lost=wanted)

        for _ in range(20):
            if await world.administer(crew.tenant, change):
                break
            await asyncio.sleep(1.0)
        await asyncio.sleep(world.rng.uniform(0.0, 10.0))


async def _attack(world: "World") -> None:
    """A program sends requests that no client would send."""
    user = _user(world)
    if user is not None:
        await world.attack(user.tenant, 20)


_BUSY: Final = ("SubscriptionBusy",)
"""A lease may be left over; a new session of the same program is rejected until the lease ends."""
_FENCED: Final = (*_BUSY, "Fenced")
_LOST: Final = (*_FENCED, "SubscriptionNotFound")

FAULTS: Final = (
    Fault("server killed", _kill_server, _BUSY),
    Fault("host killed", _kill_host, _BUSY, apart=True),
    Fault("server drained", _drain_server, _BUSY),
    Fault("server drained without Redis", _drain_without_redis, _BUSY, apart=True),
    Fault("server frozen", _freeze_server, _BUSY),
    Fault("user killed", _kill_user),
    Fault("user killed while opening", _kill_opening_user, apart=True),
    Fault("user frozen", _freeze_user),
    Fault("client closed", _close_client, ("SessionClosed",), apart=True),
    Fault("connections cut", _cut_connections),
    Fault("network silent", _silence, _BUSY),
    Fault("protocol broken", _distort, (*_BUSY, "ProtocolError"), apart=True),
    Fault("a newer version beside", _newer_version, _BUSY, apart=True),
    Fault("reads fail", _fail_reads),
    Fault("history left unread", _leave_history_unread, apart=True),
    Fault("writes rolled back", _roll_back),
    Fault("MongoDB unavailable", _mongo_away),
    Fault("oplog moves on", _oplog_moves_on),
    Fault("history lost", _history_lost, ("HistoryLost",)),
    # The oplog may pass the end of the common history before a server has looked.
    Fault("MongoDB restored", _restore, (*_BUSY, "TimelineForked", "HistoryLost"), apart=True),
    Fault("history lost of a copy", _history_of_copy_lost, ("HistoryLost",), apart=True),
    Fault("killed after a loss", _kill_after_loss, (*_BUSY, "HistoryLost"), apart=True),
    Fault("Redis down", _redis_down, _BUSY),
    Fault("Redis silent", _redis_is("silent", True), _BUSY),
    Fault("Redis slow", _redis_is("slow_s", 0.5, 6.0), _BUSY),
    Fault("cut while Redis is slow", _cut_while_redis_is_slow, _BUSY, apart=True),
    Fault("Redis loses answers", _redis_is("loses_answers", 0.3, 1.0), _BUSY),
    Fault("Redis full", _redis_is("full", True), _BUSY),
    Fault("Redis loses its last writes", _redis_loses_last_writes, _LOST),
    Fault("Redis fails over", _redis_fails_over, _FENCED),
    Fault("Redis loses everything", _redis_loses_everything, _LOST),
    Fault("lost subscription created again", _recreated, _LOST),
    Fault("Redis's clock steps", _redis_is("ahead_s", -30.0, -1.0, 1.0, 30.0), _FENCED),
    Fault("clock of a server steps", _clock_steps),
    Fault("takeover", _takeover, _LOST),
    Fault("late takeover", _late_takeover, _FENCED, apart=True),
    Fault("another program opens", _competitor, ("SubscriptionBusy", "SubscriptionNotFound")),
    Fault("an operator at work", _administer),
    Fault("many subscriptions", _administer_many, apart=True),
    Fault("unusual pipelines", _unusual_pipelines),
    Fault("feature version changes", _change_feature_version, apart=True),
    Fault("hostile requests", _attack),
    Fault("a subscription expires", _wait_for_expiry, apart=True),
    Fault("a subscription is damaged", _damage, (*_BUSY, "SubscriptionNotFound"), apart=True),
    Fault("slow pipelines", _slow_pipelines, ("FailedPrecondition",), apart=True),
    Fault("an operator ends sessions", _operate, (*_BUSY, "EndedByOperator")),
    Fault("position keys rotate", _rotate_keys),
    Fault("seek", _seek),
    Fault("grants change", _grants_change),
    Fault("subscription deleted", _delete, ("SubscriptionNotFound",)),
    Fault("letters unavailable", _letters_away, apart=True),
    Fault("letters replayed", _replay_letters, apart=True),
    Fault("letters discarded", _discard_letters, apart=True),
    Fault("host killed in a replay", _kill_replaying_host, _BUSY, apart=True),
    Fault("keys released late", _release_late, _BUSY, apart=True),
    Fault("group changed", _change_group, _FENCED, apart=True),
    Fault("a session meanwhile", _session_meanwhile, (*_FENCED, "GroupMismatch"), apart=True),
)


@dataclass(frozen=True, slots=True)
class Scenario:
    """Runs in which some choices are fixed instead of drawn."""

    faults: tuple[str, ...] = ()
    """These faults happen, in this order."""
    one_is_slowed: bool = False
    """There are two tenants, one with rate limits, and many events at the end."""
    pipelines: bool = False
    """Every user's feed has a pipeline."""
    unused_s: float = 0.0
    """Subscriptions expire after this time; 0: as drawn."""
    short_of_memory: bool = False
    """Servers have room for little more than one large batch."""
    slots: int = 0
    """Servers have this many slots for reading history, and small rings; 0: as drawn."""
    copiers: int = 0
    """So many programs copy a collection; 0: none."""
    only_copies: bool = False
    """There are no other users."""
    drawn: int = 0
    """So many faults are drawn."""
    copies_again: bool = False
    """They keep what they have, copy again where history is lost, and sweep."""
    snapshot_window_s: float = 0.0
    """For so long MongoDB can read documents as they were; 0: as drawn."""
    profile: Profile | None = None
    """The version of MongoDB; None: 6.0 or 7.0, as drawn."""
    wide_share: float = 0.0
    """The share of them that copy a database."""
    drop_share: float = 0.0
    """The share of the changes to the copied collection that drop it, or that rename it; 0: as usual."""
    crews: bool = False
    """Crews work in the place of the first users."""
    letters: bool = False
    """There is a collection for dead letters."""
    sick_share: float = 0.1
    """The share of events that fail, in some crews."""
    deadly_share: float = 0.0
    """The share of events that end the process of a member."""
    think_s: float = 0.0
    """The longest time that a member takes for an event; 0: as drawn."""


SCENARIOS: Final = {
    "takeover": Scenario(("takeover", "connections cut", "takeover", "network silent")),
    "clients closed": Scenario(("client closed", "server killed", "client closed", "client closed")),
    "Redis unavailable at a drain": Scenario(("server drained without Redis",) * 4),
    "killed while opening": Scenario(("user killed while opening",) * 6),
    "another program": Scenario(("another program opens",) * 3),
    "lost and created again": Scenario(("lost subscription created again",) * 2),
    "late takeover": Scenario(("late takeover",) * 3),
    "late commands": Scenario(("cut while Redis is slow", "server killed") * 2),
    "Redis fails over": Scenario(("Redis fails over",) * 4),
    "Redis's clock steps": Scenario(
        ("Redis's clock steps", "takeover", "Redis's clock steps", "another program opens")
    ),
    "subscription deleted": Scenario(("subscription deleted", "Redis loses everything", "subscription deleted")),
    "protocol broken": Scenario(("protocol broken",) * 8),
    "a newer version": Scenario(("a newer version beside",) * 5),
    "many subscriptions": Scenario(("many subscriptions",)),
    "unusual pipelines": Scenario(("unusual pipelines",) * 8),
    "a subscription is damaged": Scenario(("a subscription is damaged",) * 4),
    "slow pipelines": Scenario(("slow pipelines",) * 3, pipelines=True),
    "hostile requests": Scenario(("hostile requests",) * 5),
    "a subscription expires": Scenario(("a subscription expires",), unused_s=300.0),
    "an operator": Scenario(("an operator ends sessions",) * 4),
    "grants change": Scenario(("grants change",) * 3),
    "position keys rotate": Scenario(("position keys rotate", "connections cut") * 4),
    "seek": Scenario(("seek", "connections cut", "seek", "network silent", "seek")),
    "history lost": Scenario(("history lost",) * 2),
    "MongoDB restored": Scenario(("MongoDB restored", "connections cut", "MongoDB restored"), drawn=1),
    "group restored": Scenario(
        ("MongoDB restored", "host killed", "MongoDB restored"), crews=True, sick_share=0.4, think_s=5.0, drawn=1
    ),
    "a slowed tenant": Scenario(one_is_slowed=True),
    "history left unread": Scenario(("history left unread", "connections cut", "user killed"), slots=1),
    "snapshot": Scenario(copiers=3, drawn=4),
    "snapshot too old": Scenario(("user frozen", "reads fail"), copiers=2, snapshot_window_s=0.1),
    "snapshot of dropped": Scenario(("connections cut", "reads fail"), copiers=2, drop_share=0.15),
    "MongoDB 8.0": Scenario(("connections cut", "user killed", "reads fail"), profile=MONGO_8, drawn=1),
    "MongoDB 8.2": Scenario(("connections cut", "reads fail"), profile=MONGO_8_2, copiers=1, drawn=1),
    "feature version changes": Scenario(("feature version changes",) * 3, profile=MONGO_8_2, copiers=1),
    "MongoDB 9.0.1": Scenario(("connections cut", "reads fail"), profile=MONGO_9, copiers=2, drawn=1),
    "an idle shard": Scenario(("connections cut", "user killed"), profile=IDLE_SHARD),
    "copies share a slot": Scenario(("connections cut", "user killed"), copiers=2, slots=1, wide_share=0.5),
    "snapshot of a database": Scenario(copiers=2, drawn=3, wide_share=1.0),
    "snapshot again": Scenario(
        ("history lost of a copy", "connections cut", "history lost of a copy", "user killed"),
        copiers=2,
        copies_again=True,
    ),
    "snapshot again and killed": Scenario(("killed after a loss",) * 4, copiers=2, copies_again=True),
    "snapshot restored": Scenario(
        ("MongoDB restored", "connections cut", "MongoDB restored"), copiers=2, only_copies=True, copies_again=True
    ),
    "short of memory": Scenario(("user frozen", "connections cut", "reads fail"), short_of_memory=True),
    "group": Scenario(crews=True, letters=True, deadly_share=0.01, drawn=4),
    "group hosts killed": Scenario(
        ("host killed", "host killed", "server drained", "host killed", "host killed"), crews=True, think_s=60.0
    ),
    "group changed": Scenario(("group changed", "connections cut") * 3, crews=True, think_s=60.0),
    "poison": Scenario(("connections cut", "user killed"), crews=True, letters=True, deadly_share=0.1),
    "letters away": Scenario(("letters unavailable", "server killed", "letters unavailable"), crews=True, letters=True),
    "quarantine": Scenario(
        ("letters replayed", "letters discarded", "letters replayed", "server killed", "letters replayed") * 2,
        crews=True,
        letters=True,
        sick_share=0.4,
        deadly_share=0.01,
        drawn=1,
    ),
    "hosts killed in a replay": Scenario(
        ("host killed in a replay",) * 3, crews=True, letters=True, sick_share=0.4, think_s=30.0
    ),
    "keys released late": Scenario(
        ("keys released late",) * 3, crews=True, letters=True, sick_share=0.4, deadly_share=0.01
    ),
    "group to session and back": Scenario(("a session meanwhile", "connections cut") * 2, crews=True, letters=True),
    "mixed": Scenario(),  # as drawn by `_mixed`
}

_NOT_MIXED: Final = ("many subscriptions", "slow pipelines", "unusual pipelines", "a subscription expires")
"""What these faults show needs a run in which nothing else happens."""


def scenario_of(name: str, seed: int) -> Scenario | None:
    """The scenario of a run; None if it has no name: then everything is drawn, but no fault that is apart."""
    if name == "mixed":
        return _mixed(Random(f"mixed {seed}"))
    return SCENARIOS[name] if name else None


def _mixed(rng: Random) -> Scenario:
    """Any faults beside each other, and any of what the other scenarios choose."""
    crews, letters = rng.random() < 0.6, rng.random() < 0.5
    copiers, copies_again = rng.choice((0, 0, 1, 2)), rng.random() < 0.5
    short_of_memory = rng.random() < 0.15
    without = set(_NOT_MIXED)
    if letters:
        # Dead letters of a history that MongoDB has lost are delivered again, as docs/runbook.md says.
        without.add("MongoDB restored")
    if short_of_memory:
        # Messages that programs of a tenant do not read take the memory that it reads with.
        without.add("history left unread")
    names = [fault.name for fault in FAULTS if fault.name not in without]
    faults = tuple(rng.choice(names) for _ in range(rng.randint(3, 8)))
    # With an idle shard, each step of a copy takes ten seconds, and the model shows no-op entries that a restore has
    # lost.
    may_idle = not copiers and "MongoDB restored" not in faults
    return Scenario(
        faults,
        short_of_memory=short_of_memory,
        slots=rng.choice((0, 0, 0, 1)),
        copiers=copiers,
        copies_again=copies_again,
        profile=rng.choice((None, None, None, MONGO_8, MONGO_8_2, MONGO_9, IDLE_SHARD if may_idle else None)),
        # To what a sink keeps, a rename that comes again is applied again.
        wide_share=0.0 if copies_again else rng.choice((0.0, 0.5)),
        crews=crews,
        letters=letters,
        sick_share=rng.choice((0.1, 0.4)),
        deadly_share=rng.choice((0.0, 0.01)),
        think_s=rng.choice((0.0, 5.0, 30.0)),
    )
