"""Commands and scripts: none waits longer than its limit, and one that comes too late undoes no later change."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.store.commands import Commands
from feedmux_server.store.connection import COMMANDS_MAX
from feedmux_server.store.model import CommitRequest, CommitStatus, StoredPlace
from feedmux_server.store.scripts import Answer, ScriptCall, ScriptRunner
from feedmux_server.store.store import SubscriptionStore
from feedmux_server.store.store_scripts import StoreScripts
from feedmux_server.telemetry.observer import NOBODY
from tests.sim.redis import SimRedis
from tests.unit.simulated import sim_redis
from tests.virtual_time import in_virtual_time

LATE_S = 8.0
"""Longer than a caller waits."""

Change = Callable[[SubscriptionStore], Awaitable[object]]

CHANGES: dict[str, Change] = {
    "create": lambda store: store.create(
        "t", "other", definition=b"d", etag="e", position=b"p", cluster_time=1, order=b""
    ),
    "open": lambda store: store.leases.open("t", "s", instance_id="one", takeover=True),
    "update": lambda store: store.update("t", "s", definition=b"new", etag="new"),
    "seek": lambda store: store.seek("t", "s", position=b"sought", cluster_time=1, order=b""),
    "delete": lambda store: store.delete("t", "s"),
}


async def made() -> tuple[SimRedis, SubscriptionStore]:
    """A Redis with the subscription `s`; a command takes two milliseconds each way."""
    redis, client = sim_redis()
    redis._rng.uniform = lambda a, b: b  # type: ignore[method-assign]
    store = SubscriptionStore(client, lease_s=15.0)
    await store.create("t", "s", definition=b"d", etag="e", position=b"p", cluster_time=5, order=b"")
    return redis, store


async def given_up(redis: SimRedis, call: Awaitable[object]) -> None:
    """Make the call reach Redis only after its caller has given up."""
    redis.slow_s = LATE_S
    with pytest.raises(FeedmuxError) as caught:
        await call
    redis.slow_s = 0.0
    assert caught.value.reason is ErrorReason.STATE_UNAVAILABLE


@pytest.mark.parametrize("name", CHANGES)
@in_virtual_time
async def test_a_late_change_is_not_made(name: str) -> None:
    redis, store = await made()
    before = redis.hash_of(b"feedmux:1:{t/s}").copy()
    await given_up(redis, CHANGES[name](store))
    ran = redis.commands
    await asyncio.sleep(LATE_S)
    assert redis.commands > ran  # it has arrived
    assert redis.hash_of(b"feedmux:1:{t/s}") == before
    assert not redis.hash_of(b"feedmux:1:{t/other}")
    await CHANGES[name](store)


@in_virtual_time
async def test_a_late_open_does_not_end_the_session_that_was_opened_after_it() -> None:
    redis, store = await made()
    await given_up(redis, store.leases.open("t", "s", instance_id="one"))
    _, lease = await store.leases.open("t", "s", instance_id="one")
    await asyncio.sleep(LATE_S)
    [outcome] = await store.leases.commit_many([CommitRequest(lease, StoredPlace(b"q", 6, b""), 0)])
    assert outcome.status is CommitStatus.OK


@pytest.mark.parametrize("ahead_s", [-3600.0, 3600.0])
@in_virtual_time
async def test_the_clock_of_another_redis_is_learned(ahead_s: float) -> None:
    """The clock may change after a failover, for example."""
    redis, store = await made()
    redis.ahead_s = ahead_s
    _, lease = await store.leases.open("t", "s", instance_id="one")
    await given_up(redis, store.seek("t", "s", position=b"sought", cluster_time=1, order=b""))
    await asyncio.sleep(LATE_S)
    [outcome] = await store.leases.commit_many([CommitRequest(lease, StoredPlace(b"q", 6, b""), 0)])
    assert outcome.status is CommitStatus.OK


TIMEOUT_S = 3.0


class Answers:
    """Gives these answers in turn, and notes the deadlines of the calls."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.deadlines: list[int] = []

    async def __call__(self, call: ScriptCall) -> tuple[Answer, bool]:
        deadline = call.arguments[-1]
        assert isinstance(deadline, int)
        self.deadlines.append(deadline)
        return self.answers.pop(0), True


def scripts() -> StoreScripts:
    redis: Any = None
    return StoreScripts(redis, "prefix", TIMEOUT_S, NOBODY, lambda _: True)


@in_virtual_time
async def test_a_clock_that_runs_away_is_an_unavailable_redis() -> None:
    redis = Answers([b"LATE", b"50000"], [b"LATE", b"90000"], [b"OK"])
    with pytest.raises(FeedmuxError) as caught:
        await scripts().in_time(redis, "seek", "t", "s")
    assert (caught.value.status, caught.value.metadata) == ("UNAVAILABLE", {"redis_error": "TIMEOUT"})
    assert len(redis.answers) == 1, "not sent a third time"


SIZES = [ScriptCall("size", f"sizes:{tenant}", ("s", number, 1000)) for number, tenant in enumerate("abc", 1)]


def redis_and_runner() -> tuple[SimRedis, ScriptRunner]:
    redis, client = sim_redis()
    return redis, ScriptRunner(client, timeout_s=3.0)


@in_virtual_time
async def test_scripts_are_sent_whole_only_to_a_redis_that_does_not_know_them() -> None:
    (redis, scripts), commands = redis_and_runner(), []
    for _ in range(2):
        for _ in range(2):
            before = redis.commands
            assert await scripts.run_many(SIZES) == [[b"OK"]] * 3
            commands.append(redis.commands - before)
        redis.restart()
    assert commands == [6, 3, 6, 3]
    await scripts.run(SIZES[0])
    before = redis.commands
    await scripts.run_many([*SIZES, ScriptCall("get", "absent")])
    assert redis.commands - before == 5
    assert [redis.hash_of(call.key.encode())[b"s"] for call in SIZES] == [b"1", b"2", b"3"]


@in_virtual_time
async def test_a_key_of_another_type_fails_alone(caplog: pytest.LogCaptureFixture) -> None:
    redis, scripts = redis_and_runner()
    redis.run(("SET", SIZES[1].key, "canary"))
    answers = await scripts.run_many(SIZES)
    assert [isinstance(answer, Exception) for answer in answers] == [False, True, False]
    with caplog.at_level(logging.ERROR), pytest.raises(FeedmuxError) as caught:
        await scripts.run(SIZES[1])
    assert caught.value.status == "UNAVAILABLE"
    assert "redis refused script size" in caplog.text
    assert "canary" not in caplog.text + caught.value.message


@in_virtual_time
async def test_plain_commands_fail_together() -> None:
    redis, scripts = redis_and_runner()
    redis.run(("SET", "plain", "x"))
    with pytest.raises(FeedmuxError):
        await scripts.commands([("GET", "plain"), ("HGET", "plain", "x")])


class FrozenRedis:
    """A client of a server that accepts connections and answers nothing."""

    def __init__(self) -> None:
        self.waiting = 0
        self.waiting_most = 0

    @asynccontextmanager
    async def pipeline(self, *, transaction: bool) -> AsyncIterator["FrozenRedis"]:
        assert not transaction
        self.waiting += 1
        self.waiting_most = max(self.waiting_most, self.waiting)
        try:
            yield self
        finally:
            self.waiting -= 1

    def execute_command(self, *command: Any) -> None: ...

    async def execute(self, *, raise_on_error: bool) -> list[Any]:
        await asyncio.get_running_loop().create_future()
        raise AssertionError("it answered")


@in_virtual_time
async def test_many_calls_of_a_frozen_redis_end_together_at_the_time_limit() -> None:
    redis: Any = FrozenRedis()
    commands = Commands(redis, timeout_s=TIMEOUT_S)
    loop = asyncio.get_running_loop()

    async def call() -> float:
        with pytest.raises(FeedmuxError) as caught:
            await commands.run([("GET", "key")])
        assert (caught.value.reason, caught.value.metadata) == (
            ErrorReason.STATE_UNAVAILABLE,
            {"redis_error": "TIMEOUT"},
        )
        return loop.time()

    assert set(await asyncio.gather(*(call() for _ in range(100)))) == {TIMEOUT_S}
    assert (redis.waiting, redis.waiting_most) == (0, COMMANDS_MAX)
