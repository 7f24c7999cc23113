"""Leases: who may open a subscription, and what commits and restores send."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.store.committer import Committer
from feedmux_server.store.connection import COMMANDS_MAX
from feedmux_server.store.model import CommitRequest, CommitStatus, FenceCause, RestoreRequest
from tests.integration.state_support import Recorder, commit, create, place, place_of, running, submit
from tests.unit.store.store_support import LEASE_S, key, redis_and_store
from tests.virtual_time import in_virtual_time


@in_virtual_time
async def test_a_commit_does_not_wait_for_calls_that_list(monkeypatch: pytest.MonkeyPatch) -> None:
    redis, store = redis_and_store()
    await create(store, "t", "s")
    _, lease = await store.leases.open("t", "s", instance_id="one")
    await commit(store, lease, 1)
    run, commands = redis.run, list[tuple[Any, ...]]()

    def noting(command: tuple[Any, ...]) -> Any:
        commands.append(command)
        return run(command)

    monkeypatch.setattr(redis, "run", noting)
    lists = [asyncio.create_task(store.list("t", page_size=1)) for _ in range(200)]
    await asyncio.sleep(1e-6)
    assert (await commit(store, lease, 2)).status is CommitStatus.OK
    await asyncio.gather(*lists)
    [turn] = [number for number, command in enumerate(commands) if lease.nonce in command]
    assert turn < 2 * COMMANDS_MAX


@in_virtual_time
async def test_a_name_that_cannot_be_listed_leaves_no_lease_that_nobody_holds(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fails(*_: str) -> None:
        raise FeedmuxError(ErrorReason.STATE_UNAVAILABLE, "Redis does not answer in time")

    _, store = redis_and_store()
    await create(store, "t", "s")
    monkeypatch.setattr(store.names, "add", fails)
    _, lease = await store.leases.open("t", "s", instance_id="one")
    assert (await commit(store, lease, 1)).status is CommitStatus.OK
    assert "tenant=t subscription=s: Redis does not answer in time" in caplog.text


@pytest.mark.parametrize("by", ["open", "restore"])
@in_virtual_time
async def test_a_lost_name_is_listed_again(by: str) -> None:
    redis, store = redis_and_store()
    await create(store, "t", "s")
    stored, lease = await store.leases.open("t", "s", instance_id="one")
    redis.run(("DEL", "feedmux:1:names:{t}"))
    if by == "restore":
        redis.run(("DEL", key()))
        await store.leases.restore_many([RestoreRequest(lease, stored)])
    else:
        await store.leases.open("t", "s", instance_id="one")
    assert [each.name for each in (await store.list("t", page_size=9))[0]] == ["s"]


@in_virtual_time
async def test_a_lease_of_a_clock_that_was_ahead_lasts_no_longer_than_any_other() -> None:
    redis, store = redis_and_store()
    await create(store, "t", "s")
    redis.ahead_s = 3600.0
    with suppress(FeedmuxError):  # the first call only learns the clock
        await store.leases.open("t", "s", instance_id="one")
    redis.ahead_s = 0.0
    with pytest.raises(FeedmuxError) as caught:
        await store.leases.open("t", "s", instance_id="two")
    assert caught.value.reason is ErrorReason.SUBSCRIPTION_BUSY
    await asyncio.sleep(LEASE_S + 1.0)
    assert (await store.leases.open("t", "s", instance_id="two"))[0].active


@in_virtual_time
async def test_why_a_session_ended_for_good_is_not_hidden_by_what_came_later() -> None:
    """The session would else continue: after a takeover, or on a subscription that was created again."""
    _, store = redis_and_store()
    leases = store.leases
    await create(store, "t", "s")
    _, taken = await leases.open("t", "s", instance_id="a")
    _, second = await leases.open("t", "s", instance_id="b", takeover=True)
    await leases.release(second)
    _, late = await leases.open("t", "s", instance_id="b")  # an abandoned call of the same client
    await leases.release(late)
    await store.seek("t", "s", position=b"p", cluster_time=1 << 32, order=b"o")
    await store.update("t", "s", definition=b"d", etag="e")
    outcomes = [await commit(store, each, None) for each in (taken, second, late)]
    assert [each.cause for each in outcomes] == [FenceCause.TAKEOVER, FenceCause.SEEK, FenceCause.SEEK]
    _, deleted = await leases.open("t", "s", instance_id="a")
    # No takeover ends a group for good.
    as_each = await leases.commit_many([CommitRequest(second, None, 0, members=each) for each in (None, 1)])
    assert [each.cause for each in as_each] == [FenceCause.TAKEOVER, FenceCause.SEEK]
    await store.delete("t", "s")
    await create(store, "t", "s", content="b")
    _, third = await leases.open("t", "s", instance_id="c")
    await leases.release(third)
    assert [(await commit(store, each, None)).cause for each in (taken, deleted)] == [FenceCause.DELETE] * 2


@pytest.mark.parametrize("lost", ["a commit", "a move back", "a commit before a move back"])
@in_virtual_time
async def test_a_session_stores_its_position_again_if_redis_has_lost_the_last_commit(lost: str) -> None:
    """As by a failover: the epoch is the session's, so Redis misses nothing."""
    redis, store = redis_and_store()
    await create(store, "t", "s", at=50)
    async with running(Committer(store.leases, interval_s=0.02)) as committer:
        stored, lease = await store.leases.open("t", "s", instance_id="one")
        recorder = Recorder()
        handle = committer.attach(lease, stored, recorder)
        before = redis.run(("HGETALL", key()))
        at = place(10 if lost == "a move back" else 60)
        handle.submit(at.position, at.cluster_time, at.order, 1, moves_back=lost == "a move back")
        await handle.flush(1.0)
        redis.run(("HSET", key(), *before))
        assert (await store.get("t", "s")).position == place(50).position
        if lost == "a commit":
            await asyncio.sleep(LEASE_S)  # a renewal
        else:
            at = place(12)  # a later ack, or an earlier position
            handle.submit(at.position, at.cluster_time, at.order, 2, moves_back=lost == "a commit before a move back")
            await handle.flush(1.0)
        assert (await store.get("t", "s")).position == at.position
        assert all(position != place(50).position for _, position in recorder.commits)


@in_virtual_time
async def test_a_move_back_that_redis_runs_late_undoes_no_later_commit() -> None:
    """The connection of an abandoned call may deliver it after the second try, and after what came then."""
    _, store = redis_and_store()
    await create(store, "t", "s", at=50)
    async with running(Committer(store.leases, interval_s=0.02)) as committer:
        stored, lease = await store.leases.open("t", "s", instance_id="one")
        handle = committer.attach(lease, stored, Recorder())
        back = place(10)
        handle.submit(back.position, back.cluster_time, back.order, 1, moves_back=True)
        late = handle.request()
        await handle.flush(1.0)
        submit(handle, 20)
        await handle.flush(1.0)
        await store.leases.commit_many([late])
        assert (await store.get("t", "s")).position == place(20).position


@pytest.mark.parametrize("lost", ["everything", "the lease", "the last commit", "nothing"])
@in_virtual_time
async def test_a_session_that_ends_restores_what_redis_has_lost(lost: str) -> None:
    """It is the last that knows it."""
    redis, store = redis_and_store()
    await create(store, "t", "s")
    created = redis.run(("HGETALL", key()))
    async with running(Committer(store.leases, interval_s=0.02)) as committer:
        stored, lease = await store.leases.open("t", "s", instance_id="one")
        opened = redis.run(("HGETALL", key()))
        handle = committer.attach(lease, stored, Recorder())
        submit(handle, 3)
        await handle.flush(1.0)
        match lost:
            case "everything":
                redis.lose_everything()
            case "the lease":
                redis.run(("HSET", key(), *created))
            case "the last commit":
                redis.run(("HSET", key(), *opened))
        await handle.detach()
        found = await store.get("t", "s")
        assert (place_of(found), found.active) == (place(3), False)
        assert [each.name for each in (await store.list("t", page_size=9))[0]] == ["s"]


@in_virtual_time
async def test_a_session_that_ends_does_not_bring_back_what_was_deleted() -> None:
    _, store = redis_and_store()
    await create(store, "t", "s")
    async with running(Committer(store.leases, interval_s=LEASE_S / 3)) as committer:
        stored, lease = await store.leases.open("t", "s", instance_id="one")
        handle = committer.attach(lease, stored, Recorder())
        await store.delete("t", "s")
        await handle.detach()
        with pytest.raises(FeedmuxError, match="was deleted"):
            await store.get("t", "s")
