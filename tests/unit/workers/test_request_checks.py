"""Pipelines are checked once; large ones elsewhere than on the event loop.

tests/integration/test_request_checks.py tests the process that checks them.
"""

import asyncio
from typing import cast

import bson
import pytest

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.feeds.feed_check import FeedParts
from feedmux_server.workers import check_worker
from feedmux_server.workers.request_checks import ANSWER_TIMEOUT_S, INLINE_BYTES, KnownVerdicts, RequestChecks, Verdict
from feedmux_server.workers.side_process import SideProcesses, SideProcessFailed
from feedmux_server.workers.side_worker import Answer

LARGE = bson.encode({"pipeline": [{"$match": {"a": "x" * INLINE_BYTES}}]})
REJECTED = bson.encode({"pipeline": [{"$out": "x" * INLINE_BYTES}]})


class Process:
    """Answers as the process would, or dies."""

    held_bytes = 0

    def __init__(self, dies: bool) -> None:
        self.asked = 0
        self._dies = dies

    async def ask(self, request: bytes) -> Answer:
        self.asked += 1
        await asyncio.sleep(0)
        if self._dies:
            raise SideProcessFailed
        return check_worker.answer(request)

    async def close(self) -> None: ...


def checks(*, dies: bool = False) -> tuple[RequestChecks, Process]:
    process = Process(dies)
    return RequestChecks(cast(SideProcesses, lambda *_: process)), process


async def test_small_pipelines_need_no_process_and_large_ones_are_checked_once() -> None:
    made, process = checks()
    small = bson.encode({"pipeline": [{"$match": {"a": 1}}]})
    assert await made.check(FeedParts(small), "a", lambda _: None) == small
    assert process.asked == 0
    for _ in range(2):
        together = [made.check(FeedParts(LARGE), "a", lambda _: None) for _ in range(3)]
        assert await asyncio.gather(*together) == [LARGE] * 3
    assert process.asked == 1
    await made.check(FeedParts(LARGE), "b", lambda _: None)
    assert process.asked == 2, "a verdict is the tenant's alone"
    await made.close()


async def test_a_remembered_rejection_is_a_new_error_each_time() -> None:
    made, process = checks()
    errors = []
    for _ in range(2):
        with pytest.raises(FeedmuxError) as caught:
            await made.check(FeedParts(REJECTED), "a", lambda _: None)
        errors.append(caught.value)
    assert errors[0] is not errors[1]
    assert [each.reason for each in errors] == [ErrorReason.STAGE_NOT_ALLOWED] * 2
    assert process.asked == 1
    await made.close()


async def test_a_check_over_which_the_process_dies_is_charged_and_not_remembered() -> None:
    made, process = checks(dies=True)
    charged: list[float] = []
    for _ in range(2):
        with pytest.raises(SideProcessFailed):
            await made.check(FeedParts(LARGE), "a", charged.append)
    assert (process.asked, charged, made.held_bytes) == (2, [2 * ANSWER_TIMEOUT_S] * 2, 0)
    await made.close()


def test_remembered_verdicts_are_bounded_for_each_tenant_and_in_all() -> None:
    size = Verdict(b"x" * 1000).size
    known = KnownVerdicts(10 * size, 4 * size)
    for number in range(6):
        known.put(b"a%d" % number, "a", Verdict(b"x" * 1000))
        known.get(b"a0")
    assert [known.get(b"a%d" % number) is not None for number in range(6)] == [True, False, False, True, True, True]
    for tenant in "bcd":
        for number in range(4):
            known.put(b"%s%d" % (tenant.encode(), number), tenant, Verdict(b"x" * 1000))
    assert known.size == 10 * size
    assert known.get(b"a0") is None
    known.put(b"e", "e", Verdict(b"x" * 100_000))
    assert known.get(b"e") is None
