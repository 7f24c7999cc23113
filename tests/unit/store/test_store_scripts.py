"""A script with a deadline is sent again once, when Redis's clock turns out to be another one."""

from typing import Any

import pytest

from feedmux_server.core.errors import FeedmuxError
from feedmux_server.store.scripts import Answer, ScriptCall
from feedmux_server.store.store_scripts import StoreScripts
from feedmux_server.telemetry.observer import NOBODY
from tests.virtual_time import in_virtual_time

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
async def test_the_clock_is_learned_from_the_first_answer() -> None:
    redis, store = Answers([b"LATE", b"50000"], [b"OK", b"50000", b"x"], [b"OK", b"50000", b"x"]), scripts()
    for _ in range(2):
        answer, _ = await store.in_time(redis, "seek", "t", "s")
        assert answer[0] == b"OK"
    assert redis.deadlines == [0, 53_000, 53_000]


@in_virtual_time
async def test_a_clock_that_runs_away_is_an_unavailable_redis() -> None:
    redis = Answers([b"LATE", b"50000"], [b"LATE", b"90000"], [b"OK"])
    with pytest.raises(FeedmuxError) as caught:
        await scripts().in_time(redis, "seek", "t", "s")
    assert (caught.value.status, caught.value.metadata) == ("UNAVAILABLE", {"redis_error": "TIMEOUT"})
    assert len(redis.answers) == 1, "not sent a third time"


@in_virtual_time
async def test_an_answer_without_a_time_teaches_nothing() -> None:
    redis, store = Answers([b"NOT_FOUND"], [b"OK"]), scripts()
    for _ in range(2):
        await store.in_time(redis, "seek", "t", "s")
    assert redis.deadlines == [0, 0]
    assert store.key("t", "s") == "prefix:{t/s}", "the braces keep a subscription's keys on one node of a cluster"
