"""Commits on a real Redis share round trips, and no defect, key or cancellation stops those of others."""

import asyncio
import random
from collections.abc import Sequence

import pytest
from redis.asyncio import Redis

from feedmux_server.store.committer import Committer
from feedmux_server.store.handle import CommitHandle
from feedmux_server.store.model import CommitOutcome, CommitRequest
from feedmux_server.store.store import SubscriptionStore
from feedmux_server.supervision import Tasks
from tests.integration.state_support import Recorder, create, place, place_of, running, submit, until


async def opened(
    store: SubscriptionStore, committer: Committer, tenant: str, name: str = "s", instance: str = "one"
) -> tuple[CommitHandle, Recorder]:
    stored, lease = await store.leases.open(tenant, name, instance_id=instance, takeover=True)
    recorder = Recorder()
    return committer.attach(lease, stored, recorder), recorder


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
