"""Commits are coalesced, leases renewed, losses restored, rivals fenced."""

import asyncio
import random
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
import pytest_asyncio
from redis.asyncio import Redis

from feedmux_embedded import RedisServer
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.store.committer import Committer
from feedmux_server.store.handle import CommitHandle
from feedmux_server.store.model import CommitOutcome, CommitRequest
from feedmux_server.store.store import SubscriptionStore
from feedmux_server.supervision import Tasks
from tests.integration import servers
from tests.integration.state_support import Clock, Recorder, client, create, place, place_of, running, submit, until


@pytest_asyncio.fixture
async def redis(redis_server: RedisServer) -> AsyncIterator[Redis]:
    async with client(redis_server.url) as redis:
        yield redis


@pytest.fixture
def store(redis: Redis) -> SubscriptionStore:
    return SubscriptionStore(redis, lease_s=30.0)


@pytest.fixture
def tenant() -> str:
    return f"t{uuid.uuid4().hex[:10]}"


async def opened(
    store: SubscriptionStore, committer: Committer, tenant: str, name: str = "s", instance: str = "one"
) -> tuple[CommitHandle, Recorder]:
    stored, lease = await store.leases.open(tenant, name, instance_id=instance, takeover=True)
    recorder = Recorder()
    return committer.attach(lease, stored, recorder), recorder


async def forget(redis: Redis, tenant: str, name: str = "s") -> None:
    await redis.delete(f"feedmux:1:{{{tenant}/{name}}}", f"feedmux:1:names:{{{tenant}}}")


async def test_acks_are_committed_and_confirmed(store: SubscriptionStore, tenant: str) -> None:
    await create(store, tenant, "s")
    async with running(Committer(store.leases, interval_s=0.01)) as committer:
        handle, recorder = await opened(store, committer, tenant)
        for number in range(1, 200):
            submit(handle, number)
            if number % 20 == 0:
                await asyncio.sleep(0.005)
        await until(lambda: recorder.commits[-1:] == [(199, place(199).position)])
        assert recorder.commits == sorted(recorder.commits)
        assert place_of(await store.get(tenant, "s")) == place(199)
        await handle.detach()
    assert not (await store.get(tenant, "s")).active


async def test_an_older_or_equal_place_is_no_news(store: SubscriptionStore, tenant: str) -> None:
    await create(store, tenant, "s", at=9)
    async with running(Committer(store.leases, interval_s=0.01)) as committer:
        handle, recorder = await opened(store, committer, tenant)
        handle.submit(place(9).position, place(9).cluster_time, place(9).order, 0)
        assert handle.waiting is None
        handle.submit(place(4).position, place(4).cluster_time, place(4).order, 1)
        await handle.flush(2.0)
        assert recorder.commits == [(1, place(9).position)]


async def test_commands_do_not_grow_with_the_number_of_acks(redis_factory: Any, tenant: str) -> None:
    """Of the acks that come between two round trips, the last one of each session is sent."""
    server = await redis_factory(persistence=False)
    commands: list[int] = []
    async with client(server.url) as redis:
        store = SubscriptionStore(redis, lease_s=600.0)
        committer = Committer(store.leases, interval_s=0.1)
        handles = []
        for i in range(64):
            await create(store, tenant, f"s{i}")
            handles.append((await opened(store, committer, tenant, f"s{i}"))[0])
        number = 0
        for acks in (1, 1000):
            for _ in range(acks):
                number += 1
                for handle in handles:
                    submit(handle, number)
            before = (await redis.info("commandstats"))["cmdstat_evalsha"]["calls"]
            assert await committer.flush_all(60) == 0
            commands.append((await redis.info("commandstats"))["cmdstat_evalsha"]["calls"] - before)
        for handle in handles:
            await handle.detach()
    assert commands == [64, 64]


async def test_one_pass_is_one_round_trip_for_many(store: SubscriptionStore, redis: Redis, tenant: str) -> None:
    committer = Committer(store.leases, interval_s=0.01)
    pairs = []
    for i in range(50):
        await create(store, tenant, f"s{i}")
        pairs.append(await opened(store, committer, tenant, f"s{i}"))
    for handle, _ in pairs:
        submit(handle, 3)
    before = (await redis.info("commandstats"))["cmdstat_evalsha"]["calls"]
    # All flush at once, as in a drain; the first one's round trip serves all.
    await asyncio.gather(*(handle.flush(2.0) for handle, _ in pairs))
    assert (await redis.info("commandstats"))["cmdstat_evalsha"]["calls"] - before == 50
    assert all(recorder.commits == [(3, place(3).position)] for _, recorder in pairs)
    assert await committer.flush_all(1.0) == 0
    await asyncio.gather(*(handle.detach() for handle, _ in pairs))


async def test_flush_all_without_the_task(store: SubscriptionStore, tenant: str) -> None:
    committer = Committer(store.leases, interval_s=0.01)
    await create(store, tenant, "s")
    handle, recorder = await opened(store, committer, tenant)
    submit(handle, 8)
    assert await committer.flush_all(2.0) == 0
    assert recorder.commits == [(8, place(8).position)]


async def test_leases_are_renewed_without_commits(redis: Redis, tenant: str) -> None:
    store = SubscriptionStore(redis, lease_s=600.0)
    await create(store, tenant, "s")
    clock = Clock()

    async def leased() -> int:
        until_ms = await redis.hget(f"feedmux:1:{{{tenant}/s}}", "lease_until_ms")
        assert until_ms is not None
        return int(until_ms)

    async with running(Committer(store.leases, interval_s=0.01, clock=clock)) as committer:
        handle, recorder = await opened(store, committer, tenant)
        for _ in range(3):
            leased_until = await leased()
            clock.ahead_s += store.leases.rules.renew_after_s
            committer.recheck(tenant, "s")  # renewals are looked for when something wakes the committer

            async def renewed(before: int = leased_until) -> bool:
                return await leased() > before

            await servers.until(renewed)
            assert handle.attached
        assert (recorder.commits, recorder.causes, recorder.available) == ([], [], [])
        await handle.detach()


@pytest.mark.parametrize("cause", ["TAKEOVER", "SEEK", "UPDATE", "DELETE"])
async def test_a_session_learns_why_it_lost(store: SubscriptionStore, tenant: str, cause: str) -> None:
    await create(store, tenant, "s")
    async with running(Committer(store.leases, interval_s=0.01)) as committer:
        handle, recorder = await opened(store, committer, tenant)
        submit(handle, 1)
        await until(lambda: bool(recorder.commits))
        at = place(0)
        match cause:
            case "TAKEOVER":
                await store.leases.open(tenant, "s", instance_id="two", takeover=True)
            case "SEEK":
                await store.seek(tenant, "s", position=at.position, cluster_time=at.cluster_time, order=at.order)
            case "UPDATE":
                await store.update(tenant, "s", definition=b"b", etag="etag-b")
            case "DELETE":
                await store.delete(tenant, "s")
        committer.recheck(tenant, "s")
        await until(lambda: recorder.causes == [cause])
        submit(handle, 2)
        with pytest.raises(FeedmuxError) as caught:
            await handle.flush(60)
        assert caught.value.reason is ErrorReason.FENCED
        assert caught.value.metadata == {"cause": cause}
        await handle.detach()
        assert not handle.attached
        assert recorder.causes == [cause]
        assert recorder.commits == [(1, place(1).position)]
        if cause == "DELETE":
            with pytest.raises(FeedmuxError, match="was deleted"):
                await store.get(tenant, "s")


async def test_an_older_session_of_this_process_is_fenced_at_once(store: SubscriptionStore, tenant: str) -> None:
    await create(store, tenant, "s")
    committer = Committer(store.leases, interval_s=0.01)
    _, first = await opened(store, committer, tenant)
    second, _ = await opened(store, committer, tenant)
    assert first.causes == ["LEASE"], "it is the same instance"
    submit(second, 1)
    await second.flush(1.0)
    await second.detach()


async def test_everything_lost_is_restored_by_live_owners(store: SubscriptionStore, redis: Redis, tenant: str) -> None:
    await create(store, tenant, "idle", at=3)
    await create(store, tenant, "busy", at=3)
    async with running(Committer(store.leases, interval_s=0.01)) as committer:
        idle, idle_recorder = await opened(store, committer, tenant, "idle")
        busy, recorder = await opened(store, committer, tenant, "busy")
        submit(busy, 10)
        await busy.flush(1.0)
        before = await store.get(tenant, "busy")
        await forget(redis, tenant, "idle")
        await forget(redis, tenant, "busy")
        submit(busy, 11)
        committer.recheck(tenant, "idle")
        await until(lambda: recorder.commits[-1] == (11, place(11).position))
        after = await store.get(tenant, "busy")
        assert (after.epoch, after.definition, after.create_ms) == (
            before.epoch,
            before.definition,
            before.create_ms,
        )
        assert place_of(await store.get(tenant, "idle")) == place(3)
        assert [s.name for s in (await store.list(tenant, page_size=9))[0]] == ["busy", "idle"]
        assert recorder.causes == idle_recorder.causes == []
        _, lease = await store.leases.open(tenant, "busy", instance_id="one")
        assert lease.epoch > before.epoch
        await idle.detach()
        await busy.detach()


async def test_an_owner_that_was_away_too_long_does_not_bring_back(redis: Redis, tenant: str) -> None:
    store, clock = SubscriptionStore(redis, lease_s=1.0, tombstone_s=60.0), Clock()
    await create(store, tenant, "s")
    committer = Committer(store.leases, interval_s=0.01, clock=clock)
    handle, recorder = await opened(store, committer, tenant)
    await forget(redis, tenant)
    clock.ahead_s = 31.0
    submit(handle, 1)
    with pytest.raises(FeedmuxError):
        await handle.flush(60)
    assert recorder.causes == ["LEASE"]
    with pytest.raises(FeedmuxError, match="no subscription"):
        await store.get(tenant, "s")


async def test_a_lapsed_owner_goes_on_when_nobody_came(store: SubscriptionStore, tenant: str) -> None:
    clock = Clock()
    await create(store, tenant, "s")
    committer = Committer(store.leases, interval_s=0.01, clock=clock)
    handle, _ = await opened(store, committer, tenant)
    clock.ahead_s = 31.0
    submit(handle, 1)
    await handle.flush(60)
    assert handle.confirmed_s >= 31.0
    await handle.detach()


async def test_a_listener_that_fails_and_a_key_of_another_type_stop_nobody_else(
    store: SubscriptionStore, redis: Redis, tenant: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(Recorder):
        def committed(self, delivery_sequence: int, position: bytes) -> None:
            raise RuntimeError("a defect")

    for name in ("bad", "odd", "good"):
        await create(store, tenant, name)
    async with running(Committer(store.leases, interval_s=0.01)) as committer:
        stored, lease = await store.leases.open(tenant, "bad", instance_id="i")
        bad = committer.attach(lease, stored, Failing())
        odd, odd_recorder = await opened(store, committer, tenant, "odd")
        good, recorder = await opened(store, committer, tenant, "good")
        await redis.set(f"feedmux:1:{{{tenant}/odd}}", "x")
        for number in range(1, 4):
            for handle in (bad, odd, good):
                submit(handle, number)
            await until(lambda n=number: recorder.commits[-1:] == [(n, place(n).position)])  # type: ignore[misc]
        # Its owner lives, and stores the whole subscription again.
        await odd.flush(5.0)
        assert place_of(await store.get(tenant, "odd")) == place(3)
        assert odd_recorder.available == recorder.available == []
        assert committer.available
        assert place_of(await store.get(tenant, "bad")) == place(3)
        for handle in (bad, odd, good):
            await handle.detach(0.3)
    assert "a defect" in caplog.text


async def test_sessions_are_told_of_a_pass_that_fails_unexpectedly(
    store: SubscriptionStore, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create(store, tenant, "s")
    committer, plain = Committer(store.leases, interval_s=0.01), store.leases.commit_many

    async def defect(requests: Sequence[CommitRequest]) -> Sequence[CommitOutcome]:
        monkeypatch.setattr(store.leases, "commit_many", plain)
        raise RuntimeError("a defect")

    monkeypatch.setattr(store.leases, "commit_many", defect)
    handle, recorder = await opened(store, committer, tenant)
    async with Tasks() as tasks:
        task = tasks.keep_running("committer", committer.run)
        submit(handle, 1)
        await until(lambda: bool(recorder.commits))
        task.cancel()
    assert recorder.available == [False, True]
    await handle.detach()


async def test_memory_of_an_attached_session_is_gone_after_detach(store: SubscriptionStore, tenant: str) -> None:
    committer = Committer(store.leases, interval_s=0.01)
    await create(store, tenant, "s")
    for number in range(1, 6):
        handle, _ = await opened(store, committer, tenant)
        submit(handle, number)
        await handle.detach()
    assert not list(committer._queue)
    assert not committer._queue._newest
    assert not committer._queue.has_due


async def test_the_task_ends_when_cancelled_at_any_moment(store: SubscriptionStore, tenant: str) -> None:
    """redis-py under a socket timeout swallowed one cancellation in four."""
    await create(store, tenant, "s")
    committer = Committer(store.leases, interval_s=0.0)
    handle, _ = await opened(store, committer, tenant)
    rng, number = random.Random(7), 0

    async def ack() -> None:
        nonlocal number
        while True:
            number += 1
            submit(handle, number)
            await asyncio.sleep(0)

    acks = asyncio.create_task(ack())
    for _ in range(200):
        task = asyncio.create_task(committer.run())
        await asyncio.sleep(rng.random() * 0.003)
        task.cancel()
        done, _ = await asyncio.wait([task], timeout=60)
        assert done
        assert task.cancelled()
    acks.cancel()
    await asyncio.wait([acks])
    await handle.flush(60)
    assert place_of(await store.get(tenant, "s")) == place(number)
    await handle.detach()
