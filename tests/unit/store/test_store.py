"""The store's own decisions: pages, names, histories, what a create repeats, which answer is which error."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.positions.position_keys import PositionKeys
from feedmux_server.core.positions.timeline import Fork, OplogEntry, TimelineRecord
from feedmux_server.store.commands import Argument
from feedmux_server.store.model import CommitRequest, CommitStatus, StoredPlace, StoredSubscription
from feedmux_server.store.scripts import ScriptRunner
from feedmux_server.store.signing_keys import SigningKeys
from feedmux_server.store.store import SubscriptionStore
from feedmux_server.store.timelines import StoredTimelines
from tests.integration.state_support import create, place, place_of
from tests.sim.redis import SimRedisClient
from tests.unit.simulated import sim_redis
from tests.unit.store.store_support import key, redis_and_store
from tests.virtual_time import in_virtual_time


@in_virtual_time
async def test_a_page_holds_so_many_bytes_and_at_least_one_subscription() -> None:
    _, store = redis_and_store()
    for name in "abc":
        await create(store, "t", name, content="x" * 1000)
    for bytes_max, sizes in ((1, [1, 1, 1]), (4_000, [2, 1]), (10_000, [3])):
        found, after = list[int](), ""
        while True:
            page, after = await store.list("t", page_size=10, after=after, bytes_max=bytes_max)
            found.append(len(page))
            if not after:
                break
        assert found == sizes


@in_virtual_time
async def test_every_subscription_comes_once_and_corrects_its_counted_size() -> None:
    redis, store = redis_and_store()
    names = [f"s{number:03}" for number in range(250)]
    for name in names:
        await create(store, "t", name)
    redis.run(("HDEL", key("s100"), "order"))
    damaged: list[str] = []
    found = [each async for each in store.every("t", damaged.append)]
    assert [each.name for each in found] + damaged == [name for name in names if name != "s100"] + ["s100"]
    assert await store.sizes.sums(["t", "nobody"]) == {"t": sum(len(each.definition) for each in found), "nobody": 0}


@in_virtual_time
async def test_one_replica_searches_at_a_time() -> None:
    redis, store = redis_and_store()
    assert [await store.claim_sweep(60.0) for _ in range(2)] == [True, False]
    await asyncio.sleep(60.1)
    assert [await store.claim_sweep(60.0) for _ in range(2)] == [True, False]
    for lasting in (redis.run(("GET", "feedmux:1:sweep")), b"1", b"soon"):
        redis.run(("SET", "feedmux:1:sweep", lasting))  # without an expiry, as after a copy of Redis's data
        await asyncio.sleep(120.1)
        assert [await store.claim_sweep(60.0) for _ in range(2)] == [True, False]


@pytest.mark.parametrize("lag_s", [0.002, 3600.0])
@in_virtual_time
async def test_a_change_that_no_replica_has_is_made_and_not_confirmed(lag_s: float) -> None:
    redis, store = redis_and_store()
    redis.replicas, redis.lag_s = 1, lag_s
    if lag_s < 1:
        assert place_of(await create(store, "t", "s")) == place(0)
        return
    for _ in range(2):
        with pytest.raises(FeedmuxError) as caught:
            await create(store, "t", "s")
        assert caught.value.metadata == {"redis_error": "NOT_REPLICATED"}
    assert place_of(await store.get("t", "s")) == place(0)
    with pytest.raises(FeedmuxError) as caught:
        await create(store, "t", "s", content="b")
    assert caught.value.reason is ErrorReason.SUBSCRIPTION_EXISTS, "a rejection needs no replica"


@in_virtual_time
async def test_a_huge_order_of_an_older_version_is_not_read_whole() -> None:
    """Its beginning sorts before the whole, so the next commit at its time or later is stored."""
    redis, store = redis_and_store()
    await create(store, "t", "s")
    stored, lease = await store.leases.open("t", "s", instance_id="i")
    huge = b"\x80" + b"x" * (1 << 20)
    redis.run(("HSET", key(), "order", huge))
    for found in (await store.get("t", "s"), (await store.list("t", page_size=9))[0][0]):
        assert found.order == huge[:4096]
    later = StoredPlace(b"later", stored.cluster_time, huge[:1024] + b"\xff")
    [outcome] = await store.leases.commit_many([CommitRequest(lease, later, 0)])
    assert (outcome.status, outcome.position) == (CommitStatus.OK, b"later")
    assert redis.hash_of(key().encode())[b"order"] == later.order


Call = Callable[[SubscriptionStore, Any], Awaitable[Any]]

OF_ANOTHER_TYPE: dict[str, tuple[Call, ...]] = {
    "feedmux:1:names:{t}": (
        lambda store, _: store.list("t", page_size=1),
        lambda store, _: create(store, "t", "s"),
        lambda store, _: store.names.remove("t", "s"),
        lambda store, _: store.names.has("t", "s"),
    ),
    "feedmux:1:sizes:{t}": (
        lambda store, _: store.sizes.drop("t", "s"),
        lambda store, _: store.names.remove("t", "s"),
    ),
    "feedmux:1:sweep": (lambda store, _: store.claim_sweep(1.0),),
    "feedmux:1:source:main": (lambda store, _: store.unannounced_s("main"),),
    "feedmux:position-keys": (lambda _, client: SigningKeys(client, PositionKeys()).refresh(),),
    "feedmux:1:timeline:one": (lambda _, client: StoredTimelines(client).read("one"),),
}
"""The calls that meet a key that is not what feedmux writes. Subscriptions themselves are damaged then; the key of the
layout prevents the start."""


@pytest.mark.parametrize("of", OF_ANOTHER_TYPE)
@in_virtual_time
async def test_a_key_of_another_type_is_named_with_the_next_step(of: str, caplog: pytest.LogCaptureFixture) -> None:
    redis, store = redis_and_store()
    client: Any = SimRedisClient(redis)
    is_plain = of.endswith((":sweep", ":source:main", ":position-keys", ":one"))
    redis.run(("HSET", of, "other", 1) if is_plain else ("SET", of, "other"))
    for call in OF_ANOTHER_TYPE[of]:
        with pytest.raises(FeedmuxError) as caught:
            await call(store, client)
        error = caught.value
        assert (error.reason, error.metadata["redis_error"]) == (ErrorReason.STATE_UNAVAILABLE, "WRONGTYPE")
        assert error.message.startswith(f"{of} in Redis holds something")
        assert "DEL" in error.message
        assert f"on {of}: WRONGTYPE" in caplog.text
    redis.run(("DEL", of))
    for call in OF_ANOTHER_TYPE[of]:
        await call(store, client)


@in_virtual_time
async def test_a_name_without_a_subscription_is_skipped_and_removed() -> None:
    redis, store = redis_and_store()
    for name in "abcdef":
        await create(store, "t", name)
    for name in "abde":
        redis.run(("DEL", key(name)))
    await store.names.add("t", "zz")
    page, after = await store.list("t", page_size=2)
    assert ([s.name for s in page], after) == (["c", "f"], "")
    assert await store.names.page("t", b"", 9) == [b"c", b"f"]


@in_virtual_time
async def test_what_is_created_while_it_is_deleted_is_listed_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    _, store = redis_and_store()
    await create(store, "t", "s")
    plain, created = ScriptRunner.command, list[StoredSubscription]()

    async def command(self: ScriptRunner, *arguments: Argument) -> Any:
        if arguments[0] == "ZREM" and not created:
            created.append(await create(store, "t", "s", content="longer"))
        return await plain(self, *arguments)

    monkeypatch.setattr(ScriptRunner, "command", command)
    await store.delete("t", "s")
    assert [each.definition for each in (await store.list("t", page_size=9))[0]] == [created[0].definition]
    assert (await store.sizes.sums(["t"]))["t"] == len(created[0].definition)


@in_virtual_time
async def test_names_are_counted_by_tenant() -> None:
    _, store = redis_and_store()
    for name in ("s", "s", "other"):
        await create(store, "t", name)
    assert await store.names.count(["t", "nobody"]) == {"t": 2, "nobody": 0}
    assert [await store.names.has("t", name) for name in ("s", "absent")] == [True, False]


@in_virtual_time
async def test_it_is_stored_by_source_and_replaced_if_it_cannot_be_read(caplog: pytest.LogCaptureFixture) -> None:
    redis, client = sim_redis()
    stored, record = StoredTimelines(client), TimelineRecord(OplogEntry(7, 1), (Fork(3, 5, True),))
    assert await stored.read("one") == TimelineRecord()
    assert await stored.add("one", record) == record
    assert await StoredTimelines(client).read("one") == record
    assert await stored.read("other") == TimelineRecord()
    redis.run(("SET", "feedmux:1:timeline:one", b"\xffgarbage"))
    assert await stored.read("one") == TimelineRecord()
    assert "cannot be read" in caplog.text
    await stored.add("one", record)
    assert await stored.read("one") == record


@in_virtual_time
async def test_servers_that_write_at_the_same_time_lose_nothing_of_each_other() -> None:
    _, client = sim_redis()
    forks = [Fork(10 * n, 10 * n + 5, True) for n in range(1, 6)]
    records = [TimelineRecord(OplogEntry(1_000 + n, 1), (fork,)) for n, fork in enumerate(forks)]
    await asyncio.gather(*(StoredTimelines(client).add("one", record) for record in records))
    found = await StoredTimelines(client).read("one")
    assert (found.forks, found.known in [each.known for each in records]) == (tuple(forks), True)
